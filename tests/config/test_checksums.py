"""Checksums of a folder: every file has one, and whatever is not as it was is named with what is wrong."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sat_slime.config.checksums import checksum_faults, sha256, write_checksums


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "weights" / "v1").mkdir(parents=True)
    (tmp_path / "rank.bin").write_bytes(bytes(range(256)) * 9000)  # more than one block
    (tmp_path / "weights" / "v1" / "model.bin").write_bytes(b"weights")
    (tmp_path / "empty").write_bytes(b"")
    write_checksums(tmp_path)
    return tmp_path


def test_a_folder_as_it_was_has_no_faults(folder):
    assert checksum_faults(folder) == {}
    (folder / ".nfs0001").write_text("of the file system")
    assert checksum_faults(folder) == {}


def test_sha256sum_reads_the_same_file(folder):
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    told = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0 and sorted(told.stdout.split()[::2]) == ["empty:", "rank.bin:", "weights/v1/model.bin:"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (lambda f: flip(f / "rank.bin"), {"rank.bin": "does not match its checksum"}),
        (lambda f: (f / "empty").write_text("x"), {"empty": "does not match its checksum"}),
        (lambda f: (f / "weights/v1/model.bin").unlink(), {"weights/v1/model.bin": "is missing"}),
        (lambda f: (f / "new").write_text(""), {"new": "has no checksum in SHA256SUMS"}),
        (lambda f: (f / "SHA256SUMS").unlink(), {"SHA256SUMS": "is missing"}),
        (lambda f: (f / "SHA256SUMS").write_text(""), {"SHA256SUMS": "is damaged: it is empty"}),
        (lambda f: (f / "SHA256SUMS").write_bytes(b"\xff\xfe\n"), {"SHA256SUMS": "cannot be read"}),
        (lambda f: (f / "SHA256SUMS").write_text("0" * 63 + "  a\n"), {"SHA256SUMS": "is damaged in line 1"}),
    ],
)
def test_every_fault_is_told_with_its_file(folder, damage, faults):
    damage(folder)
    found = checksum_faults(folder)
    assert found.keys() == faults.keys()
    assert all(found[name].startswith(fault) for name, fault in faults.items())


def test_a_checksum_file_that_was_cut_vouches_for_nothing_that_it_lost(folder):
    sums = folder / "SHA256SUMS"
    for size in range(len(sums.read_bytes())):
        whole = sums.read_bytes()
        sums.write_bytes(whole[:size])
        # the last newline alone may go
        assert checksum_faults(folder) or whole[size:] == b"\n", size
        sums.write_bytes(whole)


def test_a_name_that_leads_out_of_the_folder_is_not_followed(folder):
    outside = folder.parent / "outside"
    outside.write_text("x")
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{sha256(outside)}  ../outside\n{sha256(outside)}  {outside}\n")
    assert checksum_faults(folder) == {"../outside": "is missing", str(outside): "is missing"}


def test_a_part_of_the_folder_can_be_looked_at_alone(folder):
    flip(folder / "rank.bin")
    assert checksum_faults(folder, below="weights/") == {}
    flip(folder / "weights/v1/model.bin")
    assert list(checksum_faults(folder, below="weights/")) == ["weights/v1/model.bin"]
