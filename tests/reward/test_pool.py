"""The pool of verifier processes: order, limits, faults of its workers, and responses that mean harm."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

pytest.importorskip("math_verify", reason="needs pip install '.[reward]'")

from hostile import INJECTIONS, LABELS, hostile
from label_kinds import DIFFERENT, EQUAL, rows

from sat_slime.reward import CORRECT, KILLED, MODES, WRONG, VerifierPool
from sat_slime.reward.pool import RESPONSE_CHARS, reason_of
from sat_slime.runs.folder import is_alive

COSTLY = f"\\boxed{{|{'+'.join(f'|x-{k}|' for k in range(12))}|<9}}"
"""A response that takes seconds to be compared with the label below."""
COSTLY_LABEL = "x^2<5"
alive = functools.partial(is_alive, mark="")


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patched, VerifierPool(workers=2, cpu_s=0.5) as pool:
        patched.setenv("HF_TOKEN", "secret")
        patched.setenv("LD_LIBRARY_PATH", "/no/lib", prepend=os.pathsep)
        yield pool


def test_the_kinds_of_labels_have_their_verdicts(pool):
    for table, reward in ((EQUAL, 1.0), (DIFFERENT, 0.0)):
        pairs = [(f"\\boxed{{{answer}}}", label) for _, label, answer in rows(table)]
        verdicts = dict(zip(pairs, pool.verify_batch(pairs), strict=True))
        assert {pair: verdict for pair, verdict in verdicts.items() if verdict.reward != reward} == {}


def test_a_batch_keeps_its_order(pool):
    pairs = [(COSTLY if i % 100 == 7 else f"Answer: {i}", COSTLY_LABEL if i % 100 == 7 else "5") for i in range(400)]
    verdicts = pool.verify_batch(pairs)
    assert [v.extracted for v in verdicts] == [None if i % 100 == 7 else str(i) for i in range(400)]
    assert [i for i, v in enumerate(verdicts) if v.reward] == [5]


@pytest.fixture
def small():
    """A pool of one worker that has started."""
    with VerifierPool(workers=1, cpu_s=0.3) as pool:
        assert pool.verify("Answer: 5", "5").reward == 1.0
        yield pool


def pid_of(pool: VerifierPool) -> int:
    return pool._workers[0]._process.pid


def test_a_worker_that_hangs_in_sympy_is_killed_and_the_next_answer_is_served(small):
    pid = pid_of(small)
    hung = small.verify(COSTLY, COSTLY_LABEL)
    assert (hung.reward, hung.extracted, hung.reason) == (0.0, None, "timeout")
    until(lambda: not alive(pid))
    assert small.verify("Answer: 5", "5").reward == 1.0
    metrics = small.drain_metrics()
    assert (metrics["verdicts"], metrics["timeouts"], metrics["kills"]) == (3, 1, 1)
    assert set(small.drain_metrics().values()) == {0.0}


def test_a_worker_that_takes_no_cpu_time_is_ended_by_the_clock(small, monkeypatch):
    pid = pid_of(small)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr("sat_slime.reward.pool._BLOCKED_S", 0.5)
        assert small.verify("Answer: 5", "5").reason == "timeout"
        small._workers[0]._start()
        os.kill(pid_of(small), signal.SIGSTOP)
        assert small.verify("数" * 60_000 + "Answer: 5", "5").reason in ("text", "timeout"), "longer than its socket"
    until(lambda: not alive(pid))
    assert small.verify("Answer: 5", "5").reward == 1.0


def test_what_somebody_else_kills_or_keeps_from_starting_costs_no_reward(small, monkeypatch):
    os.kill(pid_of(small), signal.SIGKILL)
    with monkeypatch.context() as patched, pytest.raises(FileNotFoundError):
        patched.setattr(sys, "executable", "/no/such/python")
        small.verify("Answer: 3", "3")
    for i in range(4):
        assert small.verify(f"Answer: {i}", "3").extracted == str(i)
    assert small.drain_metrics()["kills"] == 0


@pytest.mark.parametrize(
    ("crime", "reason"),
    [
        ("bytearray(2**30)", "memory"), ("exhaust()", "timeout"), ("__import__('os').abort()", "crash"),
        ("eval('1')", "forbidden"), ("exec('x = 1')", "forbidden"), ("compile('1', 'x', 'eval')", "forbidden"),
        ("__import__('sympy').sympify('1 + 1')", "forbidden"), ("__import__('os').system('true')", "forbidden"),
        ("__import__('os').fork()", "forbidden"), ("__import__('subprocess').run(['true'])", "forbidden"),
        ("__import__('socket').socket()", "forbidden"), ("__import__('os').kill(1, 0)", "forbidden"),
        ("open('/etc/passwd')", "forbidden"), ("open('/tmp/x', 'w')", "forbidden"),
    ],
)  # fmt: skip
def test_a_worker_that_does_what_it_may_not_ends(crime, reason):
    """`judge` itself is made to do it, since no known response does."""
    assert reason_of(served(crime)) == reason


def test_a_worker_that_holds_half_of_its_memory_ends_after_its_verdict():
    assert served("held.append(b'x' * (300 * 2**20)); return Verdict(1.0, 'a', 'text')", cpu_s=20) == 0


def served(judging: str, cpu_s: float = 0.2) -> int:
    """Return the exit code of a worker with 512 MiB that judges by these statements."""
    program = f"""
import socket
from multiprocessing.connection import Connection
import sympy.polys.monomials
from sat_slime.reward import Verdict, comparison, worker
mine, theirs = (Connection(end.detach()) for end in socket.socketpair())
mine.send_bytes(b'["a", "b", "default"]')
held = []
def exhaust():
    while True: pass
def judge(*_):
    {judging}
comparison.judge = judge
worker.serve(theirs, {cpu_s}, 512)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120).returncode


def test_the_sandbox_leaves_sympy_what_it_needs(pool):
    """sympy's factoring writes code for the arithmetic of monomials, in as many variables as there are."""
    pairs = [("\\boxed{2a + 2b + c + d + f = 0}", "a + b + \\frac{c+d+f}{2} = 0"), ("\\boxed{x^2 = 4}", "x^2 - 4 = 0")]
    assert [verdict.reason for verdict in pool.verify_batch(pairs)] == ["symbolic"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_no_response_runs_code(pool, tmp_path, mode):
    canary = tmp_path / "canary"
    wraps = ["\\boxed{%s}", "Answer: %s", "%s"]
    pairs = [
        (wrap % injection.format(canary=canary), label)
        for injection in INJECTIONS
        for wrap in wraps
        for label in LABELS
    ]
    verdicts = pool.verify_batch(pairs, mode)
    assert not canary.exists()
    assert {verdict.reason for verdict in verdicts if verdict.reward} == set()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [180, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_responses_end_with_a_verdict(pool, tmp_path, count, mode):
    pairs = list(hostile(count, str(tmp_path / "canary"), seed=count))
    verdicts = pool.verify_batch(pairs, mode)
    assert {verdict.reason for verdict in verdicts} <= {*CORRECT, *WRONG, *KILLED} - {"crash", "forbidden"}
    assert all(verdict.reward == (verdict.reason in CORRECT) for verdict in verdicts) and len(verdicts) == count
    assert not (tmp_path / "canary").exists()
    assert pool.verify("Answer: 5", "5").reward == 1.0


def test_towers_and_deep_nests_are_refused_before_they_cost(pool):
    pool.drain_metrics()
    nests = ["'" * 1800 + "\\cos(" * 20 + ")" * 20, "(" * 24 + ")" * 24, "e^{e^{e^{50}}}", "\\exp(\\exp(\\exp(20)))"]
    unions = "\\cup".join(f"({k}, {k + 1})" for k in range(25))
    verdicts = pool.verify_batch([(f"\\boxed{{{a}}}", "\\sqrt{2}") for a in [*nests, unions, "\\sum_{k=1}^3 k"]])
    assert [verdict.reason for verdict in verdicts] == ["too_large"] * 5 + ["unevaluated"]
    assert pool.drain_metrics().items() >= {"parse_failures": 6.0, "kills": 0.0}.items()


def test_the_event_loop_goes_on_while_verdicts_are_made(pool):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def both():
        ticking = asyncio.create_task(tick())
        jobs = [pool.verify_async(f"Answer: {i}", "5") for i in range(50)] + [pool.verify_async(COSTLY, COSTLY_LABEL)]
        verdicts = await asyncio.gather(*jobs)
        ticking.cancel()
        return verdicts

    assert [verdict.extracted for verdict in asyncio.run(both())] == [*map(str, range(50)), None]
    assert ticks > 50


def test_close_ends_every_process():
    pool = VerifierPool(workers=2)
    pool.verify_batch([(f"Answer: {i}", "5") for i in range(20)])
    pids = [worker._process.pid for worker in pool._workers if worker._process]
    assert pids and all(map(alive, pids))
    pool.close()
    pool.close()
    until(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.verify("Answer: 5", "5")


def test_the_processes_end_with_their_owner():
    """One that is stopped reads no end of its socket."""
    program = """
import os, signal
from sat_slime.reward import VerifierPool
pool = VerifierPool(workers=2)
pool.verify_batch([("Answer: 5", "5")] * 20)
pids = [worker._process.pid for worker in pool._workers]
print(*pids, flush=True)
os.kill(pids[0], signal.SIGSTOP)
os.kill(os.getpid(), 9)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    pids = [int(pid) for pid in printed.split()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)))


def test_the_parent_imports_no_mathematics():
    program = (
        "import sys; from sat_slime.reward import verify; v = verify('Answer: 5', '5.0');"
        "print(v.reward, *({'sympy', 'math_verify', 'latex2sympy2_extended', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1.0"], done.stderr


def test_workers_see_no_environment_but_where_libraries_are(pool):
    pool.verify("Answer: 5", "5")
    seen = [Path(f"/proc/{worker._process.pid}/environ").read_bytes() for worker in pool._workers if worker._process]
    assert seen and all(b"/no/lib" in environment and b"secret" not in environment for environment in seen)


def test_only_the_end_of_a_long_response_is_read(pool):
    assert pool.verify("Answer: 5" + " " * RESPONSE_CHARS, "5").reward == 0.0
    assert pool.verify(" " * 10_000_000 + "Answer: 5", "5").reward == 1.0


def test_wrong_arguments_are_told(pool):
    with pytest.raises(ValueError, match="one of default, prime_math"):
        pool.verify("5", "5", "math")
    with pytest.raises(ValueError, match="label of 30000"):
        pool.verify("5", "5" * 30_000)
    with pytest.raises(ValueError, match="memory_mb is 10"):
        VerifierPool(memory_mb=10)
    with pytest.raises(ValueError, match="workers is 0"):
        VerifierPool(workers=0)
