"""`scripts/get-slime.sh` on repositories of these tests, reached by URL as those of GitHub are."""

import os
import re
import subprocess

import pytest
from command_line import ROOT

PATCHES = ("docker/patch/latest/megatron.patch", "docker/patch/latest/megatron-sglang-aligned.patch")


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
def upstream(tmp_path):
    """The environment that names repositories of a slime with two patches, and of a Megatron-LM, each with a commit
    after the one that is meant."""
    slime, megatron = tmp_path / "upstream" / "slime", tmp_path / "upstream" / "megatron"
    for folder in (slime, megatron):
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
    megatron_commit = commit(megatron, {"core.py": "one\n"})
    diffs = {}
    for patch, text in zip(PATCHES, ("one\ntwo\n", "one\ntwo\nthree\n"), strict=True):
        (megatron / "core.py").write_text(text)
        diffs[patch] = git(megatron, "diff") + "\n"
        git(megatron, "commit", "--quiet", "-am", "not upstream's")
    slime_commit = commit(slime, {"slime.py": "tested\n", **diffs})
    commit(slime, {"slime.py": "newer\n"})
    urls = {"SLIME_URL": slime.as_uri(), "MEGATRON_URL": megatron.as_uri()}
    return {**urls, "SLIME_COMMIT": slime_commit, "MEGATRON_COMMIT": megatron_commit, "PYTHON": "true"}


@pytest.fixture
def get_slime(upstream, tmp_path):
    """The script, for a folder with a space in its name; no package is installed."""

    def run():
        command = [ROOT / "scripts" / "get-slime.sh", tmp_path / "the checkouts"]
        return subprocess.run(command, env={**os.environ, **upstream}, capture_output=True, text=True)

    return run


def test_both_are_made_at_their_commits_with_the_patches_and_left_alone_then(get_slime, tmp_path):
    result, out = get_slime(), tmp_path / "the checkouts"
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in out.iterdir()) == ["Megatron-LM", "slime"]
    assert (out / "slime" / "slime.py").read_text() == "tested\n"
    assert (out / "Megatron-LM" / "core.py").read_text() == "one\ntwo\nthree\n"
    assert f"cluster.slime_dir='{out}/slime'" in result.stdout.splitlines()[-1]
    assert get_slime().stdout.count(" is there\n") == 2


@pytest.mark.parametrize(
    "change, told",
    [
        (
            lambda out: commit(out / "slime", {"slime.py": "mine\n"}),
            r"slime is there at commit \w{40} and not \w{40}: ",
        ),
        (lambda out: (out / "slime" / ".git").rename(out / "moved"), r"slime is there at commit none and not "),
    ],
)
def test_a_checkout_of_something_else_is_told_and_left_alone(get_slime, tmp_path, change, told):
    out = tmp_path / "the checkouts"
    get_slime()
    change(out)
    before = {path: path.read_bytes() for path in out.rglob("*.py")}
    result = get_slime()
    assert result.returncode == 1
    assert re.search(f"get-slime: {out}/{told}", result.stderr), result.stderr
    assert {path: path.read_bytes() for path in out.rglob("*.py")} == before


def test_what_failed_is_gone_on_with(get_slime, tmp_path):
    megatron = tmp_path / "upstream" / "megatron"
    aside = megatron.rename(megatron.with_name("aside"))
    assert get_slime().returncode != 0
    assert (tmp_path / "the checkouts" / "slime").is_dir()
    aside.rename(megatron)
    part = tmp_path / "the checkouts" / "Megatron-LM.part"
    (part / "core.py").write_text("half of it")
    again = get_slime()
    assert again.returncode == 0 and "slime is there" in again.stdout
    assert not part.exists()
