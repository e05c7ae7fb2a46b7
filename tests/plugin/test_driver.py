"""Our order of a run, as calls on a host of slime; tests/slime_whole has it with slime."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import types
from argparse import Namespace
from unittest import mock

import pytest
from fake_slime import make_args

from sat_slime.config.slime_schema import PluginConfig, SlimePipelineConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin import driver
from sat_slime.plugin.driver import Host
from sat_slime.plugin.settings import DRIVEN, PUSH_METRICS

local_ray = types.SimpleNamespace(get=lambda result: result, wait=lambda results: (results, []))
local_ray.exceptions = types.SimpleNamespace(RayActorError=LookupError)
"""Stands for ray: calls have returned before they are waited for."""


def calls(monkeypatch, order, rollouts, start=0, update_weights=None, metrics=None, **other):
    """The calls that the driver makes on a host of slime that notes them.

    Args:
        update_weights: what a push does.
        metrics: gets the metrics of the push that come with each batch.
    """
    pytest.importorskip("ray")
    made = []

    def note(name):
        def call(*numbers, external_data=None, **_):
            made.append(" ".join(map(str, (name, *numbers[:1]))))
            if name == "async_train" and metrics is not None:
                metrics.append((external_data or {}).get(PUSH_METRICS, {}))
            return update_weights() if name == "update_weights" and update_weights else [name]

        return call

    manager = {name: types.SimpleNamespace(remote=note(name)) for name in ("generate", "eval", "save")}
    trainers = types.SimpleNamespace(**{name: note(name) for name in ("async_train", "save_model", "update_weights")})
    args = Namespace(
        sat_slime={"method": "grpo", "run_dir": other.pop("run_dir", None)},
        rollout_batch_size=4,
        n_samples_per_prompt=2,
        global_batch_size=4,
        start_rollout_id=start,
        num_rollout=rollouts,
        save_interval=other.pop("save_interval", None),
        eval_interval=other.pop("eval_interval", None),
        skip_eval_before_train=False,
        check_weight_update_equal=False,
        rollout_global_dataset=True,
        save=other.pop("save", None),
        load=other.pop("load", None),
        **other,
    )

    def is_due(host, rollout_id, interval, end=None):
        return interval is not None and (rollout_id + 1 == end or (rollout_id + 1) % interval == 0)

    monkeypatch.setattr(driver, "plugin_config", lambda args: PluginConfig(**args.sat_slime))
    monkeypatch.setattr(driver, "_is_due", is_due)
    monkeypatch.setattr(driver, "ray", local_ray)
    driver.train(Host(args, types.SimpleNamespace(**manager), trainers, None), order, driver.time.monotonic())
    return made


def test_a_dead_engine_is_left_out_and_the_others_keep_their_numbers(monkeypatch):
    alive = types.SimpleNamespace(get_url=types.SimpleNamespace(remote=lambda: "http://127.0.0.1:1"))
    dead = types.SimpleNamespace(get_url=types.SimpleNamespace(remote=lambda: {}["its actor is dead"]))
    told = types.SimpleNamespace(remote=lambda: ([None, alive, dead], "lock", 3))
    monkeypatch.setattr(driver, "ray", local_ray)
    manager = types.SimpleNamespace(get_updatable_engines_and_lock=told)
    assert Host(Namespace(), manager, None, None).engines() == {1: "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("order", "args", "expected"),
    [
        # one batch is generated ahead, and complete before a push
        ({"lag": 2}, {}, "PUSH, generate 0, generate 1, TRAIN 0, generate 2, TRAIN 1, PUSH, TRAIN 2, PUSH"),
        ({"lag": 0}, {}, "PUSH, generate 0, TRAIN 0, PUSH, generate 1, TRAIN 1, PUSH, generate 2, TRAIN 2, PUSH"),
        # no batch is asked for before the weights are pushed
        (
            {"mode": "streaming", "lag": 2},
            {},
            "PUSH, generate 0, TRAIN 0, generate 1, TRAIN 1, PUSH, generate 2, TRAIN 2, PUSH",
        ),
        # the position in the data is saved before the next batch takes prompts, at the end too
        (
            {"lag": 4},
            {"save_interval": 2},
            "PUSH, generate 0, generate 1, TRAIN 0, save 1, generate 2, TRAIN 1, save_model 1, save 2, TRAIN 2, "
            "save_model 2, PUSH",
        ),
        # initial and final weights are evaluated, the final ones once and after their push
        (
            {"lag": 4},
            {"eval_interval": 2},
            "PUSH, eval 0, generate 0, generate 1, TRAIN 0, generate 2, TRAIN 1, eval 1, TRAIN 2, PUSH, eval 2",
        ),
        ({"lag": 4}, {"eval_interval": 3, "start": 2}, "PUSH, generate 2, TRAIN 2, PUSH, eval 2"),
        ({"lag": 4}, {"eval_interval": 2, "start": 3}, "PUSH, eval 2"),  # of a job that died in its last evaluation
        ({}, {"eval_interval": 2, "start": 5, "rollouts": 0}, "PUSH, eval 4"),  # slime then only evaluates
    ],
    ids=["batch", "synchronous", "streaming", "saves", "evaluates", "resumed", "resumed at its end", "only evaluates"],
)
def test_the_order_of_calls(monkeypatch, order, args, expected):
    made = calls(monkeypatch, SlimePipelineConfig(**order), **{"rollouts": 3, **args})
    assert ", ".join(made).replace("update_weights", "PUSH").replace("async_train", "TRAIN") == expected


@pytest.mark.parametrize(("evaluated", "again"), [([0], ["eval 1"]), ([0, 4], [])])
def test_an_evaluation_that_its_checkpoint_outlived_is_made_after_a_resume(monkeypatch, tmp_path, evaluated, again):
    (tmp_path / "eval.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in evaluated))
    args = {"eval_interval": 2, "run_dir": str(tmp_path), DRIVEN: True}
    made = calls(monkeypatch, SlimePipelineConfig(lag=4), 5, start=2, **args)
    assert [call for call in made if call.startswith("eval")] == [*again, "eval 3", "eval 4"]
    assert made[: 1 + len(again)] == ["update_weights", *again], "the weights are pushed first"


def test_a_run_deletes_the_checkpoints_that_are_its_own(monkeypatch, tmp_path, caplog):
    asked = []
    monkeypatch.setattr(driver, "delete_old", lambda folder, keep, ours: asked.append((folder, keep, set(ours))) or [])
    for rollout in (1, 3, 9):
        (tmp_path / f"iter_{rollout:07d}").mkdir()

    def deleted(rollouts, start, load=tmp_path, **order):
        asked.clear()
        order = SlimePipelineConfig(lag=0, **order)
        calls(monkeypatch, order, rollouts, start, save_interval=2, save=str(tmp_path), load=load and str(load))
        return asked

    assert deleted(8, 4, keep_checkpoints=2) == [(tmp_path, 2, {2, 4, 6}), (tmp_path, 2, {2, 4, 6, 8})]
    assert deleted(2, 0, keep_checkpoints=2) == [(tmp_path, 2, {2})]
    assert deleted(6, 4, "/elsewhere", keep_checkpoints=2) == [(tmp_path, 2, {6})]
    assert deleted(6, 4) == []
    monkeypatch.setattr(driver, "delete_old", mock.Mock(side_effect=OSError("Read-only file system")))
    deleted(2, 0, None, keep_checkpoints=1)
    assert "cannot be deleted: Read-only file system" in caplog.text, "and the run goes on"


def test_settings_that_are_refused_have_the_exit_code_of_bad_arguments(monkeypatch, capsys):
    monkeypatch.setattr(driver, "probe_slime", lambda: ["slime has no such function"])
    with pytest.raises(SystemExit) as ended:
        driver.main()
    assert ended.value.code == 2 and "slime has no such function" in capsys.readouterr().err


def test_the_parts_of_each_iteration_are_timed(monkeypatch, tmp_path):
    ticks = iter(range(1000))
    monkeypatch.setattr(driver.time, "monotonic", lambda: float(next(ticks)))
    calls(monkeypatch, SlimePipelineConfig(lag=2), 4, save_interval=4, eval_interval=3, run_dir=str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    parts = [{key.removeprefix("time/") for key in row} - {"step", "iteration"} for row in rows]
    assert [(row["iteration"], row["step"]) for row in rows] == [(1, 2), (2, 4), (3, 6), (4, 8)]
    assert parts == [
        {"start", "first_eval", "collect", "train"},
        {"collect", "train", "flight", "push"},
        {"collect", "train", "flight", "eval"},
        {"collect", "train", "save", "push", "eval"},
    ]
    assert rows[3]["time/save"] == 2.0, "the position in the data and the weights"


def test_arguments_are_marked_as_driven_unless_a_flag_means_another_order():
    flags = {"sat_slime": "grpo", "sat_slime_driven": False, "use_rollout_routing_replay": False}
    driver.take_over(args := make_args(**flags, **driver.USUAL))
    assert getattr(args, DRIVEN) is True
    for flag in driver.NOT_HERE.keys() - driver.USUAL:
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is set: "):
            driver.take_over(make_args(**{**flags, flag: True}))
    with pytest.raises(
        ConfigError, match=r"-interval is 4: driver\.lag says .*\n--.*-transport is disk: .* leave it out"
    ):
        driver.take_over(make_args(**flags, update_weight_transport="disk", update_weights_interval=4))


def test_the_runs_hosts_are_excepted_from_a_proxy(monkeypatch):
    """Ray's nodes and slime's address here; the rest is in tests/launch."""
    started, hosts = [], ["129.132.1.5", "head.example", "10.0.0.1"]
    nodes = [{"NodeManagerAddress": address, "NodeManagerHostname": hosts[1]} for address in hosts[::2]]
    ray = types.SimpleNamespace(init=lambda **given: started.append(given), nodes=lambda: nodes, shutdown=lambda: None)
    monkeypatch.setattr(driver, "ray", ray)
    monkeypatch.setattr(os, "environ", {"HTTPS_PROXY": "http://proxy:3128", "SLIME_HOST_IP": "129.132.1.77"})
    driver.connect()
    assert started[0] == {}
    variables = started[1]["runtime_env"]["env_vars"]
    assert {*hosts, "129.132.1.77", "127.0.0.1"} <= set(variables["no_proxy"].split(","))
    assert variables["no_proxy"] == os.environ["no_proxy"]


RUN = """
import json, sys
from sat_slime.plugin.compat import claim_ports
claim_ports()
from slime.utils.http_utils import is_port_available

def free(start, count):
    while not all(is_port_available(start + number) for number in range(count)):
        start += 1
    return start

port = free(15_000, 1)
print(json.dumps([port, free(port + 1, 31)]), flush=True)
sys.stdin.read()
"""
"""An engine's actor, with ports for an engine and its process group."""


@pytest.mark.needs_slime
def test_two_runs_that_start_together_are_given_other_ports():
    """Each actor keeps what it has until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    taken: set[int] = set()
    with contextlib.ExitStack() as actors:
        for _ in range(2):
            actor = actors.enter_context(subprocess.Popen([sys.executable, "-c", RUN], **pipes))
            port, group = json.loads(actor.stdout.readline())
            ports = {port, *range(group, group + 31)}
            assert not taken & ports
            taken |= ports
