#!/usr/bin/env bash
# Keeps what grids/frontier has, in docs/results/frontier: of each grid with runs an archive of rows, settings
# and states, and the report with its tables and figures. What a machine writes about itself, its logs, is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=docs/results/frontier
left_out=(checkpoints initial weights figures tables report.html histograms.jsonl samples tensorboard logs log.txt .lock)

for grid in grids/frontier/*/grid.yaml; do
    name=$(basename "$(dirname "$grid")")
    [ -d "grids/frontier/$name/runs" ] || continue
    tar -c --sort=name --owner=0 --group=0 --numeric-owner "${left_out[@]/#/--exclude=}" -C grids/frontier "$name" |
        xz -9e > "$kept/runs/$name.tar.xz"
done
rm -rf "$kept/figures" "$kept/tables"
touch "$kept/report.html" # by which the folder is known as a report's
.venv/bin/sat-slime report grids/frontier --out docs/results/frontier
