"""Stands for the process of a cell: a run of no engine that behaves as told, in a run folder.

Called as sat-slime is. GRID_STAND_IN names a folder: `starts` gets a line per start, CELL.json holds
what each start is to do: null, or [step, act], the act coming before the step is recorded. Imports nothing that takes
time.
"""

import fcntl
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import yaml

SAVED_EVERY = 2
"""Steps between checkpoints."""


def interrupted(number, frame):
    raise KeyboardInterrupt


def main() -> int:
    command, target, resume = sys.argv[1], Path(sys.argv[2]), "--resume" in sys.argv
    signal.signal(signal.SIGTERM, interrupted)
    assert command == "launch"
    config = yaml.safe_load((target / "config.yaml" if resume else target).read_text())
    run = target if resume else Path(config["output_dir"]) / config["name"]
    at, act = told_of(config["name"], resume)
    if act == "refuse":  # as settings are, before anything is written
        print("error: the key is wrong")
        return 2
    run.mkdir(parents=True, exist_ok=True)
    lock = open(run / ".lock", "w")  # noqa: SIM115 - held to the end
    fcntl.flock(lock, fcntl.LOCK_EX)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    note(run, "running")
    try:
        train(run, config, at, act)
    except KeyboardInterrupt:
        note(run, "interrupted")
        return 130
    except RuntimeError as error:
        note(run, "failed", str(error))
        return 1
    note(run, "finished")
    return 0


def told_of(cell: str, resume: bool) -> tuple[int, str]:
    """(step, act) of this start."""
    told = Path(os.environ["GRID_STAND_IN"])
    with open(told / "starts", "a+") as starts:
        starts.write(f"{cell}{' --resume' if resume else ''} {os.getpid()}\n")
        starts.seek(0)
        number = sum(line.split()[0] == cell for line in starts) - 1
    acts = told / f"{cell}.json"
    plan = json.loads(acts.read_text()) if acts.exists() else []
    return plan[number] if number < len(plan) and plan[number] else (0, "")


def note(run: Path, status: str, error: str | None = None) -> None:
    times = {"last_started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:30+00:00"}
    (run / "state.json").write_text(json.dumps({"status": status, "error": error, **times}))


def train(run: Path, config: dict, at: int, act: str) -> None:
    metrics = run / "metrics.jsonl"
    rows = metrics.read_text().splitlines() if metrics.exists() else []
    rows = rows[: len(rows) // SAVED_EVERY * SAVED_EVERY]
    for step in range(len(rows) + 1, config["pipeline"]["iterations"] + 1):
        metrics.write_text("".join(row + "\n" for row in rows))
        if step == at:
            perform(act, run)
        reward = random.Random(f"{config['name']} {step}").random()
        rows.append(json.dumps({"step": step, "iteration": step, "reward/mean": reward, "mismatch/d_pi": 0.01}))
    metrics.write_text("".join(row + "\n" for row in rows))


def perform(act: str, run: Path) -> None:
    if act == "fail":
        raise RuntimeError("the engine broke")
    if act == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if act in ("interrupt grid", "kill grid"):
        os.kill(os.getppid(), signal.SIGINT if act == "interrupt grid" else signal.SIGKILL)
    if act in ("interrupt grid", "kill grid", "wait"):
        signal.pause()
    if act == "meet":  # goes on once another cell has begun
        while len(list(run.parent.glob("*/state.json"))) < 2:
            time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
