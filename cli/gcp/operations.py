"""The commands of Google Cloud stacks' resources on the engineer's machine.

`python -m cli.gcp.operations VERB …`: the verbs are those of every cloud, `baked`, `user`, and `proxy`,
which OpenSSH runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cli import hints
from cli.clouds import operations
from cli.clouds.operations import Verb
from cli.gcp import account, builds, ssh_keys
from cli.gcp.cloud import GcpCloud
from infra.clouds.commands import ClusterRef
from infra.program import locations

NO_CLI = (
    "Identity-Aware Proxy needs the gcloud CLI, and `gcloud` is not on PATH: install it "
    f"({hints.GCLOUD_PAGE}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Give OS Login one of the user's keys, and connect to an instance's port (OpenSSH's ProxyCommand)."""
    ssh_keys.bring_key(account.of(options.project), locations.home() / ".ssh")
    line = ssh_keys.tunnel(options.project, options.zone, options.instance, options.port)
    operations.replace_process(line, NO_CLI)


def user(options: argparse.Namespace) -> dict[str, Any]:
    """Give OS Login one of the user's keys, and return the user's name on the project's machines."""
    return {"login_user": ssh_keys.bring_key(account.of(options.project), locations.home() / ".ssh")}


def baked(options: argparse.Namespace) -> dict[str, Any]:
    """Wait until a machine is ready to become an image and has stopped."""
    cloud = GcpCloud(ClusterRef(options.cluster, options.region, options.zone, options.project))
    return {"machine": builds.wait(cloud, options.instance, options.host, options.bucket, operations.say)}


VERBS: dict[str, Verb] = {**operations.verbs(GcpCloud), "baked": baked, "proxy": proxy, "user": user}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser, add = operations.parser()
    proxying = add("proxy")
    for name in ("project", "zone", "instance"):
        proxying.add_argument(f"--{name}", required=True)
    proxying.add_argument("--port", default="22")
    add("user").add_argument("--project", required=True)
    waiting = add("baked")
    for name in ("stack", "region", "zone", "project", "cluster", "bucket", "instance", "host"):
        waiting.add_argument(f"--{name}", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(operations.run(VERBS, parse()))
