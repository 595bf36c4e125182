"""Starts a module of this folder, with the project in Python's path: `python operations operations.NAME …`.

Resources' command lines do so (`infra.program.launcher`). The working folder stays the program's own and is
not in the path. What the module starts inherits no path.
"""

import gc
import io
import os
import re
import runpy
import sys
from pathlib import Path

LONGEST_LINE = 60_000
"""The most bytes of a line. At one of 64 KiB pulumi-command stops reading, and its writer waits for ever."""


class ShortLines(io.TextIOWrapper):
    """A text stream that begins a new line where one would have more than `LONGEST_LINE` bytes."""

    _length = 0

    def write(self, text: str, /) -> int:
        """Write a text."""
        for piece in re.findall(r"\n|[^\n]{1,1000}", text):
            length = len(piece.encode("utf-8", "backslashreplace"))
            self._length = 0 if piece == "\n" else self._length + length
            if self._length > LONGEST_LINE:
                super().write("\n")
                self._length = length
            super().write(piece)
        return len(text)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).absolute().parents[1])
    from infra.program import mode

    mode.FOLDER.set(Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve())
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # The engine fails at any other byte, whatever this machine's locale writes.
        form = ("utf-8", "backslashreplace", None, stream.line_buffering)
        setattr(sys, name, ShortLines(stream.detach(), *form))
    module = sys.argv.pop(1)
    # The garbage collector would find nothing among what is imported, neither now nor as Python ends.
    gc.set_threshold(100_000, 50, 100)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        gc.freeze()
