"""The commands of AWS stacks' resources on the engineer's machine: `operations.aws VERB …`.

They are the verbs of every cloud, `unbake`, and `proxy`, which OpenSSH runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from infra.aws import access
from infra.program import locations
from operations import pages
from operations.aws import account, images
from operations.aws.cloud import AwsCloud
from operations.aws.instance_connect import bring_key
from operations.clouds import commands

NO_CLI = (
    "Session Manager needs the AWS CLI and its plugin, and `aws` is not on PATH: install both "
    f"({pages.AWS_CLI} and {pages.SESSION_MANAGER}), or use access.mode: ssh"
)


def proxy(options: argparse.Namespace) -> dict[str, Any]:
    """Make an instance accept one of the user's keys, and connect to its port (OpenSSH's ProxyCommand)."""
    place = commands.place(options)
    if not options.key_pair:
        client = account.client(place, "ec2-instance-connect")
        bring_key(client, options.instance, options.user, locations.home())
    account.export(place)
    commands.replace_process(access.session(options.region, options.instance, options.port), NO_CLI)


def unbake(options: argparse.Namespace) -> dict[str, Any]:
    """Remove the images that a recipe has made, from which no machine starts any more."""
    ec2, builder = account.clients(commands.place(options), "ec2", "imagebuilder")
    return {"removed": images.remove(ec2, builder, options.cluster, options.recipe, commands.say)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser, verb = commands.parser()
    proxying = verb("proxy")
    for name in ("region", "instance", "user"):
        proxying.add_argument(f"--{name}", required=True)
    proxying.add_argument("--port", default="22")
    proxying.add_argument("--key-pair", action="store_true", help="the machine knows the user's key")
    proxying.add_argument(commands.SETTINGS)
    unbaking = verb("unbake")
    for name in ("stack", "region", "cluster", "recipe"):
        unbaking.add_argument(f"--{name}", required=True)
    unbaking.add_argument(commands.SETTINGS)
    return parser.parse_args(arguments)


def main() -> int:
    return commands.run({**commands.verbs(AwsCloud), "proxy": proxy, "unbake": unbake}, parse())


if __name__ == "__main__":
    sys.exit(main())
