#!/usr/bin/env bash
# Writes what is made from the code: configs/*/base.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHONPATH=. .venv/bin/python scripts/base_files.py configs
