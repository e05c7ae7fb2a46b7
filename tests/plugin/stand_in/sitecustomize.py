"""Has a Python that starts with this folder on its path run train.py in place of our driver, which needs slime."""

import os
import sys
import traceback

if sys.orig_argv[1:3] == ["-m", "sat_slime.plugin.driver"]:
    import train

    sys.argv = sys.orig_argv[2:]
    code = 0
    try:
        train.main()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # a normal exit here would count as a fault of Python's start
