SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PEERS_VENV := .venv-peers
PEERS_READY := $(PEERS_VENV)/.ready
RELEASE_VENV := .venv-release
RELEASE_READY := $(RELEASE_VENV)/.ready
# Most tests wait for real processes: each of three has servers of its own, and two processors are busy.
TEST_WORKERS ?= 3
# ruff measures the lines of Python; these files it does not read.
TOO_WIDE := git grep --untracked -nE '^.{111}' -- '*.sql' '*.js' '*.css' '*.html'
LOCK   := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --custom-compile-command "make lock"

# Hundreds of processes would each compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) ## Create .venv with the pinned, hashed requirements and this project

$(READY): pyproject.toml requirements/dev.txt scripts/setup
	@scripts/setup "$(PYTHON)" "$(VENV)"
	@touch $@

.PHONY: demo
demo: $(READY) ## Run 200 executions on private servers, then report order and limits
	@$(BIN)/executor demo

.PHONY: shop
shop: $(READY) ## Run the example shop of examples/shop on private servers, and check what it did
	@$(BIN)/python -m examples.shop

.PHONY: up
up: $(READY) ## Start servers, an executor and a worker of the examples, print their URLs, and run until Ctrl-C
	@$(BIN)/turnstile dev --actions examples.actions

.PHONY: check
check: $(READY) ## Format, lint, types and layers: everything that runs no test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@if LC_ALL=C.UTF-8 $(TOO_WIDE); then echo 'Wrap these lines at 110 columns.' >&2; exit 1; fi
	$(BIN)/mypy --strict -p turnstile
	$(BIN)/mypy --strict benchmarks examples tests
	MYPYPATH=docs $(BIN)/mypy --strict docs/generate
	$(BIN)/lint-imports --no-cache

.PHONY: size
size: ## Print how many lines of code and tests there are, and words of documentation
	@scripts/size

.PHONY: test
test: $(READY) ## Run every test, against real servers
	$(BIN)/python -m pytest -m "not whole and not alone" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "alone and not whole" $$(grep -rl --include=test_*.py pytest.mark.alone tests)

.PHONY: scenarios
scenarios: $(READY) ## Run every scenario of docs/scenarios.md at its whole size, several times over (TIMES=)
	@$(BIN)/python -m tests.proof.scenarios --times $(or $(TIMES),1) --processes $(TEST_WORKERS)

.PHONY: whole
whole: $(READY) ## Run what `make test` leaves out: whole sizes, and each way in which servers start and stop
	$(BIN)/python -m pytest -m whole -n $(TEST_WORKERS) --dist loadfile

.PHONY: mutants
mutants: $(READY) ## Plant known bugs of the services one at a time and print how many the tests catch (ARGS=)
	@$(BIN)/python -m pytest -q -m "" tests/proof/mutants
	@$(BIN)/python -m tests.proof.mutants $(ARGS)

.PHONY: chaos
chaos: $(READY) ## Break a loaded system at random, then plague it with bad neighbours (CHAOS_MODE=, _SEED=, _SEEDS=, _SECONDS=)
	@$(BIN)/python -m tests.proof.chaos $(if $(CHAOS_MODE),--mode $(CHAOS_MODE)) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) \
	    $(if $(CHAOS_SEEDS),--seeds $(CHAOS_SEEDS)) $(if $(CHAOS_SECONDS),--seconds $(CHAOS_SECONDS))

.PHONY: crash
crash: $(READY) ## Kill a process at every crash point, the 1st, 2nd and 7th time
	@$(BIN)/python -m tests.proof.crash

.PHONY: cluster
cluster: $(READY) ## Lose one of three brokers, and the primary of a database with a standby, under load
	@CLUSTER=1 $(BIN)/python -m pytest tests/proof/cluster $(ARGS)

.PHONY: model
model: $(READY) ## Explore every interleaving of the queue manager in small systems, and its planted bugs (ARGS=)
	@$(BIN)/python -m tests.proof.queue_manager $(ARGS)

.PHONY: simulate
simulate: $(READY) ## Run leader, ledger and workers on a simulated clock, broker and database, with faults (ARGS=)
	@$(BIN)/python -m tests.proof.simulation $(ARGS)

.PHONY: stress
stress: $(READY) ## Load a private installation, check its whole history, write stress-report/ (ARGS=--preset ...)
	@$(BIN)/turnstile stress run --local $(ARGS)

.PHONY: soak
soak: $(READY) ## An hour of steady load with faults on a private installation, checked as a whole (ARGS=)
	@$(BIN)/turnstile stress run --local --preset soak $(ARGS)

.PHONY: bench
bench: $(READY) ## Measure rates, costs, gates, replicas, pressure, takeovers on this machine (ARGS=)
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: $(PEERS_READY) ## Run the same load on this project and on PgQueuer, side by side (ARGS=)
	@$(PEERS_VENV)/bin/python -m benchmarks.peers $(ARGS)

$(PEERS_READY): pyproject.toml requirements/peers.txt scripts/setup
	@scripts/setup "$(PYTHON)" "$(PEERS_VENV)" requirements/peers.txt
	@touch $@

.PHONY: release
release: $(RELEASE_READY) ## Build wheel, source, image and bill of materials of the last commit in dist/, and check them
	@scripts/release "$(PYTHON)" "$(RELEASE_VENV)"

$(RELEASE_READY): pyproject.toml requirements/release.txt scripts/setup
	@scripts/setup "$(PYTHON)" "$(RELEASE_VENV)" requirements/release.txt
	@touch $@

.PHONY: docs
docs: $(READY) ## Build the documentation as a site in build/docs; a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going docs build/docs && echo build/docs/index.html

.PHONY: reference
reference: $(READY) ## Write docs/reference, and the grants of the database, from the code
	@cd docs && PYTHONPATH=. ../$(BIN)/python -m generate reference
	@$(BIN)/python -c "from turnstile.executor.permissions.rights import grants_sql; print(grants_sql(), end='')" \
		> executor/permissions/rights.sql

.PHONY: pictures
pictures: $(READY) ## Take a picture of every screen of the dashboard: light, dark, phone, wide (ARGS=--docs)
	@$(BIN)/python -m tests.integration.dashboard.pictures $(ARGS)

.PHONY: format
format: $(READY) ## Rewrite the code in the house format
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

.PHONY: lock
lock: | $(BIN)/uv ## Resolve requirements/*.txt (newer versions: make lock LOCK_OPTIONS=--upgrade)
	$(LOCK) $(LOCK_OPTIONS) pyproject.toml --extra executor -o requirements/runtime.txt
	$(LOCK) $(LOCK_OPTIONS) --group build -o requirements/build.txt
	$(LOCK) $(LOCK_OPTIONS) pyproject.toml --extra all --group dev -c requirements/runtime.txt -c requirements/build.txt \
	    -o requirements/dev.txt
	$(LOCK) $(LOCK_OPTIONS) pyproject.toml --extra stress --group peers -c requirements/runtime.txt \
	    -c requirements/build.txt -o requirements/peers.txt
	$(LOCK) $(LOCK_OPTIONS) pyproject.toml --extra executor --group release -c requirements/runtime.txt \
	    -c requirements/build.txt -o requirements/release.txt

# Older than pyproject.toml it will do: what it resolves is what the next set-up installs.
$(BIN)/uv:
	@scripts/setup "$(PYTHON)" "$(VENV)"

.PHONY: clean
clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) $(PEERS_VENV) $(RELEASE_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
