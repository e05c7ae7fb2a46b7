"""What is told of a run before it starts: of the files, prompts, rewards and disk of this machine, and of a cluster."""

import json
import sys
from pathlib import Path
from unittest import mock

import pytest
from hf_folder import write_hf

from sat_slime.config import dump_config, load_config
from sat_slime.config.source import ConfigError
from sat_slime.launch import checks, machine, nodes
from sat_slime.launch.checks import cluster_findings, here, read_report, secret_errors
from sat_slime.launch.command import slime_command
from sat_slime.launch.machine import (
    REWARDS,
    data_findings,
    function_findings,
    machine_findings,
    reward_errors,
    slime_rewards,
)
from sat_slime.launch.memory import GIB, ROWS
from sat_slime.launch.nodes import address_of, look
from sat_slime.launch.ray_jobs import JobServer, JobState

CONFIGS = Path(__file__).parents[2] / "configs"
STAND_IN = Path(__file__).parents[1] / "plugin" / "stand_in"


def paper(*overrides):
    return load_config(CONFIGS / "paper" / "qwen3-30b-a3b.yaml", overrides)


def dense(*overrides):
    return load_config(CONFIGS / "models" / "qwen3-4b.yaml", ["slime.sglang-server-concurrency=128", *overrides])


def failed(findings):
    return [f"{finding.what}: {finding.detail}" for finding in findings if finding.mark == "FAIL"]


# ---------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def ready(tmp_path):
    """Makes all files of a run, and returns the overrides that name them."""
    model = dense().model  # of which no weight is there
    values = {"num_hidden_layers": model.layers, "hidden_size": model.hidden_size, "vocab_size": model.vocab_size}
    values |= {"num_attention_heads": model.attention_heads, "max_position_embeddings": model.max_positions}
    write_hf(tmp_path / "hf", config={**values, "tie_word_embeddings": True})
    (tmp_path / "hf" / "model.safetensors").write_text("")
    release = tmp_path / "megatron" / "release"
    release.mkdir(parents=True)
    (release.parent / "latest_checkpointed_iteration.txt").write_text("release\n")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n' * 3)
    return [
        f"slime.hf-checkpoint={tmp_path}/hf",
        f"slime.ref-load={release.parent}",
        f"slime.prompt-data={tmp_path}/data.jsonl@[0:100]",
        "slime.rm-type=math",
        "slime.custom-rm-path=false",
        f"slime.eval-prompt-data=[aime24, {tmp_path}/data.jsonl]",
        f"cluster.slime_dir={STAND_IN}",
        f"cluster.megatron_dir={STAND_IN}",
        f"output_dir={tmp_path}/runs",
        "slime.no-save-optim=true",
    ]


@pytest.fixture(autouse=True)
def large_machine(monkeypatch):
    """Makes memory and disk large, and packages those of slime's image: other tests are about them, and these do not
    depend on the machine."""
    monkeypatch.setattr(checks, "machine_sizes", lambda: {"gpu": None, "host": 2048 * GIB})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1024 * GIB}))


def test_a_machine_that_has_everything(ready, tmp_path):
    config = dense(*ready)
    findings = list(here(config, tmp_path / "runs" / "run"))
    assert {finding.mark for finding in findings} == {"OK"}, findings
    assert {finding.what for finding in findings} >= {"slime", "megatron", "checkpoint", "weights", "data", "disk"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["missing", "x" * 300])  # one that is not there, and one that may not be asked after
def test_what_is_missing_is_named(tmp_path, name):
    missing = tmp_path / name
    keys = ("cluster.slime_dir", "cluster.megatron_dir", "slime.hf-checkpoint", "slime.ref-load", "slime.prompt-data")
    lines = failed(here(dense(*(f"{key}={missing}" for key in keys)), missing / "runs" / "run"))
    assert all(any(f"{key} is {missing}" in line for line in lines) for key in keys)
    assert len(lines) == len(keys) and not any("\n" in line for line in lines)


def index(text):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize(
    "break_it, told",
    [
        (lambda folder: (folder / "config.json").write_text("{"), "its config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "cannot be read (it is no JSON object)"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is not there"),
        (lambda folder: [file.unlink() for file in folder.glob("tokenizer*")], "it has no tokenizer"),
        (index('{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'), "1.safetensors and 1 more"),
        (index('{"weight_map": ["model.safetensors"]}'), "model.safetensors.index.json is not there or damaged"),
    ],
)
def test_a_checkpoint_that_is_not_whole(ready, tmp_path, break_it, told):
    break_it(tmp_path / "hf")
    lines = failed(machine_findings(dense(*ready), tmp_path / "runs" / "run"))
    assert len(lines) == 1 and told in lines[0]


# ------------------------------------------------------------------------------------------------------------- data


def rows(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def said(*words):
    messages = [{"role": role, "content": text} for role, text in zip(words[::2], words[1::2], strict=True)]
    return {"prompt": messages, "label": "2"}


TEXT, MESSAGES = {"prompt": "1+1", "label": "2"}, said("user", "1+1")


def of_prompts(folder, content, *settings, name="prompts.jsonl", part="", mark="FAIL"):
    """What is told of a file of prompts, all of which make a batch."""
    content = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(content)
    batch = f"slime.rollout-batch-size={max(content.count(b'label'), 1)}"
    named = (f"slime.prompt-data={folder / name}{part}", "slime.eval-interval=0", batch)
    return [finding.detail for finding in data_findings(paper(*named, *settings)) if finding.mark == mark]


@pytest.mark.parametrize(
    "content, told",
    [
        ("\n \n", "it has no rows"),
        ("{", "it cannot be read"),
        ("[1]\n", "row 1 is not a JSON object"),
        (rows({"question": 1, "label": 2}), "row 1 has no key 'prompt' but 'question', 'label'; set slime.input-key"),
        (rows(TEXT, {"prompt": "1"}), "row 2 has no key 'label'"),
        (rows({"prompt": 1, "label": "2"}), "'prompt' of row 1 is neither text nor a list"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x1f\x8b\x08\0", "gunzip"),
        (rows({**TEXT, "prompt": "bad \ud800 2+2?"}), "'prompt' of row 1: it holds half a character (U+D800)"),
        (rows(said("human", "1+1")), "role 'human'"),
        (rows(said("user", "1+1", "assistant", "2")), "last message is the assistant's"),
        (rows({**TEXT, "prompt": json.dumps(MESSAGES["prompt"])}), "JSON of messages"),
        (rows(said("user", "1+1<|im_end|>")), "control token <|im_end|>"),
        (rows({**TEXT, "prompt": ["Be brief.", *said("user", "1+1")["prompt"]]}), "role None"),
        (rows({**TEXT, "label": float("inf")}), "'label' of row 1 is inf"),
        (rows({**TEXT, "label": ["2"]}), "'label' of row 1 is ['2']: it is not one text or number"),
        (rows({**TEXT, "label": '["2", "3"]'}), "it is not one text or number"),
    ],
)
def test_prompts_that_slime_could_not_take(tmp_path, content, told):
    (line,) = of_prompts(tmp_path, content)
    assert told in line and "\n" not in line


@pytest.mark.parametrize("name, told", [("a.csv", "slime reads .jsonl and .parquet"), ("a.parquet", "cannot be read")])
def test_files_in_other_formats(tmp_path, name, told):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (line,) = of_prompts(tmp_path, "x", name=name)
    assert told in line


def test_what_settings_say_of_prompts(tmp_path):
    three = rows(*[TEXT] * 3)
    # sglang_rollout.py:generate_rollout_async asks for prompts again and again
    assert "no row of the file is in the part @[-2:-2]" in of_prompts(tmp_path, three, part="@[-2:-2]")[0]
    (line,) = of_prompts(tmp_path, rows(MESSAGES), "slime.apply-chat-template=false")
    assert "set slime.apply-chat-template to true" in line
    assert "slime.label-key is null, and the verifier" in of_prompts(tmp_path, three, "slime.label-key=null")[0]
    (line,) = of_prompts(tmp_path, rows(TEXT), "slime.rollout-batch-size=3", mark="WARN")
    assert "slime.prompt-data has 1 rows" in line and "a batch has some prompts twice" in line


@pytest.mark.parametrize(
    "values, part, more",
    [
        ([TEXT], "", ["slime.apply-chat-template=false"]),
        ([MESSAGES], "", []),
        ([TEXT] * 3, "@[-1:]", []),
        ([TEXT] * 3, "@[2:9]", []),
        ([{"prompt": "1+1"}], "", ["slime.label-key=null", "slime.custom-rm-path=a.b"]),
        ([MESSAGES], "", ["slime.apply-chat-template=false", "slime.custom-generate-function-path=a.b"]),
        ([{**TEXT, "label": "1,234"}], "", ["slime.rm-type=dapo", "slime.custom-rm-path=false"]),
    ],
)
def test_prompts_that_slime_takes(tmp_path, values, part, more):
    assert not any(of_prompts(tmp_path, rows(*values), *more, part=part, mark=mark) for mark in ("FAIL", "WARN"))


def test_evaluation_sets_have_keys_of_their_own(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    keys = ["slime.eval-input-key=question", "slime.eval-label-key=answer"]
    config = paper(f"slime.eval-prompt-data=[aime24, {tmp_path}/a.jsonl]", *keys)
    assert not [line for line in failed(data_findings(config)) if "aime24" in line]
    (tmp_path / "a.jsonl").write_text('{"question": "1+1", "label": "2"}\n')
    assert any("aime24" in line and line.endswith("set slime.eval-label-key") for line in failed(data_findings(config)))


# ------------------------------------------------------------------------------------------------- rewards, functions


@pytest.mark.parametrize("reward", ["math", "boxed_math", "sat_slime.plugin.reward.default", "a.b", "null"])
def test_a_reward_that_slime_may_have(reward):
    assert reward_errors(paper(f"slime.rm-type={reward}", "slime.custom-rm-path=false")) == []


@pytest.mark.parametrize(
    "reward, told",
    [("boxed_remote_rm", "boxed_remote_rm: set slime.rm-url to http://HOST:"), ("prime_math", "reward.prime_math")],
)
def test_a_reward_that_slime_has_not(reward, told):
    (line,) = reward_errors(paper(f"slime.rm-type={reward}", "slime.custom-rm-path=false"))
    assert told in line


def test_the_recorded_rules_are_the_real_slimes(request):
    folder = request.config.getoption("--slime", default=None)
    if not folder:
        pytest.skip("needs the real slime: --slime DIR")
    assert slime_rewards(Path(folder)) == REWARDS


def test_a_function_whose_module_is_nowhere_is_named_and_nothing_is_imported(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rewards.py").write_text("raise SystemExit")

    def told_of(path):
        config = paper(f"slime.custom-rm-path={path}", f"cluster.python_path=[{tmp_path}]")
        return [finding.detail for finding in function_findings(config)]

    assert told_of("here.rewards.score") == told_of("sat_slime.plugin.reward.prime_math") == []
    for module in ("nowhere", "here.elsewhere", "sat_slime.plugin.nowhere"):
        (line,) = told_of(f"{module}.score")
        assert line.startswith(f"slime.custom-rm-path is {module}.score: there is no module {module}; ")


# ------------------------------------------------------------------------------------------------ disk, checkpoints


@pytest.mark.parametrize(
    "settings, mark, told, resumed",
    [
        (["slime.no-save-optim=false"], "FAIL", "GiB free at {}, less than one checkpoint (52 GiB)", "one checkpoint"),
        ([], "WARN", "keep_checkpoints is unset, and the run needs 10 checkpoints of 7.5 GiB", "needs 8 checkpoints"),
        (["pipeline.keep_checkpoints=2"], "WARN", "3 checkpoints of 7.5 GiB, 22 GiB in all", "; 1 checkpoints of 7.5"),
        (["slime.save-interval=0"], "OK", "0 checkpoints", "0 checkpoints"),
    ],
)
def test_a_disk_that_is_too_small(ready, tmp_path, monkeypatch, settings, mark, told, resumed):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10 * GIB}))
    config, folder = dense(*ready, *settings), tmp_path / "runs" / "run"
    (found,) = [f for f in machine_findings(config, folder) if f.what == "disk"]
    assert found.mark == mark and told.format(tmp_path) in found.detail
    for rollout in (1, 3):  # what is there already needs no more
        (folder / "checkpoints" / f"iter_{rollout:07d}").mkdir(parents=True)
    (found,) = [f for f in machine_findings(config, folder, resume=True) if f.what == "disk"]
    assert resumed in found.detail


@pytest.mark.parametrize(
    "settings, told",
    [
        (["pipeline.iterations=200"], "iteration 300, from which slime would go on, with 0 of pipeline.iterations 200"),
        (["pipeline.iterations=400"], "with 100 of pipeline.iterations 400 left"),
        (["slime.save-interval=0"], None),  # slime is given no folder
    ],
)
def test_another_runs_checkpoint_is_not_gone_on_from(ready, tmp_path, settings, told):
    saved = tmp_path / "shared" / "iter_0000299"  # after 300 iterations
    saved.mkdir(parents=True)
    for name in ("__0_0.distcp", "metadata.json", ".metadata"):
        (saved / name).write_text("{}")
    (saved.parent / "latest_checkpointed_iteration.txt").write_text("299")
    used = f"slime.save={saved.parent}"
    config, run = dense(*ready, used, *settings), tmp_path / "runs" / "run"
    lines = failed(machine_findings(config, run))
    assert [told in line and line.startswith("checkpoints: ") for line in lines] == [True] * (told is not None), lines
    assert not failed(machine_findings(config, run, resume=True)), "they are its own by then"
    own = slime_command(dense(*ready, used, "slime.save=null"), run).command
    assert own[own.index("--save") + 1] == own[own.index("--load") + 1] == f"{run}/checkpoints"


# -------------------------------------------------------------------------------------------- settings, the cluster


def test_secrets_in_the_settings():
    given = ("cluster.address=http://me:pw@a:1", "cluster.env.HF_TOKEN=a", "slime.wandb-key=c")
    errors = secret_errors(dense("cluster.env.NCCL_DEBUG=INFO", *given))
    assert [line.split(" is a secret")[0] for line in errors] == [setting.split("=")[0] for setting in given]
    assert all("\n" not in line and "=" not in line for line in errors)


def report(**changes):
    there = {"gpu": 79 * GIB, "host": 2048 * GIB}
    node = {"name": "10.0.0.1", "gpus": 8.0, "failures": {}, "sizes": there, "sees_folder": True}
    return {
        "nodes": [{**node, **changes.pop("node", {})}],
        "resources": {"GPU": 8.0},
        "available": {"GPU": 8.0},
        "findings": [["OK", "disk", "enough"]],
        "slime": [],
        **changes,
    }


def test_a_cluster_that_has_everything():
    findings = list(read_report(dense(), report()))
    assert {finding.mark for finding in findings} == {"OK"}
    memory = ["training GPU", "engine GPU", "host memory"]
    assert [finding.what for finding in findings] == ["GPUs", "plugin", *memory, "disk", "slime"]


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"resources": {"GPU": 4.0}}, "GPUs: the cluster has 4, the run needs 8 (4 for training and 4 for rollout)"),
        ({"resources": {}}, "GPUs: the cluster has 0"),
        (
            {"node": {"failures": {"my.loss": "ModuleNotFoundError: No module named 'sat_slime'"}}},
            "plugin: node 10.0.0.1 cannot import my.loss (ModuleNotFoundError: No module named 'sat_slime'): install "
            "sat_slime there, or set cluster.python_path",
        ),
        ({"node": {"failures": {"my.f": "NameError: x"}}}, "node 10.0.0.1 cannot import my.f (NameError: x): fix it"),
        (
            {"node": {"failures": {"my_reward.score": "AttributeError: x"}}},
            "plugin: slime.custom-rm-path: node 10.0.0.1 cannot import my_reward.score (AttributeError: x): fix it",
        ),
        ({"node": {"sees_folder": False}}, "output_dir is on this machine's disk, and no node of the cluster sees it"),
        ({"node": {"error": "GetTimeoutError: ..."}}, "plugin: node 10.0.0.1 could not be asked: GetTimeoutError"),
        ({"node": {"sizes": {"host": GIB}}}, "host memory: needs 85 of 0.9 GiB"),
        ({"node": {"sizes": {"gpu": 16 * GIB}}}, "training GPU: needs 46 of 16 GiB, 287 % (node 10.0.0.1):"),
        ({"slime": ["slime at /x is too old"]}, "slime: slime at /x is too old"),
        ({"findings": [["FAIL", "data", "no such file"]]}, "data: no such file"),
    ],
)
def test_what_a_cluster_lacks(changes, told):
    (line,) = failed(read_report(dense("slime.custom-rm-path=my_reward.score"), report(**changes)))
    assert line.startswith(told) or told in line


def test_a_head_node_without_the_plugin(tmp_path):
    server = mock.create_autospec(JobServer, instance=True, address="http://10.0.0.1:8265")
    server.log.return_value = "python3: No module named sat_slime\n"
    server.wait.return_value = JobState("FAILED", 1)
    sent = slime_command(dense(), tmp_path)
    (line,) = failed(cluster_findings(server, dense(), tmp_path, sent))
    assert "(FAILED): python3: No module named sat_slime: install it there, or set cluster.python_path" in line


SECOND = {"name": "10.0.0.2", "slime_address": "10.0.0.2"}


@pytest.mark.parametrize(
    "second, told",
    [
        ({}, None),
        ({"sees_folder": False}, "FAIL run folder: node 10.0.0.2 does not see it: put output_dir on a disk that all"),
        ({"slime_address": "127.0.0.1"}, "FAIL network: node 10.0.0.2: slime's servers listen on 127.0.0.1, where"),
        ({"slime_address": "192.168.5.2"}, "WARN network: node 10.0.0.2: slime's servers listen on 192.168.5.2"),
        ({"gpus": 4.0}, "WARN GPUs: node 10.0.0.2 has 4, but cluster.gpus_per_node is 8"),
    ],
)
def test_a_second_node_that_is_not_as_the_first(second, told):
    (first,) = report()["nodes"]
    nodes = [{**first, "slime_address": "10.0.0.1"}, {**first, **SECOND, **second}]
    found = read_report(dense(), report(available={"GPU": 4.0}) | {"nodes": nodes})
    lines = [f"{one.mark} {one.what}: {one.detail}" for one in found if one.mark != "OK"]
    waits, *others = lines
    assert waits.startswith("WARN GPUs: 4 of the cluster's 8 are free") and "it will wait" in waits
    assert len(others) == (told is not None) and all(line.startswith(told) for line in others), lines


def test_this_node(monkeypatch):
    assert address_of("lo") == "127.0.0.1"
    monkeypatch.setenv("SLIME_HOST_IP", "10.0.0.7")
    assert address_of("") == look([], None)["slime_address"] == "10.0.0.7"
    with pytest.raises(SystemExit, match="interface ib7 has no IPv4 address on"):
        address_of("ib7")


@pytest.fixture
def ray():
    """Stands in for Ray, none of whose nodes answers."""
    node = {"Alive": True, "NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {}}
    ray = mock.Mock(**{"nodes.return_value": [node] * 9, "get.side_effect": TimeoutError("it hangs")})
    ray.cluster_resources.return_value = ray.available_resources.return_value = {}
    with mock.patch.dict(sys.modules, {"ray": ray, "ray.util.scheduling_strategies": mock.Mock()}):
        yield ray


def test_a_setting_that_the_clusters_version_lacks_is_named_in_the_last_line_of_the_log(ray):
    with pytest.raises(ConfigError) as caught:
        nodes.main(json.dumps([[], None, "pipeline: {newer: 3}", "runs/run", False]))
    assert str(caught.value).splitlines()[-1].startswith("the run's settings: unknown key 'pipeline.newer'")


def test_nodes_that_hang_are_waited_for_together_and_named(ray, monkeypatch, capsys):
    monkeypatch.setattr(nodes, "parser_findings", lambda *_: [])
    nodes.main(json.dumps([[], None, dump_config(dense()), "runs/run", False]))
    assert sum(call.kwargs["timeout"] for call in ray.wait.call_args_list + ray.get.call_args_list) < nodes.TIMEOUT_S
    assert capsys.readouterr().out.count("TimeoutError: it hangs") == 9


@pytest.mark.engine
def test_a_real_cluster_is_asked(ready, tmp_path, ray_server):
    server = JobServer(ray_server.address)
    config, folder = dense(*ready, "slime.tensor-model-parallel-size=4"), tmp_path / "runs" / "run"
    findings = list(cluster_findings(server, config, folder, slime_command(config, folder)))
    assert ("OK", "GPUs", "8 of 8 (4 for training and 4 for rollout)") in [(f.mark, f.what, f.detail) for f in findings]
    assert {f.what for f in findings} >= {"plugin", "slime", "megatron", "checkpoint", "data", "disk", "flags"}
    assert not [finding for finding in findings if finding.what == "run folder"]
    memory = {f.what: f.detail for f in findings if f.what in ROWS}
    assert memory.keys() == set(ROWS) and "(node 127.0.0.1" in memory["host memory"]
    assert "assumed: an 80 GB card" in memory["training GPU"] or "node 127.0.0.1" in memory["training GPU"]
    assert not list(tmp_path.glob(".sat_slime-*"))
