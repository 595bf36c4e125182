"""Ways to run the program of `remote_program`: the embedded runner, the Pulumi CLI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cli.console.events import Event, ResourceDone
from infra.errors import UserError
from infra.program.stack import Stack
from tests.support.checkout import CODE, ROOT
from tests.support.project_file import project_file

NAME = "tiny"


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        operations: name of a resource -> what happened to it; unchanged resources are left out.
        text: the output and the error.
    """

    failed: bool
    text: str
    operations: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)


class Driver(Protocol):
    """Runs the program in its project."""

    @property
    def project(self) -> Path: ...

    def up(self, spec: dict[str, Any]) -> Outcome: ...

    def destroy(self) -> Outcome: ...


def make_project(folder: Path) -> Path:
    """Copy the parts of a checkout that the program needs into a folder with a space in its name."""
    folder.mkdir(parents=True)
    for part in CODE:
        # Bytecode is copied, because compiling takes a second in every project.
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(Path(__file__).with_name("remote_program.py"), folder / "__main__.py")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "Pulumi.yaml").write_text(f"name: {NAME}\nruntime: python\n")
    (folder / "Pulumi.t.yaml").write_text("config: {}\n")
    return folder


def folded(done: list[tuple[str, str]]) -> dict[str, str]:
    """Return name of a resource -> what happened to it. A replaced resource is not called deleted."""
    found: dict[str, str] = {}
    for name, operation in done:
        if operation != "unchanged" and (operation != "deleted" or name not in found):
            found[name] = operation
    return found


class Embedded:
    """The embedded runner in a separate process, with the project's own copy of the code."""

    _CODE = """
import json, sys
from pathlib import Path
from infra.errors import UserError
from cli.engine.embedded import EmbeddedRunner
from infra.program import locations
from infra.program.stack import Stack
from cli.console.events import OutputLine, ResourceDone
locations.run_root = lambda: Path(sys.argv[2])
done, text, outputs = [], [], {}
def note(event):
    if isinstance(event, ResourceDone) and event.type.startswith("command:"):
        done.append((event.name, event.operation))
    if isinstance(event, OutputLine):
        text.append(event.line)
try:
    outputs = getattr(EmbeddedRunner(Stack(Path.cwd(), "t")), sys.argv[1])(note) or {}
    failed = False
except UserError as error:
    text.append(str(error))
    failed = True
print(json.dumps([failed, "\\n".join(text), done, outputs]))
"""

    def __init__(self, folder: Path) -> None:
        self.project = make_project(folder / "a project")
        self._folder = folder

    def up(self, spec: dict[str, Any]) -> Outcome:
        (self.project / "spec.json").write_text(json.dumps(spec))
        return self._run("up")

    def destroy(self) -> Outcome:
        return self._run("destroy")

    def _run(self, verb: str) -> Outcome:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PULUMI_", "SLURM_"))}
        env |= {"PYTHONPATH": str(self.project), "XDG_STATE_HOME": str(self._folder / "state")}
        done = subprocess.run(
            [sys.executable, "-c", self._CODE, verb, str(self._folder / "run")],
            cwd=self.project,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        failed, text, what, outputs = json.loads(done.stdout)
        return Outcome(failed, text, folded(what), outputs)


class Cli:
    """The Pulumi CLI with its command plugin. The environment sets the backend."""

    def __init__(self, folder: Path) -> None:
        self.project = make_project(folder / "a project")
        (self.project / "Pulumi.yaml").write_text(project_file(NAME))
        # The CLI looks here for the versions of the SDKs.
        for name in ("pyproject.toml", "uv.lock"):
            shutil.copy(ROOT / name, self.project)

    def up(self, spec: dict[str, Any]) -> Outcome:
        (self.project / "spec.json").write_text(json.dumps(spec))
        return self._run("up")

    def destroy(self) -> Outcome:
        return self._run("destroy")

    def _run(self, verb: str) -> Outcome:
        from cli.engine.automation import PulumiRunner

        events: list[Event] = []
        try:
            outputs = getattr(PulumiRunner(Stack(self.project, "t"), local=False), verb)(events.append)
        except UserError as error:
            return Outcome(True, f"{error}\n{_said(events)}", _operations(events))
        return Outcome(False, _said(events), _operations(events), outputs or {})


def _operations(events: list[Event]) -> dict[str, str]:
    done = [e for e in events if isinstance(e, ResourceDone) and e.type.startswith("command:")]
    return folded([(event.name, event.operation) for event in done])


def _said(events: list[Event]) -> str:
    lines = [getattr(event, "line", None) or getattr(event, "text", None) for event in events]
    return "\n".join(line for line in lines if isinstance(line, str))
