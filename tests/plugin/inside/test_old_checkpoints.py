"""old_arguments.pickle: arguments with the settings of seven methods, as an older version of the package left them in
Megatron's checkpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ARGUMENTS = Path(__file__).with_name("old_arguments.pickle")
LOAD = """
import pickle, sys
from pathlib import Path
from sat_slime.plugin.inside.old_checkpoints import make_loadable
data = Path(sys.argv[1]).read_bytes()
try:
    pickle.loads(data)
    raise SystemExit("it can be loaded anyway")
except ModuleNotFoundError:
    make_loadable()
print(len(pickle.loads(data)))
"""


def test_arguments_of_older_checkpoints_can_be_loaded() -> None:
    """In a process of its own, which alone gets the stand-ins."""
    done = subprocess.run([sys.executable, "-c", LOAD, ARGUMENTS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
