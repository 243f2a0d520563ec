# On a fresh machine with Python 3.11 or newer and make: `make demo` and `make test` do everything.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# What only tests import is compiled when it is first imported, which this must not forbid.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test full faults load mutants check lint format reference bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile | expand -t 16

demo: .venv/core  ## set up, then pre-train a small BERT and use it, in five minutes
	$(BIN)/unmask demo

test: .venv/test  ## set up, then run the test suite on all cores, a few minutes
	$(BIN)/python -m pytest -q -n auto --dist worksteal

full: .venv/test  ## the tests that take many minutes: all data, all sizes
	$(BIN)/python -m pytest -q -s -m full

faults: .venv/test  ## kills, full disks, dead workers, NaN: hundreds of each, about fifteen minutes
	$(BIN)/python -m benchmarks faults

load: .venv/test  ## a server under load, with slow clients, stops and nonsense; about ten minutes
	$(BIN)/python -m benchmarks load

mutants: .venv/test  ## break the code in forty known ways; how many do the tests detect? under two hours
	$(BIN)/python -m benchmarks mutants

check: lint  ## lint, types, layers, and the quick tests
	$(BIN)/python -m pytest -q -m "not slow and not full"

lint: .venv/test  ## ruff, mypy, import-linter and the word list
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/words.py

format: .venv/test  ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: .venv/core  ## write docs/api.md and docs/cli.md from the code
	$(BIN)/python tools/reference.py

bench: .venv/bench  ## the measurements that need no data; takes long, wants a quiet machine
	$(BIN)/python -m benchmarks all

clean:  ## remove the environment and what tools left behind
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "installing torch and the rest, about two minutes"
	$(INSTALL) -e .
	@touch $@

.venv/test: .venv/core
	$(INSTALL) --no-compile -e '.[test,check]'
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; } || \
		echo "there is no chromium: the tests of pages are skipped"
	@touch $@

.venv/bench: .venv/test
	$(INSTALL) -e '.[bench]'
	@touch $@
