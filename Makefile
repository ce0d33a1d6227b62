# Every target sets up what it needs in .venv; nothing has to be done first but having Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt
WORKERS ?= 2

.PHONY: install quickstart test test-all fuzz chaos test-gpu test-adapters check bench results docs build clean
HOSTS := verl skyrl openrlhf vllm
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up and train a tiny policy for one sample and for k (CPU, minutes)"
	@echo "make test         set up and run the tests (about eight minutes on two cores)"
	@echo "make test-all     the same with the long counts"
	@echo "make test-adapters  the tests of every host (TRL, verl, SkyRL, OpenRLHF, vLLM), each in its own environment"
	@echo "make fuzz         mutated inputs for every reader of what others wrote (ten minutes each)"
	@echo "make chaos        training under kills, full disks, clock jumps and a failing verifier (30 minutes)"
	@echo "make check        lint, format, types"
	@echo "make bench        tables of ratios against peers measured in the same run"
	@echo "make results      the tables and figures of research/ from the committed counts"
	@echo "make docs         build the site into docs/_build/html"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "bestofk needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What training needs. torch comes first and pinned, so that nothing else picks its build. pip shows its progress: this takes minutes.
$(VENV)/.train: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing PyTorch and what training needs into $(VENV): a large download, once"
	$(PIP:-q=) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP:-q=) -e '.[train]'
	@touch $@

# Everything development uses.
$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[dev]'
	@touch $@

install: $(VENV)/.dev

quickstart: $(VENV)/.train
	$(BIN)/bestofk quickstart

# `make test TESTS=tests/objectives` for some of them.
TESTS ?=
test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not gpu" $(TESTS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not gpu"

# Ten minutes for each reader of what others wrote; `make fuzz SECONDS=60` for less.
SECONDS ?= 600
fuzz: $(VENV)/.dev
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS)

# The whole trainer under random faults; `make chaos MINUTES=5` for less.
MINUTES ?= 30
chaos: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/chaos.py --minutes $(MINUTES)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m gpu

# The hosts' pins conflict with each other and with ours: each has an environment of its own, listed in full.
$(VENV)-%/.ready: hosts/%.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --disable-pip-version-check -q --no-deps -r $<
	$(VENV)-$*/bin/python -m pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

# A host that cannot be installed here (no wheel for this machine) is named and left out; a test that fails stops the rest.
test-adapters: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "not gpu" $$(ls tests/*/test_trl*.py)
	for host in $(HOSTS); do \
	  $(MAKE) --no-print-directory $(VENV)-$$host/.ready || { echo "$$host cannot be installed here: its tests are left out"; continue; }; \
	  OMP_NUM_THREADS=1 $(VENV)-$$host/bin/python -m pytest -q -m "not gpu" $$(ls tests/*/test_$$host*.py) || exit 1; \
	done

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Those that need no GPU, no server and no model of a size; every file says at its top how it is run.
BENCHES := objectives rewards train trajectories evaluation report start
bench: $(VENV)/.dev
	for name in $(BENCHES); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# Tables and figures of research/ from research/counts.
results: $(VENV)/.dev
	$(BIN)/python research/make.py

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

build: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist .

clean:
	rm -rf $(VENV) $(HOSTS:%=$(VENV)-%) dist build docs/_build .pytest_cache .mypy_cache .ruff_cache
