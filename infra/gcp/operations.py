"""What the Google Cloud stacks' commands run on the engineer's machine, and the way through IAP."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from infra import pages
from infra.clouds import operations
from infra.clouds.cloud import Place
from infra.clouds.operations import Verb
from infra.errors import EXIT_REFUSED, UserError
from infra.gcp import account, builds, way_in
from infra.gcp.cloud import GcpCloud
from infra.runner import locations

MODULE = "infra.gcp.operations"
NO_CLI = (
    "Identity-Aware Proxy needs the gcloud CLI, and `gcloud` is not on PATH: install it "
    f"({pages.GCLOUD}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Be the way to an instance's port (OpenSSH's ProxyCommand), with a key of the user's at OS Login."""
    way_in.bring_key(account.of(options.project), locations.home() / ".ssh")
    line = way_in.tunnel(options.project, options.zone, options.instance, options.port)
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError(NO_CLI, EXIT_REFUSED) from None


def user(options: argparse.Namespace) -> dict[str, Any]:
    """The user's name on the project's machines, with a key of theirs at OS Login."""
    return {"login_user": way_in.bring_key(account.of(options.project), locations.home() / ".ssh")}


def baked(options: argparse.Namespace) -> dict[str, Any]:
    """Wait until a machine has become what an image holds, and has stopped."""
    cloud = GcpCloud(Place(options.cluster, options.region, options.zone, options.project))
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
