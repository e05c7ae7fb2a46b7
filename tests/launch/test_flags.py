import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import record_flags

from sat_slime.launch.command import FIXED, Argument
from sat_slime.launch.flags import RECORDED, Slime, recorded, unknown_flags

VALUES = {
    **{"--lr": 1, "--seed": 1, "--use-tis": 0, "--eval-prompt-data": "+", "--profile": "?", "--names": "*"},
    **{"--loss-type": 1, "--hook": 1, "--size": 1, "--sz": 1},
}
SLIME = Slime(
    "slime", {name: {"name": "--size" if name == "--sz" else name, "values": n} for name, n in VALUES.items()}
)
SLIME.flags["--hook"]["repeatable"] = True
SLIME.flags["--lr"]["type"], SLIME.flags["--seed"]["type"] = "float", "int"


@pytest.mark.parametrize(
    "words, says",
    [
        (["--lr", "1e-6", "--seed", "-1", "--use-tis", "--loss-type", "custom_loss"], None),
        (["--lr", "1e-6", "--eval-prompt-data", "a", "b", "--names", "--profile"], None),
        (["--hook", "a", "--hook", "b"], None),
        ([], None),
        (["--use-tiss"], "--use-tiss: there is no flag --use-tiss in slime; did you mean --use-tis?"),
        (["--eval-prompt", "a"], "did you mean --eval-prompt-data? Flags are written in full"),
        (["--zzzzzz"], "--zzzzzz: there is no flag --zzzzzz in slime"),
        (["--lr"], "--lr takes 1 value(s), and has none"),
        (["--lr", "1", "2"], "--lr takes 1 value(s), not '1 2'"),
        (["--use-tis", "true"], "--use-tis takes no value, not 'true': set it to true"),
        (["--eval-prompt-data"], "--eval-prompt-data takes one value or more"),
        (["--profile", "a", "b"], "--profile takes at most one value"),
        (["--lr", "1e-6x"], "--lr takes a number, not '1e-6x'"),
        (["--seed", "1.5"], "--seed takes a whole number, not '1.5'"),
        (["--seed", "1", "--lr", "1", "--seed", "2"], "--seed is given twice, and slime takes the last"),
        (["--size", "1", "--sz", "2"], "--sz is --size, which the command has already"),
    ],
)
def test_each_fault_is_one_line_and_a_command_that_is_meant_has_none(words, says):
    starts = [at for at, word in enumerate(words) if word.startswith("--")]
    ends = [*starts[1:], len(words)]
    given = [Argument(words[a][2:], words[a + 1 : b] or True, FIXED) for a, b in zip(starts, ends, strict=False)]
    told = list(unknown_flags(given, SLIME, {}))
    assert len(told) == bool(says) and all(says in error and "\n" not in error for error in told)


def test_the_recorded_list_names_its_commits_and_holds_three_versions():
    v031, main, newest, either = (recorded(version) for version in ("v0.3.1", "main", "newest", None))
    assert "a6272da0d" in v031.source and "624b824a8" in main.source and "0b0c277d5" in newest.source
    assert len(v031.flags) > 1400
    assert either.flags.keys() == v031.flags.keys() | main.flags.keys() | newest.flags.keys()
    assert "--freeze-indexer" in main.flags and "--freeze-indexer" not in v031.flags
    assert main.flags["--rollout-batch-size"]["type"] == "int" and main.flags["--rollout-batch-size"]["values"] == 1
    assert main.flags["--rollout-sample-hook-path"]["repeatable"]
    assert main.flags["--sglang-cuda-graph-bs"]["values"] == "+"


@pytest.mark.needs_slime_arguments
def test_the_recorded_list_is_that_of_the_slime_on_the_path(tmp_path):
    """slime's own flags and Megatron's are compared; those of SGLang and its router depend on slime's image."""
    file, root = tmp_path / "flags.json", Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, record_flags.__file__, "--record", str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]

    def own(found, version):
        return {
            name: {key: value for key, value in spec.items() if key != "only"}
            for name, spec in found.items()
            if not name.startswith(("--sglang-", "--router-", "--worker-urls"))
            and version in spec.get("only", [version])
        }

    installed, kept = json.loads(file.read_text())["flags"], json.loads(RECORDED.read_text())
    ran = [version for version, how in kept["built_with"].items() if not how.startswith("read, not run")]
    assert ran == ["v0.3.1", "main"]
    assert own(installed, "installed") in [own(kept["flags"], version) for version in ran]
