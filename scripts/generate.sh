#!/usr/bin/env bash
# Writes what is made from the code: configs/*/base.yaml, and the tables of methods and metrics in docs/.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python -m sat_slime.config.base_files configs
.venv/bin/python -m sat_slime.objective.markdown docs
