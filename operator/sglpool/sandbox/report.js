// A pointer over any chart: a line at that moment in all of them, and its figures at the bottom of the window.
const data = JSON.parse(document.getElementById("figures").textContent);
const readout = document.getElementById("readout");
const charts = [...document.querySelectorAll("svg.chart")];
const lines = charts.map((chart) => {
  const line = document.createElementNS(chart.namespaceURI, "line");
  line.setAttribute("class", "axis");
  line.setAttribute("y1", 0);
  line.setAttribute("y2", chart.viewBox.baseVal.height);
  line.style.display = "none";
  chart.append(line);
  return line;
});
function show(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * data.width;
  if (x < data.left || x > data.right) return hide();
  const at = ((x - data.left) / (data.right - data.left)) * data.end;
  let near = data.rows[0];
  for (const row of data.rows) if (Math.abs(row[0] - at) < Math.abs(near[0] - at)) near = row;
  for (const line of lines) {
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.style.display = "";
  }
  readout.textContent = near ? near[1] : "";
  readout.style.display = near ? "block" : "none";
}
function hide() {
  for (const line of lines) line.style.display = "none";
  readout.style.display = "none";
}
for (const chart of charts) {
  chart.addEventListener("pointermove", show);
  chart.addEventListener("pointerleave", hide);
}
