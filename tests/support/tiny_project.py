"""A tiny Pulumi project in a temporary folder, for the tests of the engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.console.events import Event, Message, OutputLine, ResourceDone, Summary
from cli.engine.embedded import EmbeddedRunner
from cli.engine.state import STATE_FILE
from infra.program import locations
from infra.program.stack import Stack
from node.system.processes import ProcessId

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import pulumi
from pulumi import ResourceOptions
from pulumi_command.local import Command

config = pulumi.Config()
LOG = {log!r}


def say(word):
    return f"echo {{word}} >> '{{LOG}}'"


def command(name, **inputs):
    opts = ResourceOptions(**inputs.pop("opts", {{}}))
    return Command(name, **{{"create": say(name + "+"), "delete": say(name + "-"), **inputs}}, opts=opts)
"""


@dataclass
class Run:
    """The reports of a run."""

    outputs: dict[str, Any] | None
    events: list[Event]

    @property
    def summary(self) -> Summary:
        (found,) = [event for event in self.events if isinstance(event, Summary)]
        return found

    @property
    def counts(self) -> dict[str, int]:
        return {str(op): n for op, n in self.summary.counts.items()}

    @property
    def operations(self) -> dict[str, str]:
        """Return name of a command -> what happened to it. A replaced command is not called deleted."""
        found: dict[str, str] = {}
        for event in self.events:
            if not isinstance(event, ResourceDone) or event.type != "command:local:Command":
                continue
            if event.operation != "deleted" or event.name not in found:
                found[event.name] = event.operation
        return found

    @property
    def lines(self) -> list[str]:
        return [event.line for event in self.events if isinstance(event, OutputLine)]

    @property
    def messages(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Message))


@dataclass
class Tiny:
    """The project. Its commands append words to its log."""

    path: Path
    run_root: Path
    stack_name: str = "t"
    name: str = "tiny"
    events: list[Event] = field(default_factory=list)

    @property
    def stack(self) -> Stack:
        return Stack(self.path, self.stack_name)

    @property
    def log(self) -> Path:
        return self.path.parent / "log"

    @property
    def words(self) -> list[str]:
        """Return what the commands wrote since the last call."""
        words = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return words

    @property
    def state_file(self) -> Path:
        return locations.state_dir(self.stack) / STATE_FILE

    @property
    def made(self) -> dict[str, dict[str, Any]]:
        """Return what the state lists, by the commands' names."""
        listed = json.loads(self.state_file.read_text())["made"] if self.state_file.exists() else {}
        return {urn.rpartition("::")[2]: made for urn, made in listed.items()}

    def write(self, program: str, config: str = "", *, prelude: bool = True) -> Tiny:
        text = (PRELUDE.format(log=str(self.log)) if prelude else "") + textwrap.dedent(program)
        (self.path / "__main__.py").write_text(text)
        (self.path / "Pulumi.yaml").write_text(f"name: {self.name}\nruntime: python\n")
        self.stack.file.write_text(textwrap.dedent(config))
        return self

    @property
    def engine(self) -> EmbeddedRunner:
        return EmbeddedRunner(self.stack)

    def up(self, *, benchmark: bool = True) -> Run:
        self.events = []
        outputs = self.engine.up(self.events.append, benchmark=benchmark)
        return Run(outputs, self.events)

    def destroy(self) -> Run:
        self.events = []
        self.engine.destroy(self.events.append)
        return Run(None, self.events)

    @property
    def last(self) -> Run:
        """The last run, also if it raised an error."""
        return Run(None, self.events)

    @contextmanager
    def process(
        self, verb: str, *, grace: float | None = None, before: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """Start the same run in a separate process, for tests that kill it.

        Args:
            grace: seconds that commands have after an interrupt; `None` means the product's own value.
            before: Python that the process executes before the run.
        """
        code = textwrap.dedent(f"""
            import sys
            from pathlib import Path
            sys.path.insert(0, {str(ROOT)!r})
            from infra.errors import UserError
            from cli.engine import embedded, interrupt
            from infra.program import locations
            from infra.program.stack import Stack
            locations.run_root = lambda: Path({str(self.run_root)!r})
            interrupt.GRACE_SECONDS = {grace!r} or interrupt.GRACE_SECONDS
            exec({before!r})
            try:
                stack = Stack(Path({str(self.path)!r}), {self.stack_name!r})
                embedded.EmbeddedRunner(stack).{verb}(lambda e: print(e, flush=True))
            except UserError as error:
                sys.exit(f"UserError: {{error}}")
            """)
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def lives(pid: int) -> bool:
    """Return whether there is a process with this pid that has not ended."""
    process = ProcessId.of(pid)
    return process is not None and process.alive()


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """Make a project with its own state and run directories."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_root = tmp_path / "run"
    monkeypatch.setattr(locations, "run_root", lambda: run_root)
    project = tmp_path / "a project"
    project.mkdir()
    return Tiny(project, run_root)
