"""Flags that slime's parser takes and that fail or mislead later: hours on, inside an engine, or in the numbers alone.

Each rule says when a flag of the section slime does so, why, and what to do. What is refused
as slime parses is not here. tests/config/test_slime_flags.py names for each the place in the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from sat_slime.config.method_section import build_method
from sat_slime.config.slime_schema import SlimeConfig, is_sent

NUMBER_REWARDS = ("math", "deepscaler", "f1", "gpqa", "ifbench", "random")
"""slime's rules that reward with a number; `dapo` gives a mapping."""
ITERATIONS_PLACE = "{rollout_id}"
"""The text that slime replaces by the iteration in the name of a file."""

When = Callable[[SlimeConfig], str | None]
"""The circumstance under which a rule holds, in words; empty if nothing else has to be; None where the rule does not
hold."""


def _always(_: SlimeConfig) -> str:
    return ""


def _r3(config: SlimeConfig) -> str | None:
    return "method.r3 true" if config.method.r3 else None


def _streaming(config: SlimeConfig) -> str | None:
    return "pipeline.mode streaming" if config.pipeline.mode == "streaming" else None


def _checkpoint_denominator(config: SlimeConfig) -> str | None:
    return "denominator checkpoint" if build_method(config.method).denominator == "checkpoint" else None


def _evaluates(config: SlimeConfig) -> str | None:
    every = config.eval.every_n_iterations
    return f"slime.eval-interval {every}" if every else None


def _prompts_of_evaluation(config: SlimeConfig) -> str | None:
    return "slime.eval-prompt-data" if config.eval.prompts else None


def _number_reward(config: SlimeConfig) -> str | None:
    return f"slime.rm-type {config.data.reward}" if config.data.reward in NUMBER_REWARDS else None


def _saves(config: SlimeConfig) -> str | None:
    every = config.checkpoint.every_n_iterations
    return f"slime.save-interval {every}" if every else None


def _context_parallel(config: SlimeConfig) -> str | None:
    size = config.train.context_parallel
    return f"slime.context-parallel-size {size}" if size > 1 else None


def _above(bound: float) -> Callable[[Any], bool]:
    return lambda value: (number := _number(value)) is not None and number > bound


def _not_negative(value: Any) -> bool:
    number = _number(value)
    return number is not None and number >= 0


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _without_place(value: Any) -> bool:
    return is_sent(value) and ITERATIONS_PLACE not in str(value)


def _with_place(value: Any) -> str:
    path = PurePath(str(value) or "FOLDER")
    return str(path.with_suffix("") / (ITERATIONS_PLACE + path.suffix))


@dataclass(frozen=True)
class Rule:
    """Flags that go wrong under the same condition."""

    flags: tuple[str, ...]
    why: str
    when: When = _always
    value: Callable[[Any], bool] = is_sent
    """Tells whether a value of the flag is one that goes wrong; by default each that is sent."""
    remedy: str = "leave it out"
    """The thing to do; `{value}` in it stands for the flag's value with a place for the iteration."""


ERRORS = (
    # The routes of method.r3
    Rule(
        ("moe-router-fusion",),
        "Transformer Engine's fused router chooses the experts itself, and no route is replayed",
        _r3,
        remedy="leave it out, or set method.r3 to false",
    ),
    Rule(
        ("prefill-num-servers",),
        "an engine that only decodes has not seen the prompt, and returns no routes for it",
        _r3,
        remedy="leave it out, or set method.r3 to false",
    ),
    Rule(
        ("sglang-pp-size", "sglang-pipeline-parallel-size"),
        "each stage of an engine keeps the routes of its own layers, and one of them answers",
        _r3,
        _above(1),
        "leave it out, or set method.r3 to false",
    ),
    Rule(
        ("sglang-enable-hierarchical-cache",),
        "a prefix that comes back from host memory has lost its routes",
        _r3,
        remedy="leave it out, or set method.r3 to false",
    ),
    # Mode streaming
    Rule(
        ("update-weight-transport",),
        "pushes by disk are numbered one by one, and the bound counts optimizer steps",
        _streaming,
        lambda value: value == "disk",
        "leave it out, or set pipeline.mode to batch",
    ),
    Rule(
        ("flush-cache-interval",),
        "the cache outlives pushes, and a response mixes weights under one version",
        _streaming,
        _above(1),
        "leave it out, or set pipeline.mode to batch",
    ),
    Rule(
        ("over-sampling-batch-size", "partial-rollout", "mask-offpolicy-in-partial-rollout", "buffer-filter-path"),
        "that mode draws its own prompts and finishes every response, so that this does nothing",
        _streaming,
    ),
    # The order and the data of a run
    Rule(
        ("release-train",),
        "sat_slime's driver needs the trainer throughout, and would end the job at its start",
    ),
    Rule(
        ("partial-rollout",),
        "a response may be of several weights, and one copy of those that generated is kept to score it with",
        _checkpoint_denominator,
        remedy="leave it out, or set method.denominator to rollout",
    ),
    Rule(
        ("disable-rollout-global-dataset",),
        "slime's rollout function takes its prompts from slime.prompt-data, and fails at the first batch without",
    ),
    Rule(
        ("disable-compute-advantages-and-returns",),
        "the loss needs advantages, and fails at its first micro-batch without",
    ),
    Rule(
        ("group-rm",),
        "slime cannot evaluate with rewards of whole groups, and fails at the first evaluation",
        _evaluates,
        remedy="leave it out, or set slime.eval-interval to 0",
    ),
    Rule(
        ("reward-key", "eval-reward-key"),
        "that rule gives a number, which has no keys, and the first batch fails",
        _number_reward,
    ),
    Rule(
        ("eval-config",),
        "slime evaluates only on that file's sets",
        _prompts_of_evaluation,
        remedy="leave it out, or set slime.eval-prompt-data to null",
    ),
    Rule(
        ("allgather-cp",),
        "only models with sparse attention are cut that way, and of others tokens would change places",
        _context_parallel,
    ),
    # Checkpoints
    Rule(
        ("save-retain-interval",),
        "slime counts checkpoints from 0, and Megatron then deletes all but the newest",
        remedy="leave it out, and say with pipeline.keep_checkpoints how many stay",
    ),
    Rule(
        ("start-rollout-id",),
        "every resume would start at that iteration with newer weights",
        remedy="leave it out, and go back with --resume-from",
    ),
    Rule(
        ("ckpt-step",),
        "every resume would load that checkpoint again",
        remedy="leave it out, and go back with --resume-from",
    ),
    Rule(
        ("finetune",),
        "a resume would count iterations from 0 with a new optimizer",
        _saves,
    ),
    Rule(
        ("no-load-optim",),
        "a resume would start with a new optimizer",
        _saves,
    ),
    # Engines
    Rule(
        ("sglang-skip-tokenizer-init",),
        "slime reads the text of every answer, and the engines would return none",
    ),
)
"""The run would fail, or be another than it says."""

WARNINGS = (
    Rule(
        ("custom-generate-function-path",),
        "it has to keep the routes of each answer itself, as Sample.append_response_tokens does; samples without are "
        "not trained on",
        _r3,
        remedy="see that it does",
    ),
    Rule(
        ("custom-generate-function-path",),
        "it has to keep the weight version of each answer, as Sample.append_response_tokens does; prompts without are "
        "dropped",
        _streaming,
        remedy="see that it does",
    ),
    Rule(
        ("moe-expert-capacity-factor",),
        "the trainer drops tokens from full experts, the engines drop none, and their probabilities differ",
        value=_not_negative,  # at 0 all; Megatron takes a negative one for none
    ),
    Rule(
        ("sglang-kv-cache-dtype",),
        "the engines' policy is not the trainer's, and the ratio carries the difference",
        value=lambda value: str(value).startswith("fp"),
    ),
    Rule(
        ("async-save",),
        "Megatron names a checkpoint as the newest at the save after it, so that a crash loses one interval more",
        _saves,
    ),
    Rule(
        ("save-hf", "save-debug-rollout-data", "save-debug-train-data"),
        f"it has no {ITERATIONS_PLACE}, and each file takes the place of the one before",
        value=_without_place,
        remedy="set it to {value}",
    ),
)
"""The run can live with it, and its owner should know."""


def flag_rule_errors(config: SlimeConfig) -> list[str]:
    """Return a line for every flag with which the run would fail, or be another than it says."""
    return [*_broken(config, ERRORS), *_engines(config), *_schedule(config)]


def flag_rule_warnings(config: SlimeConfig) -> list[str]:
    """Return a line for every flag of which the run's owner should know something."""
    return list(_broken(config, WARNINGS))


def given_flag(config: SlimeConfig, *names: str) -> tuple[str, Any] | None:
    """Return the key and value of the first of these flags that the run has; None if it has none."""
    return next(((f"slime.{name}", config.slime[name]) for name in names if name in config.slime), None)


def _broken(config: SlimeConfig, rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        with_what = rule.when(config)
        if with_what is None:
            continue
        for name in rule.flags:
            given = given_flag(config, name)
            if given and rule.value(given[1]):
                key, value = given
                shown = str(value).lower() if isinstance(value, bool) else value if value != "" else "empty"
                yield (
                    f"{key} is {shown}{f' with {with_what}' if with_what else ''}: {rule.why}: "
                    f"{rule.remedy.replace('{value}', _with_place(value))}"
                )


def _engines(config: SlimeConfig) -> Iterator[str]:
    """Yield the faults in sizes of an engine that SGLang checks as it starts, or cuts requests by."""
    rollout = config.rollout
    if (given := given_flag(config, "sglang-dp-size", "sglang-data-parallel-size")) and _above(1)(given[1]):
        key, ranks = given
        attention = given_flag(config, "sglang-enable-dp-attention")
        divides = rollout.gpus_per_engine % int(ranks) == 0
        if not (attention and attention[1]):
            more = ", or set slime.sglang-enable-dp-attention to true" if divides else ""
            yield f"{key} is {ranks}, which slime takes only with data-parallel attention: leave it out{more}"
        elif not divides:
            yield (
                f"{key} is {ranks}, which does not divide slime.rollout-num-gpus-per-engine "
                f"{rollout.gpus_per_engine}: leave it "
                "out"
            )
    given = given_flag(config, "sglang-max-total-tokens")
    needed = (rollout.max_prompt_tokens or 0) + rollout.max_response_tokens
    context = rollout.context_tokens or config.model.max_positions
    needed = min(needed, context) if context else needed
    if given and (tokens := _number(given[1])) is not None and tokens < needed:
        yield (
            f"{given[0]} is {given[1]}, less than the longest sample of {needed} tokens, and SGLang would cut "
            "responses there: leave it out"
        )
    given = given_flag(config, "prefill-num-servers")
    if given and (servers := _number(given[1])) and servers * rollout.gpus_per_engine >= rollout.gpus:
        yield (
            f"{given[0]} is {given[1]}: with slime.rollout-num-gpus-per-engine {rollout.gpus_per_engine} none of the "
            f"{rollout.gpus} GPUs of rollout is left to decode: leave it out"
        )


def _schedule(config: SlimeConfig) -> Iterator[str]:
    """Megatron's schedule asserts these when the trainer is made, after the engines are up."""
    given = given_flag(config, "lr-warmup-iters")
    end = given_flag(config, "lr-decay-iters")
    whole = config.pipeline.iterations * config.pipeline.optimizer_steps_per_rollout
    steps = _number(end[1]) if end else None
    if end and steps is not None and steps <= 0:
        yield f"{end[0]} is {end[1]}, and Megatron wants a schedule of one step or more: leave it out"
        return
    steps = whole if steps is None else steps
    if given and (warmup := _number(given[1])) is not None and warmup >= steps:
        yield (
            f"{given[0]} is {given[1]}, and the schedule has {steps:.0f} optimizer steps: Megatron wants a warmup that "
            f"ends before: set it to {steps // 10:.0f}"
        )
    first = given_flag(config, "lr-warmup-init")
    if first and _above(config.train.lr)(first[1]):
        yield f"{first[0]} is {first[1]}, more than slime.lr {config.train.lr}: set it to {config.train.lr}"
