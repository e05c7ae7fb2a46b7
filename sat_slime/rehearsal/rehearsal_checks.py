"""Holds what a rehearsal recorded against what its settings ask for: each check with what was expected and found."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.launch.memory import BF16, engine_weights_bytes, optimizer_elements, padded_vocabulary, rank_elements
from sat_slime.rehearsal.material import ThinSizes
from sat_slime.rehearsal.records import Records, Row

OK, WARN, FAIL, NOTE = "OK", "WARN", "FAIL", "NOTE"
"""Marks: held, may be wrong, did not hold, and what is told without a right value."""
ROUNDING = {"float32": 5e-4, "bfloat16": 5e-2}
"""Mean |log pi - log mu| below which trainer and engine agree, by their arithmetic: a softmax over 152,000 words in
fp32 is 1e-4 off its value in fp64, and a wrong rotary base or one expert less changes it by 5e-2."""
LEFT = (
    "Only GPUs can show: memory of CUDA and its fragments, kernels and their rounding (a bf16 mismatch is another "
    "one), NCCL and the network, Transformer Engine and flash attention, slime's fork of the router, imbalance of "
    "trained experts, and how fast it is."
)


@dataclass(frozen=True)
class Check:
    """One thing that was held against what it should be."""

    what: str
    expected: str
    found: str
    mark: str = OK
    remark: str = ""


def check(what: str, expected: object, found: object, remark: str = "", same: bool | None = None) -> Check:
    """Return a check that held if both are the same, or `same` says so."""
    held = expected == found if same is None else same
    return Check(what, str(expected), str(found), OK if held else FAIL, remark)


def all_checks(thin: SlimeConfig, records: Records, first: int) -> list[Check]:
    """Return every check that the records allow. first: iterations of the first job, after which the run is resumed."""
    return [
        *_elements(thin, records),
        *_engines(thin, records),
        *_placement(thin, records),
        *_order(thin, records, first),
        *_agreement(thin, records),
        *_objective(thin, records),
        *_routes(thin, records),
        *_responses(thin, records),
        *_resume(thin, records, first),
        *_evaluations(thin, records, first),
    ]


# ------------------------------------------------------------------------------------------------- memory, placement


def _elements(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    """Yield the elements of weights and optimizer, against the arithmetic of `launch`: of the optimizer those of all
    ranks together, since padding moves some from rank to rank."""
    trained = dict(records.of_ranks("trained", last=True))
    per_stage = max(1, thin.train.world_size // thin.train.pipeline_parallel)
    own = {rank: rank_elements(thin, rank // per_stage) for rank in trained}
    if trained:
        expected = {rank: held.total for rank, held in own.items()}
        yield _by_rank(
            "weights, elements a rank", expected, {r: row["elements"]["weights"] for r, row in trained.items()}
        )
    if len(trained) == thin.train.world_size:
        state = round(sum(optimizer_elements(thin, held) for held in own.values()))
        for moment in ("exp_avg", "exp_avg_sq"):
            held = sum(row["elements"][moment] for row in trained.values())
            yield check(f"Adam's {moment}, elements of all ranks", f"{state:,}", f"{held:,}")
    if copies := {rank: len(row["copies"]) for rank, row in records.of_ranks("initialized")}:
        # Those of denominator `checkpoint` are made as weights are pushed, and so not there yet when a rank begins.
        expected = dict.fromkeys(copies, 1 + (thin.loss.kl_coef > 0))
        yield _by_rank("copies of the weights on the host", expected, copies)


def _by_rank(what: str, expected: dict[int, int], found: dict[int, int]) -> Check:
    return check(what, _each(expected), _each(found), same=expected == found)


def _each(numbers: dict[int, int]) -> str:
    """`1,234 on each of 4` where all are the same, else each by its rank."""
    if len(set(numbers.values())) == 1:
        return f"{next(iter(numbers.values())):,} on each of {len(numbers)}"
    return ", ".join(f"{rank}: {number:,}" for rank, number in numbers.items())


def _engines(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    """The elements of every rank of every engine, against the same formula, which pads the vocabulary as Megatron does:
    SGLang pads it to 64."""
    if not records.engines:
        return
    model, ranks = thin.model, thin.rollout.gpus_per_engine
    matrices = 2 if model.architecture.get("untie-embeddings-and-output-weights") else 1
    rows = (padded_vocabulary(model, ranks) - -(-model.vocab_size // 64) * 64) // ranks
    whole = engine_weights_bytes(thin) // BF16 - matrices * rows * model.hidden_size
    expected = dict.fromkeys(range(len(records.engines)), whole)
    found = {n: row["weights"] for n, row in enumerate(records.engines)}
    yield _by_rank("weights of an engine, elements a rank", expected, found)


def _placement(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    rows = dict(records.of_ranks("initialized"))
    train, rollout = thin.train, thin.rollout
    if rows:
        nodes = [row["node"] for row in rows.values()]
        yield _by_node("trainer ranks by node", [train.gpus_per_node] * train.nodes, nodes)
        names = ("tensor", "pipeline", "context", "data", "expert")
        sizes = {name: 1 + max(row[name] for row in rows.values()) for name in names}
        asked = {name: getattr(train, f"{name}_parallel") for name in names}
        shown = [", ".join(f"{name} {size}" for name, size in values.items()) for values in (asked, sizes)]
        yield check("parallel sizes", shown[0], shown[1])
    if records.engines:
        ranks = Counter((row["host"], row["port"]) for row in records.engines)
        yield check(
            "engines x ranks",
            f"{rollout.engines} x {rollout.gpus_per_engine}",
            f"{len(ranks)} x {'/'.join(map(str, sorted(set(ranks.values()))))}",
        )
        hosts = [row["host"] for row in records.engines]
        yield _by_node("engines' ranks by node", _engines_of_nodes(thin), hosts)


def _engines_of_nodes(thin: SlimeConfig) -> list[int]:
    """Return the GPUs for engines of each node that has some: slime fills a node before the next, trainers first."""
    first, node = thin.train.world_size, thin.cluster.gpus_per_node
    return list(Counter(gpu // node for gpu in range(first, first + thin.rollout.gpus)).values())


def _by_node(what: str, asked: Sequence[int], found: Sequence[str]) -> Check:
    """Return a check of how many ranks each node has. found: the node of each rank."""
    counts = Counter(found)
    shown = ", ".join(f"{node}: {count}" for node, count in sorted(counts.items()))
    return check(what, " + ".join(map(str, asked)), shown, same=sorted(counts.values()) == sorted(asked))


# ----------------------------------------------------------------------------------------------------- order, numbers


def expected_lags(thin: SlimeConfig, first: int) -> list[int]:
    """Return the lag at which each iteration is trained in mode batch, in optimizer steps: 0, 1, ..., n, 1, ... A job
    begins, and its first batch is generated, with newest weights. first: iterations of the first job."""
    lag, steps = thin.pipeline.lag, thin.pipeline.optimizer_steps_per_rollout
    lags: list[int] = []
    pushed = generated = 0
    for iteration in range(thin.pipeline.iterations):
        if iteration in (0, first):
            pushed = generated = iteration
        lags.append((iteration - generated) * steps)
        generated = pushed  # the next batch is generated while this one is trained
        if (iteration + 1) % max(lag, 1) == 0 or iteration + 1 in (first, thin.pipeline.iterations):
            pushed = iteration + 1
            generated = pushed if lag == 0 else generated
    return lags


def _order(thin: SlimeConfig, records: Records, first: int) -> Iterator[Check]:
    steps = thin.pipeline.optimizer_steps_per_rollout
    rows = records.metrics[::steps]
    yield check("iterations trained", thin.pipeline.iterations, len(rows))
    found = [row.get("lag/max") for row in rows]
    if thin.pipeline.mode == "streaming":
        bound = thin.pipeline.max_staleness
        known = [lag for lag in found if lag is not None]
        yield check(
            "largest lag of each batch",
            f"at most {bound}",
            _numbers(found),
            same=len(known) == len(found) and all(lag <= bound for lag in known),
        )
        return
    expected = expected_lags(thin, first)
    expected = expected[: len(rows)]  # of those that were trained
    yield check("lag of each batch", _numbers(expected), _numbers(found), same=expected == found)
    several = sum(len({str(v) for v in sample.get("weight_versions") or ()}) != 1 for sample in _samples(records))
    yield check("responses of more or less than one version of the weights", 0, several)


def _numbers(values: Sequence[Any]) -> str:
    return ", ".join("?" if value is None else f"{value:g}" for value in values)


def _samples(records: Records) -> Iterator[Row]:
    return itertools.chain.from_iterable(records.rollouts.values())


def _agreement(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    fresh = [row["mismatch/d_pi"] for row in records.metrics if row.get("lag/max") == 0 and "mismatch/d_pi" in row]
    bound = ROUNDING[thin.cluster.cpu_dtype]
    if fresh and (thin.method.r3 or not thin.model.is_moe):
        yield check(
            "|log pi - log mu| at lag 0, nats a token",
            f"below {bound:g}",
            ", ".join(f"{value:.2g}" for value in fresh),
            "trainer and engines have the same weights, through slime's own conversion and push",
            max(fresh) < bound,
        )
    stale = [row["mismatch/d_pi"] for row in records.metrics if row.get("lag/max") and "mismatch/d_pi" in row]
    if stale:
        yield Check("the same at a lag", "", ", ".join(f"{value:.2g}" for value in stale), NOTE)


def _objective(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    norms = [row.get("grad_norm", math.nan) for row in records.metrics]
    yield check(
        "gradient norms", "finite", _numbers([float(f"{n:.2g}") for n in norms]), same=all(map(math.isfinite, norms))
    )
    method = build_method(thin.method)
    if not method.has("sat"):
        return
    rates = [row.get("sat/gate_rate", math.nan) for row in records.metrics]
    opened = any(row.get("sat/gate_rate") for row in records.metrics if row.get("lag/max"))
    yield Check(
        f"SAT's gate, share of tokens (scope {method.scope})",
        f"at most {1 - thin.method.sat.alpha:.2g} of its units; above 0 at a lag",
        ", ".join(f"{rate:.3f}" for rate in rates),
        OK if opened else WARN,
        "" if opened else "it never opened: weights that do not move, or too few tokens for the quantile",
    )


def _routes(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    if not (thin.method.r3 and thin.model.is_moe):
        return
    model = thin.model
    each = model.layers * model.experts_per_token
    width = 1 if model.experts <= 2**8 else 2
    seen = Counter[float]()
    for sample in _samples(records):
        routes = sample.get("rollout_routed_experts")
        if routes is not None and len(sample["tokens"]) > 1:
            # an engine answers for every token but the last
            seen[routes.numel() * routes.element_size() / (len(sample["tokens"]) - 1)] += 1
    if seen:
        shown = ", ".join(f"{bytes_:g}" for bytes_ in sorted(seen))
        yield check("bytes of routes a token, in the manager", f"{each * width}", shown)
    trained = [row for _, rows in records.ranks.items() for row in rows if row["event"] == "trained"]
    tokens = sum(row["tokens"] for row in trained)
    if tokens:
        held = sum(row["route_bytes"] for row in trained) / tokens
        yield check(
            "bytes of routes a token, on a trainer rank",
            f"about {each * width}",
            f"{held:.1f}",
            same=held <= each * width,
        )


def _responses(thin: SlimeConfig, records: Records) -> Iterator[Check]:
    samples = list(_samples(records))
    if not samples:
        return
    batch = thin.rollout.responses_per_iteration
    lengths = [sample["response_length"] for sample in samples]
    found = f"{sum(lengths) / len(lengths):.0f} on average, {max(lengths)} the longest"
    yield Check("tokens of a response", "", found, NOTE)
    trained = [row for row in records.ranks.get(0, []) if row["event"] == "trained"]
    if found := ", ".join(f"{row['tokens']:,} in {sum(row['micro_batches'])}" for row in trained):
        yield Check("tokens of a batch, and micro-batches that they are in, on rank 0", "", found, NOTE)
    sizes = sorted({len(rollout) for rollout in records.rollouts.values()})
    yield check("responses of each batch", batch, ", ".join(map(str, sizes)), same=sizes == [batch])
    reasons = Counter(str(sample["status"]) for sample in samples)
    found = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    ended, known = bool(reasons.get("completed")), set(reasons) <= {"completed", "truncated"}
    if known and not ended and ThinSizes(thin.model).tied_embeddings:
        remark = "random words: a thin model with tied embeddings does not end a response by itself"
        yield Check("why responses ended", "", found, NOTE, remark)
    else:
        remark = "" if ended else "no response ended by a stop token"
        yield check("why responses ended", "stop tokens, some at the limit", found, remark, ended and known)
    long = [sample["response_length"] for sample in samples if sample["status"] == "truncated"]
    if long:
        yield check(
            "length of those at the limit",
            thin.rollout.max_response_tokens,
            ", ".join(map(str, sorted(set(long)))),
            same=set(long) == {thin.rollout.max_response_tokens},
        )
    yield from _rewards(thin, samples)


def _rewards(thin: SlimeConfig, samples: Sequence[Row]) -> Iterator[Check]:
    rewards = [sample["reward"] for sample in samples]
    key = thin.slime.get("reward-key")
    numbers = [reward.get(key) if isinstance(reward, dict) and key else reward for reward in rewards]
    counted = Counter(f"{reward:g}" if isinstance(reward, (int, float)) else str(reward) for reward in numbers)
    shown = ", ".join(f"{count} x {reward}" for reward, count in counted.most_common(5))
    yield Check(
        "rewards",
        "",
        shown,
        NOTE,
        "" if len(counted) > 1 else "all alike: advantages are 0, and only KL and decay move weights",
    )


# ----------------------------------------------------------------------------------------------- resume, evaluations


def _resume(thin: SlimeConfig, records: Records, first: int) -> Iterator[Check]:
    if not 0 < first < thin.pipeline.iterations:
        return
    saved = {
        rank: next((row["state"] for row in rows if row["event"] == "saved" and row["rollout"] == first - 1), None)
        for rank, rows in records.ranks.items()
    }
    begun = {
        rank: [row for row in rows if row["event"] == "initialized"][1:] for rank, rows in sorted(records.ranks.items())
    }
    steps = first * thin.pipeline.optimizer_steps_per_rollout
    yield check(
        "optimizer steps with which the resumed run starts",
        f"{steps} on each rank",
        ", ".join(sorted({str(rows[0]["steps"]) if rows else "not resumed" for rows in begun.values()})),
        same=all(rows and rows[0]["steps"] == steps for rows in begun.values()),
    )
    equal = sum(bool(rows) and rows[0]["state"] == saved[rank] for rank, rows in begun.items())
    yield check(
        "ranks whose weights and optimizer come back to the bit",
        f"{len(begun)} of {len(begun)}",
        f"{equal} of {len(begun)}",
    )


def _evaluations(thin: SlimeConfig, records: Records, first: int) -> Iterator[Check]:
    if not thin.eval.every_n_iterations:
        return
    expected = expected_evaluations(thin, first)
    found = [
        row.get("weights_step")
        for row in records.evaluations
        if row.get("dataset") == next(iter(thin.eval.prompts), None)
    ]
    yield check(
        "weights of each evaluation, in optimizer steps", _numbers(expected), _numbers(found), same=expected == found
    )


def expected_evaluations(thin: SlimeConfig, first: int) -> list[int]:
    """Return the optimizer step of the weights that each evaluation measures: those of the newest push."""
    lag, every = max(thin.pipeline.lag, 1), thin.eval.every_n_iterations
    steps, end = thin.pipeline.optimizer_steps_per_rollout, thin.pipeline.iterations
    measured = [0]
    pushed = 0
    for iteration in range(1, end + 1):
        ends = iteration in (first, end)
        if ends or iteration % lag == 0:
            pushed = iteration
        if iteration % every == 0 or ends:
            measured.append(pushed * steps)
    return measured
