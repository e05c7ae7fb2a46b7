#!/usr/bin/env bash
# Shows asynchronous RL with SAT from nothing: sets up .venv, trains a tiny Qwen3-MoE, writes a report. Arguments go to
# `sat-slime launch`: ./scripts/demo.sh --no-sat
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
# The run is made for a CPU, and stays on it unless CUDA_VISIBLE_DEVICES is set.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
exec .venv/bin/sat-slime launch configs/embedded/quickstart.yaml --name "demo-$(date +%Y%m%d-%H%M%S)" "$@"
