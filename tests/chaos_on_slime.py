"""Disturbs runs of the real slime on a CPU at random, which come through by themselves (cluster.restarts), and holds
them against what must be; `campaign` does it. Only the launcher is left alone, since it is what restarts. In the end

- nobody had to resume: `launch` has ended well, each restart is a row of restarts.jsonl, and no process is left;
- each iteration has one row, and each evaluation; the newest checkpoints are there, as many as are kept;
- a batch run's lags are those of its order, counted from the checkpoint of the last restart before;
- the data position in each checkpoint is that of the prompts trained; in mode streaming every prompt that was drawn is
  trained, dropped, waiting or in generation, and no token is staler than pipeline.max_staleness.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
from waiting import command_line

ROOT = Path(__file__).parents[1]
FILE = ROOT / "configs" / "slime" / "laptop.yaml"
MARK = "SAT_SLIME_CHAOS"
"""A variable of the environment, by which all processes of a run are found, whoever their parent is now."""
GONE_S = 90.0
"""Within it all processes of a run that has ended are gone: Ray's own agents take a minute to miss their head."""
PROCESSES = {
    "driver": "sat_slime.plugin.driver",
    "trainer rank": "ray::SatTrainRayActor",
    "rollout manager": "ray::RolloutManager",
    "engine actor": "ray::SGLangEngine",
    "SGLang scheduler": "sglang::scheduler",
    "SGLang detokenizer": "sglang::detokenizer",
    "router": "ray::RolloutManager",
    "Ray's raylet": "raylet/raylet",
    "Ray's GCS": "gcs_server",
}
"""What is disturbed, and a word of its command line."""
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP}
WEIGHTS_OF_SIGNALS = (6, 2, 2)
LONGEST_STOP_S = 8.0
STEPS_TO_SEE = 3
"""Iterations after which a disturbance that has shown nothing has been survived."""
PATIENCE_S = 1200.0
"""Without a new row or an end, a run hangs: slime starts in a minute of two idle cores, and Ray in seven at most."""
LAG, KEEP, STALENESS = 3, 2, 1
COMMON = {
    "cluster.restarts": 50,
    "slime.save-interval": 2,
    "pipeline.keep_checkpoints": KEEP,
    "slime.n-samples-per-eval-prompt": 1,
    "slime.rollout-batch-size": 4,
    "slime.n-samples-per-prompt": 4,
    "slime.use-tensorboard": "false",
}
KINDS = {
    "batch": {"method": "sat-gspo-r3", "pipeline.lag": LAG},
    "streaming": {
        "method": "sat-gspo-r3",
        "pipeline.mode": "streaming",
        "pipeline.lag": 1,
        "pipeline.max_staleness": STALENESS,
    },
}


class SlimeRun:
    """A run of slime on a CPU, with the iterations after which it is evaluated and saved."""

    def __init__(self, root: Path, kind: str, iterations: int, settings: Mapping[str, object]) -> None:
        self.kind, self.iterations = kind, iterations
        self.settings = {**COMMON, **KINDS[kind], "slime.eval-interval": max(iterations // 2, 2), **settings}
        self.settings |= {"pipeline.iterations": iterations, "output_dir": root / "runs"}
        self.folder, self.output, self.mark = root / "runs" / kind, root / f"{kind}.txt", uuid.uuid4().hex
        sets = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sat_slime", "launch", str(FILE), "--name", kind, *sets],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, MARK: self.mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )

    def ended(self) -> bool:
        return self.process.poll() is not None

    def rows(self, name: str = "metrics") -> list[dict]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def state(self) -> dict:
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def trained(self) -> int:
        """Iterations with a row."""
        rows = self.rows()
        return int(rows[-1]["step"]) if rows else 0

    def finished(self) -> bool:
        return self.state().get("status") == "finished" and self.ended()

    def processes(self) -> list[psutil.Process]:
        """All that live, also those whose parent is dead."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def kill(self) -> None:
        for process in self.processes():
            process.kill()
        self.process.wait()

    def due(self, key: str) -> list[int]:
        """Iterations after which something is due that comes at the end too."""
        every = int(self.settings[f"slime.{key}-interval"])
        return sorted({*range(every, self.iterations + 1, every), self.iterations})

    def victims(self, kind: str) -> list[psutil.Process]:
        """The router is forked by slime's rollout manager, and is called as it. The driver is the child of a shell."""
        lines = {process: command_line(process) for process in self.processes()}
        found = [each for each, line in lines.items() if PROCESSES[kind] in line and not line.startswith("/bin/sh")]
        if kind not in ("router", "rollout manager"):
            return found
        managers = {each.pid for each, line in lines.items() if PROCESSES["rollout manager"] in line}
        try:
            return [each for each in found if (each.ppid() in managers) == (kind == "router")]
        except psutil.NoSuchProcess:
            return []


# ---------------------------------------------------------------------------------------------------- disturbances


def wait(run: SlimeRun, until: Callable[[], bool]) -> bool:
    """Until that holds or the run has ended; False where for too long nothing has changed in the run folder."""
    seen, since = None, time.monotonic()
    while not run.ended() and not until():
        log = run.folder / "log.txt"
        now = log.stat().st_size if log.exists() else 0
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            return False
        time.sleep(0.5)
    return True


def disturb(run: SlimeRun, rng: random.Random, victim: str, name: str, to_start: bool) -> str:
    """Send the signal, once there is a victim, and see the run through what comes of it: `went on`, `ended` (and was
    restarted), `too late` (there was no such process any more), or else a fault. to_start: of a job that is restarted
    only the start, so that the next disturbance meets it there."""
    before, step = len(run.rows("restarts")), run.trained()
    wait(run, lambda: bool(run.victims(victim)))
    if not (victims := run.victims(victim)):
        return "too late"
    one = rng.choice(victims)
    try:
        one.send_signal(SIGNALS[name])
        if name == "STOP":
            time.sleep(rng.uniform(1, LONGEST_STOP_S))
            one.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        if name != "STOP":
            return "too late"

    def seen() -> bool:
        restarted = len(run.rows("restarts")) > before  # such a job has to come further than the one before
        return run.trained() >= step + (1 if restarted else STEPS_TO_SEE) or (restarted and to_start)

    if not wait(run, seen):
        return "hangs"
    if run.ended() and not run.finished():
        return f"not restarted: {run.state().get('error')}"
    return "ended" if len(run.rows("restarts")) > before else "went on"


def campaign(root: Path, kind: str, times: int, seed: int, places: Mapping[str, object]) -> list[str]:
    """Disturb a run so many times, and return the faults."""
    rng, found, count, outcome, to_start = random.Random(seed), [], 0, "", False
    run, victims = SlimeRun(root, kind, 12 * times, places), []
    while count < times and not run.ended():
        victims = victims or rng.sample(list(PROCESSES), len(PROCESSES))  # every kind of process has its turn
        victim, name = victims.pop(), rng.choices(list(SIGNALS), WEIGHTS_OF_SIGNALS)[0]
        if outcome == "ended" and to_start:
            time.sleep(rng.uniform(0, 40))
        else:
            step = min(max(run.trained(), 1) + rng.randint(0, 3), run.iterations - 1)
            if not wait(run, lambda step=step: run.trained() >= step):
                found.append(f"hangs before iteration {step}")
                break
            time.sleep(rng.uniform(0, 3))
        to_start = rng.random() < 0.25
        outcome = disturb(run, rng, victim, name, to_start)
        print(f"{kind}: {victim} {name} after step {run.trained()}: {outcome}", flush=True)
        count += outcome != "too late"
        if outcome not in ("went on", "ended", "too late"):
            found.append(f"{victim} {name}: {outcome}")
    if not wait(run, lambda: False):
        run.kill()
        return [*found, f"{kind} hangs: {run.output}"]
    return [*found, *faults(run)] + ([] if count == times else [f"{count} disturbances of {times}"])


# ------------------------------------------------------------------------------------------------- what must be true


def lag_of(rollout: int, pushes_from: int, lag: int) -> int:
    """The lag of a rollout's batch in a job whose first push was before rollout `pushes_from`."""
    if rollout == pushes_from:
        return 0
    # A batch is generated while the one before is trained, before a push that follows that one.
    pushed = max([pushes_from, *(push for push in range(0, rollout, lag) if push > pushes_from)])
    return rollout - pushed


def faults(run: SlimeRun) -> Iterator[str]:
    """What is not as it must be in a run that has ended."""
    rows, restarts = run.rows(), run.rows("restarts")
    if not run.finished():
        yield f"it did not finish: {run.state()}"
    if left := psutil.wait_procs(run.processes(), timeout=GONE_S)[1]:
        yield f"left: {[command_line(process)[:100] for process in left]}"
    if [row["step"] for row in rows] != list(range(1, run.iterations + 1)):
        yield f"steps {[row['step'] for row in rows]}"
    # A row is of the job that was begun by the last restart from before it.
    jobs = [max((n for n, one in enumerate(restarts, 1) if one["from"] < row["step"]), default=0) for row in rows]
    if (told := [row["run/restarts"] for row in rows]) != jobs:
        yield f"run/restarts {told}, not {jobs}"
    lags = [row.get("lag/max", math.inf) for row in rows]
    if run.kind == "batch":
        starts = [restarts[job - 1]["from"] if job else 0 for job in jobs]
        lag = int(run.settings["pipeline.lag"])
        due = [lag_of(row["step"] - 1, start, lag) for row, start in zip(rows, starts, strict=True)]
        if lags != due:
            yield f"lags {lags}, not {due}"
    elif max(lags) > STALENESS:
        yield f"lag {max(lags)}"
    yield from evaluation_faults(run)
    yield from checkpoint_faults(run, rows)


def evaluation_faults(run: SlimeRun) -> Iterator[str]:
    seen = [(row["step"], row["weights_step"]) for row in run.rows("eval")]
    if [step for step, _ in seen] != [0, *run.due("eval")]:
        yield f"evaluations after {[step for step, _ in seen]}"
    if seen[:1] != [(0, 0)] or seen[-1] != (run.iterations, run.iterations):
        yield f"evaluations of {seen}"


def checkpoint_faults(run: SlimeRun, rows: list[dict]) -> Iterator[str]:
    import torch

    checkpoints = run.folder / "checkpoints"
    there = sorted(int(path.name.removeprefix("iter_")) + 1 for path in checkpoints.glob("iter_???????"))
    if there != (due := run.due("save")[-KEEP:]):
        yield f"checkpoints of {there}, not {due}"
    prompts, samples = (int(run.settings[f"slime.{key}"]) for key in ("rollout-batch-size", "n-samples-per-prompt"))
    for iteration in there:
        position = checkpoints / "rollout" / f"global_dataset_state_dict_{iteration - 1}.pt"
        drawn = torch.load(position, weights_only=True)["sample_group_index"]
        done = float(prompts * iteration)
        if run.kind == "streaming":
            queue = torch.load(checkpoints / "rollout" / f"queue_{iteration - 1}" / "queue.pt", weights_only=True)
            dropped = sum(row["rollout/dropped"] for row in rows if row["step"] <= iteration)
            dropped += len(queue["unreported"]["dropped"]) + queue["unreported"]["aborted"]
            done += dropped / samples + len(queue["waiting"]) + len(queue["prompts"])
        if drawn != done:
            yield f"after iteration {iteration} {drawn} prompts are drawn, and {done} accounted for"
