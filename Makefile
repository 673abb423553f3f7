# Two commands: `make train` and `make test`. Both set up .venv on a fresh machine; the second time both are quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0

.PHONY: train train-ray test check clean

train: $(VENV)/.ready  ## train the built-in model with PPO, to the end
	$(BIN)/telescope train --resume --seed $(SEED) --name arithmetic-seed$(SEED)

train-ray: $(VENV)/.ready  ## the same in two workers of a Ray cluster started here
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[ray]"
	$(BIN)/telescope train --backend ray --ray.workers 2 --resume --seed $(SEED) --name arithmetic-ray-seed$(SEED)

test: $(VENV)/.ready-dev  ## run the tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(VENV)/.ready-dev  ## lint, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove the environment and the runs
	rm -rf $(VENV) runs

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch>=2.11,<2.14"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check "triton>=3.9"  # comes with torch for GPUs
	touch $@
