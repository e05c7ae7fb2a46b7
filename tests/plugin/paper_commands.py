"""The paper's runs, from their configuration file."""

from pathlib import Path

from sat_slime.config import load_config
from sat_slime.objective.method import PAPER_METHODS

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "configs" / "paper" / "qwen3-30b-a3b.yaml"
METHODS = [method.name for method in PAPER_METHODS]
GRID = [(method, lag) for method in METHODS for lag in (1, 8)]
assert len(GRID) == 26


def paper(tmp_path, *overrides, method="gspo", lag=8):
    settings = {"method": method, "pipeline.lag": lag, "output_dir": str(tmp_path)}
    return load_config(PAPER, overrides, settings)
