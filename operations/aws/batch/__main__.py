"""The commands of Batch stacks' resources on the engineer's machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from infra import bundle
from infra.aws.batch.definition import ImageRequest
from infra.clouds.commands import ClusterRef
from operations.aws import account
from operations.aws.batch import shutdown
from operations.aws.batch.container_image import provide
from operations.clouds import commands


def image(_options: argparse.Namespace) -> dict[str, Any]:
    """Build and push the container image. The request is JSON on standard input."""
    request = ImageRequest.parse(sys.stdin.read())
    place = ClusterRef("", request.region, provider_settings=request.provider_settings)
    ecr = account.client(place, "ecr")
    return {"digest": provide(request, ecr, commands.say, bundle.ROOT)}


def finish(options: argparse.Namespace) -> dict[str, Any]:
    """End the jobs and let no machine start, then have the file systems write to S3."""
    batch, fsx = account.clients(commands.place(options), "batch", "fsx")
    ended = shutdown.end_jobs(batch, options.queue, commands.say)
    shutdown.stop_machines(batch, options.environment)
    return {"ended": ended, "exported": shutdown.export(fsx, options.cluster, commands.say)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    kinds = parser.add_subparsers(dest="verb", required=True)
    for verb, names in {"image": (), "end": ("region", "cluster", "queue", "environment")}.items():
        added = kinds.add_parser(verb)
        for name in ("stack", *names):
            added.add_argument(f"--{name}", required=True)
        added.add_argument(commands.SETTINGS)
    return parser.parse_args(arguments)


def main() -> int:
    return commands.run({"image": image, "end": finish}, parse())


if __name__ == "__main__":
    sys.exit(main())
