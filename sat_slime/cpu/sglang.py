"""Gives SGLang's server in slime's engine actors the lab runtime's patches, each when its module is imported."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sat_slime.cpu import PUSH_VARIABLE, VARIABLE
from sat_slime.cpu.slime import with_gloo
from sat_slime.rollout import scratch
from sat_slime.rollout.sglang_on_cpu import patches


def load_only_known_families(_: Any) -> None:
    """Has SGLang import only the models of the families that are known here: it imports all 200 to know their names. A
    run that needs others sets SGLang's variable on its own."""
    if "SGLANG_DISABLED_MODEL_ARCHS" not in os.environ:
        patches.load_only_known_families()


def serve(common: Any) -> None:
    """Mends SGLang's metrics and its part in a weight push. slime always turns the metrics on, which ask every route
    for its path, and some routes of a newer FastAPI have none. The group of a push must be on Gloo where slime's side
    of it is (`slime.push_weights_by_gloo`)."""
    common._get_fastapi_request_path = lambda request: (request.url.path, True)
    if os.environ.get(VARIABLE) == "cpu" or os.environ.get(PUSH_VARIABLE) == "gloo":
        common.init_custom_process_group = with_gloo(common.init_custom_process_group)


def keep_widths(update_config: Any) -> None:
    """Has an engine of several ranks keep the widths of feed-forward layers and experts: for Intel's AMX kernels, which
    do not run here, SGLang pads them to 32 a rank."""
    update_config.get_moe_padding_size = lambda _: 1


def prepare_server_process(_: Any) -> None:
    """Patches a process that imports SGLang's server. In the server itself, which slime's engine actor spawns, further
    processes are forked; the actor must not fork, since Ray has threads in it."""
    patches.register_batched_attention()
    if any("spawn_main" in argument for argument in sys.orig_argv):  # multiprocessing has spawned this process
        patches.fork_subprocesses()
        leave_files_with_ray()


def leave_files_with_ray() -> None:
    """Moves what SGLang leaves behind, sockets in the temporary folder and a file in shared memory, to the folder of
    the Ray that was started for the run, if one was: they go with that folder."""
    folder = Path(os.environ.get("RAY_TMPDIR", ""))
    if folder.name.startswith(scratch.PREFIX):
        tempfile.tempdir = str(folder)
        scratch.name_shared_memory(folder)
