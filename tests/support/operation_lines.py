"""The words of a resource's command line, after what finds the code."""

import shlex

from infra.program.launcher import WORDS


def operation_words(line: str) -> list[str]:
    """Return the module, its verb and its arguments; the line must begin as all such lines do."""
    words = shlex.split(line)
    assert tuple(words[: len(WORDS)]) == WORDS
    return words[len(WORDS) :]
