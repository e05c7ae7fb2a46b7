"""`scripts/get-slime.sh` on repositories of this test, reached by URL as those of GitHub are."""

import os
import re
import subprocess

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


def upstream(folder):
    """The environment that names repositories of a slime with two patches, and of a Megatron-LM, each with a commit
    after the one that is meant."""
    slime, megatron = folder / "slime", folder / "megatron"
    for repository in (slime, megatron):
        repository.mkdir(parents=True)
        git(repository, "init", "--quiet")
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


def test_checkouts_are_made_at_their_commits_gone_on_with_and_left_alone_then(tmp_path):
    """In a folder with a space in its name; no package is installed."""
    environment, out = {**os.environ, **upstream(tmp_path / "upstream")}, tmp_path / "the checkouts"

    def get_slime():
        return subprocess.run([ROOT / "scripts/get-slime.sh", out], env=environment, capture_output=True, text=True)

    aside = (tmp_path / "upstream/megatron").rename(tmp_path / "aside")
    assert get_slime().returncode != 0 and (out / "slime").is_dir()
    aside.rename(tmp_path / "upstream/megatron")
    (out / "Megatron-LM.part" / "core.py").write_text("half of it")
    made = get_slime()
    assert made.returncode == 0 and "slime is there" in made.stdout, made.stderr
    assert sorted(path.name for path in out.iterdir()) == ["Megatron-LM", "slime"]
    assert (out / "slime/slime.py").read_text() == "tested\n"
    assert (out / "Megatron-LM/core.py").read_text() == "one\ntwo\nthree\n"
    assert f"cluster.slime_dir='{out}/slime'" in made.stdout.splitlines()[-1]
    assert get_slime().stdout.count(" is there\n") == 2

    of_the_user = commit(out / "slime", {"slime.py": "mine\n"})
    for found in (of_the_user, "none"):
        refused = get_slime()
        assert refused.returncode == 1, refused.stderr
        assert re.search(rf"get-slime: {out}/slime is there at commit {found} and not \w{{40}}: ", refused.stderr)
        assert (out / "slime/slime.py").read_text() == "mine\n"
        if found != "none":
            (out / "slime/.git").rename(tmp_path / "moved")
