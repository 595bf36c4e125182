"""The stack's own container image: a repository in ECR, and the command that builds and pushes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws
import pulumi_command as command

from infra import bundle
from infra.aws.batch import access
from infra.aws.tags import tags
from infra.clouds import commands
from node.model import ClusterDesign

LEFT_OUT = {"__pycache__", ".venv"}
LARGE = ("batch/Dockerfile", "envs/gpu/pyproject.toml", "envs/gpu/uv.lock")
"""The files below `workload/` that determine the large layers of the image: none of them is our own code."""
DIGITS = 16


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Which image a command has to provide.

    Attributes:
        repository: The repository's address, without a tag.
        tag: Names the image by what it is built from.
        layers: A second tag, which the first image with these large layers gets; empty for none.
    """

    region: str
    repository: str
    tag: str
    layers: str = ""

    @classmethod
    def parse(cls, text: str) -> ImageRequest:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


class BatchRepository(pulumi.ComponentResource):
    """A private repository that scans what is pushed, and the image in it.

    Attributes:
        arn: The repository's ARN.
        image: The image's address by digest. A tag could be another image at each pull of each node.
        layers: The address of an image with the same large layers, which does not change with our code. A
            baked image of machines holds this one: otherwise each change of the code would need a new bake.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:BatchRepository", name, None, opts)
        repository = str(access.of(design).repository)
        made = aws.ecr.Repository(
            f"{name}-images",
            name=repository,
            # Images can be built again, and a destroy leaves nothing.
            force_delete=True,
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[
                {"encryption_type": "KMS", "kms_key": design.kms_key}
                if design.kms_key
                else {"encryption_type": "AES256"}
            ],
            tags=tags(design, repository),
            opts=pulumi.ResourceOptions(parent=self),
        )
        line = commands.line(access.OPERATIONS, "image", design)
        tag, region = content_tag(bundle.ROOT), str(design.region)
        layers = layers_tag(bundle.ROOT) if access.of(design).cached else ""
        pushed = command.local.Command(
            f"{name}-push",
            create=line,
            update=line,
            stdin=made.repository_url.apply(lambda url: ImageRequest(region, url, tag, layers).text()),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn: pulumi.Output[str] = made.arn
        self.image: pulumi.Output[str] = pulumi.Output.all(made.repository_url, pushed.stdout).apply(
            lambda known: address(*known)
        )
        self.layers: pulumi.Output[str] = pulumi.Output.all(made.repository_url, pushed.stdout).apply(
            lambda known: f"{known[0]}:{layers}"
        )
        self.register_outputs({"image": self.image})


def address(repository: str, printed: str) -> str:
    """The image's address from what the command printed. A plan pushes nothing and gets a placeholder."""
    digest = "<digest>" if printed.startswith("<") else json.loads(printed)["digest"]
    return f"{repository}@{digest}"


def content_tag(root: Path) -> str:
    """The tag of the image that this checkout's files give: a digest of names and contents."""
    folder = root / access.CONTEXT
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return _digest(
        folder, [path for path in found if not LEFT_OUT.intersection(path.relative_to(folder).parts)]
    )


def layers_tag(root: Path) -> str:
    """The tag of the first image with the large layers that this checkout's files give."""
    folder = root / access.CONTEXT
    return f"layers-{_digest(folder, [folder / name for name in LARGE])}"


def _digest(folder: Path, paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:DIGITS]
