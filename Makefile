# `make test` and `make demo` need Python 3.10+ and nothing else: they make .venv and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MAKEFLAGS += --jobs=2

.PHONY: help demo test warm test-integrations check docs faults ray milvus bench lock clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/'

# Files are installed by their hashes (locked.txt) and nothing is built, except torch, whose build depends on the device.
# pip would compile every file of every package, 45 seconds of work; Python compiles the few that are imported, once.
$(READY): pyproject.toml constraints.txt locked.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and f"selhn needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11 test")'
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --no-compile --require-hashes --no-deps --only-binary :all: --requirement locked.txt || { echo "$$REFUSED"; exit 1; }
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

define REFUSED

selhn: locked.txt could not be installed. What pip says above means:
- "DO NOT MATCH THE HASHES": this file is not the one that was tested. Do not install it; find out where it comes from.
- "No matching distribution": there is no tested file for this system or Python, or not on this index. Without hashes:
    $(BIN)/pip install --constraint constraints.txt --editable '.[dev,search]' && touch $(READY)
endef
export REFUSED

demo: $(READY)   ## train, measure and search: T-HN beside SelHN, about three minutes
	$(BIN)/selhn demo

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# While mypy has one core, everything is imported once on another: three processes would each compile the same files.
warm: $(READY)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -n0 -qq >/dev/null 2>&1 || true

# Tests start many programs: compiled files are kept for them, whatever the environment says.
test: check warm ## everything that must hold before a change lands
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# Environments of their own, which find all else in .venv.
BESIDE := .venv-integrations
DOCS := .venv-docs
%/.beside: $(READY)
	$(PYTHON) -m venv $*
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$($*/bin/python -c 'import site; print(site.getsitepackages()[0])')/selhn.pth
	$*/bin/pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(DOCS)/.ready: $(DOCS)/.beside pyproject.toml
	$(DOCS)/bin/pip install --quiet --only-binary :all: --group docs
	@touch $@

docs: $(DOCS)/.ready ## the documentation as a site, in build/site; installs what builds it (40 MB)
	PYTHONPATH=src $(DOCS)/bin/python docs/site.py
	$(DOCS)/bin/zensical build --clean --strict
	PYTHONPATH=src $(DOCS)/bin/python docs/site.py file

$(BESIDE)/.ready: $(BESIDE)/.beside pyproject.toml
	$(BESIDE)/bin/pip install --quiet --only-binary :all: --group dev-integrations
	$(BESIDE)/bin/pip install --quiet --only-binary :all: --no-deps --group dev-torchvision
	@touch $@

test-integrations: $(BESIDE)/.ready  ## the adapters and trackers with the real libraries, two minutes; installs them (600 MB)
	$(BESIDE)/bin/python -m pytest -n0 -m 'slow or not slow' tests/integrations tests/pictures/test_two_towers.py

faults: $(READY) ## the long form of the drills of docs/reliability.md, about half an hour
	PYTHONPATH=src:tests $(BIN)/python -m faults fuzz --cases 20000
	PYTHONPATH=src:tests $(BIN)/python -m faults service
	PYTHONPATH=src:tests $(BIN)/python -m faults service --descriptors 8192
	PYTHONPATH=src:tests $(BIN)/python -m faults kills --all --random 13
	PYTHONPATH=src:tests $(BIN)/python -m faults strangers --cases 4000

ray: $(READY)    ## the test of `selhn embed --ray`: two nodes, one killed; installs Ray into .venv, 250 MB
	$(BIN)/pip install --quiet --constraint constraints.txt 'ray[data]'
	$(BIN)/pytest -n0 -m slow tests/pictures/test_on_ray.py

milvus: $(READY) ## the tests of search on a Milvus server, after `pip install milvus==2.3.5` (58 MB); it sees only loopback
	unshare --net --mount --map-root-user sh -c 'ip link set lo up && exec $(BIN)/pytest -n0 -m milvus tests/search/stores'

bench: $(READY)  ## measure on this machine's CPU
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/extraction.py

lock: $(READY)   ## pin the newest versions that pyproject.toml allows, with their hashes; then run make test
	$(BIN)/python tests/test_supply.py --upgrade

clean:           ## remove the environment and caches
	rm -rf $(VENV) $(BESIDE) $(DOCS) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
