import contextlib
import importlib.util
import os
import re
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from left_processes import begin_session, end_what_is_left, for_the_session, mark

pytest_plugins = ["slime_marks"]

# A shell starts its background jobs with Ctrl-C ignored, and so would be whatever the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup its commands with SIGHUP ignored
# Some tests start a Ray, which reads at its first import, in whichever test that is, by what token its parts know each
# other.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# A busy machine is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser):
    """Those of tests/slime_whole stand here too, since pytest reads options before it looks into folders below."""
    group = parser.getgroup("the real slime")
    group.addoption("--slime", metavar="DIR", help="a checkout of slime, as docs/rehearse.md names it")
    group.addoption("--megatron", metavar="DIR", help="Megatron-LM with slime's patches")


class NamedFailures:
    """A failed test is named as soon as it has failed: a session that is ended from outside prints no summary."""

    def __init__(self, config):
        self.config = config

    def pytest_runtest_logreport(self, report):
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")


def pytest_configure(config):
    config.pluginmanager.register(NamedFailures(config))
    if not hasattr(config, "workerinput"):
        begin_session()


AFTER_TIMEOUT_S = 60.0
LONG_S = 1200
"""A test that may take so many seconds makes its file a long one."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End a test that outlives its timeout. pytest-timeout raises an error in it once, and a clean-up that waits for a
    process which never ends then waits for good: so all that the test has started is killed after another minute, and
    its worker after two, which fails this test alone."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)

    def kill_what_it_started():
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError, psutil.Error):
                ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
                if int(ticks) / os.sysconf("SC_CLK_TCK") >= begun - 0.1:
                    process.kill()

    acts = [(limit + AFTER_TIMEOUT_S, kill_what_it_started), (limit + 2 * AFTER_TIMEOUT_S, lambda: os._exit(1))]
    timers = [threading.Timer(delay, act) for delay, act in acts if "PYTEST_XDIST_WORKER" in os.environ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        return (yield)
    finally:
        for timer in timers:
            timer.cancel()


@pytest.hookimpl(tryfirst=True)  # before that of a worker, which is the only one
def pytest_runtestloop():
    mark()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """End what a file of tests has left running, and fail its last test for it."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            left = end_what_is_left("file" if nextitem else "session")
            assert not left, f"left running: {left}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """End what is left after Ctrl-C, and of workers that have crashed."""
    if not hasattr(session.config, "workerinput"):
        end_what_is_left("all", grace_s=0)


WITH_RAY = tuple(
    f"tests/{name}.py::"
    for name in (
        *("cli/slime_run/test_job_start", "cli/slime_run/test_slime_findings", "cli/test_grid_command"),
        *("launch/test_checks", "launch/test_ray_jobs"),
    )
)
"""The files whose tests use `ray_server`, of which each worker would start one."""
WAITING = (*WITH_RAY, "tests/cli/slime_run/test_slurm.py::")
"""The files whose tests wait most of their time."""


def pytest_collection_modifyitems(config, items):
    """Slow tests are left out unless -m names them, and fast tests come before those that start engines.

    Here and not as `-m "not slow"` in addopts: an -m on the command line would replace that one. Files with tests that
    start engines come last as a whole, since a worker runs whole files; of them first those that take long, so that no
    worker is left alone with one. They begin with those tests: a worker is given its next file when it has two tests
    left, which others could run if one of these were long. Among several workers one that waits comes first, so that
    the others have the cores.
    """
    if not re.search(r"\bslow\b", config.option.markexpr):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    engine = {item: item.get_closest_marker("engine") is not None for item in items}
    with_engines = {item.path for item in items if engine[item]}
    markers = {item: item.get_closest_marker("timeout") for item in items}
    long = {item.path for item, marker in markers.items() if marker and marker.args and marker.args[0] >= LONG_S}
    first = WAITING if "PYTEST_XDIST_WORKER" in os.environ else ()
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(first),
            item.path in with_engines,
            item.path not in long,
            not engine[item] and item.path in with_engines,
        )
    )


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which `-n auto` in scripts/test.sh asks for
def pytest_xdist_auto_num_workers(config):
    """Three workers, however many cores there are: a run of the engines takes some GB, and waits much of its time. None
    where a test is named."""
    return 0 if any("::" in argument for argument in config.args) else 3


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file is one worker's, and all that use a Ray are, so that there is one Ray."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "with Ray" if nodeid.startswith(WITH_RAY) else super()._split_scope(nodeid)

    return Files(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture
def short_path():
    """A folder with a short name: those of sockets in tmp_path may be too long for the kernel."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory):
    """A `cache_dir` for all runs of a session, of its workers too: what one has warmed up, the others take."""
    session = tmp_path_factory.getbasetemp()
    cache = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "cache"
    cache.mkdir(exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def ray_server(tmp_path_factory):
    """A Ray with a job server on this machine, with eight GPUs on paper; for tests of the mark `engine`."""
    for module in ("ray", "aiohttp_cors", "opencensus", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs pip install 'ray[default]': {module} is not installed")
    from sat_slime.launch.local_ray import start_ray, stop_ray

    with pytest.MonkeyPatch.context() as patch, for_the_session():
        # Ray's workers import from where it was started, before PYTHONPATH.
        patch.chdir(tmp_path_factory.mktemp("ray"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # as scripts/test.sh has it; GPUs on paper are offered all the same
        ray = start_ray(gpus=8, cpus=4)
    yield ray
    stop_ray(ray)
