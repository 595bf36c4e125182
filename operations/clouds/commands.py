"""The commands of stacks' resources on the engineer's machine: `operations.<cloud> VERB …`.

Every verb is idempotent and limited in time. Its result is on standard output and stays the same for the same
cluster; its progress is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from infra.clouds import userdata
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from node.system import plurals
from operations import openssh
from operations.clouds import ssh_access
from operations.clouds.cloud import ALIVE, ENDING, Cloud, Machine
from operations.waiting import attempts

# Terminates what Slurm has launched, without the controller, which may be dead or still launching.

TERMINATION_POLL_SECONDS = 5.0
TERMINATION_SECONDS = 900.0
"""The time limit. Machines with many network cards take minutes to terminate, and keep their network
interfaces until then."""
QUIET_LOOKS = 2
"""How often in a row the list must be empty: a cloud's lists lag behind a launch."""


def terminate_compute(
    cloud: Cloud,
    say: Callable[[str], None],
    seconds: float = TERMINATION_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Terminate a cluster's compute machines, wait until they are gone, and remove what they left behind.

    Args:
        seconds: The time limit.

    Returns:
        The number of terminated machines.

    Raises:
        UserError: Some machines are left after `seconds`, or the cloud refuses.
    """
    cluster = cloud.place.cluster
    requested: set[str] = set()
    quiet, reported = 0, -1
    for left in attempts(seconds, TERMINATION_POLL_SECONDS, sleep):
        machines = cloud.machines(*ALIVE, *ENDING, role="compute")
        alive = [machine for machine in machines if machine.state in ALIVE]
        if alive:
            cloud.end(alive)
        requested.update(machine.id for machine in alive)
        quiet = 0 if machines else quiet + 1
        if machines and len(machines) != reported:
            say(f"ending {plurals.count(len(machines), 'machine')} of cluster {cluster}")
            reported = len(machines)
        if quiet == QUIET_LOOKS:
            break
        if machines and not left:
            names = ", ".join(f"{machine.name} ({machine.id})" for machine in machines[:5])
            have = "has" if len(machines) == 1 else "have"
            raise UserError(
                f"{plurals.count(len(machines), 'machine')} of cluster {cluster} {have} not ended within "
                f"{seconds:g} s: {names}. "
                f"Run the command again; what still costs money is in {cloud.label}'s console under the "
                f"name of the cluster, {cluster}",
                code="cloud.machines-left",
            )
    cloud.remove_loose()
    return len(requested)


# Waits until the cluster's machines have booted what is published, and reports their progress.
#
# The boot report in the bucket is the only source. It can be read when the machine cannot be reached, and it
# has the last lines of a step that failed.

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
                    for key in ("replaced", "waits"):
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
            if found := self.cloud.machines(*ALIVE, host=host):
                return found[0]
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


Verb = Callable[[argparse.Namespace], dict[str, Any]]
Open = Callable[[ClusterRef], Cloud]
"""Gives a provider's `Cloud` for a cluster, without a call."""


SETTINGS = "--provider-settings"
"""The argument that says as whom the cloud is asked (`infra.config.provider_settings`)."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def replace_process(line: list[str], refusal: str) -> NoReturn:
    """Replace this process by a cloud's own program, for OpenSSH's ProxyCommand.

    Args:
        refusal: The message for a program that is not installed.

    Raises:
        UserError: Exit 3; the program is not installed.
    """
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError(refusal, EXIT_REFUSED, code="cloud.tool-missing") from None


def place(options: argparse.Namespace) -> ClusterRef:
    """Return the cluster that the arguments of a verb name. Those that a verb does not have are empty."""
    given = vars(options)
    more = (given.get(name) for name in ("zone", "project", "provider_settings"))
    return ClusterRef(given.get("cluster") or "", given.get("region") or "", *more)


def verbs(opened: Open) -> dict[str, Verb]:
    """Return the verbs that every cloud has."""

    def terminate_nodes(options: argparse.Namespace) -> dict[str, Any]:
        """Terminate the machines that Slurm has launched. The controller is gone, so no more are launched."""
        return {"terminated": terminate_compute(opened(place(options)), say, options.seconds)}

    def wait(options: argparse.Namespace) -> dict[str, Any]:
        """Wait until the hosts have booted what is published. The request is JSON on standard input."""
        request = WaitRequest.parse(sys.stdin.read())
        return Waiter(request, opened(request.place), say).facts()

    return {"terminate-nodes": terminate_nodes, "wait": wait}


def parser() -> tuple[argparse.ArgumentParser, Callable[[str], argparse.ArgumentParser]]:
    """Return the parser for those verbs, and a function that adds a provider's own verb."""
    top = argparse.ArgumentParser()
    kinds = top.add_subparsers(dest="verb", required=True)
    terminating, waiting = kinds.add_parser("terminate-nodes"), kinds.add_parser("wait")
    terminating.add_argument("--seconds", type=float, default=TERMINATION_SECONDS)
    for verb in (terminating, waiting):
        # This option is for readers of the resource; no verb uses it.
        verb.add_argument("--stack", required=True)
    for name in ("region", "cluster"):
        terminating.add_argument(f"--{name}", required=True)
    for name in ("--zone", "--project", SETTINGS):
        terminating.add_argument(name)
    return top, kinds.add_parser


def run(known: Mapping[str, Verb], options: argparse.Namespace) -> int:
    """Run a verb and return the exit status. A failure is one message on standard error."""
    try:
        print(json.dumps(known[options.verb](options), sort_keys=True))
    except UserError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
