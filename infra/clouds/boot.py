"""Waiting until the cluster's machines have booted what is published, and saying how far they are.

The boot report in the bucket is all that is asked: it is there when the machine cannot be reached, and it has
the last lines of a step that failed.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.clouds import entrance, userdata
from infra.clouds.cloud import ALIVE, PYTHON, Cloud, Machine, Place
from infra.errors import UserError
from infra.node.model import Access, ClusterDesign
from infra.ssh import openssh

WAIT_SECONDS = 2700.0
"""The head installs Slurm and builds the training environment at its first boot."""
POLL_SECONDS = 5.0
APPLY_SECONDS = 60.0
APPLY = f"sudo systemctl restart --no-block {userdata.UNIT}"
LOOKS = 6
"""What one reads right after a creation may lag; its end does not."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which machines of which cluster, from the Pulumi program.

    Attributes:
        hosts: in the order in which they boot.
        login: the one of them where users log in.
        mode, key: `access`'s.
    """

    place: Place
    bucket: str
    hosts: Sequence[str]
    login: str
    mode: str
    key: str | None = None

    @classmethod
    def of(cls, design: ClusterDesign, bucket: str) -> Wish:
        return cls(
            place=Place.of(design),
            bucket=bucket,
            hosts=[host.name for host in design.hosts],
            login=design.login_hosts()[0].name,
            mode=design.access.mode,
            key=design.access.key,
        )

    @classmethod
    def parse(cls, text: str) -> Wish:
        fields = json.loads(text)
        return cls(**{**fields, "place": Place(**fields["place"])})

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclass(slots=True)
class Waiter:
    """Args:
    say: told of each step that begins.
    apply: has a machine boot once more; by SSH unless given.
    """

    wish: Wish
    cloud: Cloud
    say: Callable[[str], None]
    apply: Callable[[Machine, dict[str, Any]], None] | None = None
    seconds: float = WAIT_SECONDS
    sleep: Callable[[float], None] = time.sleep
    _told: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Wait for every host.

        Returns:
            `host_keys` of the login machine, `login_user`, and the controller's `scheduler_version`.

        Raises:
            UserError: a boot failed, with its last lines, or took too long.
        """
        user = self.cloud.user()
        reports = {host: self.host(host) for host in self.wish.hosts}
        return {
            "host_keys": reports[self.wish.login]["host_keys"],
            "login_user": user,
            "scheduler_version": reports["controller"]["facts"].get("slurm", "slurm"),
        }

    def host(self, host: str) -> dict[str, Any]:
        """Wait for one host, and have it boot again where it runs what was published before."""
        deadline = time.monotonic() + self.seconds
        published = self.cloud.changed(self.wish.bucket, "current.json")
        stale: float | None = None
        first = True
        while True:
            machine = self._machine(host)
            if machine.state == "stopped":
                # As a change of its disks leaves it.
                self.say(f"{host}: starting it again")
                self.cloud.start([machine])
            report = entrance.boot_report(self.cloud, self.wish.bucket, host)
            # An older one is of another machine in the same seat.
            if report is not None and report["started"] > machine.launched and report["started"] != stale:
                old = report["started"] < published and report["state"] in ("ready", "failed")
                if old or (first and report["state"] == "failed"):
                    self.say(f"{host}: booting again, with what is published now")
                    stale = report["started"]
                    (self.apply or self._apply)(machine, report)
                elif report["state"] == "ready":
                    return report
                elif report["state"] == "failed":
                    raise UserError(failed(host, report))
                else:
                    self._progress(host, report)
            first = False
            if time.monotonic() > deadline:
                raise UserError(self._late(host, machine, report))
            self.sleep(POLL_SECONDS)

    def _machine(self, host: str) -> Machine:
        for look in range(LOOKS):
            if look:
                self.sleep(POLL_SECONDS)
            if there := self.cloud.machines(*ALIVE, host=host):
                return there[0]
        cluster = self.wish.place.cluster
        raise UserError(
            f"{self.cloud.label} has no machine {host} of cluster {cluster}: somebody has ended it"
        )

    def _apply(self, machine: Machine, report: dict[str, Any]) -> None:
        access = Access(self.wish.mode, key=self.wish.key)
        target = entrance.target(self.cloud, access, machine, report["host_keys"], PYTHON)
        openssh.run(target, APPLY, seconds=APPLY_SECONDS)

    def _progress(self, host: str, report: dict[str, Any]) -> None:
        step = report["steps"][-1]["name"] if report["steps"] else report["state"]
        if self._told.get(host) != step:
            self._told[host] = step
            self.say(f"{host}: {step}")

    def _late(self, host: str, machine: Machine, report: dict[str, Any] | None) -> str:
        if report is None or report["started"] <= machine.launched:
            return (
                f"{host} ({machine.id}, {machine.state}) has not reported within {self.seconds:g} s: it has "
                f"not reached the cluster's bucket. Its console says why: {self.cloud.console_line(machine)}"
            )
        step = report["steps"][-1]["name"] if report["steps"] else "start"
        return f"{host} is still at step {step} after {self.seconds:g} s; run `up` again to go on waiting"


def failed(host: str, report: dict[str, Any]) -> str:
    """The step, its last lines, what to do."""
    return (
        f"{failure(host, report)}\n"
        "Mend the cause and run `up` again: the machine boots once more, from that step on."
    )


def failure(host: str, report: dict[str, Any]) -> str:
    """The step and its last lines."""
    step = report["steps"][-1]
    lines = "".join(f"\n  {line}" for line in step.get("tail") or [])
    return f"{host} failed to boot at step {step['name']}: {step.get('note', '')}{lines}"
