#!/usr/bin/env bash
# The study of docs/results/frontier/plan.md, in its order: 1055 runs. Ended at any time, it goes on when it is given
# again. Then: sat-slime report grids/frontier
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
grid() {
    local code=0
    .venv/bin/sat-slime grid "configs/grid/frontier/$1.yaml" --no-live "${@:2}" || code=$?
    ((code <= 1)) || exit "$code"  # bad input, or Ctrl-C
    ((code == 0)) || failed=1
}
radii=(eps-0.05 eps-0.1 eps-0.02 eps-0.005)
parts=(sat-alpha-0.8 sat-alpha-0.95 sat-exponent-1 sat-exponent-4 sat-tv sat-checkpoint sat-microbatch)

# What decides comes first: three lags, then the radius at two of them, then the other lags.
grid sweep --only @1 --only @8 --only @32
for name in "${radii[@]}"; do
    grid "$name" --only gspo@8 --only gspo@32 --only sat-gspo@8 --only sat-gspo@32
done
grid eps-0.4 --only grpo --only gspo
grid eps-0.4
for name in eps-0.1 eps-0.05; do grid "$name" --only gspo@1 --only sat-gspo@1; done
grid sweep --only @2 --only @16 --only @64
grid sweep
for name in eps-0.02 eps-0.005; do grid "$name" --only gspo@1 --only sat-gspo@1; done
grid alone
grid methods --only @8 --only @32
grid fp8
grid fp8-eps-0.05
for name in "${parts[@]}"; do grid "$name" --only sat-gspo@8; done
grid stern --only @1 --only @8 --only @32
for name in collapse-top1 collapse-longer collapse-layers; do grid "$name"; done
for name in half-lr double-kl; do grid "$name" --only gspo@8 --only sat-gspo@8; done
grid stern-eps-0.1 --only gspo
for name in half-lr double-kl; do grid "$name" --only gspo --only sat-gspo; done
for name in "${parts[@]}"; do grid "$name" --only sat-gspo; done
grid stern
grid stern-eps-0.1
for name in "${radii[@]}" half-lr double-kl "${parts[@]}" methods; do grid "$name"; done
exit "$failed"
