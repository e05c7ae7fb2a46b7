"""What fails later, provoked in slime's, Megatron's and SGLang's own functions: the settings that it follows from are
refused by tests/config/test_slime_flags.py and tests/plugin/launch/test_named_files.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from slime_host import import_slime

from sat_slime.launch.named_files import REWARDS


def slime(name):
    (module,) = import_slime(f"slime.{name}")
    return module


@pytest.mark.needs_slime
def test_a_reward_that_slime_has_not_fails_at_the_first_reward():
    hub = slime("rollout.rm_hub")
    sample = SimpleNamespace(custom_rm_path=None, metadata={}, response="2", label="2")
    for name in ("mathh", "prime_math"):
        with pytest.raises(NotImplementedError, match=name):
            asyncio.run(hub.async_rm(SimpleNamespace(custom_rm_path=None, rm_type=name), sample))
    assert "random" in REWARDS
    assert asyncio.run(hub.async_rm(SimpleNamespace(custom_rm_path=None, rm_type="random"), sample)) in (0, 1)


@pytest.mark.needs_slime
def test_daposs_rule_gives_a_mapping_and_takes_numbers():
    import torch

    hub = slime("rollout.rm_hub")
    args = SimpleNamespace(custom_rm_path=None, rm_type="dapo")
    sample = SimpleNamespace(custom_rm_path=None, metadata={}, response="Answer: 2", label="2")
    reward = asyncio.run(hub.async_rm(args, sample))
    assert reward["score"] == 1.0
    with pytest.raises((TypeError, RuntimeError)):
        torch.tensor([reward], dtype=torch.float)  # as RolloutManager._post_process_rewards does
    sample.label = "x+1"
    with pytest.raises(ValueError, match="could not convert"):
        asyncio.run(hub.async_rm(args, sample))
    with pytest.raises(AttributeError):
        asyncio.run(
            hub.async_rm(
                SimpleNamespace(custom_rm_path=None, rm_type="f1"), SimpleNamespace(**{**vars(sample), "label": 2})
            )
        )


@pytest.mark.needs_slime
def test_a_number_has_no_reward_key():
    sample = slime("utils.types").Sample(reward=1.0)
    with pytest.raises(TypeError):
        sample.get_reward_value(SimpleNamespace(reward_key="score"))


@pytest.mark.needs_slime
def test_a_part_of_a_file_without_rows_gives_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n' * 3)
    read_file = slime("utils.data").read_file
    assert list(read_file(f"{tmp_path}/a.jsonl@[3:]")) == []
    assert len(list(read_file(f"{tmp_path}/a.jsonl@[-1:]"))) == 1


@pytest.mark.needs_slime
def test_evaluations_with_rewards_of_groups_fail():
    rollout = slime("rollout.sglang_rollout")
    with pytest.raises(AssertionError, match="Group RM"):
        asyncio.run(rollout.eval_rollout(SimpleNamespace(group_rm=True), 0))
    with pytest.raises(AssertionError):
        rollout.generate_rollout(SimpleNamespace(rollout_global_dataset=False), 0, None)


@pytest.mark.needs_slime
def test_sglang_refuses_a_top_k_of_0():
    pytest.importorskip("msgspec")
    (sampling,) = import_slime("sglang.srt.sampling.sampling_params")
    sampling.SamplingParams(top_k=-1).verify(100)
    for top_k in (0, -2):
        with pytest.raises(ValueError, match="top_k must be -1"):
            sampling.SamplingParams(top_k=top_k).verify(100)


def test_a_warmup_to_the_end_of_the_run_is_no_schedule():
    scheduler = pytest.importorskip("megatron.core.optimizer_param_scheduler").OptimizerParamScheduler
    settings = dict(
        optimizer=SimpleNamespace(param_groups=[]),
        max_lr=1e-6,
        min_lr=0.0,
        lr_decay_steps=32,
        lr_decay_style="constant",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=32,
        wd_incr_style="constant",
    )
    scheduler(init_lr=0.0, lr_warmup_steps=3, **settings)
    with pytest.raises(AssertionError):
        scheduler(init_lr=0.0, lr_warmup_steps=32, **settings)
    with pytest.raises(AssertionError):
        scheduler(init_lr=1e-5, lr_warmup_steps=3, **settings)


def test_numpy_takes_no_larger_seed():
    import numpy as np

    from sat_slime.config.slime_checks import LARGEST_SEED

    state = np.random.get_state()
    np.random.seed(LARGEST_SEED)
    with pytest.raises(ValueError):
        np.random.seed(LARGEST_SEED + 1)
    np.random.set_state(state)
