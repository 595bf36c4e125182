"""A node's watch for notices as a separate process without Slurm, and a fake Slurm that it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from node.bootstrap.context import Context
from node.bootstrap.vm import notices
from node.system.codec import to_json
from tests.support.checkout import ROOT

NO_SLURM = """
import os, time
import node.aws.imds
import node.bootstrap.vm.notices as module
from node.slurm.states import NodeState

node.aws.imds.POLL_SECONDS = 0.05

class Requeue(module.Requeue):
    def evacuate(self, actions, nodes):
        print("evacuates", [action.node for action in actions], flush=True)
        while os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(0.02)
        raise module.SlurmError(["scontrol"], 1, "no Slurm here")

class Control(module.Control):
    def nodes(self):
        return {"compute-3": NodeState("compute-3", "IDLE", frozenset(), None)}

    def update_node(self, nodes, **changes):
        print("updates", *nodes, *changes.values(), flush=True)

module.Requeue, module.Control = Requeue, Control
"""


def report(context: Context) -> Path:
    """Make the machine's own copy of its boot report, and return its path."""
    own = Path(str(context.folders.lib)) / "boot.json"
    own.parent.mkdir(parents=True)
    content = {"host": context.host, "state": "ready", "started": 1000.0, "steps": []}
    own.write_text(json.dumps(content))
    return own


@contextmanager
def watching(context: Context, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process as its unit does, with a fake of Slurm, whose paths are fixed (`NO_SLURM`)."""
    context.settings_file.write_text(json.dumps(to_json(context.settings)))
    assert notices.start(context) == "the watch for notices"
    (made,) = context.services.started  # type: ignore[attr-defined]
    assert made.argv[:4] == ("/usr/bin/python3", "-I", "-S", "-c")
    lines = made.argv[4].replace(str(context.folders.code), str(ROOT)).split("; ")
    with _output(context).open("w") as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "\n".join([*lines[:2], NO_SLURM, *lines[2:]])],
            env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def said(context: Context) -> str:
    """Return the output of the process so far."""
    return _output(context).read_text()


def _output(context: Context) -> Path:
    return context.settings_file.with_name("said.log")


def ended(child: subprocess.Popen[bytes], context: Context) -> tuple[int, str]:
    """End the process as systemd does. Returns its exit status and its output."""
    child.terminate()
    return child.wait(60), said(context)


def until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)
