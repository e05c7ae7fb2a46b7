"""`sat-slime prepare slime` on repositories of these tests, reached by URL as those of GitHub are."""

import re
import subprocess
from functools import partial

import pytest
from command_line import sat_slime_command

from sat_slime.cli import engine_packages as checkouts


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder, files):
    """A commit of the files, by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "files")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def upstream(monkeypatch, tmp_path):
    """Repositories of a slime with two patches, and of a Megatron-LM, each with a commit after the one that is meant.
    No package is missing."""
    slime, megatron = tmp_path / "upstream" / "slime", tmp_path / "upstream" / "megatron"
    for folder in (slime, megatron):
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
    monkeypatch.setattr(checkouts, "MEGATRON_COMMIT", commit(megatron, {"core.py": "one\n"}))
    diffs = {}
    for patch, text in zip(checkouts.PATCHES, ("one\ntwo\n", "one\ntwo\nthree\n"), strict=True):
        (megatron / "core.py").write_text(text)
        diffs[patch] = git(megatron, "diff") + "\n"
        git(megatron, "commit", "--quiet", "-am", "not upstream's")
    monkeypatch.setattr(checkouts, "SLIME_COMMIT", commit(slime, {"slime.py": "tested\n", **diffs}))
    commit(slime, {"slime.py": "newer\n"})
    monkeypatch.setattr(checkouts, "missing_packages", list)
    monkeypatch.setattr(checkouts, "SLIME_URL", slime.as_uri())
    monkeypatch.setattr(checkouts, "MEGATRON_URL", megatron.as_uri())
    return slime, megatron


@pytest.fixture
def prepare(upstream, tmp_path):
    """The command, for a folder with a space in its name."""
    return partial(sat_slime_command, "prepare", "slime", "--out", tmp_path / "the checkouts")


def test_both_are_made_at_their_commits_with_the_patches(prepare, tmp_path, capfd):
    result = prepare()
    out = tmp_path / "the checkouts"
    assert result.exit_code == 0, result.output + capfd.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["Megatron-LM", "slime"]
    assert (out / "slime" / "slime.py").read_text() == "tested\n"
    assert (out / "Megatron-LM" / "core.py").read_text() == "one\ntwo\nthree\n"
    assert f"'cluster.slime_dir={out}/slime'" in result.stdout.splitlines()[-1]


def test_the_commands_of_a_dry_run_do_the_same_by_hand(prepare, tmp_path):
    printed = prepare("--dry-run").stdout
    assert not (tmp_path / "the checkouts").exists()
    subprocess.run(["bash", "-e"], input=printed, text=True, check=True, capture_output=True)
    again = prepare()
    assert again.stdout.count(" is there\n") == 2, again.output


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda out: commit(out / "slime", {"slime.py": "mine\n"}), r"slime is there at commit \w{9} and not \w{9}: "),
        (lambda out: (out / "slime" / ".git").rename(out / "moved"), r"slime is there at commit none and not "),
    ],
)
def test_a_checkout_of_something_else_is_told_and_left_alone(prepare, tmp_path, change, told):
    out = tmp_path / "the checkouts"
    prepare()
    change(out)
    before = {path: path.read_bytes() for path in out.rglob("*.py")}
    result = prepare()
    assert result.exit_code == 2
    assert re.search(f"error: {out}/{told}", result.stderr), result.stderr
    assert {path: path.read_bytes() for path in out.rglob("*.py")} == before


def test_what_failed_is_gone_on_with(prepare, upstream, tmp_path):
    _, megatron = upstream
    aside = megatron.with_name("aside")
    megatron.rename(aside)
    result = prepare()
    assert result.exit_code == 1 and "the last command failed" in result.stderr
    assert (tmp_path / "the checkouts" / "slime").is_dir()
    aside.rename(megatron)
    part = tmp_path / "the checkouts" / "Megatron-LM.part"
    (part / "core.py").write_text("half of it")
    again = prepare()
    assert again.exit_code == 0 and "slime is there" in again.stdout
    assert not part.exists()
