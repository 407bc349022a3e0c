# make setup | demo | docs | test | test-all | lint | clean
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Present only after a complete installation of exactly these two files.
STAMP := $(VENV)/installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
PIP := $(PY) -m pip --disable-pip-version-check install -qq --constraint constraints.txt

.PHONY: setup demo docs test test-all lint clean

setup: $(STAMP)
	@:

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ovo_clinic needs Python 3.11 or newer as '$(PYTHON)'; name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@rm -f $(VENV)/installed-*
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
		echo "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time this takes some minutes"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: setup
	$(VENV)/bin/ovo-clinic demo

docs: setup
	$(PY) -m mkdocs build --strict

lint: setup
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy

# Two processes, a test file at a time, as files share costly fixtures; in their order, as the longest has the fewest tests.
PYTEST := $(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ""

# Leaves ovo_clinic_home, which holds results.
clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find ovo_clinic pipelines tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
