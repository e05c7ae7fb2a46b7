"""Ray's settings for a run, which Ray reads as it is imported: who needs `ray` imports it from here."""

import os
import secrets

from sat_slime.rollout.ray_start import PATIENCE

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # no cluster: all of Ray's servers then bind to 127.0.0.1
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would starve trainer and servers beside anything else
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors see the GPUs; ranks pick theirs by number
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update({**PATIENCE, **os.environ})
# Whoever can talk to Ray can have it run anything, so Ray asks for a token. This one belongs to the run and stands in
# its environment alone: the token that Ray makes otherwise lies in a file that everybody may read.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray

__all__ = ["ray"]
