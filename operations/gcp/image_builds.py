"""Waits until a machine is ready to become an image: its boot report says so, and it has stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.errors import UserError
from node.bootstrap.vm.images import ROLE
from operations.clouds import boots, ssh_access
from operations.clouds.cloud import ALIVE, Cloud, Machine
from operations.waiting import attempts

BUILD_SECONDS = 5400.0
"""The time limit. A quarter of an hour is usual for the packages and, on some machines, a driver's build."""
BUILD_POLL_SECONDS = 10.0


def wait_until_baked(
    cloud: Cloud,
    instance: str,
    host: str,
    bucket: str,
    say: Callable[[str], None],
    seconds: float = BUILD_SECONDS,
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
    reported = ""
    first = True
    for _ in attempts(seconds, BUILD_POLL_SECONDS, sleep):
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
                raise UserError(boots.failed_step(host, report), code="boot.step-failed")
            if machine.state == "stopped":
                if report["state"] == "ready":
                    return instance
                raise UserError(
                    f"{host} ({instance}) was stopped at step {_step(report)}. Run `up` again, which starts "
                    "it",
                    code="image.machine-stopped",
                )
            if reported != (step := _step(report)):
                reported = step
                say(f"{host}: {step}")
        elif machine.state == "stopped":
            raise UserError(
                f"{host} ({instance}) has stopped and has not reported what it did. Its console says why: "
                f"{cloud.console_line(machine)}",
                code="image.not-reported",
            )
        first = False
    raise UserError(
        f"{host} ({instance}, {machine.state}) has not become an image within {seconds:g} s. Its "
        f"console says how far it is: {cloud.console_line(machine)}",
        code="image.late",
    )


def _machine(cloud: Cloud, instance: str, host: str) -> Machine:
    builders = [machine for machine in cloud.machines(*ALIVE, role=ROLE, host=host) if machine.id == instance]
    if not builders:
        raise UserError(
            f"{cloud.label} has no machine {instance}: somebody has ended it. Run `up` again",
            code="image.machine-gone",
        )
    return builders[0]


def _step(report: dict[str, Any]) -> str:
    return str(report["steps"][-1]["name"] if report["steps"] else report["state"])
