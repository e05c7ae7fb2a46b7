"""A full disk names the path; every file of a folder has a checksum, and whatever is not as it was is named."""

import errno
import os
import shutil
import subprocess

import pytest

from sat_slime.config import disk
from sat_slime.config.disk import checksum_faults, disk_is_full, naming, sha256, write_checksums, written_whole

needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


@needs_full_device
def test_what_is_written_to_a_full_disk_names_its_path():
    with pytest.raises(OSError) as caught, naming("some/file"), open("/dev/full", "w") as file:
        file.write("x")
    assert str(caught.value) == "[Errno 28] No space left on device: 'some/file'"
    assert disk_is_full(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        shutil.Error([("a/file", "b/file", "[Errno 28] No space left on device: 'a/file' -> 'b/file'")]),
    ],
)
def test_so_does_what_safetensors_another_process_or_a_copied_folder_tells(error):
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: 'some/folder'$"), naming("some/folder"):
        raise error


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        *((error, False) for error in (ValueError("no"), OSError("told already"), RuntimeError("rank 0 died"))),
        (RuntimeError("rank 0 died\nIts log ends with:\n    No space left on device (os error 28)"), False),
        (RuntimeError("rank 0: OSError: [Errno 28] No space left on device: '/dev/shm/x'"), True),
        (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/x"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/x"), False),
    ],
)
def test_other_errors_stay_as_they_are(error, is_full):
    with pytest.raises(type(error)) as caught, naming("some/folder"):
        raise error
    assert caught.value is error and bool(disk_is_full(error)) == is_full


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
    (folder / ".snapshot").mkdir()
    (folder / ".snapshot" / "rank.bin").write_text("too")
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


def write(folder, text):
    with written_whole(folder) as part:
        (part / "weights").mkdir()
        (part / "weights" / "model.bin").write_text(text)
        assert not folder.exists() or (folder / "weights" / "model.bin").read_text() != text, "not seen yet"


def test_a_folder_is_written_whole_with_its_checksums_and_replaces_the_one_before(tmp_path):
    (tmp_path / "deep" / "new.part").mkdir(parents=True)
    (tmp_path / "deep" / "new.part" / "old").touch()  # a killed process left it
    for text in ("one", "two"):
        write(tmp_path / "deep" / "new", text)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["new"]
        assert checksum_faults(tmp_path / "deep" / "new") == {}
        assert (tmp_path / "deep" / "new" / "weights" / "model.bin").read_text() == text
    assert "old" not in (tmp_path / "deep" / "new" / "SHA256SUMS").read_text()


def test_all_of_it_is_on_the_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    flushed, flush = [], disk._flush
    monkeypatch.setattr(disk, "_flush", lambda path: (flushed.append(path.name), flush(path)))
    write(tmp_path / "new", "one")
    assert sorted(flushed[:-1]) == ["SHA256SUMS", "model.bin", "new.part", "weights"]
    assert flushed[-1] == tmp_path.name


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_where_writing_fails_the_folder_is_as_it_was(tmp_path, error):
    write(tmp_path / "new", "one")
    with pytest.raises(type(error)), written_whole(tmp_path / "new") as part:
        (part / "half").touch()
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "weights" / "model.bin").read_text() == "one"
