"""Checks for what would keep a stack on AWS Batch from coming up."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable

from cli.findings import Check, Finding, fine, warns
from cli.providers.aws import diagnosis, existing
from cli.providers.clouds.quotas import QUOTAS
from infra.aws.batch import access
from node.design.model import ClusterDesign
from operations import pages, programs

ANSWER_SECONDS = 10.0
"""The time in which Docker's daemon must answer."""


def checks(design: ClusterDesign | None) -> list[Check]:
    """Return the checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    wanted = [Check("credentials", functools.partial(diagnosis.credentials, design))]
    if design is not None:
        wanted += [
            Check(QUOTAS, functools.partial(diagnosis.limits, design)),
            Check("docker", functools.partial(docker, design)),
            Check(existing.PLATFORM, functools.partial(diagnosis.platform, design)),
        ]
    return wanted


def docker(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the container image can be built here, where the stack has one of its own."""
    if access.of(design).repository is None:
        return
    if shutil.which("docker") is None:
        cure = (
            f"Install it: {pages.DOCKER}. Or run `up` once on a machine that has it, or name an image "
            "that exists (batch.container.image)."
        )
        yield warns("docker", "`docker` is not on PATH, so the container image cannot be built here", cure)
    elif not _docker_answers():
        cure = "Start it (`sudo systemctl start docker`), and see that you may use it: `docker version`."
        yield warns("docker", "docker is on PATH, and its daemon does not answer", cure)
    else:
        yield fine("docker", "docker answers; the image is built and pushed by `up`")


def _docker_answers() -> bool:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return not programs.capture(command, seconds=ANSWER_SECONDS).failed
