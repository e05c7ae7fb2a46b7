#!/usr/bin/env bash
# The study of docs/results/one-setting/plan.md, in its order; its grids lie where it is called. Ended at any time, it
# goes on when it is given again. SAT_SLIME is the command, if another than that of this checkout.
#   scripts/one_setting.sh calibrate
#   scripts/one_setting.sh confirm
#   scripts/one_setting.sh second
#   scripts/one_setting.sh holds [CONDITION ...]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

failed=0 grids=one-setting
grid() {
    local code=0
    "${SAT_SLIME:-$root/.venv/bin/sat-slime}" grid "$root/configs/grid/$grids/$1.yaml" --no-live --retry-failed "${@:2}" || code=$?
    ((code <= 1)) || exit "$code"  # bad input, or Ctrl-C
    ((code == 0)) || failed=1
}

# Calibration: the first comparisons of all lags on three seeds, then the second and the third ones, then all on the
# other two seeds.
first() {
    grid eps-0.8 --only grpo --seeds "$1"
    for name in eps-0.2 power-0.6 power-0.75; do grid "$name" --seeds "$1"; done
    grid eps-0.8 --seeds "$1"
    for name in eps-1.6 unclipped; do grid "$name" --seeds "$1"; done
}
second() {
    for name in repeat eps-0.4 m2po sequence-0.75 power-0.5; do grid "$name" --seeds "$1"; done
}
third() {
    grid bapo --seeds "$1"
}

# Where it holds: a condition is named, has cells of the grid, and settings of its own.
holds() {
    local name=$1 sets=() only=()
    for cells in $2; do only+=(--only "$cells"); done
    for setting in "${@:3}"; do sets+=(--set "$setting"); done
    for radius in narrow wide; do grid "$radius" --name "$name-$radius" "${only[@]}" "${sets[@]}"; done
}
condition() {
    local both='*@8 *@32'
    set -f
    case "$1" in
        lags) holds lags 'grpo@0 *@2 *@4 *@16' ;;
        more-lr) holds more-lr "$both" train.lr=4e-4 ;;
        half-lr) holds half-lr "$both" train.lr=1.25e-4 ;;
        pointer-chasing)
            holds pointer-chasing "$both" task.name=pointer_chasing model.family=qwen3 model.layers=3 \
                model.experts=0 model.ffn_size=128
            ;;
        longer) holds longer "$both" task.min_digits=8 task.max_digits=11 rollout.max_response_tokens=33 ;;
        streaming) for radius in narrow wide; do grid "streaming-$radius"; done ;;
        fp8) holds fp8 "$both" rollout.weights=float8_e4m3 ;;
        layers) holds layers "$both" model.layers=4 ;;
        *) echo "$1 is no condition of the plan's round three" >&2 && exit 2 ;;
    esac
}

case "${1:-}" in
    calibrate)
        for seed in 0 1 2; do first "$seed"; done
        for seed in 0 1 2; do second "$seed"; done
        for seed in 0 1 2; do third "$seed"; done
        for seed in 3 4; do first "$seed" && second "$seed" && third "$seed"; done
        ;;
    confirm)
        grids=one-setting-confirm
        for seed in 5 6 7 8 9 10 11 12 13 14; do
            for name in eps-0.8 eps-1.6 eps-0.2 power-0.6 eps-0.4; do grid "$name" --seeds "$seed"; done
        done
        ;;
    second)
        grids=one-setting-second
        for seed in $(seq 15 34); do
            for name in eps-0.8 eps-0.2 power-0.6 eps-0.4; do grid "$name" --seeds "$seed"; done
        done
        ;;
    holds)
        grids=one-setting-holds
        conditions=("${@:2}")
        ((${#conditions[@]})) || conditions=(lags more-lr half-lr pointer-chasing longer streaming fp8 layers)
        for name in "${conditions[@]}"; do condition "$name"; done
        ;;
    *)
        echo "usage: scripts/one_setting.sh calibrate | confirm | second | holds [CONDITION ...]" >&2
        exit 2
        ;;
esac
exit "$failed"
