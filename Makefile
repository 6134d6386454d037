# Everything runs from a fresh clone on a machine that has only Python >= 3.11: `make test` sets itself up.
PYTHON ?= python3
# The newest torch that is tested. On Linux without a GPU, any CPU build of the same version serves as well.
TORCH  ?= torch==2.13.0
BIN    := .venv/bin
JOBS   ?= 2

.PHONY: setup test test-fast lint clean

setup: .venv/.ready

.venv/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

test: setup
	$(BIN)/python -m pytest -n $(JOBS)

test-fast: setup
	$(BIN)/python -m pytest -n $(JOBS) -m "not engine"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
