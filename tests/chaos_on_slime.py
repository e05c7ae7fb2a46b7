"""Disturbs runs of the real slime on a CPU at random, which come through by themselves (cluster.restarts), and holds
them against what must be; `campaign` does it. Only the launcher is left alone, since it is what restarts. In the end

- nobody had to resume: `launch` has ended well, each restart is a row of restarts.jsonl, and no process is left;
- each iteration has one row, and each evaluation; the newest checkpoints are there, as many as are kept;
- a batch run's lags are those of its order, counted from the checkpoint of the last restart before;
- the data position in each checkpoint is that of the prompts trained; in mode streaming every prompt that was drawn is
  trained, dropped, waiting or in generation, and no token is staler than pipeline.max_staleness.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
from waiting import command_line
from whole_run import COMMAND, FILE, environment

from sat_slime.config.jsonl import read_rows

MARK = "SAT_SLIME_CHAOS"
"""A variable of the environment, by which all processes of a run are found, whoever their parent is now."""
GONE_S = 90.0
"""Within it all processes of a run that has ended are gone: Ray's own agents take a minute to miss their head."""
VICTIMS = {
    "driver": "sat_slime.plugin.driver",
    "trainer rank": "ray::SatTrainRayActor",
    "rollout manager or router": "ray::RolloutManager",  # which forks the router, called as it
    "engine actor": "ray::SGLangEngine",
    "SGLang scheduler": "sglang::scheduler",
    "SGLang detokenizer": "sglang::detokenizer",
    "Ray's raylet": "raylet/raylet",
    "Ray's GCS": "gcs_server",
}
"""What is disturbed, and a word of its command line."""
SIGNALS = {signal.SIGKILL: 6, signal.SIGTERM: 2, signal.SIGSTOP: 2}
"""With their weights in the draw."""
LONGEST_STOP_S = 8.0
STEPS_TO_SEE = 3
"""Iterations after which a disturbance that has shown nothing has been survived."""
PATIENCE_S = 1200.0
"""Without a new line in its log a run hangs: slime starts in a minute of two idle cores, and Ray in seven at most."""
LAG, KEEP, STALENESS, PROMPTS, SAMPLES, SAVED = 3, 2, 1, 4, 4, 2
COMMON = {
    "method": "sat-gspo-r3",
    "cluster.restarts": 50,
    "slime.save-interval": SAVED,
    "pipeline.keep_checkpoints": KEEP,
    "slime.n-samples-per-eval-prompt": 1,
    "slime.rollout-batch-size": PROMPTS,
    "slime.n-samples-per-prompt": SAMPLES,
    "slime.use-tensorboard": "false",
}
KINDS = {
    "batch": {"pipeline.lag": LAG},
    "streaming": {"pipeline.mode": "streaming", "pipeline.lag": 1, "pipeline.max_staleness": STALENESS},
}


class SlimeRun:
    """A run of slime on a CPU."""

    def __init__(self, root: Path, kind: str, iterations: int, places: Mapping[str, object]) -> None:
        self.kind, self.iterations, self.evaluated = kind, iterations, max(iterations // 2, 2)
        settings = {**COMMON, **KINDS[kind], "slime.eval-interval": self.evaluated, **places}
        settings |= {"pipeline.iterations": iterations, "output_dir": root / "runs"}
        self.folder, self.output, self.mark = root / "runs" / kind, root / f"{kind}.txt", uuid.uuid4().hex
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "launch", str(FILE), "--name", kind, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment() | {MARK: self.mark},
            )

    def rows(self, name: str = "metrics") -> list[dict]:
        return read_rows(self.folder / f"{name}.jsonl")

    def trained(self) -> int:
        """Iterations with a row."""
        return max((int(row["step"]) for row in self.rows()), default=0)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def state(self) -> dict:
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def finished(self) -> bool:
        return self.state().get("status") == "finished" and self.ended()

    def processes(self, word: str = "") -> list[psutil.Process]:
        """All that live with this word in their command line, also those whose parent is dead."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                line = command_line(process)  # the driver is the child of a shell
                alive = process.status() != psutil.STATUS_ZOMBIE and not (word and line.startswith("/bin/sh"))
                if alive and word in line and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def wait(self, until: Callable[[], bool]) -> bool:
        """Until that holds or the run has ended; False where for too long its log has not grown."""
        seen, since, log = None, time.monotonic(), self.folder / "log.txt"
        while not self.ended() and not until():
            if (now := log.stat().st_size if log.exists() else 0) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                return False
            time.sleep(0.5)
        return True


def disturb(run: SlimeRun, rng: random.Random, victim: str, to_start: bool) -> str:
    """Send a signal, once there is a victim, and see the run through what comes of it: `went on`, `ended` (and was
    restarted), `too late` (there was no such process any more), or else a fault. to_start: of a job that is restarted
    only the start, so that the next disturbance meets it there."""
    before, step, (number,) = len(run.rows("restarts")), run.trained(), rng.choices(list(SIGNALS), [*SIGNALS.values()])
    run.wait(lambda: bool(run.processes(VICTIMS[victim])))
    try:
        one = rng.choice(run.processes(VICTIMS[victim]))
        one.send_signal(number)
    except (IndexError, psutil.NoSuchProcess):
        return "too late"
    if number == signal.SIGSTOP:
        time.sleep(rng.uniform(1, LONGEST_STOP_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGCONT)

    def seen() -> bool:
        restarted = len(run.rows("restarts")) > before  # such a job has to come further than the one before
        return run.trained() >= step + (1 if restarted else STEPS_TO_SEE) or (restarted and to_start)

    if not run.wait(seen):
        return f"{number.name}: hangs"
    if run.ended() and not run.finished():
        return f"{number.name}: not restarted: {run.state().get('error')}"
    return "ended" if len(run.rows("restarts")) > before else "went on"


def campaign(root: Path, kind: str, times: int, seed: int, places: Mapping[str, object]) -> list[str]:
    """Disturb a run so many times, and return the faults."""
    rng, found, count, outcome, to_start = random.Random(seed), [], 0, "", False
    run, victims = SlimeRun(root, kind, 12 * times, places), []
    while count < times and not run.ended():
        victims = victims or rng.sample(list(VICTIMS), len(VICTIMS))  # every kind of process has its turn
        if outcome == "ended" and to_start:
            time.sleep(rng.uniform(0, 40))
        else:
            step = min(max(run.trained(), 1) + rng.randint(0, 3), run.iterations - 1)
            if not run.wait(lambda step=step: run.trained() >= step):
                found.append(f"hangs before iteration {step}")
                break
            time.sleep(rng.uniform(0, 3))
        to_start, victim = rng.random() < 0.25, victims.pop()
        outcome = disturb(run, rng, victim, to_start)
        print(f"{kind}: {victim} after step {run.trained()}: {outcome}", flush=True)
        count += outcome != "too late"
        if outcome not in ("went on", "ended", "too late"):
            found.append(f"{victim} {outcome}")
    if not run.wait(lambda: False):
        for process in run.processes():
            process.kill()
        return [*found, f"{kind} hangs: {run.output}"]
    return [*found, *faults(run)] + ([] if count == times else [f"{count} disturbances of {times}"])


def lag_of(rollout: int, pushes_from: int, lag: int) -> int:
    """The lag of a rollout's batch in a job whose first push was before rollout `pushes_from`."""
    if rollout == pushes_from:
        return 0
    # A batch is generated while the one before is trained, before a push that follows that one.
    return rollout - max([pushes_from, *(push for push in range(0, rollout, lag) if push > pushes_from)])


def due(run: SlimeRun, every: int) -> list[int]:
    """Iterations after which something is due that comes at the end too."""
    return sorted({*range(every, run.iterations + 1, every), run.iterations})


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
    lags, starts = [row.get("lag/max", math.inf) for row in rows], [0, *(one["from"] for one in restarts)]
    expected = [lag_of(row["step"] - 1, starts[job], LAG) for row, job in zip(rows, jobs, strict=True)]
    if lags != expected if run.kind == "batch" else max(lags) > STALENESS:
        yield f"lags {lags}, not {expected if run.kind == 'batch' else f'{STALENESS} at most'}"
    seen = [(row["step"], row["weights_step"]) for row in run.rows("eval")]
    if [step for step, _ in seen] != [0, *due(run, run.evaluated)] or seen[-1] != (run.iterations, run.iterations):
        yield f"evaluations of {seen}"
    yield from checkpoint_faults(run, rows)


def checkpoint_faults(run: SlimeRun, rows: list[dict]) -> Iterator[str]:
    import torch

    checkpoints = run.folder / "checkpoints"
    there = sorted(int(path.name.removeprefix("iter_")) + 1 for path in checkpoints.glob("iter_???????"))
    if there != (kept := due(run, SAVED)[-KEEP:]):
        yield f"checkpoints of {there}, not {kept}"
    for iteration in there:
        position = checkpoints / "rollout" / f"global_dataset_state_dict_{iteration - 1}.pt"
        drawn, done = torch.load(position, weights_only=True)["sample_group_index"], float(PROMPTS * iteration)
        if run.kind == "streaming":
            queue = torch.load(checkpoints / "rollout" / f"queue_{iteration - 1}" / "queue.pt", weights_only=True)
            dropped = sum(row["rollout/dropped"] for row in rows if row["step"] <= iteration)
            dropped += len(queue["unreported"]["dropped"]) + queue["unreported"]["aborted"]
            done += dropped / SAMPLES + len(queue["waiting"]) + len(queue["prompts"])
        if drawn != done:
            yield f"after iteration {iteration} {drawn} prompts are drawn, and {done} accounted for"
