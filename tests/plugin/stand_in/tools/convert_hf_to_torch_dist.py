"""Stands for slime's conversion, which needs GPUs: rank 0 writes the files that mark a Megatron checkpoint.

FAIL ends it halfway.
"""

import os
import sys
from pathlib import Path

save = Path(sys.argv[sys.argv.index("--save") + 1])
os.write(1, f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n".encode())  # one write: ranks do not mix
if os.environ["RANK"] == "0":
    (save / "release").mkdir(parents=True)
    if os.environ.get("FAIL"):
        sys.exit("halfway")
    (save / "latest_checkpointed_iteration.txt").write_text("release")
