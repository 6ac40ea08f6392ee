# Everything runs in a virtual environment of its own. A second call reuses it; a changed pyproject.toml renews it.
#   make demo PYTHON=python3.12      another interpreter (3.10 to 3.14)
#   make test VENV=/tmp/venv         another place
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

# Processes side by side share the cores, so each computes in one thread; a file's tests stay together, since they share
# what is costly to make. Each process takes about 3 GB at its largest.
SIDE_BY_SIDE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-cuda test-gage lint bench clean

help:
	@echo "make demo       score a small synthetic run (installs the package on the first call)"
	@echo "make test       lint, then the tests that take seconds"
	@echo "make test-all   every test but those that need CUDA"
	@echo "make test-cuda  the tests that need a CUDA device"
	@echo "make test-gage  the plug-in in the real framework: make test-gage GAGE=<checkout>"
	@echo "make lint       ruff and mypy"
	@echo "make bench      benchmarks; results go to benchmarks/results/"
	@echo "make clean      remove the environment and what tools leave behind"

demo: $(VENV)/.stamp-package
	$(BIN)/genmeter demo

test: lint
	$(SIDE_BY_SIDE)

test-all: lint
	$(SIDE_BY_SIDE) -m "not cuda"

test-cuda: $(VENV)/.stamp-test
	$(BIN)/python -m pytest -m cuda

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.stamp-test
	$(BIN)/python benchmarks/run.py

# The framework is no package: these are what the core of a checkout imports.
test-gage: $(VENV)/.stamp-test
	@test -f "$(GAGE)/run.py" || { echo "Name a checkout of the framework: make test-gage GAGE=<checkout>"; exit 2; }
	$(PIP) install --quiet loguru requests typer jinja2 jsonschema termcolor
	$(PIP) install --quiet --no-deps rlcard==1.2.0
	GAGE=$(abspath $(GAGE)) $(BIN)/python -m pytest tests/gage

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' || \
	  { echo "genmeter needs Python 3.10 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "No venv module. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	@touch $@

$(VENV)/.stamp-package: $(VENV)/.stamp-venv pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml
	$(PIP) install --editable ".[test,lint]"
	@touch $@ $(VENV)/.stamp-package
