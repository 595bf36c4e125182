"""Why Linux could not start a script, by its first bytes, for the checks of a stack file and for machines."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass

MAGIC = b"#!"
PROGRAM = b"\x7fELF"
FIRST_BYTES = 4096
"""How much of a file is enough for an answer."""
LONGEST = 255
"""The most bytes of a first line that the kernel reads (BINPRM_BUF_SIZE, without the closing zero)."""
SHELLS = (b"sh", b"bash", b"dash")
"""Shells that take a word with a blank for a wrong option. Other interpreters may split it, as perl does."""
_SPLITS = re.compile(rb"-[A-Za-z0]*S|--split-string")
"""env's option to split the rest of the word."""
BOMS = {codecs.BOM_UTF8: "UTF-8's mark", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


@dataclass(frozen=True, slots=True)
class Unstartable:
    """Why a script cannot be started, and the cure."""

    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.why}: {self.cure}"


def fault(content: bytes, name: str = "FILE") -> Unstartable | None:
    """Return why Linux could not start a file; `None` if it can, as far as its first bytes tell.

    Args:
        content: The file's content, or its first bytes (`FIRST_BYTES`).
        name: The file's name in the cure.
    """
    if content.startswith(PROGRAM):
        return None
    for mark, what in BOMS.items():
        if content.startswith(mark):
            return Unstartable(f"line 1 begins with {what}", "save it as UTF-8 without a byte order mark")
    if not content.startswith(MAGIC):
        return _without_interpreter(content)
    first = content.partition(b"\n")[0]
    if b"\r" in first:
        # The kernel, and every shell, would take the carriage return for a part of the words.
        why = "line 1 has a carriage return, as Windows saves files"
        return Unstartable(why, f"run sed -i 's/\\r$//' {name}")
    interpreter, *words = first.removeprefix(MAGIC).split() or [b""]
    if not interpreter.startswith(b"/"):
        shown = first[:60].decode(errors="replace")
        return Unstartable(f"line 1 names no interpreter by its path: {shown!r}", "begin with #!/bin/bash")
    if len(first) > LONGEST:
        return Unstartable(f"line 1 has more than {LONGEST} bytes", "name an interpreter with a shorter path")
    if len(words) > 1:
        return _several_words(interpreter.rpartition(b"/")[2], words)
    return None


def fault_here(content: bytes, name: str = "FILE") -> Unstartable | None:
    """Return why this machine could not start a file: as `fault`, or because its interpreter is not here.

    Of that Linux says only "No such file or directory", as if the script were not there.
    """
    if (fault_anywhere := fault(content, name)) is not None or not content.startswith(MAGIC):
        return fault_anywhere
    interpreter = content.partition(b"\n")[0].removeprefix(MAGIC).split()[0]
    if os.access(interpreter, os.X_OK):
        return None
    named = interpreter[:60].decode(errors="replace")
    return Unstartable(
        f"line 1 names {named}, and this machine has no such program", "install it, or name another"
    )


def _several_words(program: bytes, words: list[bytes]) -> Unstartable | None:
    """Return what is wrong with several words after an interpreter, which gets them as one from Linux."""
    shown = b" ".join(words)[:60].decode(errors="replace")
    why = f"line 1 gives {program.decode(errors='replace')} one word, {shown!r}, as Linux does"
    if program == b"env" and not _SPLITS.match(words[0]):
        return Unstartable(why, f"write #!/usr/bin/env -S {shown}")
    if program in SHELLS:
        return Unstartable(why, "write the options as one word, such as -eu, or in a line `set -eu`")
    return None


def _without_interpreter(content: bytes) -> Unstartable:
    for number, line in enumerate(content[:FIRST_BYTES].splitlines(), 1):
        if line.lstrip().startswith(b"#!/"):
            return Unstartable(
                f"line {number} names the interpreter, and only line 1 can",
                f"move line {number} to the top",
            )
    return Unstartable("line 1 names no interpreter", "begin with #!/bin/bash")
