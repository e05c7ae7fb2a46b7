"""A terminal for tests: runs a program in one and tells what stands on its screen at the end."""

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pyte


def screen_of(program: str, columns: int, lines: int, keys: dict[str, bytes] | None = None) -> list[str]:
    """The lines of the screen after a Python program has ended.

    keys: what is typed once a text stands on the screen.
    """
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    waiting = dict(keys or {})
    child, terminal = pty.fork()
    if child == 0:
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2])}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.execve(sys.executable, [sys.executable, "-c", program], environment)
    try:
        while data := _read(terminal):
            stream.feed(data)
            for text in [text for text in waiting if text in "\n".join(screen.display)]:
                os.write(terminal, waiting.pop(text))
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    assert not waiting, screen.display
    return [line.rstrip() for line in screen.display]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # as Linux tells that the other side is closed
        return b""
