"""What the AWS stacks' commands run on the engineer's machine: the clouds' own verbs, and a proxy.

`python -m infra.aws.operations VERB …`
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from infra import pages
from infra.aws import account, ami, way_in
from infra.aws.cloud import AwsCloud
from infra.clouds import operations
from infra.errors import EXIT_REFUSED, UserError
from infra.runner import locations

NO_CLI = (
    "Session Manager needs the AWS CLI and its plugin, and `aws` is not on PATH: install both "
    f"({pages.AWS_CLI} and {pages.SESSION_MANAGER}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Be the way to an instance's port (OpenSSH's ProxyCommand), and have it accept a key of the user's."""
    client = account.client("ec2-instance-connect", options.region)
    way_in.bring_key(client, options.instance, options.user, locations.home())
    line = way_in.session(options.region, options.instance, options.port)
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError(NO_CLI, EXIT_REFUSED) from None


def unbake(options: argparse.Namespace) -> dict[str, Any]:
    """Remove what a recipe has made, from which no machine starts any more."""
    ec2, builder = account.clients(options.region, "ec2", "imagebuilder")
    return {"removed": ami.remove(ec2, builder, options.cluster, options.recipe, operations.say)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser, verb = operations.parser()
    proxying = verb("proxy")
    for name in ("region", "instance", "user"):
        proxying.add_argument(f"--{name}", required=True)
    proxying.add_argument("--port", default="22")
    unbaking = verb("unbake")
    for name in ("stack", "region", "cluster", "recipe"):
        unbaking.add_argument(f"--{name}", required=True)
    return parser.parse_args(arguments)


def main() -> int:
    return operations.run({**operations.verbs(AwsCloud), "proxy": proxy, "unbake": unbake}, parse())


if __name__ == "__main__":
    sys.exit(main())
