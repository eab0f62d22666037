#!/usr/bin/env bash
# Looks up every locked dependency in the OSV database of vulnerabilities. Fails over a finding; says so and passes where
# the database, or uv, is out of reach: a build without a network tells nothing about dependencies, and must still work.
# A finding that does not concern us is left out with `uv audit --ignore`, here, with the reason beside it.
set -uo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
  echo "audit: uv is not here, so nothing was looked up" >&2
  exit 0
fi
# What users run: no test tools and no documentation.
answer=$(UV_HTTP_RETRIES="${UV_HTTP_RETRIES:-1}" uv audit --preview-features audit-command --frozen --no-dev "$@" 2>&1)
code=$?
case $code in
  0) echo "audit: no known vulnerability in the locked dependencies" ;;
  1) echo "$answer" >&2; echo "audit: a locked dependency has known vulnerabilities: raise it with \`uv lock -P NAME\`" >&2 ;;
  *)
    if grep -q "error sending request" <<<"$answer"; then
      echo "audit: the database cannot be reached, so nothing was looked up" >&2
      code=0
    else
      echo "$answer" >&2
    fi
    ;;
esac
exit $code
