#!/usr/bin/env bash
# Writes what is made from the code: configs/*/base.yaml, the pages below docs/reference, and docs/common-errors.md.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python -m sat_slime.config.base_files configs
PYTHONPATH=scripts .venv/bin/python -m reference docs/reference
PYTHONPATH=tests/cli:tests/embedded .venv/bin/python tests/cli/test_mistakes.py
