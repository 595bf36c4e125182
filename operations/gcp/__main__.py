"""The commands of Google Cloud stacks' resources on the engineer's machine.

`operations.gcp VERB …`: the verbs are those of every cloud, `baked`, `user`, and `proxy`,
which OpenSSH runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from infra.errors import UserError
from infra.program import locations
from node.bootstrap.vm.images import ROLE
from operations import pages
from operations.clouds import commands, ssh_access
from operations.clouds.cloud import ALIVE, Cloud, Machine
from operations.clouds.commands import Verb
from operations.gcp import account
from operations.gcp.cloud import GcpCloud, bring_key, tunnel
from operations.waiting import attempts

# Waits until a machine is ready to become an image: its boot report says so, and it has stopped.

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
                raise UserError(commands.failed_step(host, report), code="boot.step-failed")
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


NO_CLI = (
    "Identity-Aware Proxy needs the gcloud CLI, and `gcloud` is not on PATH: install it "
    f"({pages.GCLOUD}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Give OS Login one of the user's keys, and connect to an instance's port (OpenSSH's ProxyCommand)."""
    project_account = account.of(commands.place(options))
    bring_key(project_account, locations.home() / ".ssh")
    project_account.export()
    line = tunnel(options.project, options.zone, options.instance, options.port)
    commands.replace_process(line, NO_CLI)


def user(options: argparse.Namespace) -> dict[str, Any]:
    """Give OS Login one of the user's keys, and return the user's name on the project's machines."""
    return {"login_user": bring_key(account.of(commands.place(options)), locations.home() / ".ssh")}


def baked(options: argparse.Namespace) -> dict[str, Any]:
    """Wait until a machine is ready to become an image and has stopped."""
    cloud = GcpCloud(commands.place(options))
    return {"machine": wait_until_baked(cloud, options.instance, options.host, options.bucket, commands.say)}


VERBS: dict[str, Verb] = {**commands.verbs(GcpCloud), "baked": baked, "proxy": proxy, "user": user}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser, add = commands.parser()
    proxying = add("proxy")
    for name in ("project", "zone", "instance"):
        proxying.add_argument(f"--{name}", required=True)
    proxying.add_argument("--port", default="22")
    asking, waiting = add("user"), add("baked")
    asking.add_argument("--project", required=True)
    for parsing in (proxying, asking, waiting):
        parsing.add_argument(commands.SETTINGS)
    for name in ("stack", "region", "zone", "project", "cluster", "bucket", "instance", "host"):
        waiting.add_argument(f"--{name}", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(commands.run(VERBS, parse()))
