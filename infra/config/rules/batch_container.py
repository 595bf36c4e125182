"""Rules of the container that a job of AWS Batch runs."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from infra.config.jobs import BatchConfig
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, MISSING, Context
from node.design.batch import CACHING_GIB
from node.system import plurals

CONTAINER: Location = (*CLUSTER, "batch", "container")
VARIABLES: Location = (*CONTAINER, "environment")
MOST_DEFINITION = 24 * 1024
"""The most bytes of a job definition (AWS Batch user guide, "Service quotas")."""
MANIFEST = "manifest"
"""The placeholder that a manifest's address takes."""
LAUNCH, MPI = "SLURM_STACKS_LAUNCH", "mpi"
LAUNCHES = ("processes", MPI)
"""How our entry point starts a program (`workload.batch.settings`)."""
FOLDERS = {"JOB_DIR": "/fsx/resized", "SCRATCH_DIR": "/scratch"}
"""What our entry point needs, with an example of each."""


def check_container(c: Context, batch: BatchConfig) -> None:
    container = batch.container
    if container.image is not None and container.repository is not None:
        allowed = "nothing beside `image`: the stack makes a repository only for an image of its own"
        c.add(
            "batch.repository-and-image",
            (*CONTAINER, "repository"),
            container.repository,
            allowed,
            "remove one of the two",
        )
    if container.cached and not c.cluster.image.bake:
        allowed = "true only with image: {bake: true}, the image of the machines that would hold it"
        c.add(
            "batch.cache-needs-bake",
            (*CONTAINER, "cached"),
            True,
            allowed,
            "remove it, or write image: {bake: true}",
        )
    elif container.cached and batch.disk_gib < CACHING_GIB:
        allowed = f"{CACHING_GIB} or more with container.cached: the image of the machines has this size"
        c.add("batch.cache-disk-size", (*CLUSTER, "batch", "disk_gib"), batch.disk_gib, allowed)
    if (shared := container.shared_memory_mib or 0) > container.memory_mib:
        allowed = f"at most {container.memory_mib}: /dev/shm is part of the container's memory"
        c.add("batch.shared-memory", (*CONTAINER, "shared_memory_mib"), shared, allowed)
    _command(c, batch)
    _volumes(c, batch)
    _variable_names(c, batch)
    _gpus(c, batch)
    if container.image is None:
        _entry_point(c, batch)


def _command(c: Context, batch: BatchConfig) -> None:
    """Check placeholders: without a value, Batch would pass the word `Ref::lr` to the program."""
    given, known = batch.container.command, {*batch.parameters, MANIFEST}
    named = {name for word in given for name in re.findall(r"Ref::([\w.-]*)", word)}
    if MANIFEST in named and not batch.start_on_manifest and MANIFEST not in batch.parameters:
        allowed = "Ref::manifest only with start_on_manifest: true"
        c.add(
            "batch.manifest-needs-start",
            (*CONTAINER, "command"),
            given,
            allowed,
            "nothing else has a manifest",
        )
    for name in sorted(named - known):
        allowed = (
            f"placeholders with a value: {', '.join(f'Ref::{parameter}' for parameter in sorted(known))}"
        )
        c.add(
            "batch.parameter-unknown",
            (*CONTAINER, "command"),
            f"Ref::{name}",
            allowed,
            f"write batch: {{parameters: {{{name or 'name'}: …}}}}",
        )
    for name in sorted(batch.parameters):
        at = (*CLUSTER, "batch", "parameters", name)
        if not re.fullmatch(r"[\w.-]+", name):
            c.add("batch.parameter-name", at, name, "names of letters, digits, '.', '_' and '-'", "rename it")
        elif name not in named:
            c.add(
                "batch.parameter-unused",
                at,
                name,
                f"parameters that the command uses, as Ref::{name}",
                "or leave it out",
            )


def _volumes(c: Context, batch: BatchConfig) -> None:
    """Check that a folder is mounted once, and nothing over it."""
    seen: set[tuple[str, str]] = set()
    for index, volume in enumerate(batch.container.volumes):
        for key, folder in (("source", volume.source), ("path", volume.path or volume.source)):
            if (key, folder) in seen:
                where = key if getattr(volume, key) else "source"
                c.add(
                    "batch.volume-twice",
                    (*CONTAINER, "volumes", index, where),
                    folder,
                    "each folder once",
                    "remove one of the two",
                )
                break
            seen.add((key, folder))


def _variable_names(c: Context, batch: BatchConfig) -> None:
    given = batch.container.environment
    for name in sorted(given):
        if name.startswith("AWS_BATCH"):
            # botocore, batch: ContainerProperties.
            c.add(
                "batch.variable-reserved",
                (*VARIABLES, name),
                given[name],
                "names that do not start with AWS_BATCH",
                "rename it",
            )
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            allowed = "names of letters, digits and underscores, no digit first"
            c.add("batch.variable-name", (*VARIABLES, name), given[name], allowed, "rename it")
    definition = json.dumps([batch.container.command, dict(given)], ensure_ascii=False).encode()
    if len(definition) > MOST_DEFINITION:
        allowed = f"{MOST_DEFINITION} bytes of command and variables: Batch's limit of a job definition"
        c.add(
            "batch.definition-too-long",
            VARIABLES,
            f"{len(definition)} bytes",
            allowed,
            "put long values into a file on /fsx",
        )


def _gpus(c: Context, batch: BatchConfig) -> None:
    """Check the GPUs of a node, and the published variable that has those of all nodes."""
    name, container = batch.instance_types[0], batch.container
    machine = c.instance_type(name)
    if machine is None or not c.sound((*CLUSTER, "batch", "nodes")):
        return
    devices = machine.accelerator.count if machine.accelerator else 0
    gpus = devices if container.gpus is None else container.gpus
    if gpus > devices:
        c.add("batch.gpus", (*CONTAINER, "gpus"), gpus, f"at most {devices} on {name}")
        return
    mpi_gpus, all_gpus = container.environment.get("MPI_GPUS"), batch.nodes * gpus
    ranks = container.environment.get(LAUNCH) == MPI
    if mpi_gpus is None or mpi_gpus == str(all_gpus) or (ranks and not gpus):
        return
    size = f"{plurals.count(batch.nodes, 'node')} with {plurals.count(gpus, 'GPU')}"
    if not gpus:
        c.add(
            "batch.mpi-gpus-without-gpus",
            (*VARIABLES, "MPI_GPUS"),
            mpi_gpus,
            f"nothing: {name} has no GPU",
            "remove it",
        )
    elif ranks and mpi_gpus.isascii() and mpi_gpus.isdigit() and 0 < int(mpi_gpus) < all_gpus:
        return
    else:
        c.add("batch.mpi-gpus", (*VARIABLES, "MPI_GPUS"), mpi_gpus, f"{'at most ' * ranks}{all_gpus}: {size}")


def _entry_point(c: Context, batch: BatchConfig) -> None:
    """Check what the entry point of our own image would refuse."""
    given = batch.container.environment
    for name, example in FOLDERS.items():
        folder = given.get(name)
        if folder is None:
            c.add(
                "batch.folder-missing",
                (*VARIABLES, name),
                MISSING,
                f"a folder, like {example}",
                "the entry point needs it",
            )
        elif not folder.startswith("/"):
            c.add("batch.folder-relative", (*VARIABLES, name), folder, f"an absolute path, like {example}")
        elif name == "JOB_DIR" and not _shared(c, batch, folder):
            allowed = "a folder that all nodes see: below a volume of a file system under `storage`"
            c.add(
                "batch.folder-not-shared",
                (*VARIABLES, name),
                folder,
                allowed,
                "results and checkpoints would be lost with the machine",
            )
    batch_size = given.get("BATCH_SIZE", "1")
    if not (batch_size.isascii() and batch_size.isdigit() and int(batch_size)):
        c.add("batch.batch-size", (*VARIABLES, "BATCH_SIZE"), batch_size, "a whole number, 1 or more")
    launch = given.get(LAUNCH, LAUNCHES[0])
    if launch not in LAUNCHES:
        c.add("batch.launch", (*VARIABLES, LAUNCH), launch, f"one of {', '.join(LAUNCHES)}")
    elif launch == MPI and not batch.container.command:
        allowed = "a program: the built-in training of ResNet-50 does not use MPI"
        c.add(
            "batch.mpi-needs-command",
            (*CONTAINER, "command"),
            "nothing: the list is empty",
            allowed,
            f"or remove {LAUNCH}",
        )


def _shared(c: Context, batch: BatchConfig, folder: str) -> bool:
    """Return whether a folder of the container is on a file system that all nodes mount."""
    storage = c.cluster.storage
    parts = {name: getattr(storage, name) for name in ("home", "apps", "scratch")}
    mounts = [part.mounted_at(name) for name, part in parts.items() if part is not None]
    for volume in batch.container.volumes:
        inside, outside = PurePosixPath(volume.path or volume.source), PurePosixPath(volume.source)
        if PurePosixPath(folder).is_relative_to(inside):
            host_path = outside / PurePosixPath(folder).relative_to(inside)
            if any(host_path.is_relative_to(mount) for mount in mounts):
                return True
    return False
