# The entry points of the project. `make demo` shows it, `make test` proves it; both install what they need.
BIN := .venv/bin
# Where there is no uv, the bootstrap puts one there.
export PATH := $(PATH):$(CURDIR)/$(BIN)
PYTEST_ARGS ?=

.PHONY: demo docs manifests test test-core test-cluster test-sandbox test-faults check crd crd-check fmt bootstrap clean sbom bench-operator bench-router bench-sandbox bench-balance bench-autoscaler bench-install
.DEFAULT_GOAL := help

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

bootstrap:
	@tools/bootstrap.sh

demo: bootstrap ## Bring up a control plane with fake GPU nodes and watch a pool live and die on it
	@$(BIN)/sglpool sandbox demo

# Tests that need a cluster mostly wait for it, so three rings share two cores. What a ring says comes at its end.
CLUSTER_TESTS := tests/controlplane tests/kind
SANDBOX_TESTS := tests/sandbox/test_demo.py tests/sandbox/cluster tests/sandbox/install tests/sandbox/router tests/observability/live

test: check ## Everything that runs without a container engine
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target test-core test-cluster test-sandbox

test-core: bootstrap ## The tests of `make test` that need no cluster
	$(BIN)/pytest $(PYTEST_ARGS) $(addprefix --ignore=,$(CLUSTER_TESTS) $(SANDBOX_TESTS))

test-cluster: bootstrap ## The tests of `make test` on a real control plane
	$(BIN)/pytest $(PYTEST_ARGS) $(CLUSTER_TESTS)

test-sandbox: bootstrap ## The tests of `make test` on a real control plane with simulated engines
	$(BIN)/pytest $(PYTEST_ARGS) $(SANDBOX_TESTS)

test-faults: bootstrap ## What each fault of a router costs in streams and warm homes
	$(BIN)/pytest -m "faults or not faults" $(addprefix tests/sandbox/router/test_,faults.py rollout.py vanishing.py) $(PYTEST_ARGS)

check: bootstrap crd-check ## Lint, types, import contracts, CRD drift, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@tools/audit.sh

SBOM ?= dist/sbom.cdx.json

sbom: ## Write a bill of materials (CycloneDX) of what users run, from the lock
	@mkdir -p $(dir $(SBOM))
	@uv export --quiet --preview-features sbom-export --frozen --no-dev --extra router --format cyclonedx1.5 --output-file $(SBOM)
	@echo wrote $(SBOM)

crd: bootstrap ## Generate the CRD and the chart's copy
	$(BIN)/sglpool crd > crds/sglpool.io_inferencepools.yaml
	$(BIN)/sglpool crd --chart > charts/sglpool/templates/crds/inferencepools.yaml

manifests: bootstrap ## Render the chart for those without Helm
	$(BIN)/python -m tools.install_manifests

crd-check: bootstrap
	@$(BIN)/sglpool crd | diff -u crds/sglpool.io_inferencepools.yaml - || { echo "the CRD is stale: run make crd" >&2; exit 1; }
	@$(BIN)/sglpool crd --chart | diff -u charts/sglpool/templates/crds/inferencepools.yaml - || { echo "the chart's CRD is stale: run make crd" >&2; exit 1; }

fmt: bootstrap ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: bootstrap ## Build the documentation site in docs/_build
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

bench-operator: bootstrap ## Measure the operator with 1,000 pools against a bare client
	$(BIN)/python -m benchmarks.operator

bench-sandbox: bootstrap ## Measure the simulated engine, sixteen replicas on two cores and the radix cache
	$(BIN)/python -m benchmarks.sandbox

bench-balance: bootstrap ## Simulate the routing policy and its peers; TRACE=file replays recorded sessions as well
	$(BIN)/python -m benchmarks.balance $(if $(TRACE),--trace $(TRACE))

bench-autoscaler: bootstrap ## Simulate days of the autoscaler beside the formulas of HPA and Knative's KPA
	$(BIN)/python -m benchmarks.autoscaler

bench-router: bootstrap ## Measure the router beside SMG and Envoy alone
	$(BIN)/python -m benchmarks.router

bench-install: bootstrap ## Measure `helm install` to operator ready, and a cold start with 500 pools
	$(BIN)/python -m benchmarks.install

clean: ## Remove what make made, except the cache of control-plane binaries
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .sandbox dist docs/_build
