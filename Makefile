# `make demo` and `make test` need only Python 3.11: they make a virtual environment here and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOLVER_TESTS := $(addprefix tests/strategies/test_,bound.py lifetimes.py milp.py moccasin.py monet.py)
TWO_AT_ONCE := --numprocesses 2 --dist worksteal
STAMP := $(VENV)/.installed

.PHONY: demo test test-all test-matrix pytest pytest-solvers pytest-others lint lint-and-compile bench figures figures-full docs clean

$(STAMP): setup.py
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "checkmate_tf needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,demo]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/checkmate-tf demo --output demo-output

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# What is marked `long` is for `test-all`: tests/conftest.py.
test: MARKED = not long
test: lint-and-compile pytest

test-all: lint-and-compile pytest

# Numba compiles for a minute in a new checkout, and is idle from then on: tests/numba_compiled.py.
lint-and-compile: $(STAMP)
	$(BIN)/python tests/numba_compiled.py & compiled=$$!; $(MAKE) lint; linted=$$?; wait $$compiled && exit $$linted

# OR-Tools solves in a process without TensorFlow (with it, it can crash): as the package does, so do its tests.
# With RESULTS, a folder, outcomes are written there; MARKED chooses by markers.
PYTEST = $(BIN)/python -m pytest $(TWO_AT_ONCE) $(if $(MARKED),-m "$(MARKED)")
pytest: pytest-solvers pytest-others

pytest-solvers:
	$(PYTEST) $(if $(RESULTS),--junitxml=$(RESULTS)/solvers.xml) $(SOLVER_TESTS)

pytest-others:
	$(PYTEST) $(if $(RESULTS),--junitxml=$(RESULTS)/others.xml) $(SOLVER_TESTS:%=--ignore=%)

# Hours. The suite and three networks on other processors, cores and versions: benchmarks/product/machines.py, docs/machines.md.
test-matrix: $(STAMP)
	$(BIN)/python benchmarks/product/machines.py

bench: $(STAMP)
	$(BIN)/python benchmarks/product/budget_holds.py --full
	$(BIN)/python benchmarks/figures/max_batch_size.py --full
	$(BIN)/python benchmarks/product/emission.py --full
	$(BIN)/python benchmarks/product/applications.py --full

figures: $(STAMP)
	$(BIN)/python benchmarks/all_figures.py

figures-full: $(STAMP)
	$(BIN)/python benchmarks/all_figures.py --full

$(STAMP)-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

# Into docs/_build, which git ignores; a warning is an error. Its code is run by tests/test_docs.py.
docs: $(STAMP)-docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "docs/_build/index.html"

clean:
	rm -rf $(VENV) build *.egg-info demo-output docs/_build
