"""Rules of where machines get Slurm from."""

from __future__ import annotations

from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context
from infra.config.rules.software import check_packages

ORIGINS = ("source", "packages", "repository")
"""The keys of the stack file that name a Slurm other than the distribution's."""


def check_slurm_origin(c: Context) -> None:
    slurm, at = c.cluster.slurm, (*CLUSTER, "slurm")
    # With scheduler batch the whole section is refused.
    given = [key for key in ORIGINS if getattr(slurm, key)]
    if c.cluster.scheduler == "batch" or not given:
        return
    if len(given) > 1:
        advice = "a machine has one Slurm: remove the others"
        c.add("slurm.one-origin", at, " and ".join(given), f"one of {', '.join(ORIGINS)}", advice)
    container = c.cluster.local is not None and c.cluster.local.isolation == "container"
    if c.provider == "local" and not container:
        for key in given:
            c.add(
                "slurm.need-isolation",
                (*at, key),
                "a value",
                "nothing where machines are processes: they run this machine's own Slurm",
                f"write local: {{isolation: container}}, or remove {key}:",
            )
        return
    check_packages(c, slurm.packages, (*at, "packages"))
    if slurm.source is not None and c.provider != "local" and not c.cluster.image.bake:
        c.add(
            "slurm.source-not-baked",
            (*at, "source"),
            slurm.source,
            "a source only with image: {bake: true}",
            "Slurm is built for an image, once: write image: {bake: true}, or packages: that are built",
        )
    own: list[Location] = [("controller", "image")] if c.cluster.controller.image else []
    own += [("partitions", index, "image") for index, part in enumerate(c.cluster.partitions) if part.image]
    for where in own if slurm.source is not None else ():
        c.add(
            "slurm.source-own-image",
            (*CLUSTER, *where),
            "an image of its own",
            "none with slurm.source",
            "remove it, or write slurm: {packages: …} instead of source: an image of yours is not baked",
        )
