"""Finds the cluster that `--outputs` names: a cluster of anybody's program, by what that program published.

Outputs are foreign input: a file may come from another team, a ticket, a mail. Their values reach command
lines of `ssh` and ProxyCommands, which a shell reads, so each of these values must have its exact form.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.output_values import OPTION, check, shown
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.outputs.contract import OutputError, load
from node.logs.text import printable
from node.system import foreign
from operations import pages, programs
from operations.access import Published

STDIN = "-"
MOST_BYTES = 16 << 20
MOST_NAMED = 10
"""The most outputs that a message names."""
PULUMI_SECONDS = 90.0
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_STACK = re.compile(rf"{_PART}/{_PART}/{_PART}")
_FAMILY = "slurm-stacks/v"
_ALLOWED = (
    "a file with what `pulumi stack output --json` prints, - for standard input, or a stack's full name "
    "(organization/project/stack); behind it, where there are several clusters, :OUTPUT, the output's name"
)


def read(option: str) -> Published:
    """Return the cluster that a value of `--outputs` names.

    Raises:
        UserError: There is no such file or stack, or no such cluster in it, or a value has not its form.
    """
    source, output = _split(option)
    published = _chosen(option, source, output, _parsed(source, _text(source)))
    try:
        cluster = load(published, source=f"{OPTION} {printable(option)}")
    except OutputError as error:
        lines = map(printable, str(error).splitlines())
        raise UserError("\n".join(lines), EXIT_USAGE, code="outputs.contract") from None
    check(option, cluster)
    return Published(option, cluster)


def is_stdin(option: str | None) -> bool:
    """Whether a value of `--outputs` means standard input, which is then read to its end."""
    return option is not None and _split(option)[0] == STDIN


def _split(option: str) -> tuple[str, str]:
    """Return the source, and the name of an output behind a colon; file names may have colons, too."""
    ends = [len(option), *(match.start() for match in reversed([*re.finditer(":", option)]))]
    parts = [(option[:end], option[end + 1 :]) for end in ends]
    sources = [part for part in parts if part[0] == STDIN or _is_there(part[0])]
    sources += [part for part in parts if _STACK.fullmatch(part[0])]
    if sources:
        return sources[0]
    raise UserError(
        f"{OPTION} {shown(option)}: there is no such file. Allowed: {_ALLOWED}",
        EXIT_USAGE,
        code="outputs.source",
    )


def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - a text that cannot be a path is no error here


def _text(source: str) -> bytes:
    if source != STDIN and not _is_there(source):
        return _of_stack(source)
    try:
        if source == STDIN:
            text = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            # A pipe is fine: a shell's <(pulumi stack output --json).
            with Path(source).open("rb") as file:
                text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"{OPTION} {printable(source)}: {error.strerror}. Allowed: {_ALLOWED}",
            EXIT_USAGE,
            code="outputs.unreadable",
        ) from None
    if len(text) > MOST_BYTES:
        raise UserError(
            f"{OPTION} {printable(source)}: more than {MOST_BYTES >> 20} MiB, which no stack's outputs are. "
            f"Allowed: {_ALLOWED}",
            EXIT_USAGE,
            code="outputs.unreadable",
        )
    return text


def _of_stack(stack: str) -> bytes:
    """Return the outputs of a stack, from the Pulumi CLI."""
    line = ["pulumi", "stack", "output", "--json", "--non-interactive", "--stack", stack]
    cure = (
        f"where it is, run `pulumi stack output --json --stack {stack} > outputs.json`, and give the file: "
        f"{OPTION} outputs.json"
    )
    if shutil.which("pulumi") is None:
        raise UserError(
            f"{OPTION} {stack} is no file here, and a stack is read by the Pulumi CLI, which is not on PATH: "
            f"install it ({pages.PULUMI}); or {cure}",
            EXIT_REFUSED,
            code="outputs.no-pulumi",
        )
    done = programs.capture(line, seconds=PULUMI_SECONDS)
    if done.failed:
        why = "\n".join(f"  {printable(text)}" for text in done.err.strip().splitlines()) or "  no reason"
        raise UserError(
            f"{OPTION} {stack} is no file here, and the Pulumi CLI cannot read such a stack:\n{why}\n"
            "Log in to the backend that has it (pulumi login), and write its full name "
            "(organization/project/stack; `pulumi stack ls --all` has it); or give a file: "
            f"pulumi stack output --json > outputs.json, then {OPTION} outputs.json",
            code="outputs.pulumi-failed",
        )
    return done.out.encode()


def _parsed(source: str, text: bytes) -> Any:
    try:
        return foreign.parse(text)
    except ValueError as error:
        what = "nothing is there" if not text.strip() else f"this is no JSON ({printable(str(error))})"
        raise UserError(
            f"{OPTION} {printable(source)}: {what}. Allowed: {_ALLOWED}",
            EXIT_USAGE,
            code="outputs.not-json",
        ) from None


def _clusters(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each cluster with its path, such as `train` or `all[0]`, which is empty for a cluster alone."""
    if isinstance(value, Mapping):
        if str(value.get("apiVersion", "")).startswith(_FAMILY):
            yield path, value
            return
        for key, part in value.items():
            yield from _clusters(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _clusters(part, f"{path}[{index}]")


def _chosen(option: str, source: str, output: str, value: Any) -> Any:
    """Return the cluster that is meant.

    Raises:
        UserError: There is none, no such one, or more than one.
    """
    clusters = dict(_clusters(value))
    where = f"{OPTION} {printable(option)}"
    if not clusters:
        raise UserError(f"{where}: {_nothing(value)}", EXIT_USAGE, code="outputs.no-cluster")
    # The output may be an object that has the cluster, such as the whole component.
    meant = {path: each for path, each in clusters.items() if not output or _is_of(path, output)}
    if len(meant) == 1:
        return next(iter(meant.values()))
    if "" in clusters:
        choices = f"it is one cluster alone: {OPTION} {printable(source)}"
    else:
        lines = [f"  {OPTION} {printable(shlex.quote(f'{source}:{path}'))}" for path in clusters]
        choices = "\n".join(["choose one:", *lines[:MOST_NAMED], *["  …"][: len(lines) > MOST_NAMED]])
    if meant:
        raise UserError(
            f"{where}: there are {len(meant)} clusters; {choices}", EXIT_USAGE, code="outputs.several"
        )
    raise UserError(
        f"{where}: no output {shown(output)} has a cluster; {choices}",
        EXIT_USAGE,
        code="outputs.no-such-cluster",
    )


def _is_of(path: str, output: str) -> bool:
    return path == output or path.startswith((f"{output}.", f"{output}["))


def _nothing(value: Any) -> str:
    """Return what is there in place of a cluster, and what to do."""
    export = 'pulumi.export("train", cluster.cluster)'
    if not isinstance(value, Mapping):
        return f"{shown(value)} is neither a cluster nor an object of outputs. Allowed: {_ALLOWED}"
    if not value:
        return f"the stack has no outputs: it is not up, or its program exports none. Export one: {export}"
    secret = [str(key) for key, part in value.items() if part == "[secret]"]
    if secret:
        return (
            f"no output is a cluster, and these are secrets: {_named(secret)}. Is one of them the cluster? "
            "Then give the file that `pulumi stack output --json --show-secrets` prints"
        )
    return f"no output is a cluster. The outputs: {_named(map(str, value))}. Export the cluster: {export}"


def _named(names: Any) -> str:
    every = [*names]
    return ", ".join([*map(shown, every[:MOST_NAMED]), *["…"][: len(every) > MOST_NAMED]])
