# Every target sets up what it needs on a fresh machine: Python 3.11 to 3.13 and the package index are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= graph_lam

.PHONY: setup lint test test-all peer-test demo

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,test]' --config-settings editable_mode=compat
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m ""

peer-test: setup
	$(BIN)/python -m tests.peer.run

demo: setup
	$(BIN)/neural-lam-anemoi demo --output demo/$(MODEL) --model $(MODEL) --force
