"""Ray's start and end, and what is told of it."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

ray = pytest.importorskip("ray", reason="the embedded runtime needs the engines: scripts/setup.sh")
pytest.importorskip("httpx")

from ray import _raylet  # noqa: E402
from ray._private import parameter, services  # noqa: E402

from sat_slime.embedded.cluster import own_ray  # noqa: E402
from sat_slime.embedded.cluster.own_ray import local_ray  # noqa: E402
from sat_slime.embedded.deaths import RAY_PROCESSES, children  # noqa: E402
from sat_slime.embedded.forking import ray_worker  # noqa: E402
from sat_slime.embedded.forking.forked_process import FOLDER  # noqa: E402
from sat_slime.rollout import ray_start  # noqa: E402
from sat_slime.rollout.ray_start import PATIENCE, RayNotStarted  # noqa: E402

TIMED_OUT = "The current node timed out during startup. This could happen because some of the raylet failed to startup"
CRASH = "[2026-11-22 08:00:15,000 C 1 1] Check failed: x"


@pytest.mark.parametrize("load, told", [(99.0, "busy, with a load of 99.0 on"), (0.0, "")])
def test_a_ray_that_does_not_start_says_why_and_names_load_when_it_is_load(monkeypatch, tmp_path, load, told):
    def failing(*_, _temp_dir, **__):
        logs = Path(_temp_dir) / "session_2026-11-22" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text(
            "[2026-11-22 08:00:00,000 I 1 1] all well\n[2026 C 1 1] Check failed: x\nmore\n"
        )
        raise Exception(TIMED_OUT)

    monkeypatch.setattr(ray, "init", mock.create_autospec(ray.init, side_effect=failing))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0))
    with pytest.raises(RayNotStarted) as failure, local_ray(tmp_path / "logs"):
        pass
    message = str(failure.value)
    assert message.startswith(f"Ray did not start: {TIMED_OUT}; last in raylet.out: [2026 C 1 1] Check failed: x")
    assert (told in message) if told else ("busy" not in message)
    assert (tmp_path / "logs" / "ray-raylet.out").exists()
    (call,) = ray.init.mock_calls
    taken = inspect.getsource(inspect.unwrap(ray._private.worker.init))
    assert all(f'"{name}"' in taken for name in call.kwargs if name.startswith("_"))


@pytest.fixture
def logs(tmp_path):
    """A scratch folder with the logs of a GCS that crashed and of a raylet that ended with it."""
    folder = tmp_path / "scratch" / "ray" / "session_2026-11-22" / "logs"
    folder.mkdir(parents=True)
    (folder / "gcs_server.out").write_text(f"{CRASH}\n[2026-11-22 08:00:16,000 I 1 1] bye\n")
    (folder / "raylet.out").write_text("[2026-11-22 08:00:14,000 E 2 2] cannot reach GCS\n")
    return tmp_path / "scratch"


def test_the_newest_error_of_rays_logs_is_quoted(logs, tmp_path):
    assert own_ray._keep_logs(logs, tmp_path) == f"; last in gcs_server.out: {CRASH}"


def test_what_a_process_that_died_wrote_last_is_in_its_own_logs_and_all_are_kept(logs, tmp_path):
    last = own_ray._keep_logs(logs, tmp_path, "raylet")
    assert last == "; last in raylet.out: [2026-11-22 08:00:14,000 E 2 2] cannot reach GCS"
    assert {path.name for path in tmp_path.glob("ray-*")} == {"ray-gcs_server.out", "ray-raylet.out"}


def test_of_a_process_that_was_killed_no_others_error_is_quoted(monkeypatch, tmp_path):
    """A stand-in for the watch tells the death as soon as Ray runs."""
    told, watches = [], []

    def start(scratch, log_dir):
        folder = scratch / "ray" / "session_2026-11-22" / "logs"
        folder.mkdir(parents=True)
        (folder / "gcs_server.out").write_text("[2026-11-22 08:00:16,000 I 1 1] all well\n")
        (folder / "raylet.out").write_text("[2026-11-22 08:00:17,000 E 2 2] cannot reach GCS\n")

    watch = mock.create_autospec(own_ray.RayWatch, side_effect=lambda died: watches.append(died) or mock.Mock())
    monkeypatch.setattr(own_ray, "RayWatch", watch)
    monkeypatch.setattr(own_ray, "_start_ray", mock.create_autospec(own_ray._start_ray, side_effect=start))
    monkeypatch.setattr(own_ray.ray, "get_runtime_context", mock.Mock())  # the real one would start a Ray
    with local_ray(tmp_path / "logs", told.append):
        watches[0]("Ray's gcs_server (process 7) was killed by SIGKILL")
    assert [str(death) for death in told] == ["Ray's gcs_server (process 7) was killed by SIGKILL"]


def test_what_ray_is_given_it_knows(monkeypatch):
    ports = {getattr(_raylet, name) for name in dir(_raylet) if name.endswith("_PORT_NAME")}
    ports -= {_raylet.GCS_SERVER_PORT_NAME}  # the GCS's own: a raylet waits for the others
    assert ports == set(ray_start.AGENT_PORTS)
    known = set(inspect.signature(parameter.RayParams).parameters)
    assert {*ports, "include_log_monitor", "no_monitor", "setup_worker_path"} <= known
    original, workers = parameter.RayParams, parameter.RayParams().setup_worker_path
    starts = services.start_ray_process, services.start_api_server
    with own_ray._ray_as_we_need_it():
        given = vars(parameter.RayParams(**dict.fromkeys(ports)))
        assert len({given[name] for name in ports}) == 4 and all(given[name] > 1024 for name in ports)
        assert given["no_monitor"] and not given["include_log_monitor"] and given["setup_worker_path"] == workers
        assert services.start_api_server is not starts[1]
    monkeypatch.setenv(FOLDER, "sockets")
    with own_ray._ray_as_we_need_it():
        assert parameter.RayParams().setup_worker_path == ray_worker.__file__
    assert parameter.RayParams is original
    assert (services.start_ray_process, services.start_api_server) == starts


def test_ray_reads_the_variables_that_are_set():
    folder = Path(ray.__file__).parent
    files = [folder / "core/src/ray/raylet/raylet", folder / "_private/node.py", folder / "_private/ray_constants.py"]
    texts = [file.read_bytes() for file in files]
    for name in PATIENCE:
        assert any(name.encode() in text for text in texts), name
        assert os.environ[name]


def test_there_is_a_remark_only_above_the_number_of_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, remark in ((2.0, ""), (2.1, "; the machine is busy, with a load of 2.1 on 2 cores: stop other work")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        assert ray_start.load_remark().startswith(remark) and bool(ray_start.load_remark()) == bool(remark)


def test_a_ray_that_was_imported_first_and_asks_for_no_token_is_refused():
    program = "import ray; from sat_slime.embedded.cluster.own_ray import local_ray; local_ray().__enter__()"
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    result = subprocess.run([sys.executable, "-c", program], env=others, capture_output=True, text=True)
    assert result.stderr.splitlines()[-1].endswith("which has it ask for a token: import it later")


@pytest.mark.engine
def test_a_ray_starts_and_ends():
    with local_ray() as scratch:
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
        (raylet,) = (pid for pid, name in children().items() if name == "raylet")
        command = Path(f"/proc/{raylet}/cmdline").read_text()
        commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children()]
        assert not [command for command in commands if "dashboard.py" in command], "a second of CPU for nothing"
        flags = dict(re.findall(r"\0--(\w+)=(\d+)", command.replace("-agent-", "_agent_")))
        ports = {int(flags[name]) for name in ray_start.AGENT_PORTS}
        assert len(ports) == 4 and ports <= set(range(20_000, 32_000)), "those of free_ports"
    assert not set(children().values()) & set(RAY_PROCESSES) or not Path(f"/proc/{raylet}/exe").exists()
    assert not scratch.exists()


@pytest.mark.engine
def test_a_ray_starts_before_its_agents_have(tmp_path):
    """They import much, which takes longer than a raylet waits for them where the cores are busy. These never start."""
    held = tmp_path / "held"
    (tmp_path / "sitecustomize.py").write_text(f"""
import signal
if "dashboard/agent.py" in open("/proc/self/cmdline").read():
    open({str(held)!r}, "w").close()
    signal.pause()
""")
    program = f"""
import os, time
from sat_slime.embedded.cluster.own_ray import local_ray
def lost(error):
    print(error, flush=True)
    os._exit(1)
with local_ray(None, lost):
    print("started")
    while not os.path.exists({str(held)!r}):
        time.sleep(0.05)
"""
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.stdout == "started\n"


@pytest.mark.engine
def test_rays_library_writes_nothing_of_a_sigterm():
    """It would stand in the midst of the live view."""
    program = """
import signal, sys
from sat_slime.embedded.cluster.own_ray import local_ray
signal.signal(signal.SIGTERM, lambda number, frame: print("heard"))
with local_ray():
    signal.raise_signal(signal.SIGTERM)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "heard\n") and "SIGTERM" not in result.stderr, result.stderr
