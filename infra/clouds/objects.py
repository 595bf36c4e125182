"""What machines run and know, as objects of a cluster's bucket: in the layout of `infra.bundle`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pulumi

from infra import bundle
from infra.clouds import recipes
from infra.node.loader import CURRENT, IMAGE
from infra.node.model import ClusterDesign, Settings, Site
from infra.runner import mode
from infra.runner.locations import cache_root


@dataclass(frozen=True, slots=True)
class Object:
    """An object to be made: of a text or of a file.

    Attributes:
        part: loader | code | settings | current; image-settings | image.
    """

    part: str
    key: pulumi.Input[str]
    content: pulumi.Output[str] | None = None
    source: pulumi.Asset | None = None


def first(design: ClusterDesign) -> list[Object]:
    """What is known before anything of the cluster is there: the loader and the code."""
    code, loader = bundle.node_archive(design), bundle.loader_archive(design.provider)
    named = bundle.current(code, b"")
    return [
        Object("loader", "loader.py", source=pulumi.FileAsset(str(_kept(loader)))),
        Object("code", named["code"]["key"], source=pulumi.FileAsset(str(_kept(code)))),
    ]


def settings(design: ClusterDesign, site: pulumi.Input[Site]) -> tuple[Object, Object]:
    """What machines know, and the object that names all others: it comes last, so whoever sees it sees them
    too.

    Args:
        site: what is known once addresses and templates are there.
    """
    return _named(design, pulumi.Output.from_input(site), "settings", "current", CURRENT)


def of_images(design: ClusterDesign) -> tuple[Object, Object]:
    """The same for the machines that become images."""
    return _named(design, pulumi.Output.from_input(recipes.site(design)), "image-settings", "image", IMAGE)


def _named(
    design: ClusterDesign, site: pulumi.Output[Site], part: str, last: str, key: str
) -> tuple[Object, Object]:
    code = bundle.node_archive(design)
    text = site.apply(lambda known: bundle.settings_object(Settings(design, known)).decode())
    named = text.apply(lambda known: bundle.current(code, known.encode()))
    content = named.apply(lambda value: json.dumps(value, indent=1, sort_keys=True))
    return Object(part, named["settings"]["key"], content=text), Object(last, key, content=content)


def _kept(code: bytes) -> Path:
    """A file of this machine's with the archive, named by its content: Pulumi takes bytes in no other way."""
    path = cache_root() / "code" / f"{bundle.digest(code)[:16]}.zip"
    if mode.current() != "plan" and not (path.exists() and path.stat().st_size == len(code)):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(code)
        draft.replace(path)
    return path
