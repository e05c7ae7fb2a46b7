"""SGLang's server in slime's engine actors: the embedded runtime's patches, each when its module is imported."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sat_slime.plugin.cpu.slime import with_gloo
from sat_slime.rollout import scratch
from sat_slime.rollout.sglang_on_cpu import patches


def load_only_qwen3(_: Any) -> None:
    """SGLang imports its 200 models to know their names; a run that needs others sets its variable itself."""
    if "SGLANG_DISABLED_MODEL_ARCHS" not in os.environ:
        patches.load_only_qwen3()


def serve_on_cpu(common: Any) -> None:
    """SGLang's metrics, which slime always turns on, ask every route for its path; some of a newer FastAPI's have none.
    And the group of a weight push is slime's (`slime.push_weights_by_gloo`)."""
    common._get_fastapi_request_path = lambda request: (request.url.path, True)
    common.init_custom_process_group = with_gloo(common.init_custom_process_group)


def allocate_routed_experts_unpinned(_: Any) -> None:
    """See there."""
    patches.allocate_routed_experts_unpinned()


def hash_seeds_in_torch(_: Any) -> None:
    """See there."""
    patches.hash_seeds_in_torch()


def prepare_server_process(_: Any) -> None:
    """The server itself is a process that slime's engine actor spawns: there its own processes are forked. The actor,
    in which Ray has threads, must not fork."""
    patches.keep_torch_matmuls()
    patches.register_batched_attention()
    if is_spawned():
        patches.fork_subprocesses()
        leave_files_with_ray()


def leave_files_with_ray() -> None:
    """SGLang leaves its sockets in the temporary folder and a file in shared memory. Where a Ray was started for the
    run they go with that Ray's folder."""
    folder = Path(os.environ.get("RAY_TMPDIR", ""))
    if folder.name.startswith(scratch.PREFIX):
        tempfile.tempdir = str(folder)
        scratch.name_shared_memory(folder)


def is_spawned() -> bool:
    """Whether multiprocessing has spawned this process."""
    arguments: list[Any] = sys.orig_argv
    return any("spawn_main" in argument for argument in arguments)
