import errno
import os
import shutil

import pytest

from sat_slime.config.disk import disk_is_full, naming

needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


@needs_full_device
def test_what_is_written_to_a_full_disk_names_its_path():
    with pytest.raises(OSError) as caught, naming("some/file"), open("/dev/full", "w") as file:
        file.write("x")
    assert str(caught.value) == "[Errno 28] No space left on device: 'some/file'"
    assert disk_is_full(caught.value)


@needs_full_device
def test_so_does_what_a_copy_of_a_folder_tells(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_text("x" * 100_000)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "file").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: 'there'$") as caught, naming("there"):
        shutil.copytree(tmp_path / "from", tmp_path / "to", dirs_exist_ok=True)
    assert isinstance(caught.value.__cause__, shutil.Error)


def test_a_file_that_is_named_stays_named_and_other_errors_stay():
    with pytest.raises(FileNotFoundError, match="/nowhere/x"), naming("some/file"), open("/nowhere/x"):
        pass
    for error in (ValueError("no"), OSError("told already"), RuntimeError("trainer rank 0 died")):
        with pytest.raises(type(error)) as caught, naming("some/file"):
            raise error
        assert caught.value is error and not disk_is_full(error)


def test_the_text_of_safetensors_will_do():
    safetensors = pytest.importorskip("safetensors")
    told = "Error while serializing: I/O error: No space left on device (os error 28)"
    with (
        pytest.raises(OSError, match="No space left on device: 'weights/v000008'") as caught,
        naming("weights/v000008"),
    ):
        raise safetensors.SafetensorError(told)
    assert caught.value.errno == errno.ENOSPC and str(caught.value.__cause__) == told


class PartFailure(RuntimeError):
    """Stands for the lab runtime's error of that name, which tells what a rank was told."""


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (RuntimeError("last in its log: OSError: [Errno 28] No space left on device: '/dev/shm/x'"), False),
        (PartFailure("rank 0 died\nIts log ends with:\n    No space left on device (os error 28)"), False),
        (PartFailure("rank 0: OSError: [Errno 28] No space left on device: '/dev/shm/x'"), True),
        (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/x"), True),
    ],
)
def test_a_full_disk_elsewhere_is_not_taken_for_one_here(error, is_full):
    with pytest.raises(type(error)) as caught, naming("some/folder"):
        raise error
    assert caught.value is error and disk_is_full(error) == is_full
