#!/usr/bin/env bash
# Makes .venv with everything that the project and its tests need. Run by make; safe to run again.
# uv installs exactly the lock; where there is no uv, pip brings it into .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.sglpool-stamp
if [ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt uv.lock ] && [ "$stamp" -nt system-packages.txt ]; then
  exit 0
fi

# System packages: the commands we need, and the package of each that system-packages.txt names.
missing=()
command -v openssl >/dev/null || missing+=(openssl)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v nsenter >/dev/null || missing+=(util-linux)
command -v valkey-server >/dev/null || command -v redis-server >/dev/null || missing+=(redis-server)
command -v go >/dev/null || [ -n "${KUBEBUILDER_ASSETS:-}" ] || missing+=(golang-go)
install() {
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing system packages: $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null ||
      echo "could not install $*: if a later step fails, install them by hand" >&2
  else
    echo "system packages are missing: $*; install them (system-packages.txt says what for)" >&2
  fi
}
[ "${#missing[@]}" -eq 0 ] || install "${missing[@]}"
# A browser is large, and only for a test that skips without one: CI gets it, people as they like.
if [ -n "${CI:-}" ] && ! command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null; then
  install chromium-headless-shell
fi
# Nor is a Prometheus needed by anything but a test that skips without one.
if [ -n "${CI:-}" ] && ! command -v prometheus >/dev/null; then
  install prometheus
fi

# A name on the path may be a shim that stands for no Python: the first that runs is taken.
find_python() {
  local name
  for name in python3.13 python3.12 python3.11 python3; do
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$name"; return; }
  done
  echo "Python 3.11 or later is needed; found $(python3 -V 2>&1)" >&2
  return 1
}
if ! command -v uv >/dev/null; then
  [ -x .venv/bin/uv ] || { python=$(find_python) && "$python" -m venv .venv && .venv/bin/pip install --quiet uv; }
  PATH="$PWD/.venv/bin:$PATH"
fi
# --inexact: a uv that was installed above is not in the lock, and stays.
uv sync --quiet --frozen --inexact --extra sandbox --extra router --group dev
touch "$stamp"
