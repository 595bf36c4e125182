"""The sentences of messages, in one file beside the tests that cause them.

Tests assert a message's code, and the values that it must name. Its sentences are in
`sentences/<test module>.txt`, which `--update-snapshots` writes anew: a better sentence changes that file and
no test.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.errors import UserError
from infra.os_errors import user_name

if TYPE_CHECKING:  # the training environment, in which some tests run, lacks what the doctor imports
    from cli.findings import Finding, Severity

ROOT = Path(__file__).parents[2]
HEAD = "== "
"""Begins the line above a message, with the name of the test function that causes it."""
FOLDERS = r"/[^\s'\":,;`(]*/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?"
PLACES = [
    (rf"{FOLDERS}/[^/\s'\":,;`)]+", "<folder of the test>"),
    (FOLDERS, "<folder of the tests>"),
    (re.escape(sys.prefix), "<environment>"),
    (re.escape(str(ROOT)), "<checkout>"),
    (rf"\b{re.escape(user_name(os.getuid()))}@", "<user>@"),
    (r"(127\.0\.0\.1 port )\d+", "\\1<n>"),
    (r"\b(i|vol|vpc|subnet|snap|sg|ami)-[0-9a-f]{17}\b", r"\1-<id>"),
    (r"\bfs-[0-9a-f]{8,17}\b", "fs-<id>"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\bfrom \d{5} (on|to \d{5})\b", "from <port>"),
    (r"--cluster [0-9a-f]{10}\b", "--cluster <id>"),
    (r"/bench/[0-9a-f]{16}(/[\w-]+)?", "/bench/<run>"),
    (r"/runs/[0-9a-f]{10}", "/runs/<cluster>"),
    (r"\d+ MiB( are)? free", "<n> MiB\\1 free"),
]
"""What differs from run to run or from user to user: paths, ports, ids, the free space on a disk."""
_written: set[tuple[str, str]] = set()
"""Modules and functions whose messages this run has written anew."""


def check(config: pytest.Config, module: str, texts: Iterable[str]) -> None:
    """Compare messages with those in the file of a test module.

    Args:
        config: The run's configuration, of which `--update-snapshots` is asked.
        module: The test module's path, `__file__`.
        texts: The messages, each with its code. Equal ones count once. A section's keys are left out: a new
            key is no other sentence.
    """
    file = _file(Path(module))
    text = (
        "\n\n".join(dict.fromkeys(re.sub("allowed  the keys .*", "allowed  the keys …", t) for t in texts))
        + "\n"
    )
    if config.getoption("--update-snapshots"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text.split("\n\n") == file.read_text(encoding="utf-8").split("\n\n"), (
        f"other sentences than {file.name} has: if they are better, run this test with --update-snapshots"
    )


@contextlib.contextmanager
def raises(
    code: str,
    *values: object,
    kind: type[UserError] = UserError,
    varies: Sequence[object] = (),
    compared: bool = True,
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect an error of a command.

    Args:
        code: Its code.
        *values: What its message must name.
        kind: Its class.
        varies: What its message must name, too, and what is another text in each run, such as a process id.
        compared: Whether its sentence is compared; not where it is another program's, which each version of
            that program may word anew.
    """
    with pytest.raises(kind) as caught:
        yield caught
    if compared:
        error(caught.value, code, *values, varies=varies)
        return
    assert caught.value.code == code, caught.value.printed
    for value in (*values, *varies):
        assert str(value) in str(caught.value)


def error(raised: UserError, code: str, *values: object, varies: Sequence[object] = ()) -> None:
    """Compare an error with its code and its sentence. The arguments are those of `raises`."""
    assert raised.code == code, raised.printed
    sentence(raised.printed, *values, varies=varies)


def printed(output: str, code: str, *values: object, varies: Sequence[object] = ()) -> None:
    """Compare what a command has printed, and the code at its end. The arguments are those of `raises`."""
    assert output.rstrip("\n").endswith(f"[{code}]"), output
    sentence(output.rstrip("\n"), *values, varies=varies)


def finding(
    found: Finding, check: str, severity: Severity, *values: object, varies: Sequence[object] = ()
) -> None:
    """Compare one of the doctor's findings with its check, its severity and its sentence.

    Args:
        found: The finding.
        check: The name of its check.
        severity: What it means for `up`.
        *values: What it must name, or its cure.
        varies: As for `raises`.
    """
    assert (found.check, found.severity) == (check, severity), found
    text = found.found if found.cure is None else f"{found.found}\n    do: {found.cure}"
    sentence(f"[{check}] {severity}: {text}", *values, varies=varies)


def sentence(text: str, *values: object, varies: Sequence[object] = ()) -> None:
    """Compare a message of the running test with the one in its module's file. The arguments are as above."""
    for value in (*values, *varies):
        assert str(value) in text, f"{value} is not named: {text}"
    for value in varies:
        text = text.replace(str(value), "<…>")
    for place, name in PLACES:
        text = re.sub(place, name, text)
    module, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("::")
    function = test.partition("[")[0].rpartition("::")[2]
    file = _file(ROOT / module)
    kept = _read(file)
    if UPDATE:
        if (module, function) not in _written:
            _written.add((module, function))
            kept[function] = []
        kept[function] += [text] if text not in kept[function] else []
        _write(file, kept, (ROOT / module).read_text(encoding="utf-8"))
    assert text in kept.get(function, []), (
        f"another sentence than {file.name} has: if it is better, run this file with --update-snapshots"
    )


UPDATE = False
"""Whether `--update-snapshots` is given."""


def _file(module: Path) -> Path:
    return module.parent / "sentences" / f"{module.stem.removeprefix('test_')}.txt"


def _read(file: Path) -> dict[str, list[str]]:
    """Return the messages that each test function causes."""
    kept: dict[str, list[str]] = {}
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for entry in f"\n{text}".split(f"\n{HEAD}")[1:]:
        function, _, message = entry.partition("\n")
        kept.setdefault(function, []).append(message.rstrip("\n"))
    return kept


def _write(file: Path, kept: dict[str, list[str]], module: str) -> None:
    """Write the messages of the functions that the module still has."""
    file.parent.mkdir(exist_ok=True)
    there = {function: found for function, found in kept.items() if f"def {function}(" in module}
    entries = [f"{HEAD}{function}\n{text}\n" for function, found in sorted(there.items()) for text in found]
    file.write_text("\n".join(entries), encoding="utf-8")
