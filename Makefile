# Everything a person types. `make demo` and `make test` work on a fresh machine and need nothing prepared.

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
TESTS ?=
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif

.PHONY: help setup demo test faults check unit bench docs clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## a virtual environment with the locked dependencies

# Debian's python3 comes without venv's parts; root can be helped, others are told.
$(READY): requirements.lock pyproject.toml
	@python3 -m venv $(VENV) 2>/dev/null || { \
	  rm -rf $(VENV); \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "python3 lacks venv: install python3-venv"; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv && python3 -m venv $(VENV); }
	@echo "Installing the locked dependencies into $(VENV) ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## a local Slurm, Dagster, and the example's elastic job (ONESHOT=1 ends by itself)
	@$(PYTHON) -m example_project.demo $(if $(ONESHOT),--oneshot)

check: $(READY) ## style, types, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

unit: check ## what needs no Slurm
	$(PYTHON) -m pytest -m "not integration" $(TESTS)

test: check docs ## everything, on a real Slurm that the tests start and end
	$(PYTHON) -m pytest -m "not slow" --cov --cov-report=term:skip-covered $(TESTS)

faults: $(READY) ## every fault at every step, the full set; prints how often each was executed (SEED=n repeats)
	DAGSTER_SLURM_FULL_SET_SEED=$(SEED) $(PYTHON) -m pytest --hypothesis-seed=$(SEED) \
	  dagster_slurm_tests/faults dagster_slurm_tests/contracts dagster_slurm_tests/properties $(TESTS)

bench: $(READY) ## what it costs, against the bare commands
	$(PYTHON) -m dagster_slurm_tests.bench

docs: $(READY) ## build the documentation, strictly
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

clean: ## remove what was built
	rm -rf $(VENV) site .demo .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
