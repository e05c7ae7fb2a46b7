"""The canary's verdicts, on made-up log-probs: what it finds, what it says, and what must pass."""

from __future__ import annotations

import numpy as np
import pytest

from sat_slime.rollout.canary import Canary, EngineScores, canary_sequences, prefix_length, read_scores, score_payload

NOISE = 0.01
"""Mean |d| of a bf16 engine here, in nats."""


class Fleet:
    """Two engines that take each push, up to rounding, and a trainer whose log-probs move by `change` a push."""

    def __init__(self, change: float = 0.1, dtype: str = "bfloat16") -> None:
        self.canary, self.rng, self.change = Canary(dtype), np.random.default_rng(0), change
        self.versions: list[np.ndarray] = []

    def push(self, noise: float = NOISE, **odd: EngineScores):
        """Pushes the next weights; the engines in `odd` answer with these scores instead."""
        before = self.versions[-1] if self.versions else self.rng.normal(-3, 1, 128)
        self.versions.append(before + self.rng.normal(0, self.change, 128))
        number = len(self.versions) - 1
        answers = {name: odd.get(name) or self.holding(number, noise=noise) for name in ("a", "b")}
        return self.canary.check(number, self.versions[-1], answers)

    def holding(self, version: int, says: int | None = None, noise: float = NOISE) -> EngineScores:
        scores = self.versions[version] + self.rng.normal(0, noise, 128)
        return EngineScores(scores, str(version if says is None else says))


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    for _ in range(5):
        assert not fleet.push().faults
    return fleet


FAULTS = {
    "the push before": (lambda fleet: fleet.holding(4), ("version 4", "as it says")),
    "a version that was not pushed": (lambda fleet: EngineScores(fleet.rng.normal(-3, 1, 128), "77"), ("77, not 5",)),
    "half of a push": (
        lambda fleet: EngineScores(fleet.versions[-1] + fleet.rng.normal(0, 0.2, 128), "5"),
        ("tensor-parallel",),
    ),
    "another model": (lambda fleet: EngineScores(fleet.rng.normal(-3, 1, 128), "5"), ("another model",)),
    "no numbers": (lambda fleet: EngineScores(np.full(128, np.nan), "5"), ("not finite",)),
}


@pytest.mark.parametrize(("made", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_an_engine_without_the_push_is_named_with_its_fault(fleet, made, says):
    verdict = fleet.push(b=made(fleet))
    assert set(verdict.faults) == {"b"} and all(part in verdict.faults["b"] for part in says)
    assert verdict.metrics["canary/faults"] == 1


def test_at_the_first_push_an_engine_without_numbers_hides_no_other():
    fleet, no_numbers = Fleet(), EngineScores(np.full(128, np.nan), "0")
    another = EngineScores(fleet.rng.normal(-9, 1, 128), "0")
    assert fleet.push(a=no_numbers, b=another).faults.keys() == {"a", "b"}
    diverged = fleet.canary.check(1, no_numbers.log_probs, {"a": no_numbers})
    assert "the trainer's own log-probs are not finite" in diverged.message


def test_the_limit_follows_noise_that_grows_slowly_but_no_fault(fleet):
    limit = fleet.push().metrics["canary/limit"]
    for push in range(60):
        verdict = fleet.push(noise=NOISE * 1.03**push)
        assert not verdict.faults
    assert verdict.metrics["canary/limit"] > 2 * limit
    levels = list(fleet.canary.levels)
    stale = fleet.holding(3)
    fleet.push(a=stale, b=stale)
    assert fleet.canary.levels == levels


def test_fp32_engines_pass_with_their_last_bits_and_not_with_a_thousandth():
    fleet = Fleet(dtype="float32")
    for noise in (1e-7, 5e-7, 2e-6):
        assert not fleet.push(noise=noise).faults
    assert fleet.push(noise=1e-3).faults.keys() == {"a", "b"}


def test_sequences_are_the_same_in_every_run_and_without_the_last_token_of_the_vocabulary():
    sequences = canary_sequences(16, 32)
    assert sequences == canary_sequences(16, 32) and {len(tokens) for tokens in sequences} == {32}
    assert min(map(min, sequences)) >= 0 and max(map(max, sequences)) < 15


def answers(sequences, version="3"):
    """What SGLang answers to `score_payload`."""
    start = score_payload(sequences)["logprob_start_len"]
    return [
        {
            "meta_info": {
                "weight_version": version,
                "input_token_logprobs": [[None, tokens[start], None]]
                + [[-float(token), token, None] for token in tokens[start + 1 :]],
            }
        }
        for tokens in sequences
    ]


def test_scores_are_read_behind_the_prefix():
    sequences = canary_sequences(16, 32)
    scores = read_scores(answers(sequences), sequences)
    expected = [-token for tokens in sequences for token in tokens[prefix_length(sequences) :]]
    assert scores.log_probs.tolist() == expected and scores.version == "3"


@pytest.mark.parametrize("entry", [None, [-1.0, 99, None], ["low", 3, None]])  # no list, another token, no log-prob
def test_an_answer_that_cannot_be_read_is_an_error_that_says_so(entry):
    sequences = canary_sequences(16, 32)
    raw = answers(sequences)
    raw[0]["meta_info"]["input_token_logprobs"][5] = entry
    with pytest.raises(ValueError, match="canary"):
        read_scores(raw if entry else {"error": "busy"}, sequences)
