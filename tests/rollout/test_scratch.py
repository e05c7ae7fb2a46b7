"""Scratch folders: what dead processes left goes with the next start, and nothing else does."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile

import pytest

from sat_slime.rollout import scratch

LEAVES_ONE = """
import subprocess, sys
from sat_slime.rollout.scratch import new_scratch
made = new_scratch()
(made.path / "inner").mkdir()
if "--heir" in sys.argv:
    subprocess.Popen(["cat"], pass_fds=[made.hold], stdout=subprocess.DEVNULL)
print(made.path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path, short_path):
    """A temporary folder, whose name is short enough, and a shared memory of this test alone."""
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(scratch, "SHARED_MEMORY", shared)
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    return short_path


class Owner:
    """Another process that has a scratch folder."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEAVES_ONE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder = scratch.Path(self.process.stdout.readline().strip())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()  # on which the heir ends


def in_shared_memory(name):
    """A file of SGLang's for a server whose folder has that name."""
    file = scratch.SHARED_MEMORY / f"sglang_loads_{name}_0badf00d.shm"
    file.write_bytes(bytes(16396))
    return file


def test_a_folder_is_this_users_alone_and_goes_with_what_it_has_in_shared_memory():
    made = scratch.new_scratch()
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    own, others = in_shared_memory(made.path.name), in_shared_memory("8e8c2397ddc9")
    queue = own.with_name(f"sgl_shm_{made.path.name}_mq_4711_0badf00d")
    queue.write_bytes(bytes(16))
    made.remove()
    assert not made.path.exists() and not own.exists() and not queue.exists() and others.exists()


def test_what_a_kill_9_left_goes_with_the_next_start():
    with Owner() as owner:
        own = in_shared_memory(owner.folder.name)
        scratch.new_scratch()
        assert (owner.folder / "inner").is_dir() and own.exists(), "its owner lives"
        owner.kill()
        assert owner.folder.is_dir()
        scratch.new_scratch()
        assert not owner.folder.exists() and not own.exists()


def test_a_folder_stays_while_a_process_lives_that_was_given_its_hold():
    with Owner("--heir") as owner:
        owner.kill()
        scratch.remove_abandoned()
        assert owner.folder.is_dir()


def test_what_is_not_ours_or_held_stays(places, monkeypatch):
    own, git, copy, ray, target = (places / f"sat_slime{end}" for end in (".0ad_f00d", ".git", ".original", "-ray", ""))
    for folder in (own, git, copy, ray, target):
        folder.mkdir(mode=0o755 if folder == copy else 0o700)
    (places / "sat_slime.the_link").symlink_to(target)
    kept = [in_shared_memory(name) for name in ("8e8c2397ddc9", "sat_slime.gone", "sat_slime.the_link")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
        scratch.remove_abandoned()
        assert own.is_dir(), "another user's"
    first, second = scratch.new_scratch(), scratch.new_scratch()
    assert first.path.is_dir() and second.path.is_dir() and not own.exists()
    assert all(folder.is_dir() for folder in (git, copy, ray, target)) and all(file.exists() for file in kept)


@pytest.mark.parametrize("more", [0, 1])
def test_names_of_sockets_are_never_too_long(places, monkeypatch, more):
    long = places / ("x" * (scratch.LONGEST_PARENT - len(f"{places}/") + more))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made = scratch.new_scratch()
    try:
        assert made.path.parent == (scratch.Path("/tmp") if more else long)
        sockets = made.path / "ray" / "session_2026-11-24_06-32-55_461000_4194304" / "sockets"
        sockets.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as ray:
            ray.bind(str(sockets / "plasma_store"))
    finally:
        made.remove()
