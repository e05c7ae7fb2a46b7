#!/usr/bin/env bash
# Sets up .venv and runs the tests in three workers; arguments go to pytest: ./scripts/test.sh -m "not engine"
#
# A file of tests is one worker's, and a test that is named with :: runs without workers, as with --pdb or -n 0.
#
# Left out:
#   tests of the mark slow, unless -m names it:          ./scripts/test.sh -m slow
#   those of the real slime, whole, without its source:  ./scripts/get-slime.sh DIR
#                                                        ./scripts/test.sh tests/slime_whole --slime DIR/slime --megatron DIR/Megatron-LM
#   those of slime's own functions, likewise:            PYTHONPATH=DIR/slime:DIR/Megatron-LM ./scripts/test.sh tests/plugin
# What is skipped for another reason is told with it by -rs.
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
# The tests are made for a CPU; CUDA_VISIBLE_DEVICES in the environment says otherwise.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
# A test that nothing ends costs its worker (tests/conftest.py), and xdist gives a new worker the same test again.
exec .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 2 "$@"
