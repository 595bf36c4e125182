"""Builds the stack's container image with Docker and pushes it to its repository, unless it is there."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.aws.batch import access
from infra.aws.batch.definition import ImageRequest
from infra.errors import EXIT_REFUSED, UserError
from operations import pages, programs
from operations.aws.account import explained

PLATFORM = "linux/amd64"
NO_DOCKER = (
    "the container image has to be built, and `docker` is not on PATH. Install Docker "
    f"({pages.DOCKER}), or run `up` once on a machine that has it: the image is then found here by its "
    "tag"
)


def provide(request: ImageRequest, ecr: Any, say: Callable[[str], None], project: Path) -> str:
    """Return the digest of the image, which is built and pushed if the repository does not have it.

    If no image has the tag of its large layers yet, it gets that tag, too.

    Args:
        ecr: The boto3 client of ECR.
        project: The folder of the checkout.

    Raises:
        UserError: There is no Docker (exit 3), or a step of it failed.
    """
    digest = _digest(ecr, request, request.tag)
    if digest is not None:
        say(f"the image {request.tag} is in the repository")
    else:
        digest = _build(request, ecr, say, project)
    if request.layers and _digest(ecr, request, request.layers) is None:
        _tag(ecr, request)
    return digest


def _build(request: ImageRequest, ecr: Any, say: Callable[[str], None], project: Path) -> str:
    dockerfile = project / access.CONTAINER
    if not dockerfile.is_file():
        raise UserError(
            f"{dockerfile} is missing: name an image that exists (batch.container.image)",
            code="docker.no-dockerfile",
        )
    if shutil.which("docker") is None:
        raise UserError(NO_DOCKER, EXIT_REFUSED, code="docker.missing")
    address = f"{request.repository}:{request.tag}"
    say(f"building {address}: the first time takes minutes")
    # The Dockerfile notes its own name in the image, for the result's record.
    named = ["--build-arg", f"IMAGE={address}", "--tag", address]
    place = ["--platform", PLATFORM, "--file", str(dockerfile)]
    _docker("build", *place, *named, str(project / access.CONTEXT))
    say(f"pushing {address}")
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-") as folder:
        # Docker's login goes into a temporary folder, so that no credentials stay in the user's.
        user, password, host = _login(ecr)
        _docker("--config", folder, "login", "--username", user, "--password-stdin", host, text=password)
        _docker("--config", folder, "push", address)
    pushed = _digest(ecr, request, request.tag)
    if pushed is None:
        raise UserError(
            f"{address} was pushed, and the repository does not have it", code="docker.not-pushed"
        )
    return pushed


def _digest(ecr: Any, request: ImageRequest, tag: str) -> str | None:
    with explained():
        try:
            answer = ecr.describe_images(repositoryName=_name(request), imageIds=[{"imageTag": tag}])
        except ecr.exceptions.ImageNotFoundException:
            return None
    return str(answer["imageDetails"][0]["imageDigest"])


def _tag(ecr: Any, request: ImageRequest) -> None:
    """Give the image its second tag by its manifest, so that no layer is transferred."""
    name = _name(request)
    with explained():
        answer = ecr.batch_get_image(repositoryName=name, imageIds=[{"imageTag": request.tag}])
        (image,) = answer["images"]
        known = {key: image[key] for key in ("imageManifest", "imageManifestMediaType") if key in image}
        ecr.put_image(repositoryName=name, imageTag=request.layers, **known)


def _name(request: ImageRequest) -> str:
    """Return the repository's name, without the registry's host."""
    return request.repository.partition("/")[2]


def _login(ecr: Any) -> tuple[str, str, str]:
    """User, password and host of the account's registry; the password is valid for half a day."""
    with explained():
        (data,) = ecr.get_authorization_token()["authorizationData"]
    user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
    return user, password, str(data["proxyEndpoint"])


def _docker(*arguments: str, text: str = "") -> None:
    """Run Docker, with its output on standard error.

    Raises:
        UserError: It failed; the message has its last words.
    """
    done = programs.capture(["docker", *arguments], text=text, merged=True)
    if done.failed:
        tail = "\n".join(f"  {line}" for line in (done.out or done.err).splitlines()[-15:])
        verb = next(word for word in arguments if word in ("build", "login", "push"))
        raise UserError(
            f"`docker {verb}` failed with exit status {done.status}:\n{tail}", code="docker.failed"
        )
