#!/usr/bin/env bash
# Sets up .venv and runs all tests; arguments go to pytest: ./scripts/test.sh -m "not engine"
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
# The tests are made for a CPU; CUDA_VISIBLE_DEVICES in the environment says otherwise.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
exec .venv/bin/python -m pytest "$@"
