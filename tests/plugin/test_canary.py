"""The canary on slime: the driver asks engines over HTTP, the trainer scores by slime's forward pass, a fault ends."""

from __future__ import annotations

import functools
import json
import os
import types
from argparse import Namespace

import httpx
import numpy as np
import pytest
import torch
from fake_slime import make_args
from slime_step import Layout, on_ranks

from sat_slime.config.source import ConfigError
from sat_slime.plugin import canary, driver
from sat_slime.plugin.canary import NO_CANARY, PushCanary, PushNotTaken, TrainerScores, arithmetic, score_canary
from sat_slime.rollout.canary import canary_sequences, prefix_length

SEQUENCES = canary_sequences(100, 8)
SCORED = sum(len(sequence) - prefix_length(SEQUENCES) for sequence in SEQUENCES)


def log_probs(version: int) -> np.ndarray:
    return np.random.default_rng(version).normal(-3, 1, SCORED)


def trainer_scores(version: int) -> TrainerScores:
    """What a trainer's rank returns from a push."""
    return TrainerScores(version, SEQUENCES, log_probs(version))


class Engine:
    """An engine that holds a version and answers as SGLang does."""

    def __init__(self, url: str) -> None:
        self.url, self.holds, self.says, self.asked = url, 0, "0", []

    def answer(self, request: httpx.Request) -> list[dict]:
        asked = json.loads(request.content)
        self.asked.append((request.url.path, asked))
        values, infos = iter(log_probs(self.holds).tolist()), []
        for ids in asked["input_ids"]:
            start, *scored = ids[asked["logprob_start_len"] :]
            entries = [[None, start, None], *([next(values), i, None] for i in scored)]
            infos.append({"input_token_logprobs": entries, "weight_version": self.says})
        return [{"meta_info": info} for info in infos]

    def take(self, version: int) -> None:
        self.holds, self.says = version, str(version)


@pytest.fixture
def engines(monkeypatch):
    """Two engines; nobody answers at other addresses."""
    both = {url: Engine(url) for url in ("http://10.0.0.1:1", "http://10.0.0.2:1")}

    def respond(request: httpx.Request) -> httpx.Response:
        engine = both.get(str(request.url.copy_with(path="")).rstrip("/"))
        if engine is None:
            raise httpx.ConnectError("Connection refused")
        return httpx.Response(200, json=engine.answer(request))

    client = functools.partial(httpx.Client, transport=httpx.MockTransport(respond))
    monkeypatch.setattr(canary, "httpx", types.SimpleNamespace(**{**vars(httpx), "Client": client}))
    return [*both.values()]


def urls(engines) -> dict[int, str]:
    return {number: engine.url for number, engine in enumerate(engines)}


def pushed(judge: PushCanary, engines, version: int):
    return judge.check([None, trainer_scores(version)], urls(engines))


# ---------------------------------------------------------------------------------------------------------- the driver


def test_each_engine_is_asked_once_on_its_own_address(engines):
    judge = PushCanary("stop")
    for version in (0, 1):
        for engine in engines:
            engine.take(version)
        metrics = pushed(judge, engines, version)
        assert metrics["canary/faults"] == 0 and metrics["canary/d"] == 0
    assert [[path for path, _ in engine.asked] for engine in engines] == [["/generate"] * 2] * 2
    assert engines[0].asked[0][1]["input_ids"] == [list(sequence) for sequence in SEQUENCES]


def test_stop_ends_with_one_line_that_names_the_engine(engines):
    judge = PushCanary("stop")
    pushed(judge, engines, 0)
    engines[0].take(1)
    engines[1].says = "1"
    with pytest.raises(PushNotTaken) as found:
        pushed(judge, engines, 1)
    message = str(found.value)
    assert "rollout engine 1" in message and "rollout engine 0" not in message and "\n" not in message
    for words in ("still holds the weights of version 0, and says 1", "it took no push since", "go on with --resume"):
        assert words in message


def test_warn_measures_and_tells_the_engines_and_a_dead_one(engines, caplog):
    judge = PushCanary("warn")
    judge.check([trainer_scores(0)], {1: engines[0].url, 2: engines[1].url})
    engines[0].take(1)
    told = judge.check([trainer_scores(1)], {0: "http://127.0.0.1:9", 1: engines[0].url, 2: engines[1].url})
    assert told["canary/faults"] == 1 and "canary: rollout engine 2 " in caplog.text
    assert "rollout engine 0 (http://127.0.0.1:9) is not judged at version 1: no server answers there" in caplog.text


@pytest.mark.parametrize(
    ("told", "given", "why"),
    [
        ([trainer_scores(0)], {0: "http://127.0.0.1:9"}, "no engine gives scores; rollout engine 0 "),
        ([trainer_scores(0)], {}, "there are no engines that take pushes"),
        ([None], {0: "http://127.0.0.1:9"}, "the trainer has no scores"),
    ],
)
def test_a_push_that_cannot_be_checked_is_no_push_that_passed(engines, told, given, why, caplog):
    with pytest.raises(PushNotTaken, match=why):
        PushCanary("stop").check(told, given)
    assert PushCanary("warn").check(told, given) == {"canary/faults": 1}
    assert why in caplog.text and "set pipeline.canary to none" in caplog.text


def test_the_canary_of_a_push_is_checked_before_the_next_batch_and_the_batch_reports_it(monkeypatch, engines):
    """Under lag 0 with one engine that misses the second push."""
    pytest.importorskip("ray")
    from test_driver import calls

    versions, metrics = iter(range(9)), []

    def update_weights():
        version = next(versions)
        engines[0].take(version)
        if version != 1:
            engines[1].take(version)
        return [None, trainer_scores(version)]

    monkeypatch.setattr(driver.Host, "engines", lambda host: urls(engines))
    given = {"update_weights": update_weights, "metrics": metrics}
    with pytest.raises(PushNotTaken, match=rf"rollout engine 1 \({engines[1].url}\) .*version 0"):
        calls(monkeypatch, driver.SlimePipelineConfig(lag=0, canary="stop"), 3, **given)
    assert [one["canary/faults"] for one in metrics] == [0], "one batch is trained"
    versions = iter(range(9))
    assert len(calls(monkeypatch, driver.SlimePipelineConfig(lag=0), 3, **given)) == 10 and metrics[1:] == [{}] * 3


# ------------------------------------------------------------------------------------------------------ where it cannot


def with_canary(**flags) -> Namespace:
    section = {"method": "grpo", "driver": {"canary": "warn"}}
    return make_args(**{"sat_slime": section, "use_rollout_routing_replay": False} | flags)


def test_flags_with_which_no_canary_can_be_are_refused():
    driver.take_over(with_canary())
    for flag in NO_CANARY:
        with pytest.raises(ConfigError, match=f"--{flag} is set, and pipeline.canary is not none: "):
            driver.take_over(with_canary(**{flag.replace("-", "_"): True}))
    with pytest.raises(ConfigError, match="pipeline stages are interleaved"):
        driver.take_over(with_canary(virtual_pipeline_model_parallel_size=2))


def test_the_limit_is_that_of_the_less_precise_of_trainer_and_engines():
    rounds = {"float32": (False, "float32"), "bfloat16": (True, "float32")}
    for told, (bf16, engines) in rounds.items():
        assert arithmetic(Namespace(bf16=bf16, sglang_dtype=engines)) == told
    assert arithmetic(Namespace(bf16=False, sglang_dtype="auto")) == "bfloat16"


# --------------------------------------------------------------------------------------------------------- the trainer


class Trainer:
    """slime's trainer, of which the forward pass is replaced: it notes under which settings it is asked."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.model = [torch.nn.Linear(1, 1)]
        self.weight_updater = types.SimpleNamespace(weight_version=3)
        self.hf_config = types.SimpleNamespace(max_position_embeddings=48)
        self.seen: dict = {}

    def compute_log_prob(self, data_iterator, num_microbatches, store_prefix=""):
        batches = [data_iterator[0].get_next(["tokens", "response_lengths"]) for _ in range(sum(num_microbatches))]
        tokens = [row for batch in batches for row in batch["tokens"]]
        lengths = [length for batch in batches for length in batch["response_lengths"]]
        self.seen = {
            "temperature": self.args.rollout_temperature,
            "top_p": self.args.rollout_top_p,
            "stage": os.environ.get("ROUTING_REPLAY_STAGE"),
            "micro_batches": [len(batch["tokens"]) for batch in batches],
        }
        scored = [-row[-length:].float() for row, length in zip(tokens, lengths, strict=True)]
        return {f"{store_prefix}log_probs": scored}


def score(layout: Layout):
    """What a trainer's only rank makes of the canary."""
    args = Namespace(
        vocab_size=50,
        rollout_temperature=0.7,
        rollout_top_p=0.9,
        use_routing_replay=True,
        max_position_embeddings=4096,
        rollout_max_context_len=None,
        sglang_context_length=None,
        allgather_cp=False,
    )
    trainer = Trainer(args)
    return trainer, score_canary(trainer)


@pytest.mark.needs_slime
def test_the_trainer_scores_as_an_engine_does(monkeypatch, slimes_loss):
    monkeypatch.setenv("ROUTING_REPLAY_STAGE", "replay_backward")
    ((trainer, scores),) = on_ranks(Layout(), score)
    assert trainer.seen == {"temperature": 1.0, "top_p": 1.0, "stage": "fallthrough", "micro_batches": [8]}
    assert (trainer.args.rollout_temperature, trainer.args.rollout_top_p) == (0.7, 0.9)
    assert os.environ["ROUTING_REPLAY_STAGE"] == "replay_backward"
    assert scores.version == 3 and {len(sequence) for sequence in scores.sequences} == {32}  # 48 less the room
    assert scores.log_probs.tolist() == [-float(i) for sequence in scores.sequences for i in sequence[16:]]
