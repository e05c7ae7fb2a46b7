#!/usr/bin/env bash
# Shows from nothing what lag costs and what SAT gives back: sets up .venv, trains a tiny Qwen3-MoE four times, writes a
# report. Arguments go to `sat-slime grid`: ./scripts/demo.sh --seeds 0 --only '*@8'
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
# The runs are made for a CPU, and stay on it unless CUDA_VISIBLE_DEVICES is set.
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"
name="demo-$(date +%Y%m%d-%H%M%S)"
.venv/bin/sat-slime grid configs/grid/demo.yaml --name "$name" "$@"
exec .venv/bin/sat-slime report "grids/$name"
