"""A small engine for the tests of `RemoteShell` where there is no Pulumi CLI: it performs what is registered.

It stands in for two things. For the engine: create, update, replace on changed triggers, delete, with the
real one's order. And for pulumi-command's own SSH client, by OpenSSH with the connection's address, user,
port, host key and the agent from the environment; tests/engine has the same tests with the real client.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import mocks

from cli.runner import wire
from tests.support.recorder import Recorder, run

COMMANDS = ("command:local:Command", "command:remote:Command")
COPY = "command:remote:CopyToRemote"


class CommandFailed(Exception):  # noqa: N818  what pulumi prints as an error
    """A command failed; the text is what was printed."""


@dataclass
class Record:
    """A resource as the state has it."""

    type: str
    inputs: dict[str, Any]
    deleted_with: str
    stdout: str = ""


@dataclass
class StandIn:
    """Attributes:
    operations: what the last `up` or `destroy` did, by the resources' names.
    cwd: the project's folder, in which local commands run.
    """

    cwd: Path
    state: dict[str, Record] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)

    def up(self, program: Callable[[], None]) -> None:
        """Raises CommandFailed: what was done before stays done."""
        self.operations = {}
        recorder = Recorder(_Performing(self))
        recorder.mocks.recorder = recorder  # type: ignore[attr-defined]
        run(recorder, program)
        self._delete([name for name in self.state if name not in recorder.asked])

    def destroy(self) -> None:
        self.operations = {}
        self._delete(list(self.state))

    def register(self, name: str, wanted: Record, *, before: bool) -> str:
        """Create, update or replace; what the command printed."""
        have = self.state.get(name)
        if have is not None and have.inputs == wanted.inputs:
            return have.stdout
        operation = "created" if have is None else "updated"
        if have is not None and have.inputs.get("triggers") != wanted.inputs.get("triggers"):
            operation = "replaced"
            if before:
                self._perform(have, "delete")
                del self.state[name]
        wanted.stdout = self._perform(wanted, "update" if operation == "updated" else "create")
        if operation == "replaced" and not before and have is not None:
            self._perform(have, "delete")
        self.state[name] = wanted
        self.operations[name] = operation
        return wanted.stdout

    def _delete(self, names: list[str]) -> None:
        for name in reversed(names):
            record = self.state[name]
            if record.deleted_with not in names:
                self._perform(record, "delete")
            del self.state[name]
            self.operations[name] = "deleted"

    def _perform(self, record: Record, verb: str) -> str:
        inputs = record.inputs
        if record.type == COPY:
            return _copy(inputs) if verb != "delete" else ""
        line = inputs.get(verb) or (inputs["create"] if verb == "update" else None)
        if line is None:
            return ""
        text = (inputs.get("stdin") or "").encode()
        if record.type == "command:remote:Command":
            return _ssh(inputs["connection"], line, text)
        env = {**os.environ, **inputs.get("environment", {})}
        return _checked(["/bin/sh", "-c", line], text, cwd=self.cwd, env=env)


class _Performing(mocks.Mocks):
    """Answers a registration by doing what it asks for."""

    recorder: Recorder

    def __init__(self, engine: StandIn) -> None:
        self._engine = engine

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.typ not in (*COMMANDS, COPY):
            return f"{args.name}-id", args.inputs
        request = self.recorder.asked[args.name]
        deleted_with = request.deletedWith.rpartition("::")[2]
        record = Record(args.typ, _plain(args.inputs), deleted_with)
        stdout = self._engine.register(args.name, record, before=request.deleteBeforeReplace)
        return f"{args.name}-id", {**args.inputs, "stdout": stdout}

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise AssertionError(args.token)


def _plain(value: Any) -> Any:
    """Inputs without the marks of secrets; a file as its content, by which the engine compares it."""
    if isinstance(value, pulumi.FileAsset):
        return Path(value.path).read_bytes()
    if wire.is_secret(value):
        return _plain(value["value"])
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _copy(inputs: dict[str, Any]) -> str:
    path = inputs["remotePath"]
    folder = shlex.quote(str(Path(path).parent))
    line = f"mkdir -p {folder} && cat > {shlex.quote(path)}"
    return _ssh(inputs["connection"], line, inputs["source"])


def _ssh(connection: dict[str, Any], line: str, stdin: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = ["ssh", "-F", "none", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oLogLevel=ERROR"]
        # One attempt takes the place of all.
        seconds = int(connection["perDialTimeout"]) * int(connection["dialErrorLimit"])
        command += [f"-oConnectTimeout={seconds}", "-oGlobalKnownHostsFile=none"]
        command += _known(Path(folder) / "known", connection)
        return _checked([*command, connection["host"], line], stdin)


def _known(file: Path, connection: dict[str, Any]) -> list[str]:
    """Whom to expect, and as whom; without a host key this stand-in trusts nobody."""
    file.write_text(f"it {connection['hostKey']}\n")
    port, user = str(int(connection["port"])), connection["user"]
    return ["-oHostKeyAlias=it", f"-oUserKnownHostsFile={file}", "-p", port, "-l", user]


def _checked(command: list[str], stdin: bytes, **options: Any) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False, **options)
    if done.returncode:
        raise CommandFailed((done.stdout + done.stderr).decode())
    return str(done.stdout.decode()).removesuffix("\n")
