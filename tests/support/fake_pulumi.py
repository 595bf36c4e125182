"""A `pulumi` on PATH that answers the SDK's Automation API as the CLI does, and notes each call.

It is held to `pulumi.automation` (`_stack.py`, `_local_workspace.py`), which parses what it prints, with the
event log of the CLI's version 3.200. Its state has the resources that a test gives it. `refresh` forgets
those of its targets that the test calls gone. What it says of a failure are the sentences of 3.259.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.engine import plugins

CLI = """\
#!{python} -IS
import json, os, pathlib, sys
words = [word for word in sys.argv[1:] if word != "--non-interactive"]
line = " ".join(words)
with open({calls!r}, "a") as log:
    log.write(json.dumps([words, os.environ.get("{kept}"), os.environ.get("{no_downloads}")]) + "\\n")
state, made = pathlib.Path({state!r}), pathlib.Path({made!r})
for begins, text in json.loads({fails!r}).items():
    if line.startswith(begins):
        sys.exit("error: " + text if text else 255)
for begins, number in json.loads({signals!r}).items():
    if line.startswith(begins):
        os.kill(os.getppid(), number)
        sys.exit("error: " + words[0] + " canceled")
if words[0] == "version":
    print("v3.200.0")
elif words[:2] == ["stack", "select"]:
    # Newer CLIs also name the project.
    if not made.exists():
        sys.exit("error: no stack named '" + words[-1] + "' found")
elif words[:2] == ["stack", "init"]:
    # Before it looks for the stack, it reads the salt, which another passphrase has made.
    config = pathlib.Path("Pulumi." + words[2].rpartition("/")[2] + ".yaml")
    if config.exists() and "encryptionsalt" in config.read_text():
        sys.exit("error: could not create secrets manager for new stack: incorrect passphrase")
    if made.exists():
        sys.exit("error: stack '" + words[2] + "' already exists")
    config.write_text("encryptionsalt: v1:new\\n")
    made.touch()
elif words[0] in ("preview", "up", "refresh", "destroy"):
    if "--event-log" in words:
        file = pathlib.Path(words[words.index("--event-log") + 1])
        file.write_text("".join(json.dumps(event) + "\\n" for event in json.loads({events!r})))
    if words[0] == "refresh":
        targets = [words[at + 1] for at, word in enumerate(words) if word == "--target"]
        gone = set(targets) & set(json.loads({gone!r}))
        state.write_text(json.dumps([one for one in json.loads(state.read_text()) if one["urn"] not in gone]))
    elif words[0] == "destroy":
        stuck = {{one["urn"] for one in json.loads(state.read_text())}} & set(json.loads({stuck!r}))
        sys.exit(255 if stuck else {status})
    sys.exit({status})
elif words[:2] == ["stack", "export"]:
    print(json.dumps({{"version": 3, "deployment": {{"resources": json.loads(state.read_text())}}}}))
elif words[:2] == ["stack", "output"]:
    print("{{}}")
elif words[:2] == ["stack", "history"]:
    print(json.dumps([{{"kind": "update", "startTime": "2026-01-01T00:00:00.000Z", "message": "",
                        "environment": {{}}, "config": {{}}, "result": "succeeded"}}]))
"""


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: Sequence[dict[str, Any]] = (),
    status: int = 0,
    resources: Sequence[dict[str, Any]] = (),
    gone: Sequence[str] = (),
    stuck: Sequence[str] = (),
    fails: Mapping[str, str] | None = None,
    signals: Mapping[str, int] | None = None,
    made: bool = True,
) -> Path:
    """Put such a CLI on PATH. Returns the file with its calls.

    Args:
        events: What it reports of each operation.
        status: With which exit status an operation ends.
        resources: The resources of its state.
        gone: The URNs of what is not there any more.
        stuck: The URNs of resources that no `destroy` can delete.
        fails: The beginning of a call -> what it says as it fails.
        signals: The beginning of a call -> the signal that it sends to the program that has called.
        made: Whether the backend has the stack.
    """
    program = folder / "bin" / "pulumi"
    program.parent.mkdir(exist_ok=True)
    calls, state = folder / "calls", folder / "state.json"
    state.write_text(json.dumps(list(resources)))
    numbered = [
        {"sequence": number, "timestamp": 0, **event}
        for number, event in enumerate([*events, {"cancelEvent": {}}])
    ]
    program.write_text(
        CLI.format(
            python=sys.executable, calls=str(calls), events=json.dumps(numbered), status=status,
            state=str(state), gone=json.dumps(list(gone)), stuck=json.dumps(list(stuck)),
            kept="SLURM_STACKS_KEPT_BENCHMARK", no_downloads=plugins.NO_DOWNLOADS,
            fails=json.dumps(dict(fails or {})), signals=json.dumps(dict(signals or {})),
            made=str(folder / "made"),
        )
    )  # fmt: skip
    program.chmod(0o755)
    if made:
        (folder / "made").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PULUMI_HOME", str(folder / "pulumi-home"))
    for variable in ("PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return calls


def called(file: Path, *verbs: str) -> list[tuple[list[str], str | None]]:
    """Return the calls with one of these verbs: words, and what the program is told of the benchmark."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(words, kept) for words, kept, _ in lines if words[0] in verbs]


def spared(file: Path, verb: str) -> list[bool]:
    """Return of each call with a verb whether the engine may download no plugin."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [no_downloads == "true" for words, _, no_downloads in lines if words[0] == verb]
