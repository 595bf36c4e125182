"""The sentences of messages, in one file beside the tests that cause them.

Tests assert a message's code and path. Its sentences are in `sentences/<test module>.txt`, which
`--update-snapshots` writes anew: a better sentence changes that file and no test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest


def check(config: pytest.Config, module: str, texts: Iterable[str]) -> None:
    """Compare messages with those in the file of a test module.

    Args:
        config: The run's configuration, of which `--update-snapshots` is asked.
        module: The test module's path, `__file__`.
        texts: The messages, each with its code. Equal ones count once. A section's keys are left out: a new
            key is no other sentence.
    """
    file = Path(module).parent / "sentences" / f"{Path(module).stem.removeprefix('test_')}.txt"
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
