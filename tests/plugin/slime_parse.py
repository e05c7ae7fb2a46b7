"""Parses commands with slime's own parse_args, validation included, on a machine without a GPU.

    PYTHONPATH=SLIME:MEGATRON python tests/plugin/slime_parse.py < COMMANDS > RESULTS

COMMANDS is a JSON list of argument lists. RESULTS ends with a line of JSON, which has for each list: `args` (what slime
reads from it, as far as JSON can say it), or `error`; `left_over`, the flags that no parser took; and `not_in_full`,
the flags that no parser has as they are written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from typing import Any

from sat_slime.cpu.without_gpu import prepare


def parse(words: list[str]) -> dict[str, Any]:
    from slime.utils.arguments import parse_args

    names: set[str] = set()
    rests: list[set[str]] = []
    parse_known_args = argparse.ArgumentParser.parse_known_args

    def caught(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse_known_args(self, *args, **kwargs)
        names.update(name for action in self._actions for name in action.option_strings)
        rests.append(set(rest))
        return namespace, rest

    argparse.ArgumentParser.parse_known_args = caught
    sys.argv = ["train_async.py", *words]
    try:
        values = vars(parse_args())
        result: dict[str, Any] = {"args": {key: value for key, value in values.items() if _is_plain(value)}}
    except (Exception, SystemExit) as error:  # argparse has written its error to stderr
        result = {"error": repr(error)}
    finally:
        argparse.ArgumentParser.parse_known_args = parse_known_args
    flags = {word for word in words if word.startswith("--")}
    result["left_over"] = sorted(set.intersection(flags, *rests))
    result["not_in_full"] = sorted(flags - names)
    return result


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


if __name__ == "__main__":
    commands = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        prepare()
        results = [parse(words) for words in commands]
    print(json.dumps(results))
