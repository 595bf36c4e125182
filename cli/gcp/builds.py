"""Waits until a machine is ready to become an image: its boot report says so, and it has stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cli.clouds import boot, ssh_access
from cli.clouds.cloud import ALIVE, Cloud, Machine
from cli.waiting import attempts
from infra.errors import UserError
from node.bootstrap.vm.images import ROLE

SECONDS = 5400.0
"""The time limit. A quarter of an hour is usual for the packages and, on some machines, a driver's build."""
POLL_SECONDS = 10.0


def wait(
    cloud: Cloud,
    instance: str,
    host: str,
    bucket: str,
    say: Callable[[str], None],
    seconds: float = SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait for one machine. If an earlier `up` has left it stopped and unfinished, it is started again.

    Args:
        instance: The machine's name in the cloud; that of another recipe may still exist.
        host: The name of its boot report, `image-<kind>`.
        bucket: The bucket that has the report.

    Returns:
        The instance's name.

    Raises:
        UserError: A step failed (the message has its last lines), the machine does not exist, or it took too
            long.
    """
    told = ""
    first = True
    for _ in attempts(seconds, POLL_SECONDS, sleep):
        machine = _machine(cloud, instance, host)
        report = ssh_access.boot_report(cloud, bucket, host)
        # A report from before the launch is that of the machine that became the previous image.
        if report is not None and report["started"] <= machine.launched:
            report = None
        if first and machine.state == "stopped" and (report is None or report["state"] != "ready"):
            say(f"{host}: starting it again")
            cloud.start([machine])
        elif report is not None:
            if report["state"] == "failed":
                raise UserError(boot.failed(host, report))
            if machine.state == "stopped":
                if report["state"] == "ready":
                    return instance
                raise UserError(
                    f"{host} ({instance}) was stopped at step {_step(report)}. Start it again and run `up`: "
                    f"{cloud.start_line(machine)}"
                )
            if told != (step := _step(report)):
                told = step
                say(f"{host}: {step}")
        elif machine.state == "stopped":
            raise UserError(
                f"{host} ({instance}) has stopped and has not reported what it did. Its console says why: "
                f"{cloud.console_line(machine)}"
            )
        first = False
    raise UserError(
        f"{host} ({instance}, {machine.state}) has not become an image within {seconds:g} s. Its "
        f"console says how far it is: {cloud.console_line(machine)}"
    )


def _machine(cloud: Cloud, instance: str, host: str) -> Machine:
    there = [one for one in cloud.machines(*ALIVE, role=ROLE, host=host) if one.id == instance]
    if not there:
        raise UserError(f"{cloud.label} has no machine {instance}: somebody has ended it. Run `up` again")
    return there[0]


def _step(report: dict[str, Any]) -> str:
    return str(report["steps"][-1]["name"] if report["steps"] else report["state"])
