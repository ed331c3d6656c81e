# The commands of a checkout. A newcomer needs two: `make soak` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv soak test check lint wheel-check container long constraints

PYTHON ?= python3
VENV ?= .venv
DATA ?= .soak

# torch and triton are installed only where the machine's Python has none: an environment that came with torch for
# CUDA or ROCm keeps it. Without a GPU a CPU build will do; where pip would not choose one by itself, name the
# index of PyTorch's CPU wheels: make venv TORCH_OPTIONS="--index-url …".
TORCH ?= torch==2.13.0
TORCH_OPTIONS ?=
TRITON ?= triton==3.9.0

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

# $(call environment,FOLDER,OPTIONS OF PYTHON'S VENV,OPTIONS OF PIP): a virtual environment with torch and triton.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "soak needs Python 3.11 or newer; name one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments; install Debian's python3-venv" >&2; exit 1; }
	@if home=$$($(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null); \
	then shared=--system-site-packages; else shared= home=; fi; \
	$(PYTHON) -m venv $$shared $(2) $(1); \
	if [ -n "$$home" ] && ! $(1)/bin/python -c 'import torch' 2>/dev/null; then \
	  echo "$$home" > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-parent.pth; \
	fi  # $(PYTHON) may itself be of a virtual environment, whose packages are not the system's
	@$(1)/bin/python -c 'import torch' 2>/dev/null || $(1)/bin/pip install --quiet $(3) '$(TORCH)' $(TORCH_OPTIONS)
	@$(1)/bin/python -c 'import triton' 2>/dev/null || $(1)/bin/pip install --quiet $(3) '$(TRITON)'
endef

READY := $(VENV)/.ready

venv: $(READY)  ## the environment with everything to run, test and check

$(READY): pyproject.toml constraints.txt Makefile
	@echo "Installing into $(VENV); minutes the first time."
	$(call environment,$(VENV),,)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

soak: $(READY)  ## a real soak of two minutes: of the GPU if there is one, else of the CPU; prints the certificate
	@if compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/kfd ]; then \
	  device=all profile=generic; echo "Two minutes on every GPU of this machine, profile generic."; \
	else \
	  device=cpu profile=cpu; echo "No GPU here (neither /dev/nvidia* nor /dev/kfd): two minutes on the CPU instead."; \
	fi; \
	$(VENV)/bin/soak run --device $$device --profile $$profile --data-dir $(DATA) \
	  --duration 2m --warmup 30s --rotate-every 20s --check-every 60s --sample-every 15s

# Some tests hold real processes to real seconds, and a busy machine can be late. Those that failed run once more, by
# themselves; both results are shown, and what fails twice has failed.
test: $(READY)  ## every test that takes seconds
	@$(VENV)/bin/pytest -m 'not slow' || { [ $$? -eq 1 ] && echo "Once more, those that failed:" \
	  && $(VENV)/bin/pytest -m 'not slow' --last-failed --last-failed-no-failures none; }

check: lint wheel-check test  ## what CI runs: format, lint, types, import contracts, the wheel elsewhere, tests

lint: $(READY)
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

ELSEWHERE := $(CURDIR)/build/elsewhere

wheel-check: $(READY)  ## the wheel in a clean environment: a short soak of the CPU from another folder
	@rm -rf build/wheel $(ELSEWHERE)
	$(VENV)/bin/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(call environment,$(ELSEWHERE)/venv,--clear,--no-compile)
	$(ELSEWHERE)/venv/bin/pip install --quiet --no-compile --constraint constraints.txt build/wheel/*.whl
	cd $(ELSEWHERE) && venv/bin/soak run --device cpu --run-id elsewhere --data-dir data --duration 30s --warmup 5s \
	  --rotate-every 10s --check-every 15s --sample-every 5s --seq-len 64:512
	cd $(ELSEWHERE) && venv/bin/soak report --run-id elsewhere --data-dir data --format json >report.json
	cd $(ELSEWHERE) && venv/bin/soak db current --data-dir data

container:  ## the image, built and run for real (root; Debian's podman, buildah, runc, debootstrap)
	bash deploy/container/ci.sh

long: $(READY)  ## what takes minutes to hours: slow tests, campaigns, kill storms
	$(VENV)/bin/pytest -m slow
	$(VENV)/bin/soak simulate --campaign 1000 --data-dir $(DATA)

constraints: $(READY)  ## constraints.txt from what is installed here
	$(VENV)/bin/python .ci/constraints.py > constraints.txt.new
	mv constraints.txt.new constraints.txt
