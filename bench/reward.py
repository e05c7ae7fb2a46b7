"""Measures verdicts a second of the pool of verifier processes and of math-verify called directly, on equal responses.

    python bench/reward.py [--groups 64] [--samples 16] [--characters 2000] [--workers 2] [--rounds 5]

A batch is like that of a training step: it has groups of responses to one prompt, of which about half are right, with
answers as models write them, numbers and LaTeX mixed, and the label of each group in one of its forms. math-verify
parses label and response and compares them in this process, with its own time limits. Both get each batch once, in
turn, and a batch is never seen again; ratios are medians of the rounds' ratios. The start of the processes is left out.

After that the latency that the pool adds to a response is measured: with verdicts that are asked for one by one, and at
half of the measured rate.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable

from math_verify import parse, verify

from sat_slime.reward import VerifierPool

Pair = tuple[str, str]

THOUGHT = "We set $x_1 = 2k + 1$ and see that $f(x) = \\frac{a}{b}$ has the root $y = 3$, which is not what we need. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64, help="prompts of a batch")
    parser.add_argument("--samples", type=int, default=16, help="responses to a prompt")
    parser.add_argument("--characters", type=int, default=2000, help="length of a response, about")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    rng = random.Random(0)
    with VerifierPool(options.workers) as pool:
        warm_up = make_batch(rng, 8, 4, options.characters)
        pool.verify_batch(warm_up)
        directly(warm_up)
        rates: dict[str, list[float]] = {"pool": [], "math-verify": []}
        rewards: dict[str, list[float]] = {"pool": [], "math-verify": []}
        for _ in range(options.rounds):
            batch = make_batch(rng, options.groups, options.samples, options.characters)
            for name, run in (("pool", pooled(pool)), ("math-verify", directly)):
                started = time.perf_counter()
                rewards[name] += run(batch)
                rates[name].append(len(batch) / (time.perf_counter() - started))
        rate = statistics.median(rates["pool"])
        ratio = statistics.median(a / b for a, b in zip(rates["pool"], rates["math-verify"], strict=True))
        agreed = statistics.mean(a == b for a, b in zip(rewards["pool"], rewards["math-verify"], strict=True))
        print(f"batches of {options.groups} x {options.samples}, {options.rounds} rounds, {options.workers} workers")
        print(f"{'':24}{'verdicts/s':>12}{'reward':>8}")
        for name, values in rates.items():
            print(f"{name:24}{statistics.median(values):12.0f}{statistics.mean(rewards[name]):8.3f}")
        print(f"ratio {ratio:.2f}, {agreed:.1%} of the rewards agree")
        pairs = make_batch(rng, options.groups, options.samples, options.characters)
        report("latency, one by one", asyncio.run(latencies(pool, pairs[:256], None)))
        report(f"latency, at {rate / 2:.0f}/s", asyncio.run(latencies(pool, pairs, rate / 2)))


def make_batch(rng: random.Random, groups: int, samples: int, characters: int) -> list[Pair]:
    return [pair for _ in range(groups) for pair in make_group(rng, samples, characters)]


def make_group(rng: random.Random, samples: int, characters: int) -> list[Pair]:
    """Responses to one prompt, each with the right answer or one of a few wrong ones, in any of its forms."""
    kind = rng.choices([integer, fraction, root, polynomial, point], [6, 2, 2, 1, 1])[0]
    right, *wrong = [kind(rng) for _ in range(4)]
    label = rng.choice(right)
    return [(response(rng, rng.choice(right if rng.random() < 0.5 else rng.choice(wrong)), characters), label)
            for _ in range(samples)]  # fmt: skip


def response(rng: random.Random, answer: str, characters: int) -> str:
    end = (
        rng.choice(["So the answer is $\\boxed{%s}$.", "Answer: $%s$", "**Final answer**\n\n\\[\\boxed{%s}\\]"])
        % answer
    )
    return THOUGHT * (characters // len(THOUGHT)) + "\n\n" + end


def integer(rng: random.Random) -> list[str]:
    n = rng.randint(0, 20_000)
    return [f"{n}", f"{n}", f"{n:,}", f"x = {n}", f"{n}.0"]


def fraction(rng: random.Random) -> list[str]:
    a, b = rng.randint(1, 99), rng.choice([2, 4, 5, 8, 20])
    return [f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{a}}}{{{b}}}", f"{a}/{b}", f"{a / b}"]


def root(rng: random.Random) -> list[str]:
    a, b = rng.randint(2, 30), rng.choice([2, 3, 5, 7])
    return [f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}", f"{a} \\sqrt{b}", f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}"]


def polynomial(rng: random.Random) -> list[str]:
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return [f"x^2 + {a + b}x + {a * b}", f"(x+{a})(x+{b})", f"{a * b} + {a + b} x + x^2"]


def point(rng: random.Random) -> list[str]:
    a, b = rng.randint(-20, 20), rng.randint(1, 20)
    return [f"({a}, {b})", f"\\left({a}, {b}\\right)", f"({a},{b})", f"({a}, \\frac{{{2 * b}}}{{2}})"]


def pooled(pool: VerifierPool) -> Callable[[list[Pair]], list[float]]:
    return lambda batch: [verdict.reward for verdict in pool.verify_batch(batch)]


def directly(batch: list[Pair]) -> list[float]:
    return [float(verify(parse(f"${label}$"), parse(response))) for response, label in batch]


async def latencies(pool: VerifierPool, pairs: list[Pair], rate: float | None) -> list[float]:
    """Seconds to each verdict, when they are asked for one after the other, or at random times, `rate` a second."""

    async def timed(pair: Pair) -> float:
        started = time.perf_counter()
        await pool.verify_async(*pair)
        return time.perf_counter() - started

    if rate is None:
        return [await timed(pair) for pair in pairs]
    rng, tasks = random.Random(1), []
    due = time.perf_counter()
    for pair in pairs:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(timed(pair)))
    return list(await asyncio.gather(*tasks))


def report(name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{name:24}median {1e3 * cuts[49]:.1f} ms, 95 % below {1e3 * cuts[94]:.1f} ms")


if __name__ == "__main__":
    main()
