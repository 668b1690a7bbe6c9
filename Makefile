# Every target works as the first command in a fresh clone: it makes .venv when that is missing or stale, and touches
# the network only then. Needs Python 3.11 or newer; on Debian, root gets python3-venv by itself.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip --quiet --quiet --disable-pip-version-check --no-input
#: Where Mooncake's wheel lives, with what the programs use beside it (add torch for the tensors' part).
MOONCAKE_VENV := .venv-mooncake
MOONCAKE_PACKAGES := mooncake-transfer-engine-non-cuda numpy
#: Where the tests on a real GPU run; filled only where there is one.
GPU_VENV := .venv-gpu
#: Where the real vLLM engine lives (2.5 GB), and exactly what is installed for it.
VLLM_VENV := .venv-vllm
VLLM_LOCK := tests/vllm/engine/requirements.lock
#: Extra arguments, for example: make test ARGS="tests/config -k token", make demo ARGS="--seed 7"
ARGS :=

# The stamp holds the directory it was made in: an editable install does not survive being moved. A Python that was
# removed leaves a .venv that cannot run. Both start over.
ifneq ($(shell cat $(VENV)/.ready 2>/dev/null && $(PYTHON) -c '' 2>/dev/null && echo works),$(CURDIR) works)
$(shell rm -f $(VENV)/.ready $(VENV)/.ready-lint)
endif

.PHONY: help demo test test-mutations test-mooncake test-gpu test-vllm test-rdma lint types layers check
.PHONY: bench bench-vllm bench-rdma reference clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

demo: $(VENV)/.ready ## a master, nodes and engines on this machine, with and without the pool
	@$(PYTHON) -m pykvpool demo $(ARGS)

test: $(VENV)/.ready ## all tests
	@$(PYTHON) -m pytest $(ARGS)

test-mutations: $(VENV)/.ready ## break a copy of the pool in every known way: do the tests notice? (minutes)
	@$(PYTHON) -m tests.mutations $(ARGS)

test-mooncake: ## the same programs on Mooncake's wheel and on the pool; writes docs/mooncake.md's table
	@$(MAKE) VENV=$(MOONCAKE_VENV) $(MOONCAKE_VENV)/.ready-mooncake
	@$(MOONCAKE_VENV)/bin/python -m tests.mooncake.compare

test-gpu: ## torch tensors in and out of the pool, on this machine's GPU; says so where there is none
	@if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then \
	    $(MAKE) VENV=$(GPU_VENV) $(GPU_VENV)/.ready-gpu && $(GPU_VENV)/bin/python -m tests.gpu $(ARGS); \
	else echo "no GPU tests here: there is no NVIDIA driver (/dev/nvidiactl)"; fi
test-vllm: $(VLLM_VENV)/.ready-vllm ## the connector in the real vLLM engine, on this CPU (makes a venv of 2.5 GB once)
	@$(VLLM_VENV)/bin/python -m pytest -W default tests/vllm $(ARGS)

# Its own virtual environment, for the system's Python, which pyverbs is built for: see tests/rdma/guest/prepare.
test-rdma: ## rdma on real verbs, in a small guest with emulated devices (minutes)
	@tests/rdma/guest/run python -m pytest tests/rdma -p no:cacheprovider -o faulthandler_timeout=120 $(ARGS)

lint: $(VENV)/.ready-lint ## ruff: rules and format
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

types: $(VENV)/.ready-lint ## mypy, strict
	@$(PYTHON) -m mypy

layers: $(VENV)/.ready-lint ## import-linter: who may import whom
	@$(PYTHON) -c 'from importlinter.cli import lint_imports_command as check; check()' --no-logo

check: lint types layers ## all three

bench: $(VENV)/.ready ## measure this machine, and the pool beside it
	@$(PYTHON) -m pykvpool bench $(ARGS)

bench-vllm: $(VLLM_VENV)/.ready-vllm ## an engine's steps with the connector and without, in turn
	@$(VLLM_VENV)/bin/python benchmarks/vllm_steps.py $(ARGS)

bench-rdma: ## rdma beside ib_write_bw and ib_read_bw, in the guest of test-rdma (minutes)
	@tests/rdma/guest/run bash benchmarks/rdma.sh $(ARGS)

reference: $(VENV)/.ready ## write the generated pages of docs/ anew
	@$(PYTHON) -m pykvpool.observe.reference docs
	@$(PYTHON) -m pykvpool_connector.vllm.reference docs/vllm.md

clean: ## remove .venv and everything that can be made again
	@rm -rf $(VENV) $(MOONCAKE_VENV) $(GPU_VENV) $(VLLM_VENV) .rdma-guest build dist
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough, works, and can make a venv; else the first that only lacks ensurepip, which
# Debian ships apart.
define find_python
usable=; bare=; \
for candidate in python3.13 python3.12 python3.11 python3; do \
    command -v $$candidate >/dev/null || continue; \
    $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
    if $$candidate -c 'import ensurepip, venv' 2>/dev/null; then usable=$$candidate; break; fi; \
    bare=$${bare:-$$candidate}; \
done; \
if [ -z "$$usable$$bare" ]; then \
    echo "No Python 3.11 or newer found. On Debian: apt-get install python3 python3-venv" >&2; exit 1; \
fi
endef

define install_venv_module
package=$$($$bare -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
    echo "$$bare cannot make virtual environments. Run: sudo apt-get install $$package" >&2; exit 1; \
fi; \
echo "Installing $$package"; \
export DEBIAN_FRONTEND=noninteractive; \
apt-get install -y -qq $$package >/dev/null 2>&1 </dev/null \
    || { apt-get update -qq </dev/null && apt-get install -y -qq $$package >/dev/null </dev/null; }; \
usable=$$bare
endef

$(VENV)/.ready: pyproject.toml
	@$(find_python); if [ -z "$$usable" ]; then $(install_venv_module); fi; \
	echo "Making $(VENV) with $$($$usable -V) (once; a minute or so)"; \
	rm -f $(VENV)/.ready $(VENV)/.ready-lint; \
	[ -x $(PYTHON) ] && $(PYTHON) -m pip --version >/dev/null 2>&1 || $$usable -m venv --clear $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable . --group test
	@echo "$(CURDIR)" > $@

$(VENV)/.ready-lint: $(VENV)/.ready
	@echo "Adding the linters to $(VENV)"
	@$(PIP) install --group lint
	@touch $@

$(GPU_VENV)/.ready-gpu: $(VENV)/.ready
	@echo "Adding cuda-python and torch to $(VENV) (some minutes)"
	@$(PIP) install --editable '.[gpu]' torch numpy
	@touch $@

# A wheel that cannot be had (no network, another architecture) is no error: compare then says so and does nothing.
$(MOONCAKE_VENV)/.ready-mooncake: $(VENV)/.ready
	@echo "Adding $(MOONCAKE_PACKAGES) to $(VENV)"
	@$(PIP) install $(MOONCAKE_PACKAGES) && touch $@ || echo "$(MOONCAKE_PACKAGES) cannot be installed here"

# vLLM's wheels for the CPU are for Python 3.11 here. The lock names every package and nothing that clashes with the
# CPU build of torch; the pool itself comes from this tree, with its plugin's entry point.
$(VLLM_VENV)/.ready-vllm: $(VLLM_LOCK) pyproject.toml
	@python=$$(command -v python3.11) || { echo "The vLLM engine's lock is for Python 3.11, which is not here" >&2; exit 1; }; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then usable=; bare=$$python; $(install_venv_module); fi; \
	echo "Making $(VLLM_VENV) with the vLLM engine (once; 2.5 GB, about 4 minutes)"; \
	rm -f $@; [ -x $(VLLM_VENV)/bin/python ] || $$python -m venv --clear $(VLLM_VENV)
	@export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1; pip="$(VLLM_VENV)/bin/python -m pip --quiet --quiet"; \
	$$pip install --upgrade 'pip>=25.1' && echo "  packages of the engine" && $$pip install --no-deps -r $(VLLM_LOCK) \
	&& echo "  the pool" && $$pip install --editable . --group test && touch $@
