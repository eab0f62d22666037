"""What Envoy shows of itself, and what of a request's identity it passes on."""

from __future__ import annotations

from collections.abc import Callable

from contract.envoy.conftest import Router

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"messages": [{"role": "user", "content": "hello"}]}


def test_a_scrape_finds_counts_of_requests_and_nothing_else_of_the_admin(router: Router):
    envoy = router.envoy
    assert envoy.request(body=BODY).status == 200
    text = envoy.request("GET", "/metrics", port=envoy.health_port).body.decode()
    assert (
        'envoy_http_downstream_rq_xx{envoy_response_code_class="2",envoy_http_conn_manager_prefix="serving"} 1' in text
    )
    assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="engines"} 1' in text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len(families) < 40, families
    for method, path in (("POST", "/metrics"), ("GET", "/stats"), ("GET", "/clusters"), ("POST", "/quitquitquit")):
        assert envoy.request(method, path, port=envoy.health_port).status == 404, (method, path)


def test_one_id_of_a_request_from_client_to_engine_and_back(router: Router):
    sent = {"x-request-id": "agent-7-turn-12", "traceparent": TRACE, "tracestate": "vendor=1"}
    reply = router.envoy.request(body=BODY, headers=sent)
    seen = router.a.seen[-1].headers
    assert {name: seen[name] for name in sent} == sent
    assert reply.headers["x-request-id"] == sent["x-request-id"]


def test_a_request_without_an_id_gets_one(make_router: Callable[..., Router]):
    router = make_router(engines=1)
    reply = router.envoy.request(body=BODY)
    assert reply.headers["x-request-id"] == router.a.seen[-1].headers["x-request-id"] != ""
