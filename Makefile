# Each target sets up .venv by itself: on first use, and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CONFIG ?= data/configs/quickstart.yaml

.PHONY: run test e2e check bench fuzz mutants rewards models pictures ui up down
run: $(READY)
	$(BIN)/grpo train $(CONFIG)

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m 'not e2e'

e2e: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m e2e

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz

mutants: $(READY)
	$(BIN)/python -m tests.mutants --sample 200

rewards: $(READY)
	$(BIN)/python -m tests.benchmarks.rewards

models: $(READY)
	$(BIN)/python -m tests.models

pictures: $(READY)
	$(BIN)/python -m tests.e2e.picture

ui: $(READY)
	$(BIN)/grpo ui

up: $(READY)
	$(BIN)/grpo up

down: $(READY)
	$(BIN)/grpo down

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/grpo migrate
	touch $@
