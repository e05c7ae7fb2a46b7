"""Flag for flag the command line and the environment of every file that starts a run of slime, and of the 26 cells of
the paper's grid, as they are kept in command_lines.json.

`python tests/launch/test_command_lines.py` writes that file anew: for a change that is meant, and named.
"""

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

import pytest

from sat_slime.config import load_config
from sat_slime.config.slime_schema import ARCHITECTURE
from sat_slime.config.starters import CONFIGS
from sat_slime.cpu import INSTEAD
from sat_slime.launch import small_run
from sat_slime.launch.command import slime_arguments, slime_command
from sat_slime.launch.flags import recorded_flags, unknown_flags
from sat_slime.objective import PAPER_METHODS

KEPT = Path(__file__).with_name("command_lines.json")
PACKAGE = CONFIGS.parents[1]
PAPER = "paper/qwen3-30b-a3b"
CELLS = {
    f"{PAPER} {method.name} {lag}": (PAPER, [f"method={method.name}", f"pipeline.lag={lag}"])
    for method in PAPER_METHODS
    for lag in (1, 8)
}
FILES = {
    str(path.relative_to(CONFIGS).with_suffix("")): []
    for folder in ("models", "paper", "recipes", "slime")
    for path in sorted((CONFIGS / folder).glob("*.yaml"))
}
RUNS = {name: (name, overrides) for name, overrides in FILES.items()} | CELLS


@pytest.fixture(autouse=True)
def _relative_paths_are_of_the_checkout(monkeypatch):
    monkeypatch.chdir(PACKAGE)


def sent(name: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The flags with their values, and the environment; folders of this machine are left out."""
    file, overrides = RUNS[name]
    bare = {"CUDA_VISIBLE_DEVICES": ""}  # for runs that share a GPU, what makes up for slime's image
    with patch.object(small_run, "missing", lambda: list(INSTEAD)), patch.dict(os.environ, bare):
        command = slime_command(load_config(CONFIGS / f"{file}.yaml", overrides), Path("/run"))
    start, words = command.command[:3], command.command[3:]
    assert start == ["python3", "-m", "sat_slime.plugin.driver"]
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in flags, f"{word} is there twice"
            flags[word] = values = []
        else:
            values.append(_anywhere(word))
    return flags, {key: _anywhere(value) for key, value in command.env.items()}


def _anywhere(text: str) -> str:
    return text.replace(str(PACKAGE), "HERE").replace(f"{Path.home()}/.cache", "~/.cache")


def kept(name: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    rows = json.loads(KEPT.read_text())
    flags, environment = ({}, {})
    for shared, runs in rows:
        if name in runs:
            flags |= {word: values for word, values in shared.items() if word.startswith("--")}
            environment |= {key: value for key, value in shared.items() if not key.startswith("--")}
    return flags, environment


@pytest.mark.parametrize("name", RUNS)
def test_the_command_line_is_the_kept_one_and_has_only_flags_of_slime(name):
    flags, environment = sent(name)
    assert (flags, environment) == kept(name)
    given = [(flag, values, flag) for flag, values in flags.items()]
    versions = ("v0.3.1", "main", "newest") if name in CELLS else ("v0.3.1", "main")
    assert [unknown_flags(given, recorded_flags(version), {}) for version in versions] == [[]] * len(versions)


@pytest.mark.needs_slime
@pytest.mark.parametrize(
    "script, file",
    [
        ("qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("qwen3-4B", "qwen3-4b"),
        ("qwen3-0.6B", "qwen3-0.6b"),
        ("qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_model_files_say_what_slimes_scripts_say(script, file):
    import slime

    source = Path(slime.__file__).parents[1] / "scripts" / "models" / f"{script}.sh"
    printed = subprocess.run(
        ["bash", "-c", f'source "{source}" && printf "%s\\n" "${{MODEL_ARGS[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = printed.stdout.replace("[" + ",".join("1" * 48) + "]", "[1]*48").split()
    config = load_config(CONFIGS / "models" / f"{file}.yaml")
    ours = [argument for argument in slime_arguments(config, Path("/r")) if ARCHITECTURE.fullmatch(argument.name)]
    assert [_number(word) for argument in ours for word in argument.words()] == [_number(word) for word in theirs]


def _number(word):
    try:
        return float(word)
    except ValueError:
        return word


def write() -> None:
    """One line for all that the same runs have, so that a difference of one flag is a difference of one line."""
    runs_of = defaultdict(list)
    for name in RUNS:
        flags, environment = sent(name)
        for key, value in {**flags, **environment}.items():
            runs_of[key, json.dumps(value)].append(name)
    lines = defaultdict(dict)
    for (key, value), runs in runs_of.items():
        lines[tuple(runs)][key] = json.loads(value)
    KEPT.write_text("[\n" + ",\n".join(json.dumps([shared, list(runs)]) for runs, shared in lines.items()) + "\n]\n")


if __name__ == "__main__":
    os.chdir(PACKAGE)
    write()
