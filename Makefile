# make demo   TensorBoard with the Perf Advisor tab on the demo profiles
# make test   everything that is checked before a change lands
# Both set up what they need; all that is asked for is Python 3.10 or later (and Node for test).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STATIC := tb_perfadvisor/static

.PHONY: demo test lint types contracts generated unit frontend frontend-deps browser-deps \
        frameworks readme clean

demo: $(VENV)/.demo
	@echo "Open the address that TensorBoard prints, tab Perf Advisor."
	$(BIN)/tensorboard --logdir demo_logs

test: lint types contracts generated frontend unit

# --- environments -------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: setup.py $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	@touch $@

$(VENV)/.dev: setup.py $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# CPU builds of the frameworks, for the tests that record with the real ones. Torch is pinned:
# this version is tested, and an unpinned one may pull in gigabytes of CUDA packages.
frameworks: $(VENV)/.dev
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -c 'import tensorflow' 2>/dev/null || $(BIN)/python -m pip install --quiet tensorflow_cpu
	$(BIN)/python -c 'import jax' 2>/dev/null || $(BIN)/python -m pip install --quiet jax
	$(BIN)/python -c 'import grain' 2>/dev/null || $(BIN)/python -m pip install --quiet grain

# A Chromium and an nginx for the browser tests: Debian's, where missing and installable.
browser-deps:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get -qq update && apt-get -qq install -y chromium >/dev/null; } \
	  || echo "no Chromium here and none can be installed: browser tests will be skipped"
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update \
	       && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	          nginx-light >/dev/null; } \
	  || echo "no nginx here and none can be installed: tests behind a proxy will be skipped"

frontend-deps: frontend/node_modules/.package-lock.json

frontend/node_modules/.package-lock.json: frontend/package-lock.json
	cd frontend && npm ci --no-audit --no-fund --loglevel=error

# --- checks, fast ones first ----------------------------------------------------------------

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

generated: $(VENV)/.dev frontend-deps
	$(BIN)/python -m tb_perfadvisor.report.schema --check
	cd frontend && npm run --silent types -- --check

unit: $(VENV)/.dev browser-deps
	$(BIN)/python -m pytest

frontend: frontend-deps
	cd frontend && npm run --silent check
	cd frontend && npm test --silent
	cd frontend && npm run --silent build
	@git diff --exit-code --stat -- $(STATIC) \
	  || { echo "the bundle in $(STATIC) is stale: commit what 'npm run build' wrote"; exit 1; }

# --- upkeep ---------------------------------------------------------------------------------

readme: $(VENV)/.dev
	$(BIN)/python tests/contract/rule_table.py --write

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
