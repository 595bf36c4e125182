"""Rules of what users put on machines: hooks, packages of containers, health checks, prolog and epilog."""

from __future__ import annotations

import re
from collections.abc import Sequence

from infra.config.cluster import LONGEST_TIMEOUT, ContainersConfig, PackageConfig, PartitionConfig
from infra.config.fields import gs_bucket
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, MISSING, Context

LONGEST_OBJECT = 1024
"""The most bytes in the name of an object in Cloud Storage."""
SCHEMES = {"s3": ("aws",), "gs": ("gcp",), "https": ("aws", "gcp")}


def check_hooks(c: Context) -> None:
    for index, hook in enumerate(c.cluster.hooks):
        at = (*CLUSTER, "hooks", index)
        if (hook.source is None) == (hook.script is None):
            if c.sound((*at, "source")) and c.sound((*at, "script")):
                given = MISSING if hook.source is None else "source and script"
                c.add(
                    "hook.source-or-script",
                    at,
                    given,
                    "either source or script",
                    "source is a path or an address, script a text",
                )
        elif hook.source is not None:
            check_source(c, hook.source, (*at, "source"))
        elif hook.script is not None and not hook.script.startswith("#!"):
            first = hook.script.partition("\n")[0]
            c.add(
                "hook.interpreter",
                (*at, "script"),
                first,
                "a first line that names the interpreter",
                "begin with #!/bin/bash",
            )

    # Without slurm.resume_timeout in the file, the time to boot includes the hooks.
    longest = LONGEST_TIMEOUT - 5000
    if c.cluster.slurm.resume_timeout is None:
        total = sum(hook.timeout for hook in c.cluster.hooks if hook.role in ("compute", "all"))
        if total > longest:
            most = f"timeouts of {longest} seconds together, of those hooks that run on nodes"
            c.add("hook.timeouts", (*CLUSTER, "hooks"), total, most, "lower timeout")


def check_source(c: Context, source: str, where: Location) -> None:
    """Check that a script or package is in the project, or where this provider's machines fetch it."""
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", source)
    if scheme is None:
        script_in_project(c, source, where)
    elif c.provider not in SCHEMES.get(scheme[1], ()):
        allowed = [f"{s}://" for s, providers in SCHEMES.items() if c.provider in providers]
        why = "it runs as root and http:// is not protected" if scheme[1] == "http" else ""
        c.add("source.scheme", where, source, " or ".join(["a path in this project", *allowed]), why)
    elif scheme[1] == "gs":
        _object(c, source, where)


def script_in_project(c: Context, source: str, where: Location) -> None:
    """Check that a script that is not fetched is a file of the project."""
    if source.startswith("/") or ".." in source.split("/"):
        c.add("source.outside-project", where, source, "a path inside this project, like hooks/containers.sh")
    elif c.project is not None and not (c.project / source).is_file():
        c.add(
            "source.missing", where, source, "a file of this project", "the path is relative to Pulumi.yaml"
        )


def _object(c: Context, source: str, where: Location) -> None:
    """Check that a script in Cloud Storage is one object of a bucket."""
    bucket, _, name = source.removeprefix("gs://").partition("/")
    if not gs_bucket(bucket):
        allowed = (
            "a bucket's name: 3 to 63 small letters, digits, '-', '_', '.'; a letter or digit at both ends"
        )
        c.add(
            "source.bucket",
            where,
            source,
            allowed,
            f"Cloud Storage does not accept {bucket or 'an empty name'}",
        )
    elif not name or name.endswith("/"):
        c.add(
            "source.folder",
            where,
            source,
            "one object: gs://bucket/path/script.sh",
            "this is a bucket or a folder in it",
        )
    elif len(name.encode()) > LONGEST_OBJECT or re.search(r"[\x00-\x1f\x7f]", name):
        allowed = f"an object's name: {LONGEST_OBJECT} bytes at most, no line breaks or control characters"
        c.add("source.object", where, source, allowed)


PACKAGES = "the packages of Enroot and of Pyxis, each with source and sha256, or an image that has them"


def check_containers(c: Context) -> None:
    containers = c.cluster.containers
    if containers is None:
        return
    at = (*CLUSTER, "containers")
    if c.cluster.scheduler == "batch":
        c.add(
            "containers.not-with-batch",
            at,
            "nothing that applies",
            "no containers: with scheduler batch",
            "its own are under `batch`",
        )
        return
    if c.provider == "local" and (c.cluster.local is None or c.cluster.local.isolation == "process"):
        c.add(
            "containers.need-isolation",
            (*at, "runtime"),
            containers.runtime,
            "nothing where machines are processes: they run as you, on this machine's files",
            "write local: {isolation: container}, or remove containers:",
        )
        return
    if containers.runtime == "pyxis":
        _pyxis(c, containers)
        return
    for key in ("packages", "images"):
        if key in containers.model_fields_set:
            c.add(
                "containers.pyxis-only",
                (*at, key),
                "a value",
                "nothing with runtime oci",
                f"remove {key}:, or write runtime: pyxis",
            )


def _pyxis(c: Context, containers: ContainersConfig) -> None:
    at = (*CLUSTER, "containers", "packages")
    if not containers.packages and c.sound(at) and not (c.cluster.image and c.cluster.image.id):
        c.add("containers.no-packages", at, MISSING, PACKAGES, "docs/containers.md says where they come from")
    check_packages(c, containers.packages, at)


def check_packages(c: Context, packages: Sequence[PackageConfig], at: Location) -> None:
    """Report packages that are no Debian packages, that machines cannot fetch, or that are named twice."""
    seen: set[str] = set()
    for index, package in enumerate(packages):
        where = (*at, index, "source")
        if not package.source.endswith(".deb"):
            c.add("package.not-deb", where, package.source, "a Debian package: a name that ends in .deb")
        else:
            check_source(c, package.source, where)
        if package.sha256 in seen:
            c.add(
                "package.twice",
                (*at, index, "sha256"),
                package.sha256,
                "another hash than the packages before it",
            )
        seen.add(package.sha256)


def check_health(c: Context) -> None:
    health, at = c.cluster.health, (*CLUSTER, "health")
    given = health.model_fields_set
    batch = c.cluster.scheduler == "batch"
    if batch and given:
        c.add(
            "health.not-with-batch",
            at,
            "nothing that applies",
            "no health: with scheduler batch, which runs no Slurm",
            "remove it",
        )
    elif health.enabled is False:
        for key in sorted(given - {"enabled"}):
            where = (*at, key)
            c.add(
                "health.disabled",
                where,
                getattr(health, key),
                "nothing while health.enabled is false",
                "remove one of them",
            )
    elif health.enabled and not any(_has_devices(c, p) for p in c.cluster.partitions):
        c.add(
            "health.no-devices",
            (*at, "enabled"),
            True,
            "true only where a partition has GPUs, Neuron devices or EFA",
            "remove it: there is nothing to check",
        )
    for key in ("prolog", "epilog"):
        # With scheduler batch the whole section is refused.
        if batch or (script := getattr(c.cluster.slurm, key)) is None:
            continue
        where = (*CLUSTER, "slurm", key)
        if "://" in script.source:
            advice = "it comes with the nodes' code, so that a node has it before a job"
            c.add("job-script.address", (*where, "source"), script.source, "a path in this project", advice)
        else:
            script_in_project(c, script.source, (*where, "source"))


def _has_devices(c: Context, partition: PartitionConfig) -> bool:
    machine = c.instance_type(partition.instance_type)
    built_in = machine is not None and machine.accelerator is not None
    return built_in or partition.accelerator is not None or bool(partition.aws and partition.aws.efa)
