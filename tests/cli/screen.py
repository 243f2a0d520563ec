"""A command on a terminal, and the screen that its user sees."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

# Every call of progress draws, so that a short job shows what a long one does.
EAGER = "import unmask.cli.progress as p; p.PATIENCE = p.EVERY = p.REDRAW = 0.0\n"
UNMASK = f"{EAGER}from unmask.cli import main; main()"
WIDTH = 120
# What the bars write: colours and the cursor's look (ignored), erasing a line, moving up, the rest.
PIECES = re.compile(
    r"(?P<look>\x1b\[[\d;]*m|\x1b\[\?25[lh])|(?P<erase>\x1b\[2K)|\x1b\[(?P<up>\d*)A|(?P<plain>.)",
    re.S,
)


def frames(written: str) -> list[list[str]]:
    """The screen after each line or bar that was written to it, from top to bottom."""
    lines, row, column, found = [""], 0, 0, []
    for piece in PIECES.finditer(written):
        if piece["erase"]:
            lines[row] = ""
        elif piece["up"] is not None:
            row -= int(piece["up"] or 1)
        elif piece["plain"] == "\r":
            found.append(_seen(lines))
            column = 0
        elif piece["plain"] == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece["plain"]:
            lines[row] = (
                lines[row][:column].ljust(column) + piece["plain"] + lines[row][column + 1 :]
            )
            column += 1
    return [*found, _seen(lines)]


def _seen(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]


def on_terminal(program: str, *arguments: object, cwd: Path) -> tuple[int, list[list[str]]]:
    """Run Python with its output and errors on a terminal: exit code and frames of the screen."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, WIDTH))
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    written = b""
    while chunk := _read(screen):
        written += chunk
    os.close(screen)
    return process.wait(60), frames(written.decode())


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # nobody has the terminal open any more
        return b""
