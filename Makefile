# Escrow's tasks. `make` alone lists them. Nothing needs an activated environment: everything runs in .venv, which is
# built from requirements/dev.lock the first time, and again whenever the lock changes.
#
#   make PYTHON=python3.12 test    another interpreter than python3
#   make test PYTEST="-k redo -x"  more arguments for pytest
#   make chaos KILLS=50 SEED=7     a shorter campaign, or the same again
#   make chaos-ingest RUNS=50      the same for the endpoint
#   make chaos-kafka KAFKA_KILLS=20  the same for Kafka mode
#   make soak MINUTES=5            a shorter soak
#   make tenants TENANT_MINUTES=2  a shorter attack
#   make fuzz REQUESTS=9000 SEED=7 fewer hostile requests, or the same again
#   make fuzz-store CASES=500      fewer damaged stores
#   make bench-rocketmq ONLY=a,c   some of its workloads
#   make lock UPGRADE=1            newer versions, not only what pyproject.toml asks for

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
PYTEST ?=
UPGRADE ?=
KILLS ?= 300
RUNS ?= 300
KAFKA_KILLS ?= 100
SEED ?=
MINUTES ?= 30
TENANT_MINUTES ?= 10
REQUESTS ?= 100000
CASES ?= 20000
RUN ?=
ONLY ?=
SMALL ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --retries 8
BENCHES := bench-store bench-consume bench-streaming bench-spark bench-ingest bench-grpc bench-console bench-many bench-ecosystem bench-kafka

# The environment is rebuilt, whatever its age, when its interpreter has gone, when the checkout has moved, and when PYTHON
# was named and is of another version.
VERSION := -c 'import sys; print(sys.version_info[:2])' 2>/dev/null
HAVE := $(shell cat $(VENV)/.locked 2>/dev/null) $(shell $(BIN)/python $(VERSION) || echo gone)
WANT := $(CURDIR) $(shell $(if $(filter file,$(origin PYTHON)),$(BIN)/python,"$(PYTHON)") $(VERSION))
ifneq ($(HAVE),$(WANT))
STALE := stale
endif

.PHONY: help run test lint format pages screenshots bench $(BENCHES) bench-rocketmq bench-outbox parity-rocketmq tools \
        crash chaos chaos-ingest chaos-kafka soak fuzz fuzz-store tenants lock clean venv stale

help: ## list the tasks (this)
	@echo "Escrow. Two commands matter: make run, make test. All of them:"
	@echo
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Needs Python 3.11 or newer; another interpreter: make PYTHON=python3.12 test"

run: venv ## start the whole service in the foreground (RUN="--data DIR --set KEY=VALUE" for more)
	@exec $(BIN)/escrow run $(RUN)

# First what needs nothing but Python (tests/endpoint starts the edge alone), on all cores; then what starts the service, Spark and browsers, one after another; then
# brokers, two files at a time: they wait more than they work.
# (5: pytest's word for "none of these was chosen", by PYTEST="-k ...".)
ALONE := tests/unit tests/endpoint tests/property tests/faults
PAIRS := tests/kafka
test: lint tools ## lint, then all tests
	$(BIN)/python -m pytest --numprocesses=auto $(ALONE) $(PYTEST) || [ $$? = 5 ]
	$(BIN)/python -m pytest $(patsubst %,--ignore=%,$(ALONE) $(PAIRS)) $(PYTEST) || [ $$? = 5 ]
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(PAIRS) $(PYTEST) || [ $$? = 5 ]

tools: ## install what tests and benchmarks need besides Python (Debian packages, RocketMQ's clients), where we may
	@sh scripts/test_tools.sh
	@sh scripts/axe.sh
	@sh scripts/rocketmq_clients.sh "$(PYTHON)"

lint: venv ## ruff (rules and format), mypy, import directions, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/house.py

format: venv ## let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: venv ## write again what is made from code: conf/escrow.toml, docs/configuration.md, conf/grafana/dashboards
	$(BIN)/escrow config template > conf/escrow.toml
	$(BIN)/python scripts/configuration_page.py
	$(BIN)/python scripts/dashboards.py

bench: $(BENCHES) ## all benchmarks

bench-store: venv ## benchmarks of the store
	$(BIN)/python -m benchmarks.results benchmarks.store

bench-consume: venv ## benchmarks of consumer pull, on the edge's core
	$(BIN)/python -m benchmarks.results benchmarks.consume

bench-streaming: venv ## benchmarks of the streaming job, with real Spark (about 6 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.streaming

bench-spark: venv ## benchmarks of Spark's sources for users (about 4 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.spark

bench-ingest: venv tools ## benchmarks of the endpoint, the SDK and what consumers see (about 5 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.ingest
	$(BIN)/python -m benchmarks.results benchmarks.sdk

bench-kafka: venv tools ## Kafka mode against a bare Spark copy, and who does the work on a cluster (about 12 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.kafka
	$(BIN)/python -m benchmarks.results benchmarks.kafka_cluster
	$(BIN)/python -m benchmarks.results benchmarks.kafka_scale
	$(BIN)/python -m benchmarks.results benchmarks.kafka_takeover
	$(BIN)/python -m benchmarks.results benchmarks.kafka_endpoints
	$(BIN)/python -m benchmarks.results benchmarks.kafka_start

bench-rocketmq: venv ## Escrow beside a real RocketMQ, needs a JDK and Maven (about 40 minutes; ONLY=a,c for a part, SMALL=1 to try it)
	$(BIN)/python -m benchmarks.rocketmq $(if $(ONLY),--only=$(ONLY)) $(if $(SMALL),--scale=0.02 --rounds=1)

bench-outbox: venv tools ## Escrow beside an outbox table in PostgreSQL (about 4 minutes; SMALL=1 to try it)
	$(BIN)/python -m benchmarks.outbox $(if $(SMALL),--scale=0.02 --rounds=1)

bench-grpc: venv ## benchmarks of the gRPC front against a bare gRPC server (about a minute)
	$(BIN)/python -m benchmarks.results benchmarks.grpc

parity-rocketmq: venv ## the same Java program against a real RocketMQ and against Escrow: same visible results?
	@sh scripts/test_tools.sh
	@sh scripts/rocketmq_clients.sh "$(PYTHON)" server
	$(BIN)/python -m tests.rocketmq.parity

bench-ecosystem: venv ## what importing the client costs (seconds)
	$(BIN)/python -m benchmarks.results benchmarks.ecosystem

bench-many: venv ## 20,000 topics and 10,000 groups: start, memory, descriptors, lists, releases (about 5 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.many --service

bench-console: venv tools ## benchmarks of lists with a million pending, and of ingest with the console open (about 3 minutes)
	$(BIN)/python -m benchmarks.results benchmarks.console

screenshots: venv tools ## docs/images: the console's pages, taken anew
	$(BIN)/python -m scripts.screenshots

crash: venv ## the long crash campaign: 5000 kills
	$(BIN)/python -m pytest tests/faults --kills=5000 --timeout=0 $(PYTEST)

chaos: venv ## the long chaos campaign: 300 kills of the whole service, Spark included
	$(BIN)/python -m tests.campaigns.chaos.campaign --kills=$(KILLS) $(if $(SEED),--seed=$(SEED))

chaos-ingest: venv ## 300 runs of real producers that are killed, while the endpoint is too and the network breaks
	$(BIN)/python -m tests.campaigns.chaos_ingest.campaign --runs=$(RUNS) $(if $(SEED),--seed=$(SEED))

chaos-kafka: venv tools ## 100 kills of driver, executors, broker leaders, endpoint and store: three brokers, two Spark workers
	$(BIN)/python -m tests.campaigns.kafka.campaign --kills=$(KAFKA_KILLS) $(if $(SEED),--seed=$(SEED))

soak: venv ## 30 minutes of constant load: memory and files at both ends
	$(BIN)/python -m benchmarks.soak --minutes=$(MINUTES)

fuzz: venv ## 100,000 hostile requests against the endpoint
	$(BIN)/python -m tests.campaigns.fuzz.campaign --requests=$(REQUESTS) $(if $(SEED),--seed=$(SEED))

tenants: venv ## a hostile tenant beside a well-behaved one, the whole service with Spark (10 minutes)
	$(BIN)/python -m tests.campaigns.tenants.campaign --minutes=$(TENANT_MINUTES) $(if $(SEED),--seed=$(SEED))

fuzz-store: venv ## 20,000 damaged stores: opened, verified, rebuilt, backed up and restored
	$(BIN)/python -m tests.campaigns.fuzz_store.campaign --cases=$(CASES) $(if $(SEED),--seed=$(SEED))

lock: ## resolve requirements/*.lock again, from pyproject.toml, and the lock beside every pom.xml
	@sh scripts/preflight.sh "$(PYTHON)"
	@sh scripts/lock.sh "$(PYTHON)" $(if $(UPGRADE),--upgrade)

clean: ## remove .venv and everything that was built or cached
	rm -rf $(VENV) .clients build dist *.egg-info sdk/build sdk/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(VENV)/.installed ## build .venv if it is missing or stale

# The lock changed: start from an empty environment, so that what left the lock leaves the machine. pip and setuptools come first,
# and build what is no wheel (--no-build-isolation): otherwise pip would fetch the newest setuptools for it.
$(VENV)/.locked: requirements/build.lock requirements/dev.lock $(STALE)
	@sh scripts/preflight.sh "$(PYTHON)"
	@echo "Building $(VENV) from requirements/dev.lock ..."
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements/build.lock
	@$(PIP) install --require-hashes --no-build-isolation -r requirements/dev.lock
	@echo "$(CURDIR)" > $@

# A pyproject.toml changed: only the project itself, client and server, is installed again (editable).
$(VENV)/.installed: $(VENV)/.locked pyproject.toml sdk/pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable sdk --editable .
	@touch $@
