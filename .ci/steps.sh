# What `.ci/run` and `.ci/everything` are made of. Each step says how long it took.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tests start hundreds of processes: each would compile the package anew.
unset PYTHONDONTWRITEBYTECODE

shared="$(cd .. && pwd)/shared"
export FLWR_FBO_DATA="${FLWR_FBO_DATA:-$shared/data}"
# Ray listens on every interface, so the engine tests run only where there is loopback
# and nothing else. Where the launcher is there, they must not be skipped.
launcher="$shared/tools/loopback-only"
if [ -x "$launcher" ]; then
  export FLWR_FBO_REQUIRE_ENGINE=1
else
  launcher=""
fi

step() { # NAME [ARGUMENT ...]: run a function
  local begin=$SECONDS
  echo "== $*"
  "$@"
  echo "== $*: $((SECONDS - begin)) s"
}

style() {
  make lint
}

documentation() {
  make docs
}

# `make test` does without PyTorch and skips its tests; here they must not be skipped.
# Pinned: where CI runs, only this version comes without gigabytes of CUDA.
environment() {
  make .venv/test
  .venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 opacus==1.6.0
  export FLWR_FBO_REQUIRE_TORCH=1
}

tests() { # MARKERS
  make test LAUNCHER="$launcher" PYTEST_ARGS="-m '$1'"
}

# What prints numbers or compares them exactly, as other processors compute. NumPy warns
# of a name that it or this processor does not have: then there is nothing to switch off.
numbers() { # VARIABLE=VALUE
  local files="tests/test_documents.py tests/test_equivalence.py tests/benchmarks/test_digests.py"
  files+=" tests/cli/test_report_command.py tests/_common/test_arrays.py"
  if env "$1" .venv/bin/python -W error::ImportWarning -c "import numpy"; then
    env "$1" make test PYTEST_ARGS="-m 'not slow and not gate' $files"
  else
    echo "Skipped, as it is refused here: $1"
  fi
}

# Without PyTorch.
tests_in() { # ENVIRONMENT PYTEST_ARGUMENT ...
  local python="$1/bin/python"
  shift
  env --unset=FLWR_FBO_REQUIRE_TORCH $launcher "$python" -m pytest \
    --numprocesses 2 --dist worksteal "$@"
}

oldest() { # PYTEST_ARGUMENT ...
  make .venv-lowest/bin/python
  tests_in .venv-lowest "$@"
}
