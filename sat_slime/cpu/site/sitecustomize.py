"""Python runs this as it starts, in every process that has this folder on PYTHONPATH: those of a run on a CPU, or on a
GPU that its trainer and engine share."""

import os

if os.environ.get("SAT_SLIME_DEVICE") == "cpu" or "SAT_SLIME_CARD" in os.environ:
    from sat_slime.cpu.processes import install

    install()
