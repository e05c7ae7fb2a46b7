"""Disturbs runs of the lab runtime at random, resumes them to the end, and holds them against what must be.

    python tests/chaos.py [--disturbances 40] [--seed 0] [--out FOLDER]

Runs in batches and streaming ones are launched as a user does. A random process of each is killed (SIGKILL), terminated
(SIGTERM) or stopped for some seconds (SIGSTOP, SIGCONT) at a random moment: while the run starts, trains, evaluates,
saves or ends. Where the run ends by it, no process of it may be left and its folder must say what happened; `--resume`
goes on. In the end

- a batch run has the metrics, evaluations and histograms of an undisturbed one, bit for bit;
- a streaming run has trained every iteration once, and every group that it began is trained, dropped, waiting or in
  generation: next = trained + dropped + queue + unfinished;
- nothing hangs: a run that says nothing for PATIENCE_S has failed.

The seed draws victims, signals and moments; what a process does at that moment is up to the machine. The table that is
printed is summed up in docs/internals/evidence.md. chaos_on_slime.py does the same to runs of the real slime.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from sat_slime.cli import main; main()"]
MARK = "SAT_SLIME_CHAOS"
"""A variable of the environment, by which all processes of a run are found, whoever their parent is now."""
PATIENCE_S = 300.0
"""Without a new row or an end, a run hangs."""
GONE_S = 90.0
"""Within it all processes of a run that has ended are gone: Ray's own agents take a minute to miss their head."""
TINY = ROOT / "configs" / "lab" / "tiny.yaml"
LAUNCH = "launch"
ITERATIONS = 48
STEPS_TO_SEE = 5
"""Steps after which a disturbance that has shown nothing has been survived."""
COMMON = {
    "pipeline.iterations": ITERATIONS,
    "checkpoint.every_n_iterations": 3,
    "eval.every_n_iterations": 8,
}
STREAM = {
    "method": "sat-gspo",
    "pipeline.mode": "streaming",
    "pipeline.lag": 1,
    "pipeline.max_staleness": 1,
    "pipeline.queue_prompts": 12,
    "rollout.deterministic": "false",
}
KINDS = {
    "batch": {"pipeline.lag": 3},
    "streaming": STREAM,
}
VICTIMS = {
    "launcher": LAUNCH,
    "trainer": "sat_slime.lab.process",
    "SGLang server": "lab.sglang_process",
    "SGLang scheduler": "sglang::scheduler",
    "SGLang detokenizer": "sglang::detokenizer",
}
"""What is disturbed, and a word of its command line."""
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP}
WEIGHTS_OF_SIGNALS = (6, 2, 2)
LONGEST_STOP_S = 8.0


# -------------------------------------------------------------------------------------------------------- one run


class Run:
    """A run of `sat-slime launch`, started again and again until it has ended well."""

    def __init__(
        self,
        root: Path,
        name: str,
        settings: Mapping[str, object],
        file: Path = TINY,
        processes: Mapping[str, str] = VICTIMS,
    ) -> None:
        """processes: what may be disturbed of it, each with a word of its command line."""
        self.kinds = processes
        self.folder = root / "runs" / name
        self.output = root / f"{name}.txt"
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        asked = {**settings, "output_dir": root / "runs"}
        sets = [word for key, value in asked.items() for word in ("--set", f"{key}={value}")]
        self._first = [str(file), "--name", name, *sets]

    def start(self) -> None:
        """Launch it, or resume it where there is something to resume."""
        begun = (self.folder / "config.yaml").exists()
        words = [str(self.folder), "--resume"] if begun else self._first
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "launch", *words, "--no-live"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, MARK: self.mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def rows(self, name: str = "metrics") -> list[dict]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def state(self) -> dict:
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def processes(self) -> list[psutil.Process]:
        """All that live, the launched one first; also those whose parent is dead."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return sorted(found, key=lambda process: process.pid != (self.process and self.process.pid))

    def victims(self, kind: str) -> list[psutil.Process]:
        word = self.kinds[kind]
        found = [process for process in self.processes() if word in command_line(process)]
        launched = self.process.pid if self.process else None
        if kind == "launcher":
            return [process for process in found if process.pid == launched]
        return found

    def finished(self) -> bool:
        return self.state().get("status") == "finished" and self.ended()

    def wait(self, steps: int | None = None) -> bool:
        """Until it has ended, or has recorded so many steps; False where it hangs, and is then killed."""
        seen, since = -1, time.monotonic()
        while not self.ended():
            if (n := len(self.rows())) != seen:
                seen, since = n, time.monotonic()
            if steps is not None and n >= steps:
                return True
            if time.monotonic() - since > PATIENCE_S:
                self.kill()
                return False
            time.sleep(0.2)
        return True

    def left(self) -> list[str]:
        """Command lines of what still lives after the end, a while later."""
        _, alive = psutil.wait_procs(self.processes(), timeout=GONE_S)
        return [command_line(process)[:100] for process in alive]

    def kill(self) -> None:
        for process in self.processes():
            process.kill()
        if self.process is not None:
            self.process.wait()


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


# ---------------------------------------------------------------------------------------------------- disturbances


@dataclass
class Disturbance:
    """What is done to a run, and what came of it."""

    run: str
    victim: str
    signal: str
    step: int | None
    """After how many recorded steps; None while the run starts."""
    delay_s: float
    """Later than that."""
    stop_s: float = 0.0
    outcome: str = "none"
    """`went on`, `ended` (and was resumed), `too late` (the run had finished), or a fault."""
    told: str = ""
    """The error that the run gave, in a line."""
    faults: list[str] = field(default_factory=list)


def drawn(rng: random.Random, run: str, victim: str, first_step: int, starts: bool) -> Disturbance:
    """A disturbance of a run that has recorded `first_step` steps, and that starts or is under way."""
    name = rng.choices(list(SIGNALS), WEIGHTS_OF_SIGNALS)[0]
    stop_s = rng.uniform(1, LONGEST_STOP_S)
    if starts and rng.random() < 0.25:
        return Disturbance(run, victim, name, None, rng.uniform(2, 25), stop_s)
    step = min(first_step + rng.randint(1, 6), ITERATIONS)
    return Disturbance(run, victim, name, step, rng.uniform(0, 1.5), stop_s)


def disturb(run: Run, planned: Disturbance) -> None:
    """Launch or resume the run if it does not go on, wait for the moment, send the signal, see what becomes of it."""
    if run.ended():
        run.start()
    if planned.step is not None and not run.wait(planned.step):
        planned.faults.append(f"hangs before step {planned.step}")
        return
    time.sleep(planned.delay_s)
    victims, deadline = run.victims(planned.victim), time.monotonic() + PATIENCE_S
    while not victims and not run.ended() and time.monotonic() < deadline:  # it has not been started yet
        time.sleep(0.2)
        victims = run.victims(planned.victim)
    hit = bool(victims) and send(random.Random(planned.delay_s).choice(victims), planned)
    if not run.wait(len(run.rows()) + STEPS_TO_SEE):
        planned.faults.append("hangs")
    judge(run, planned, hit)


def send(victim: psutil.Process, planned: Disturbance) -> bool:
    try:
        victim.send_signal(SIGNALS[planned.signal])
        if planned.signal == "STOP":
            time.sleep(planned.stop_s)
            victim.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return planned.signal == "STOP"
    return True


def judge(run: Run, planned: Disturbance, hit: bool) -> None:
    """What the run says of its end, if it has ended, and whether anything of it is left."""
    if not run.ended():
        planned.outcome = "went on"
        if not hit:
            planned.faults.append("there was no such process")
        return
    assert run.process is not None
    code, state = run.process.returncode, run.state()
    if left := run.left():
        planned.faults.append(f"left: {left}")
    if code == 0:
        planned.outcome = "went on" if hit else "too late"
        return
    planned.outcome = "ended"
    planned.told = state.get("error") or (last_error(run.output) if code > 0 else "")
    if run.folder.exists() and code > 0 and state.get("status") not in ("failed", "interrupted"):
        planned.faults.append(f"exit code {code}, state.json says {state.get('status')!r}")
    if code > 0 and not planned.told and state.get("status") != "interrupted":  # which is the cause
        planned.faults.append("no word of the cause")
    if (
        "Traceback" in planned.told or "\nTraceback" in run.output.read_text()
    ):  # the log of a server is quoted, indented
        planned.faults.append("a traceback")


def last_error(output: Path) -> str:
    lines = [line for line in output.read_text().splitlines() if "error" in line.lower()]
    return lines[-1] if lines else ""


# ------------------------------------------------------------------------------------------------- what must be true


def comparable(run: Run, name: str) -> list[dict]:
    """Rows without what depends on the clock or counts the faults."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "rollout/"))} for row in run.rows(name)]


def batch_faults(run: Run, undisturbed: Run) -> Iterator[str]:
    for name in ("metrics", "eval", "histograms"):
        ours, theirs = comparable(run, name), comparable(undisturbed, name)
        if ours != theirs:
            other = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            yield f"{name}.jsonl has {len(ours)} rows for {len(theirs)} and differs first in row {other + 1}"


def stream_faults(run: Run) -> Iterator[str]:
    rows = run.rows()
    if [row["step"] for row in rows] != list(range(1, ITERATIONS + 1)):
        yield f"steps {[row['step'] for row in rows]}"
    if any(row["lag/max"] > STREAM["pipeline.max_staleness"] for row in rows):
        yield f"lag {max(row['lag/max'] for row in rows)}"
    newest = max((run.folder / "checkpoints").glob("iteration-*"))
    queue = json.loads((newest / "queue.json").read_text())
    prompts, samples = 4, 4  # configs/lab/tiny.yaml
    dropped = sum(row["rollout/dropped"] for row in rows) / samples
    parts = ITERATIONS * prompts, dropped, len(queue["numbers"]), len(queue["unfinished"])
    if queue["next"] != sum(parts):
        yield f"next {queue['next']} is not trained, dropped, queue, unfinished {parts}"


# ------------------------------------------------------------------------------------------------------ the campaign


def campaign(
    root: Path, kinds: Sequence[str], disturbances: int, seed: int, times: int = 5
) -> tuple[list[Disturbance], list[str]]:
    """Disturb runs of these kinds in turn, `times` times each, and hold their ends against what must be.

    Args:
        disturbances: how many; those that came too late do not count.

    Returns:
        the disturbances with their outcomes, and the faults of whole runs.
    """
    rng = random.Random(seed)
    common = {**COMMON, "cache_dir": root / "cache"}
    done: list[Disturbance] = []
    faults: list[str] = []
    undisturbed: dict[str, Run] = {}
    victims: list[str] = []
    number = 0
    while counted(done) < disturbances:
        kind = kinds[number % len(kinds)]
        settings = {**common, **KINDS[kind]}
        if kind.startswith("batch") and kind not in undisturbed:
            undisturbed[kind] = finished(Run(root, f"{short(kind)}-undisturbed", settings))
        run = Run(root, f"{short(kind)}-{number}", settings)
        for _ in range(times):
            if not victims:  # every kind of process has its turn
                victims = rng.sample(list(VICTIMS), len(VICTIMS))
            planned = drawn(rng, kind, victims.pop(), len(run.rows()), starts=run.ended())
            disturb(run, planned)
            done.append(planned)
            print(line_of(planned), flush=True)
            if run.finished() or counted(done) == disturbances:
                break
        finished(run)
        found = batch_faults(run, undisturbed[kind]) if kind.startswith("batch") else stream_faults(run)
        faults += [f"{run.folder.name}: {fault}" for fault in found]
        number += 1
    return done, faults


def counted(done: Sequence[Disturbance]) -> int:
    return sum(one.outcome != "too late" for one in done)


def finished(run: Run) -> Run:
    """Resumed, or launched, to its end."""
    for _ in range(2):
        if run.finished():
            return run
        if run.ended():
            run.start()
        if not run.wait():
            raise RuntimeError(f"{run.folder.name} hangs: {run.output}")
    if not run.finished():
        raise RuntimeError(f"{run.folder.name} does not end: {run.output}")
    return run


def short(kind: str) -> str:
    return kind.replace(", ", "-").replace(" ", "").lower()


def line_of(one: Disturbance) -> str:
    when = "at the start" if one.step is None else f"after step {one.step}"
    what = f"{one.run:16} {one.victim:18} {one.signal:4} {when:13} +{one.delay_s:4.1f} s"
    return f"{what}  {one.outcome:8} {one.told[:120]} {'; '.join(one.faults)}"


def table(done: Sequence[Disturbance], victims: Iterable[str] = VICTIMS) -> str:
    """Victims by signals: how many were disturbed, how many runs went on, how many ended and were resumed."""
    lines = ["| disturbed | signal | times | the run went on | it ended and was resumed | too late | faults |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for victim in victims:
        for name in SIGNALS:
            some = [one for one in done if (one.victim, one.signal) == (victim, name)]
            n = Counter(one.outcome for one in some)
            bad = sum(bool(one.faults) for one in some)
            if some:
                cells = [victim, name, len(some), n["went on"], n["ended"], n["too late"], bad]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def told(done: Sequence[Disturbance], faults: Sequence[str], victims: Iterable[str] = VICTIMS) -> int:
    """Print what was done and what came of it; return 1 where something has a fault."""
    print(table(done, victims))
    for fault in faults:
        print(f"FAULT {fault}")
    bad = [one for one in done if one.faults]
    print(f"{counted(done)} disturbances, {len(bad)} with faults, {len(faults)} faults of whole runs")
    return bool(bad or faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disturbances", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path, help="where runs and outputs stay; else they go with the end")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sat_slime-chaos-") as temporary:
        root = asked.out or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        done, faults = campaign(root.absolute(), asked.kinds, asked.disturbances, asked.seed)
    return told(done, faults)


if __name__ == "__main__":
    sys.exit(main())
