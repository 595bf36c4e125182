"""Waits until the cluster's machines have booted what is published, and reports their progress.

The boot report in the bucket is the only source. It can be read when the machine cannot be reached, and it
has the last lines of a step that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from infra.clouds import userdata
from infra.clouds.commands import WaitRequest
from infra.errors import UserError
from node.bootstrap.report import SENTENCES
from operations import openssh
from operations.clouds import ssh_access
from operations.clouds.cloud import ALIVE, Cloud, Machine
from operations.waiting import attempts

WAIT_SECONDS = 2700.0
"""How long one host may take. At its first boot the controller installs Slurm and builds the training
environment."""
POLL_SECONDS = 5.0
APPLY_SECONDS = 60.0
APPLY = f"sudo systemctl restart --no-block {userdata.UNIT}"
LOOKS = 6
"""How often a missing machine is looked for: a cloud's lists may lag behind a creation."""


@dataclass(slots=True)
class Waiter:
    """Waits for the hosts of one request.

    Attributes:
        say: Is called with a sentence for each step that begins.
        apply: Makes a machine boot again; over SSH by default.
        seconds: How long one host may take.
    """

    request: WaitRequest
    cloud: Cloud
    say: Callable[[str], None]
    apply: Callable[[Machine, dict[str, Any]], None] | None = None
    seconds: float = WAIT_SECONDS
    sleep: Callable[[float], None] = time.sleep
    _told: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Wait for every host.

        Returns:
            `host_keys` of the login machine, `login_user` and `scheduler_version`, which is the controller's.

        Raises:
            UserError: A boot failed (the message has its last lines) or took too long.
        """
        user = self.cloud.user(self.request.access)
        reports = {host: self.host(host) for host in self.request.hosts}
        return {
            "host_keys": reports[self.request.login]["host_keys"],
            "login_user": user,
            "scheduler_version": reports["controller"]["facts"].get("slurm", "slurm"),
        }

    def host(self, host: str) -> dict[str, Any]:
        """Wait for one host, and make it boot again if it runs an older publication."""
        published = self.cloud.changed(self.request.bucket, "current.json")
        stale: float | None = None
        first = True
        for _ in attempts(self.seconds, POLL_SECONDS, self.sleep):
            machine = self._machine(host)
            if machine.state == "stopped":
                # A change of its disks leaves it stopped.
                self.say(f"{host}: starting it again")
                self.cloud.start([machine])
            report = ssh_access.boot_report(self.cloud, self.request.bucket, host)
            # A report from before the launch is that of an earlier machine of this host.
            if report is not None and report["started"] > machine.launched and report["started"] != stale:
                old = report["started"] < published and report["state"] in ("ready", "failed")
                if old or (first and report["state"] == "failed"):
                    self.say(f"{host}: booting again, with what is published now")
                    stale = report["started"]
                    (self.apply or self._apply)(machine, report)
                elif report["state"] == "ready":
                    for key in SENTENCES:
                        if sentence := report["facts"].get(key):
                            self.say(f"{host}: {sentence}")
                    return report
                elif report["state"] == "failed":
                    raise UserError(failed_step(host, report), code="boot.step-failed")
                else:
                    self._progress(host, report)
            first = False
        raise UserError(self._late(host, machine, report), code="boot.late")

    def _machine(self, host: str) -> Machine:
        for look in range(LOOKS):
            if look:
                self.sleep(POLL_SECONDS)
            if machines := self.cloud.machines(*ALIVE, host=host):
                return machines[0]
        cluster = self.request.place.cluster
        raise UserError(
            f"{self.cloud.label} has no machine {host} of cluster {cluster}: somebody has ended it",
            code="boot.machine-gone",
        )

    def _apply(self, machine: Machine, report: dict[str, Any]) -> None:
        target = ssh_access.target(self.cloud, self.request.access, machine, report["host_keys"])
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


def failed_step(host: str, report: dict[str, Any]) -> str:
    """Return the step that failed, its last lines, and what to do."""
    return (
        f"{boot_failure(host, report)}\n"
        "Fix the cause and run `up` again: the machine boots again, from that step on."
    )


def boot_failure(host: str, report: dict[str, Any]) -> str:
    """Return the step that failed and its last lines."""
    step = report["steps"][-1]
    lines = "".join(f"\n  {line}" for line in step.get("tail") or [])
    return f"{host} failed to boot at step {step['name']}: {step.get('note', '')}{lines}"
