# `make help` says what there is. Every target installs what it needs the first time and is quick afterwards.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
MODEL ?= smollm2-135m
ARGS ?=
PEER ?= $(HOME)/.cache/outrider/peer
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help install model serve test test-slow test-exhaustive check exact bench peer lint lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## the environment in .venv, exactly as locked

$(INSTALLED): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  { echo "error: $(PYTHON) is older than Python 3.12; install 3.12, or say make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "installing the environment into .venv; this happens once"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip --disable-pip-version-check install --require-hashes -r requirements-dev.txt || \
	  { echo "error: the environment is not complete (pip says why, above); 'make install' goes on from here" >&2; exit 1; }
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

model: install ## fetch the model: MODEL=path, hub repository or name (default smollm2-135m)
	@$(BIN)/python -m serve_app.model_fetch $(MODEL)

serve: install ## the running service: MODEL=..., ARGS="--port 8000 --speculation auto ..."
	@exec $(BIN)/outrider run $(MODEL) $(ARGS)

test: check ## make check, then every test but the slow ones
	@$(BIN)/python -m serve_app.model_fetch > /dev/null
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: install ## the slow tests
	@$(BIN)/python -m serve_app.model_fetch > /dev/null
	$(BIN)/python -m pytest -m "slow and not exhaustive" $(ARGS)

test-exhaustive: install ## every family in every precision and window, for an hour or two
	@$(BIN)/python -m serve_app.model_fetch > /dev/null
	$(BIN)/python -m pytest -m exhaustive $(ARGS)

check: install ## format, lint, types and import contracts; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

exact: install ## compare replies with and without speculation, token for token
	@exec $(BIN)/outrider exact $(MODEL) $(ARGS)

bench: install ## measure speed with and without speculation
	@exec $(BIN)/outrider bench $(MODEL) $(ARGS)

peer: install ## compare speed with llama.cpp's server, which is built first
	@server=$$($(BIN)/python -m tests.bench.build_peer $(PEER)) && \
	  exec $(BIN)/python -m tests.bench.peer $$server --model $(MODEL) $(ARGS)

lint: install ## reformat and repair what can be repaired
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.12 --generate-hashes \
  --no-emit-index-url --custom-compile-command "make lock" --quiet $(ARGS)

lock: install ## compile the requirement files anew; ARGS=--upgrade takes newer versions
	$(COMPILE) --output-file requirements.txt
	$(COMPILE) --output-file requirements-tpu.txt --extra tpu
	$(COMPILE) --output-file requirements-dev.txt --extra dev

clean: ## remove the environment and every cache; fetched models stay
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
