"""The commands of AWS stacks' resources on the engineer's machine: `python -m cli.aws.operations VERB …`.

They are the verbs of every cloud, `unbake`, and `proxy`, which OpenSSH runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cli import hints
from cli.aws import account, ami, ssh_keys
from cli.aws.cloud import AwsCloud
from cli.clouds import operations
from infra.aws import access
from infra.program import locations

NO_CLI = (
    "Session Manager needs the AWS CLI and its plugin, and `aws` is not on PATH: install both "
    f"({hints.AWS_CLI_PAGE} and {hints.SESSION_MANAGER_PAGE}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Make an instance accept one of the user's keys, and connect to its port (OpenSSH's ProxyCommand)."""
    client = account.client("ec2-instance-connect", options.region)
    ssh_keys.bring_key(client, options.instance, options.user, locations.home())
    operations.replace_process(access.session(options.region, options.instance, options.port), NO_CLI)


def unbake(options: argparse.Namespace) -> dict[str, Any]:
    """Remove the images that a recipe has made, from which no machine starts any more."""
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
