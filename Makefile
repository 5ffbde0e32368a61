# Every target first makes what it needs: the virtual environment (.venv) and, where there is none, Java 17+.
SHELL := /bin/bash
# pytest keeps the byte code of its rewritten asserts: without that, every worker compiles every test again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# Unit and property tests sync files some 40,000 times. `make check` has them in memory where a gigabyte is free, and
# removes what passed; `make test` has them on the disk. `make check` tries a tenth of the examples of each property
# (tests/kit/property_tests.py), others every time; `make test` a quarter, in CI a tenth, because there they are always the
# same. EXAMPLES=100 tries all.
MEMORY := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'END { print $$4 }')" -gt 1000000 ] 2>/dev/null && echo /dev/shm)
QUICK := -m "not slow and not long"
IN_MEMORY := KBROKER_EXAMPLES=$(or $(EXAMPLES),10) $(if $(MEMORY),TMPDIR=$(MEMORY)) $(PYTEST) -o tmp_path_retention_policy=failed

# Parts of a target that run at the same time print one after the other, where make can do that (GNU make 4).
TOGETHER := --no-print-directory -k -j 5 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help venv built rewritten lint dist demo test test-processes test-simulated test-searched test-units soak bench chaos clean
.PHONY: check check-types check-unit-a check-unit-c check-unit-others check-property

help:
	@echo "make demo    two clusters, a mirror, a Spark audit: the whole product in a few minutes"
	@echo "make test    every test, on real ZooKeeper, brokers, Spark and other people's clients"
	@echo "make check   ruff, mypy, layers, unit and property tests: less than a minute on two cores"
	@echo "make soak    100,000 seeds of the simulated cluster (tests/simulation); SEEDS=1..1000 for fewer"
	@echo "make bench   ours beside Apache Kafka 3.9 and other clients (benchmarks/README.md)"
	@echo "make chaos   a cluster under faults, judged: SEED=7 MINUTES=3 SCENARIO=S1 (tests/SCENARIOS.md)"
	@echo "make dist    the sdist, a wheel for every machine and a compiled one for this kind, in dist/"
	@echo "make venv    only the set-up"

# The demo and the wheels need less than the tests; each set of packages has its own stamp.
$(VENV)/.demo: setup.cfg tools/setup.sh
	@tools/setup.sh demo && touch $@

$(VENV)/.dist: setup.cfg tools/setup.sh
	@tools/setup.sh dist && touch $@

$(VENV)/.test: setup.cfg tools/setup.sh
	@tools/setup.sh test && touch $@ $(VENV)/.demo $(VENV)/.dist

venv: built $(VENV)/spark-classes.jsa

# Compiles the modules of setup.py that changed; without a C compiler they are interpreted.
built: $(VENV)/.test
	@$(BIN)/python tools/compile.py

# Half of Spark's start is reading Java classes and compiling pyspark, and the tests start it some 60 times. They do without
# an archive of the classes, more slowly.
$(VENV)/spark-classes.jsa: $(VENV)/.test | built
	-@$(BIN)/python tools/byte_code.py
	@$(BIN)/kaudit class-archive $@ >/dev/null 2>&1 \
		|| echo "make: Spark's Java classes are not archived: the tests take some minutes longer" >&2

# pytest rewrites the asserts of each file once: here, or each of its processes does it in a fresh clone.
rewritten: $(VENV)/.test
	@test -d tests/unit/__pycache__ || $(PYTEST) -q --collect-only -p no:cacheprovider >/dev/null 2>&1 || true

lint: $(VENV)/.test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check -q . && $(BIN)/lint-imports

demo: $(VENV)/.demo
	@$(BIN)/python tools/compile.py
	@$(BIN)/python -m kbroker demo $(DEMO_ARGS)

# Tests of processes mostly wait: each takes 0.37 of a core, and four at a time leave room on two. That is where the other
# tests compute: they yield to those of processes, which have the deadlines of users, and print when they end. They do without
# workers of xdist: in CI each of 11,000 tests may be repeated (tests/conftest.py), and a worker asks its controller about
# that over a socket, which took as much of the processor as the tests.
PROCESSES := tests/integration tests/compat
SPREAD := --dist loadfile --no-loadscope-reorder
SIMULATED := tests/simulation
SEARCHED := tests/property tests/audit_search
COMPUTING := test-simulated test-searched test-units
YIELDING = @log=$$(mktemp); trap 'rm -f $$log' EXIT; \
	KBROKER_EXAMPLES=$(or $(EXAMPLES),$(if $(CI),10,25)) nice -n 7 $(PYTEST) -q --timeout 240 $(1) >$$log 2>&1; code=$$?; cat $$log; exit $$code

test: $(VENV)/.test
	@$(MAKE) --no-print-directory -j 3 lint built $(if $(PYTEST_ARGS),$(VENV)/spark-classes.jsa,rewritten)
ifeq ($(PYTEST_ARGS),)
	@$(MAKE) --no-print-directory -k -j 5 test-processes $(COMPUTING) check-types
else
	@$(MAKE) --no-print-directory check-types
	@$(PYTEST) -n 3 $(SPREAD) $(PYTEST_ARGS)
endif

# One core writes the archive of Spark's classes; the other begins with what needs no Spark.
test-processes test-searched test-units: $(VENV)/spark-classes.jsa

test-processes: $(VENV)/.test
	@$(PYTEST) -n 4 $(SPREAD) $(PROCESSES)

test-simulated: $(VENV)/.test
	$(call YIELDING,$(SIMULATED))

test-searched: $(VENV)/.test
	$(call YIELDING,$(SEARCHED))

test-units: $(VENV)/.test
	$(call YIELDING,tests $(patsubst %,--ignore=%,$(PROCESSES) $(SIMULATED) $(SEARCHED)))

check: built lint
	@$(MAKE) $(TOGETHER) check-types check-unit-a check-unit-c check-unit-others check-property

# Each worker of xdist collects every file of its run, and compiles it in a fresh clone. Here every file is collected
# once, in one of four parts of about the same cost.
check-types: $(VENV)/.test
	@$(BIN)/mypy

UNIT_A := $(wildcard tests/unit/a*/)
UNIT_C := $(wildcard tests/unit/c*/)

check-unit-a: $(VENV)/.test
	@$(IN_MEMORY) -q $(QUICK) $(UNIT_A)

check-unit-c: $(VENV)/.test
	@$(IN_MEMORY) -q $(QUICK) $(UNIT_C)

check-unit-others: $(VENV)/.test
	@$(IN_MEMORY) -q $(QUICK) tests/unit $(UNIT_A:%=--ignore=%) $(UNIT_C:%=--ignore=%)

check-property: $(VENV)/.test
	@$(IN_MEMORY) -q $(QUICK) tests/property

SEEDS ?= 1..100000
JOBS ?= $(shell nproc)

soak: built
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --jobs $(JOBS) --keep-going $(SOAK_ARGS)

bench: built
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

chaos: built
	@$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),1) --scenario $(or $(SCENARIO),mixed) \
		$(if $(OUT),--out $(OUT))

# Not `built`: a wheel is compiled from the tracked files, in a directory of its own.
dist: $(VENV)/.dist
	@$(BIN)/python tools/dist.py

clean:
	rm -rf $(VENV) build dist chaos-out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out
	find kbroker kclient -name '*.so' -delete
