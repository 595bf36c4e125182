"""The commands in the documentation: every `sh` block of the pages, with what it needs.

A block whose commands cannot run in a test says why in a comment before it: `<!-- needs: account -->`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkout import ROOT

NEEDS = {
    "account": "an account with a cloud",
    "pulumi": "the Pulumi CLI",
    "tests": "it is how these tests are run",
    "slurmrestd": "a package that no cluster needs",
    "peers": "other projects' programs, and half an hour",
    "root": "it changes this machine",
}
_FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>[^>]*) -->\n\n?)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_OPERATORS = "();<>|&"
_LANGUAGES = ("sh", "yaml", "python", "typescript", "go", "json", "text")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands.

    Attributes:
        where: file and line.
        needs: a key of NEEDS; `None` means that a test runs the block.
        commands: the commands, one a line, without comments.
    """

    where: str
    needs: str | None
    commands: tuple[str, ...]


def pages() -> list[Path]:
    """Return every page that a user or a contributor reads, without the list of changes."""
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    return [
        *top,
        *(page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))),
    ]


def blocks(page: Path, root: Path = ROOT) -> list[Block]:
    """Return a page's `sh` blocks in order.

    Raises:
        ValueError: A block has an unknown need, an unknown language or no language.
    """
    found = []
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        where = f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start('language')) + 1}"
        language, needs = match["language"], match["needs"]
        if language not in _LANGUAGES:
            raise ValueError(f"{where}: a block of language {language!r}; use {', '.join(_LANGUAGES)}")
        if needs is not None and needs not in NEEDS:
            raise ValueError(f"{where}: needs {needs!r}, which is none of {', '.join(NEEDS)}")
        if language == "sh":
            found.append(Block(where, needs, tuple(_commands(match["text"]))))
    return found


def cluster_words(command: str) -> Iterator[list[str]]:
    """Yield the words after each `./cluster` of a command, up to what the shell takes (`| grep`, `>file`)."""
    inner = re.findall(r"\$\(([^()]*)\)", command)
    outer = re.sub(r"\$\([^()]*\)", "WORD", command)
    for text in (outer, *inner):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
        lexer.whitespace_split = True
        words = list(lexer)
        while "./cluster" in words:
            words = words[words.index("./cluster") + 1 :]
            yield words[: next((i for i, word in enumerate(words) if set(word) <= set(_OPERATORS)), None)]


def _commands(text: str) -> list[str]:
    # A backslash continues a line in the next one. A comment begins after two blanks.
    lines = text.replace("\\\n", " ").splitlines()
    commands = [re.sub(r"(^|\s{2,})#.*$", "", line).strip() for line in lines]
    return [command for command in commands if command]
