"""The commands of Google Cloud stacks' resources on the engineer's machine.

`operations.gcp VERB …`: the verbs are those of every cloud, `baked`, `user`, and `proxy`,
which OpenSSH runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from infra.program import locations
from operations import pages
from operations.clouds import commands
from operations.clouds.commands import Verb
from operations.gcp import account
from operations.gcp.cloud import GcpCloud
from operations.gcp.image_builds import wait_until_baked
from operations.gcp.os_login import bring_key, tunnel

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
