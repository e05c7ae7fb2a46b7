"""No advice leads into another fault: what a message says to set is set, and the settings are checked again.

The advice of a message is what follows its last `: `. It is read in a few forms, which all messages keep to:
`set KEY to VALUE`, `set it to VALUE`, `raise it to VALUE`, `choose one of A, B, C`, `it must be one of A, B, C`,
`leave it out`, `turn NAME off`, `base such as NAME`; with `, or ` between advices, each of which is tried, and ` and `
between settings that belong together. `it` is the setting with which the message begins.
"""

import functools
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import mistakes
import pytest

from sat_slime.config import (
    LabConfig,
    config_errors,
    config_warnings,
    load_config,
    slime_config_warnings,
)
from sat_slime.launch.checks import settings_errors

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
PAPER, DENSE = CONFIGS / "paper" / "qwen3-30b-a3b.yaml", CONFIGS / "models" / "qwen3-4b.yaml"
LAB = CONFIGS / "lab" / "quickstart.yaml"
FILES = {"slime.yaml": CONFIGS / "recipes" / "qwen3-4b-8gpus.yaml", "quickstart.yaml": LAB}

NO_SETTING = [
    r"describe (one|an MoE model|that one)",
    r"choose base dppo|the lab runtime|run slime's own",  # not_on_slime
    r"name a(nother)? file",
    r"set it to (the folder|where|a \.jsonl|one of slime's rules)",
    r"name the folders? (in cluster\.python_path|with that checkpoint)",
    r"set it to more than \d+",
    r"takes more memory than the bound says",
    r"has never seen positions beyond that",
    r"see that it does",
    r"rename the folder|link to it",
    r"http://HOST:PORT",
    r"it must be a (whole )?number|has none",  # what was meant is not known
    r"or the dotted path",
    r"give the model experts",
    r"the divisors of \d+ are",
    r"make it a multiple of \d+",
    r"it must be at most that|lower one",
]
"""Advice that is no setting of the run, or leaves the value to who reads it; and what is told as a fact."""


def cases_of(name: str) -> Iterator[list[str]]:
    """The overrides of a neighbouring test's parametrized cases that make a fault."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from (
        (test.__name__, case)
        for test in vars(module).values()
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "parametrize" and mark.args[0] == "overrides, named"
        for case, _ in mark.args[1]
    )


def faults() -> Iterator[tuple[Path, tuple[str, ...]]]:
    for name in ("test_slime_checks", "test_slime_flags"):
        for test, case in cases_of(name):
            if "dense" in test:
                needed = ("data.prompts=/p.jsonl", "data.reward=math", "eval.every_n_iterations=0")
                yield DENSE, (*needed, *case)
            else:
                quiet = (
                    () if test.startswith(("test_each_fault", "test_what_fails", "test_what_misleads_in")) else NO_EVAL
                )
                yield PAPER, ("method=gspo", *quiet, *case)
    for overrides in MORE_FAULTS:
        yield PAPER, ("method=gspo", *overrides)
    for line in mistakes.TOGETHER + mistakes.SLIME:
        _launch, file, *words = shlex.split(line.partition(" | ")[0])
        yield FILES[file], tuple(_overrides(words))


def _overrides(words: list[str]) -> Iterator[str]:
    waiting = iter(words)
    for word in waiting:
        if word == "--set":
            yield next(waiting)
        elif word == "--method":
            yield f"method={next(waiting)}"
        elif word == "--lag":
            yield f"pipeline.lag={next(waiting)}"
        elif word == "--base":
            yield f"method.base={next(waiting)}"
        elif word in ("--tis", "--sat", "--r3"):
            yield f"method.{word[2:]}=true"


NO_EVAL = ("eval.every_n_iterations=0",)
MORE_FAULTS = [
    ("slime.use-tiss=true",),
    ("slime.lr=1",),
    ("slime.sglang-tp-size=2",),
    ("slime.wandb-project=x",),
    ("slime.no-save-optim=true",),
    ("slime.rollout-max-context-len=4096",),
    ("slime.loss-type=policy_loss",),
    ("slime.use-score-centering=true",),
    ("slime.log-passrate=1",),
    ("slime.log-passrat=true",),
    ("slime.wandb-mode=on",),
    ("slime.wandb-key=abcdefgh",),
    ("data.reward=mathh",),
    (*NO_EVAL, "method=sat-gspo", "pipeline.optimizer_steps_per_rollout=2"),
    ("pipeline.mode=streaming", "pipeline.lag=8"),
    ("train.tensor_parallel=3", "rollout.gpus_per_engine=3"),
    ("train.pipeline_parallel=5",),
    ("train.nodes=2", "rollout.nodes=2"),
    ("cluster.device=cpu",),
    ("method=grpo", "method.sat.alpha=0.8", *NO_EVAL),
    ("data.reward=prime_math",),
]
"""Faults that no case of the other tests has."""


@functools.cache
def told(file: Path, overrides: tuple[str, ...]) -> list[str]:
    """All that is told of the settings."""
    config = load_config(file, overrides)
    if isinstance(config, LabConfig):
        return [*config_errors(config), *config_warnings(config)]
    return [*settings_errors(config), *slime_config_warnings(config)]


def like(message: str) -> str:
    """A message without its values: what it becomes with others is the same."""
    return re.sub(r"[\d.,]*\d\S*|'[^']*'|-?\d+", "#", message)


Settings = dict[str, str | None]
"""Values by key; None where the setting is to be left out."""
KEY = r"[a-z_]+(?:\.[\w-]+)+|seed"


def advices(message: str) -> Iterator[Settings]:
    """The settings that each advice of a message makes, but for those that are no settings."""
    subject = re.match(rf"({KEY})", message)
    it = subject[1] if subject else ""
    advice = re.split(r"[:;] (?!//)", message.partition(": ")[2] or message)
    for part in re.split(r",? or (?=set |leave |raise |choose |base |[a-z_]+\.)", advice[-1]):
        if any(re.search(pattern, part) for pattern in NO_SETTING):
            continue
        if choices := re.search(r"(?:choose|must be) one of ([\w., -]+)$", part):
            yield from ({it: choice} for choice in choices[1].split(", "))
        elif re.search(r"leave (it|this|one of them) out", part):
            yield {it: None}
        elif off := re.search(r"turn (?:method\.)?(\w+) off", part):
            yield {f"method.{off[1]}.enabled": "false"}
        elif base := re.search(r"base such as (\w+)", part):
            yield {"method.base": base[1]}
        elif meant := re.search(r"did you mean --([\w-]+)\? Flags", message):
            yield {it: None, it.rpartition(".")[0] + f".{meant[1]}": "true"}
        else:
            pairs = re.findall(rf"({KEY}|\bit) to (\[[^]]*\]|[^\s,]+)", part)
            if pairs:
                yield {it if key == "it" else key: value for key, value in pairs}


def applied(overrides: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    kept = [one for one in overrides if one.partition("=")[0] not in settings]
    return (*kept, *(f"{key}={value}" for key, value in settings.items() if value is not None))


CASES = list(faults())


def loaded(file, overrides):
    from sat_slime.config import ConfigError

    try:
        return told(file, overrides)
    except ConfigError:
        return None  # a value that no setting takes: it says which it would take


@pytest.mark.parametrize("file, overrides", CASES, ids=[" ".join(overrides)[:100] for _, overrides in CASES])
def test_what_a_message_advises_mends_it_and_breaks_nothing_else(file, overrides):
    before = loaded(file, overrides)
    if before is None:
        pytest.skip("refused as it is read")
    assert before, "the case makes no fault"
    for message in before:
        followed = list(advices(message))
        assert followed or any(re.search(pattern, message) for pattern in NO_SETTING), f"no advice in: {message}"
        assert all(key for settings in followed for key in settings), message
        for settings in followed:
            after = told(file, applied(overrides, settings))
            new = {like(line) for line in after} - {like(line) for line in before}
            assert like(message) not in {like(line) for line in after}, (message, settings)
            assert not new, (message, settings, new)


def test_every_exception_is_needed():
    messages = [message for file, overrides in CASES for message in loaded(file, overrides) or ()]
    assert [one for one in NO_SETTING if not any(re.search(one, message) for message in messages)] == []
