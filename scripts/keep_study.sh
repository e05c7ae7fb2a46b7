#!/usr/bin/env bash
# Keeps what a study has, in docs/results/NAME: of each grid with finished runs an archive of their rows, settings and
# states, and the report with its tables and figures. What a machine writes about itself, its logs and errors, is left
# out, and so are runs that have not ended.
#   scripts/keep_study.sh frontier
#   scripts/keep_study.sh one-setting [FOLDER OF ITS GRIDS, default grids/NAME] [--no-report]
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
grids=${2:-grids/$name}
kept=docs/results/$name
left_out=(checkpoints initial weights figures tables report.html histograms.jsonl samples tensorboard logs log.txt .lock)
mkdir -p "$kept/runs"

for grid in "$grids"/*/grid.yaml; do
    folder=$(dirname "$grid") one=$(basename "$(dirname "$grid")")
    copy=$(mktemp -d)
    mapfile -t unfinished < <(.venv/bin/python - "$folder/state.json" "$copy/state.json" <<'PYTHON'
import json, sys

given, kept = sys.argv[1:]
state = json.load(open(given))
for cell in state["cells"]:
    if cell["state"] != "finished":
        print(cell["cell"])
state["cells"] = [{**cell, "error": None} for cell in state["cells"] if cell["state"] == "finished"]
if state["cells"]:
    json.dump(state, open(kept, "w"), indent=1)
PYTHON
    )
    if [ -e "$copy/state.json" ]; then
        excluded=("${left_out[@]/#/--exclude=}" --exclude="$one/state.json")
        for cell in "${unfinished[@]}"; do excluded+=("--exclude=$one/runs/$cell" "--exclude=$one/cells/$cell.yaml"); done
        tar -c --sort=name --owner=0 --group=0 --numeric-owner "${excluded[@]}" -C "$grids" "$one" \
            --transform "s|^state.json|$one/state.json|" -C "$copy" state.json | xz -9e > "$kept/runs/$one.tar.xz"
    fi
    rm -r "$copy"
done
[ "${3:-}" = --no-report ] && exit
rm -rf "$kept/figures" "$kept/tables"
touch "$kept/report.html" # by which the folder is known as a report's
.venv/bin/sat-slime report "$grids" --out "$kept"
