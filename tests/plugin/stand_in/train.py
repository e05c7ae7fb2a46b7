"""Stands for our driver over slime, which needs GPUs, with the same flags, checkpoints and log lines and no training.

Ray shows the lines of slime's actors behind the actor's name and pid; rows go into the run's folder. The rollout of
number WAIT_BEFORE is not begun before the file WAIT_FOR exists; FAIL_AT ends with an exception, in the first
FAIL_STARTS of the run's jobs if that is set; the checkpoint of DAMAGE is damaged.
"""

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path


def flag(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def log(where, text):
    time = datetime.now()
    print(f"\x1b[36m(MegatronTrainRayActor pid=123)\x1b[0m [{time:%Y-%m-%d %H:%M:%S}] {where} - {text}", flush=True)


def append(file, row):
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def main():
    folder = Path(flag("--load", "checkpoints"))
    newest = folder / "latest_checkpointed_iteration.txt"
    first = int(newest.read_text()) + 1 if newest.exists() else 0
    starts = folder / "starts"
    folder.mkdir(parents=True, exist_ok=True)
    starts.write_text(f"{starts.read_text() if starts.exists() else ''}.")
    fails = len(starts.read_text()) <= int(os.environ.get("FAIL_STARTS", "1000"))
    rows = Path(flag("--custom-config-path", "x/x")).parent
    print(f"starts at rollout {first}, knows {os.environ.get('WANDB_API_KEY', 'no key')}", flush=True)
    log("timer.py:24", "Timer train_wait start")
    for rollout in range(first, int(flag("--num-rollout"))):
        if str(rollout) == os.environ.get("WAIT_BEFORE"):
            print(f"waits before rollout {rollout}", flush=True)
            while not Path(os.environ["WAIT_FOR"]).exists():
                time.sleep(0.05)
        if fails and str(rollout) == os.environ.get("FAIL_AT"):
            raise RuntimeError("CUDA out of memory, or so")
        log("model.py:918", f"step {rollout}: {{'train/loss': nan, 'train/step': {rollout}}}")
        row = {"step": rollout + 1, "reward/mean": 0.1 * (rollout + 1), "mismatch/d_pi": 0.012, "lag/mean": 1.0}
        append(rows / "metrics.jsonl", row)
        log("train_metric_utils.py:401", f"perf {rollout}: {{'perf/train_time': 0.1}}")
        if (rollout + 1) % int(flag("--save-interval", "1000")) == 0:
            saved = folder / f"iter_{rollout:07d}"
            saved.mkdir(parents=True)
            for name in ("__0_0.distcp", "common.pt", "metadata.json", ".metadata"):
                (saved / name).write_text("{}")
            newest.write_text(str(rollout))
            if str(rollout) == os.environ.get("DAMAGE"):
                (saved / ".metadata").write_text("")
        if (rollout + 1) % int(flag("--eval-interval", "1000")) == 0:
            append(rows / "eval.jsonl", {"step": rollout + 1, "dataset": "aime24", "accuracy": 0.25, "n_samples": 30})
            log("rollout_metrics.py:247", f"eval {rollout}: {{'eval/aime24': 0.25}}")


if __name__ == "__main__":
    main()
