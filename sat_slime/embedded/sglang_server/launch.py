"""Entry of a server process: SGLang's arguments in, SGLang's HTTP server out. Ends with its parent."""

import os
import shutil
import signal
import sys
import threading
import traceback


def die_with_parent() -> None:
    """Kill this process group when standard input closes, which it does however the parent dies."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        if scratch := os.environ.get("SAT_SLIME_SCRATCH"):  # made for this server alone
            shutil.rmtree(scratch, ignore_errors=True)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    die_with_parent()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from sat_slime.rollout.sglang_on_cpu import patches

        patches.apply()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    try:
        launch_server(prepare_server_args(sys.argv[1:]))
    except Exception:  # a scheduler that died; its siblings would keep this process waiting
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
