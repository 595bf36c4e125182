"""A cloud in memory, with machines, a bucket and leftovers, for the tests of what all clouds share."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.changes.jobs import PARTITIONS_LISTING
from cli.changes.table import Rules
from cli.findings import Check
from cli.providers.clouds.listing import Listed
from cli.providers.clouds.slurm import SlurmCloudProvider
from infra import bundle
from infra.clouds.commands import ClusterRef
from infra.config.changes import Row
from infra.effects import Kind
from infra.errors import UserError
from infra.instance_types.catalog import Described
from infra.program.launcher import Run
from infra.ssh import Target
from node.design.model import Access, ClusterDesign, Settings, Site
from operations import openssh
from operations.clouds.cloud import Cloud, Machine
from operations.clouds.kept import KeptStorage
from tests.support.job_lines import inner, told

BUCKET = "bucket-1"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE"
PLACE = ClusterRef("c", "region-1")


class FakeCloud:
    """A `operations.clouds.cloud.Cloud` that records its calls.

    Attributes:
        there: the cluster's machines.
        objects: (bucket, key) -> content and time.
        refuses: the error that every call raises.
        did: what was done: verbs with names of machines.
    """

    label = "Cloud"

    def __init__(self, place: ClusterRef = PLACE) -> None:
        self.place = place
        self.there: list[Machine] = []
        self.objects: dict[tuple[str, str], tuple[bytes, float]] = {}
        self.left: list[str] = []
        self.stays: list[KeptStorage] = []
        self.refuses: UserError | None = None
        self.did: list[str] = []
        self.failures: dict[str, str] = {}
        """host -> what the cloud finds wrong with its machine."""
        self.root_disks: set[str] = set()
        """The hosts whose root disks are there without their machines."""
        self.images: dict[str, str] = {}
        """image -> the release of Slurm that its tags name."""
        self.obeys = True
        """Whether a machine that is told to end does so."""

    # --- a test's ----------------------------------------------------------------------------------------

    def run(self, name: str, role: str | None = None, state: str = "running", **more: Any) -> Machine:
        """Add a machine."""
        role = role or name.partition("-")[0]
        bucket = BUCKET if role in ("controller", "login") else None
        values: dict[str, Any] = {"private": "10.0.0.4", "public": None, "bucket": bucket, **more}
        machine = Machine(f"id-{name}", name, role, state, time.time(), **values)
        self.there.append(machine)
        return machine

    def set_state(self, name: str, state: str) -> None:
        self.there = [
            dataclasses.replace(machine, state=state, launched=time.time())
            if machine.name == name
            else machine
            for machine in self.there
        ]

    def write(self, key: str, content: bytes, at: float | None = None) -> None:
        self.objects[BUCKET, key] = (content, time.time() if at is None else at)

    def report(self, host: str, state: str, started: float | None = None, **more: Any) -> None:
        """Add a boot report, by default with a start a moment from now."""
        content = {
            "host": host, "state": state, "started": time.time() + 60 if started is None else started,
            "host_keys": [KEY], "facts": {"slurm": "slurm 23.11.4"}, "steps": [], **more,
        }  # fmt: skip
        self.write(f"boot/{host}.json", json.dumps(content).encode())

    def publish(self, design: ClusterDesign) -> None:
        settings = bundle.settings_object(Settings(design, Site("/", "slurm", "controller", "10.0.0.4")))
        current = bundle.current(b"code", settings)
        self.write(current["settings"]["key"], settings)
        self.write("current.json", json.dumps(current).encode())

    def up(self, design: ClusterDesign) -> None:
        """Add a head that has booted what was published."""
        self.run("controller")
        self.publish(design)
        self.report("controller", "ready")

    # --- operations.clouds.cloud.Cloud --------------------------------------------------------------------

    def label_of(self, text: str) -> str:
        return text.lower()

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        self._ask()
        name, role = labels.pop("host", None), labels.pop("role", None)
        assert not labels
        return [
            machine
            for machine in self.there
            if (not states or machine.state in states)
            and name in (None, machine.name)
            and role in (None, machine.role)
        ]

    def start(self, machines: Sequence[Machine]) -> None:
        self._ask()
        for machine in machines:
            self.did.append(f"start {machine.name}")
            self.set_state(machine.name, "running")

    def end(self, machines: Sequence[Machine]) -> None:
        self._ask()
        assert machines, "not a call for nothing"
        self.did.append(f"end {' '.join(machine.name for machine in machines)}")
        if self.obeys:
            self.there = [machine for machine in self.there if machine not in machines]

    def remove_loose(self) -> None:
        self._ask()
        self.did.append("remove loose")

    def end_images(self, say: Callable[[str], None]) -> None:
        self._ask()
        self.did.append("end images")

    def leftovers(self) -> list[str]:
        self._ask()
        return [*(f"machine {machine.name}" for machine in self.there), *self.left]

    def kept(self, paths: Mapping[str, str]) -> list[KeptStorage]:
        self._ask()
        return self.stays

    def read(self, bucket: str, key: str) -> bytes | None:
        self._ask()
        return self.objects.get((bucket, key), (None, 0.0))[0]

    def changed(self, bucket: str, key: str) -> float:
        self._ask()
        return self.objects[bucket, key][1]

    def user(self, access: Access) -> str:
        return "ann"

    def proxy(self, access: Access, run: Run) -> str | None:
        return None if access.mode == "ssh" else run("tunnel %h %p")

    def console_line(self, machine: Machine) -> str:
        return f"cloud console {machine.id}"

    def stop_line(self, machine: Machine) -> str:
        return f"cloud stop {machine.id}"

    def failure(self, machine: Machine) -> str | None:
        self._ask()
        return self.failures.get(machine.name)

    def keeps_root_disk(self, host: str) -> bool:
        self._ask()
        return host in self.root_disks

    def image_slurm(self, image: str) -> str | None:
        self._ask()
        return self.images.get(image)

    def bucket(self) -> str | None:
        self._ask()
        return BUCKET if self.objects else None

    def _ask(self) -> None:
        if self.refuses is not None:
            raise self.refuses


class FakeProvider(SlurmCloudProvider):
    """A provider that has a `FakeCloud` for each cluster that is asked for.

    Attributes:
        clouds: cluster -> its cloud.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clouds: dict[ClusterRef, FakeCloud] = {}

    def require(self, provider_settings: str | None) -> None: ...

    def cloud(self, place: ClusterRef) -> Cloud:
        return self.clouds.setdefault(place, FakeCloud(place))

    def describe(self, place: ClusterRef, types: Sequence[str]) -> Described:
        return Described(machines={}, unusable={})

    def clusters(self, place: ClusterRef) -> list[Listed]:
        return []

    def rules(self) -> Rules:
        return Rules(
            {
                "partitions.name": Row(Kind.LIVE),
                "login.count": Row(Kind.LIVE),
                "access.key": Row(Kind.TAKEOVER, ("access.key",)),
                "partitions.time_limit": Row(Kind.LIVE, ("partitions.time_limit",)),
                "partitions.nodes.max": Row(Kind.LIVE, ("partitions.max",), less=Kind.ENDS),
                "storage.*.path": Row(Kind.DATA),
                "storage.*.size_gib": Row(Kind.LIVE, ("storage.size_gib",), less=Kind.NEVER),
            }
        )

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        return []


class Head:
    """A fake of the head that is reached by `ssh`.

    Attributes:
        lines: the commands that ran on it; of those for Slurm, what runs in the environment of ours. Readings
            of the partitions are left out.
        partitions: what scontrol says of the partitions.
        targets: the addresses that were tried, each with its time limit in seconds.
    """

    def __init__(self, answer: str | Exception = "") -> None:
        self.answer = answer
        self.partitions = ""
        self.lines: list[str] = []
        self.targets: list[tuple[Target, float]] = []

    def __call__(self, target: Target, line: str, *, seconds: float) -> str:
        if line.endswith(shlex.quote(PARTITIONS_LISTING)) and not isinstance(self.answer, Exception):
            return self.partitions
        self.lines.append(inner(line) if line.startswith("exec /usr/bin/env ") else line)
        self.targets.append((target, seconds))
        if isinstance(self.answer, Exception):
            raise self.answer
        return told(self.answer) if "squeue" in self.lines[-1] else self.answer


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Head:
    made = Head()
    monkeypatch.setattr(openssh, "run", made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


class Pauses:
    """Pauses that take no time, and may change the fake cloud."""

    def __init__(self, *then: Any) -> None:
        self.then = list(then)
        self.pauses = 0

    def __call__(self, _seconds: float) -> None:
        self.pauses += 1
        if self.then:
            self.then.pop(0)()


_CONFORMS: type[Cloud] = FakeCloud
"""The type checker checks here that the fake implements the protocol."""
