"""Rules of the software on machines: their distribution, their Slurm, and what users put there.

Users put hooks there, packages of containers, health checks, prolog and epilog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra import slurm_releases
from infra.config import accounting, distributions
from infra.config.cluster import ClusterConfig, ContainersConfig
from infra.config.fields import gs_bucket
from infra.config.mistakes import Location, path_of
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.config.slurm import LONGEST_TIMEOUT, PackageConfig
from infra.program import project_files
from infra.program.project_files import ProjectFileError, Wrong
from node.system import executables

ORIGINS = ("source", "packages", "repository")
"""The keys of the stack file that name a Slurm other than the distribution's."""
LONGEST_OBJECT = 1024
"""The most bytes in the name of an object in Cloud Storage."""
SCHEMES = {"s3": ("aws",), "gs": ("gcp",), "https": ("aws", "gcp")}
PACKAGES = "the packages of Enroot and of Pyxis, each with source and sha256, or an image that has them"


def check_distribution(c: Context) -> None:
    """Check that the distribution has what the stack needs, and a maintained Slurm where users rely on it."""
    if c.provider == "local":
        if c.cluster.image.source is not None:
            at = (*CLUSTER, "image", "source")
            c.add(
                "image.source-local",
                at,
                c.cluster.image.source,
                "nothing on the local stack",
                "local: {suite: …} is its counterpart",
            )
        return
    if c.cluster.image.source is not None:
        _offered(c, c.cluster.image.source)
    if c.cluster.scheduler == "slurm":
        _accepted(c)


def _offered(c: Context, source: str) -> None:
    row = distributions.DISTRIBUTIONS[source]
    lacking = {
        need: f"{_need(need, at)}: {row.offers[need].why}"
        for need, at in distributions.needs(c.cluster, c.facts)
        if not row.offers[need].supported
    }
    if not lacking:
        return
    others = [
        name
        for name, other in distributions.DISTRIBUTIONS.items()
        if all(other.offers[need].supported for need in lacking)
    ]
    advice = f"write source: {' or '.join(others)}, or remove what needs it"
    if lacking.keys() == {"session_manager"}:
        advice = f"write access: {{mode: ssh, ssh_cidrs: […], key: …}}, or source: {others[0]}"
    c.add(
        "image.unsupported",
        (*CLUSTER, "image", "source"),
        source,
        f"{' or '.join(others)} with {'; '.join(lacking.values())}",
        advice,
    )


def _accepted(c: Context) -> None:
    """Refuse what lets users rely on a Slurm that nobody maintains, until the stack file accepts that."""
    table = slurm_releases.table()
    name, accepted = distributions.slurm_package(c.cluster, c.facts), c.cluster.slurm.accept_unmaintained
    at = (*CLUSTER, "slurm", "accept_unmaintained")
    if accepted is not None and accepted > table.date.isoformat():
        c.add(
            "slurm.accepted-late",
            at,
            accepted,
            f"a day up to {table.date}, on which the table of releases was made",
            "what is published later is not known here, so nobody can accept it",
        )
        return
    if name is None or accounting.reliable(c.cluster, c.facts):
        return
    package = table.packages[name]
    for location, given, feature in _relied_on(c.cluster):
        c.add(
            "slurm.unmaintained",
            (*CLUSTER, *location),
            given,
            f"no {slurm_releases.FEATURES[feature]} with {table.described(package)}: "
            f"{_advisories(table, package, feature)} would be open",
            f"{_maintained(c, table)}; or accept it for this stack by slurm: {{accept_unmaintained: "
            f'"{table.date}"}} (docs/versions.md says what users can then do)',
        )


def _maintained(c: Context, table: slurm_releases.Table) -> str:
    """Say how the stack gets a Slurm that is maintained: another distribution's, or built from its source."""
    name, row = next(
        (name, row)
        for name, row in distributions.DISTRIBUTIONS.items()
        if table.maintained(table.packages[name])
    )
    needed = {need for need, _ in distributions.needs(c.cluster, c.facts)}
    if all(row.offers[need].supported for need in needed):
        return f"image: {{source: {name}}} has a Slurm that is maintained"
    return (
        f"slurm: {{source: {name}}} with image: {{bake: true}} builds {row.title}'s Slurm, which is "
        "maintained, for the image"
    )


def _need(need: str, at: Location) -> str:
    return f"{distributions.NEEDS[need]} ({path_of(at)})"


def _advisories(table: slurm_releases.Table, package: slurm_releases.Package, feature: str) -> str:
    ids = [a.id for a in table.open_in(package.version) if a.affects == feature]
    return ", ".join(ids) or "whatever is published next"


def _relied_on(cluster: ClusterConfig) -> Iterator[tuple[Location, object, str]]:
    """Yield key, value and feature for all that users must be able to rely on."""
    if cluster.slurm.accounting:
        yield ("slurm", "accounting"), True, "accounting"
    if cluster.containers is not None:
        runtime = cluster.containers.runtime
        yield ("containers", "runtime"), runtime, runtime


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
    own_images: list[Location] = [("controller", "image")] if c.cluster.controller.image else []
    own_images += [
        ("partitions", index, "image") for index, part in enumerate(c.cluster.partitions) if part.image
    ]
    for where in own_images if slurm.source is not None else ():
        c.add(
            "slurm.source-own-image",
            (*CLUSTER, *where),
            "an image of its own",
            "none with slurm.source",
            "remove it, or write slurm: {packages: …} instead of source: an image of yours is not baked",
        )


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
            _startable(c, hook.source, (*at, "source"))
        elif hook.script is not None and (fault := _fault(c, hook.script.encode(), "FILE")) is not None:
            first = hook.script.partition("\n")[0]
            allowed = "a first line that names the interpreter"
            c.add("hook.interpreter", (*at, "script"), first, allowed, str(fault))

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


def _fault(c: Context, content: bytes, name: str) -> executables.Unstartable | None:
    """Return why machines could not start a script. Process machines have the interpreters of this one."""
    look = executables.fault_here if c.cluster.has_process_machines() else executables.fault
    return look(content, name)


def _startable(c: Context, source: str, where: Location) -> None:
    """Check that machines can start a script of the project. They look at one with an address themselves."""
    if c.project is None or "://" in source:
        return
    try:
        content = project_files.read(c.project, source).content
    except ProjectFileError:  # named already
        return
    if (fault := _fault(c, content, source)) is not None:
        allowed = "a program, or a script whose first line names its interpreter"
        c.add("source.interpreter", where, source, allowed, str(fault))


def script_in_project(c: Context, source: str, where: Location) -> None:
    """Check that a script that is not fetched is a file of the project."""
    if source.startswith("/") or ".." in source.split("/"):
        c.add("source.outside-project", where, source, "a path inside this project, like hooks/containers.sh")
    elif c.project is not None:
        _readable(c, c.project, source, where)


def _readable(c: Context, project: Path, source: str, where: Location) -> None:
    """Check that a file of the project can be read, as it is when it is published."""
    try:
        project_files.read(project, source)
    except ProjectFileError as error:
        if error.wrong is Wrong.OUTSIDE:
            allowed = "a path inside this project, like hooks/containers.sh"
            c.add("source.outside-project", where, source, allowed, f"{error}: copy the file")
        elif error.wrong is Wrong.MISSING:
            advice = "the path is relative to Pulumi.yaml"
            c.add("source.missing", where, source, "a file of this project", advice)
        else:
            c.add("source.unusable", where, source, "a file of this project that can be read", str(error))


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
    elif health.enabled and not any(_has_devices(c, p) for _, p in c.groups()):
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
            _startable(c, script.source, (*where, "source"))


def _has_devices(c: Context, partition: PartitionConfig) -> bool:
    machine = c.instance_type(partition.instance_type)
    built_in = machine is not None and machine.accelerator is not None
    return built_in or partition.accelerator is not None or bool(partition.aws and partition.aws.efa)
