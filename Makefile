# make serve    sets up everything, gets the demo model, serves it on 127.0.0.1:8080
# make test     sets up everything, runs every check that CI runs
#
# make serve MODEL=path-or-repo ARGS="--port 8123"
PYTHON ?= python3
MODEL ?= demo
ARGS ?=
# Processes that tests run in; each may hold a real model.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help serve test bench-engine gate install dev format check pytest search probes clean

help:
	@sed -n '1,4s/^# *//p' Makefile

serve: $(VENV)/.installed
	@$(BIN)/mlxbun serve $(MODEL) $(ARGS)

# make bench-engine ARGS="--model tiny-llama --rows 1,8,32 --json out.json"
bench-engine: $(VENV)/.installed
	@$(BIN)/python scripts/bench/engine.py $(ARGS)

# make gate                 fails when the engine lost more than 5 % of its lead on mlx-lm
# make gate ARGS=--record   and keeps what was found
gate: $(VENV)/.installed
	@$(BIN)/python scripts/bench/gate $(ARGS)

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(VENV)/.installed: pyproject.toml scripts/setup
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@

$(VENV)/.dev: pyproject.toml scripts/setup
	@scripts/setup $(PYTHON) $(VENV) dev
	@touch $(VENV)/.installed $@

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright --project .

pytest: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term $(ARGS)

# Examples that no run has seen yet, many more of them than `make test` tries.
search: $(VENV)/.dev
	MLXBUN_HYPOTHESIS=search $(BIN)/pytest -n $(WORKERS) tests/unit -m hypothesis $(ARGS)

# Acceptance probes, where a checkout has them beside it: PROBES names their folder.
PROBES ?= $(wildcard ../shared/probes)
probes: $(VENV)/.dev
	@[ -z "$(PROBES)" ] || scripts/probes "$(PROBES)"

test: check pytest probes

clean:
	rm -rf $(VENV) build dist src/*.egg-info
