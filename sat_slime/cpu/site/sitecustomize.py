"""Python runs this as it starts, in every process that has this folder on PYTHONPATH: those of a run on a CPU."""

import os

if os.environ.get("SAT_SLIME_DEVICE") == "cpu":
    from sat_slime.cpu.processes import install

    install()
