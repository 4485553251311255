# make demo | demo-train | test | conformance | fuzz | lint | clean. Everything goes into ./.venv and ./build.
SHELL := /bin/bash
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo demo-train test conformance fuzz lint static clean
unexport PYTHONPATH PYTHONHOME
# Python keeps what it compiled: without that, each of the hundreds of processes that tests start compiles all
# that it imports.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
COMMA := ,
PROJECT_TESTS := $(wildcard tests/unit/project/test_project_*.py)
# CUDA's wheels are large, so the demo takes them only where there is a driver to run kernels with.
HAS_DRIVER = { ls /proc/driver/nvidia/version /dev/dxg || command -v nvidia-smi; } >/dev/null 2>&1
DEMO_WITH = $(shell $(HAS_DRIVER) && echo cuda-opencl || echo opencl)
# A checkout that was moved or copied needs its editable installation renewed.
HOME_MATCHES := $(shell [ "$$(cat .venv/checkout 2>/dev/null)" = "$$(pwd -P)" ] && echo yes)

help:
	@echo "make demo    run a network from Relay file to checked result"
	@echo "make demo-train   train a classifier of digits and a small GPT on this machine"
	@echo "make test    everything: ruff, mypy, the import table, all tests"
	@echo "make conformance   recorded operator cases, ONNX node tests and networks on every target here"
	@echo "make fuzz    random graphs, compiled and compared (SECONDS=1800)"
	@echo "make lint    ruff, mypy, the import table and the style rules only"
	@echo "make clean   remove .venv and build"

demo: .venv/with-$(DEMO_WITH)
	@$(PY) -m tilewright.tools.demo

demo-train: .venv/with-$(DEMO_WITH)-demo
	@$(PY) -m tilewright.tools.demo_train

test: static
	@echo "running the tests ..."
	@TILEWRIGHT_REPEATABLE=1 $(PY) -m pytest -q -n 2 --dist worksteal --max-worker-restart 40

conformance: .venv/with-cuda-opencl-dev
	@$(PY) -m tilewright.tools.conformance tests/data $(CONFORMANCE)

fuzz: .venv/with-cuda-opencl-dev
	@$(PY) -m tilewright.tools.fuzz --seconds $(or $(SECONDS),1800) --keep build/fuzz $(FUZZ)

lint: static
	@$(PY) -m pytest -q $(PROJECT_TESTS)

# The folders become packages at installation only, so the type checker reads an installed copy;
# its messages are turned back into the paths of the checkout.
static: .venv/with-cuda-opencl-dev
	@echo "checking style and types ..."
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .
	@rm -rf build && mkdir -p build
	@$(PIP) install --no-build-isolation --no-deps --no-compile --no-index --target build/installed .
	@set -o pipefail; MYPYPATH=build/installed $(PY) -m mypy -p tilewright | sed -E \
	    -e 's#^build/installed/tilewright/(codegen|costmodel|frontends|ir|passes|runtime|tools)/#\1/#' \
	    -e 's#^build/installed/tilewright/#compiler/#'

.venv/with-%: .venv/created pyproject.toml constraints.txt
	@echo "installing packages ($(subst -,$(COMMA) ,$*)) into .venv ..."
	@$(PIP) install --constraint constraints.txt pip setuptools
	@PYTHONWARNINGS=ignore $(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[$(subst -,$(COMMA),$*)]'
	@touch $@

.venv/created: $(if $(HOME_MATCHES),,renew)
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && break; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Tilewright needs Python 3.11, 3.12 or 3.13; $(or $(PYTHON),python3) is" \
	        "$$($(or $(PYTHON),python3) --version 2>&1). Name another: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	fi; \
	$(PIP) --version >/dev/null 2>&1 || { \
	    echo "creating .venv with $$($$python --version) ..."; \
	    $$python -m venv --clear .venv; \
	}
	@pwd -P > .venv/checkout
	@touch $@

.PHONY: renew
renew:

clean:
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
