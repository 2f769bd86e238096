# The two commands of the README: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
# What runs pytest and the benchmarks (`.ci/run` puts pytest into a network namespace
# with nothing but loopback, where Ray may be started), with what pytest runs, and in how
# many processes.
LAUNCHER ?=
WORKERS ?= 2
PYTEST_ARGS ?= -m "not slow and not gate"

.PHONY: help demo test everything coverage lint wheel newest docs bench clean

demo: .venv/core  ## Tune an app at 20 simulated sites, with no line of it changed
	rm -rf build/demo
	$(BIN)/flwr-fbo tune examples/tune-fedavg-sklearn/before --metric accuracy \
		--search learning-rate=1e-4..1:log --search local-epochs=1..8 \
		--compare --seed 1 --folder build/demo
	$(BIN)/flwr-fbo report build/demo

test: .venv/test  ## Run the fast tests
	$(LAUNCHER) $(BIN)/python -m pytest $(PYTEST_ARGS) --numprocesses $(WORKERS) \
		--dist worksteal

everything:  ## Run all there is, in an hour: `.ci/everything STEP` runs one step
	bash .ci/everything

# Apart from `make test`, whose time it would double.
coverage:  ## Run the fast tests, and show which lines they do not reach
	$(MAKE) test PYTEST_ARGS='$(PYTEST_ARGS) --cov --cov-report=term --cov-fail-under=90'

lint: .venv/dev  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/plug-in-numpyclient/before/digits_fedavg/*.py
	$(BIN)/mypy examples/private-training/before/digits_private/*.py
	$(BIN)/mypy examples/tune-fedavg-sklearn/before/digits_sgd/*.py
	$(BIN)/mypy examples/tune-fedavg-pytorch/before/digits_torch/*.py

# Beside its peers, on one BLAS thread: `benchmarks/table.md`, in an hour. Flower's
# engine is among them only where there is no network: `make .venv/bench` first.
bench: .venv/bench  ## Measure it beside its peers, in an hour
	OMP_NUM_THREADS=1 $(LAUNCHER) $(BIN)/python -m benchmarks

# The oldest versions of everything that `pyproject.toml` promises to work with.
.venv-lowest/bin/python: .venv/test pyproject.toml
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python $@ --resolution lowest-direct \
		--editable '.[test]'
	@touch $@

# The newest Flower that can be installed, also above what `pyproject.toml` promises.
newest: .venv/test  ## Try the newest Flower that can be installed
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-newest
	echo "flwr[dp,simulation]" > .venv-newest/override.txt
	$(BIN)/uv pip install --quiet --python .venv-newest/bin/python --editable '.[test]' \
		--override .venv-newest/override.txt --refresh-package flwr
	.venv-newest/bin/flwr --version

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lab]'
	@touch $@

.venv/test: .venv/core
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

.venv/dev: .venv/test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# For machines without a clone: `dist/flwr_fbo-VERSION-py3-none-any.whl`.
wheel: .venv/bin/pip  ## Build dist/*.whl
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

docs: .venv/docs  ## Build the documentation, in build/docs
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going docs build/docs

.venv/docs: .venv/core
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.venv/bench: .venv/core
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

clean:  ## Remove what was made
	rm -rf .venv build/docs .venv-lowest .venv-newest dist

help:  ## Print this
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile
