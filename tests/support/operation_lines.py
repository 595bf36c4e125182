"""The words of a resource's command, which an interpreter runs that finds the code."""

import shlex
from collections.abc import Mapping
from typing import Any

from infra.program.launcher import INTERPRETER, pasted


def operation_words(inputs: Mapping[str, Any], key: str) -> list[str]:
    """Return the module, its verb and its arguments, of the line `key` of a Command."""
    assert tuple(inputs["interpreter"]) == INTERPRETER
    return shlex.split(inputs[key])


def words_anywhere(command: str) -> list[str]:
    """Return the module, its verb and its arguments, of a command that runs such a line on any machine."""
    *interpreter, line = shlex.split(command)
    assert tuple(interpreter) == INTERPRETER
    return shlex.split(line)


def words_pasted(command: str) -> list[str]:
    """Return the module, its verb and its arguments, of a command for people to paste."""
    *_, line = shlex.split(command)
    assert command == pasted(line)
    return shlex.split(line)
