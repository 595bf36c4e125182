"""Checks of AWS Batch's container: what would end a job only once all of its machines are up and paid for."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from infra.config.batch import BatchConfig
from infra.config.checks.context import CLUSTER, MISSING, Context
from infra.config.mistakes import Location
from node import plurals
from node.model import CACHING_GIB

AT: Location = (*CLUSTER, "batch", "container")
VARIABLES: Location = (*AT, "environment")
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
        c.add((*AT, "repository"), container.repository, allowed, "remove one of the two")
    if container.cached and not c.cluster.image.bake:
        allowed = "true only with image: {bake: true}, the image of the machines that would hold it"
        c.add((*AT, "cached"), True, allowed, "remove it, or write image: {bake: true}")
    elif container.cached and batch.disk_gib < CACHING_GIB:
        allowed = f"{CACHING_GIB} or more with container.cached: the image of the machines has this size"
        c.add((*CLUSTER, "batch", "disk_gib"), batch.disk_gib, allowed, "")
    if (shared := container.shared_memory_mib or 0) > container.memory_mib:
        allowed = f"at most {container.memory_mib}: /dev/shm is part of the container's memory"
        c.add((*AT, "shared_memory_mib"), shared, allowed, "")
    _placeholders(c, batch)
    _volumes(c, batch)
    _names(c, batch)
    _gpus(c, batch)
    if container.image is None:
        _entry_point(c, batch)


def _placeholders(c: Context, batch: BatchConfig) -> None:
    """Batch passes a placeholder without a value as it stands: the program would meet the word `Ref::lr`."""
    given, known = batch.container.command, {*batch.parameters, MANIFEST}
    named = {name for word in given for name in re.findall(r"Ref::([\w.-]*)", word)}
    if MANIFEST in named and not batch.start_on_manifest and MANIFEST not in batch.parameters:
        allowed = "Ref::manifest only with start_on_manifest: true"
        c.add((*AT, "command"), given, allowed, "nothing else has a manifest")
    for name in sorted(named - known):
        allowed = f"placeholders with a value: {', '.join(f'Ref::{one}' for one in sorted(known))}"
        c.add(
            (*AT, "command"), f"Ref::{name}", allowed, f"write batch: {{parameters: {{{name or 'name'}: …}}}}"
        )
    for name in sorted(batch.parameters):
        at = (*CLUSTER, "batch", "parameters", name)
        if not re.fullmatch(r"[\w.-]+", name):
            c.add(at, name, "names of letters, digits, '.', '_' and '-'", "rename it")
        elif name not in named:
            c.add(at, name, f"parameters that the command uses, as Ref::{name}", "or leave it out")


def _volumes(c: Context, batch: BatchConfig) -> None:
    """A folder is mounted once, and nothing is mounted over it."""
    seen: set[tuple[str, str]] = set()
    for index, volume in enumerate(batch.container.volumes):
        for key, folder in (("source", volume.source), ("path", volume.path or volume.source)):
            if (key, folder) in seen:
                where = key if getattr(volume, key) else "source"
                c.add((*AT, "volumes", index, where), folder, "each folder once", "remove one of the two")
                break
            seen.add((key, folder))


def _names(c: Context, batch: BatchConfig) -> None:
    given = batch.container.environment
    for name in sorted(given):
        if name.startswith("AWS_BATCH"):
            # botocore, batch: ContainerProperties.
            c.add((*VARIABLES, name), given[name], "names that do not start with AWS_BATCH", "rename it")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            allowed = "names of letters, digits and underscores, no digit first"
            c.add((*VARIABLES, name), given[name], allowed, "rename it")
    said = json.dumps([batch.container.command, dict(given)], ensure_ascii=False).encode()
    if len(said) > MOST_DEFINITION:
        allowed = f"{MOST_DEFINITION} bytes of command and variables: Batch's limit of a job definition"
        c.add(VARIABLES, f"{len(said)} bytes", allowed, "put long values into a file on /fsx")


def _gpus(c: Context, batch: BatchConfig) -> None:
    """The GPUs of a node, and the published variable that has those of all nodes."""
    name, container = batch.instance_types[0], batch.container
    machine = c.instance_type(name)
    if machine is None or not c.sound((*CLUSTER, "batch", "nodes")):
        return
    devices = machine.accelerator.count if machine.accelerator else 0
    gpus = devices if container.gpus is None else container.gpus
    if gpus > devices:
        c.add((*AT, "gpus"), gpus, f"at most {devices} on {name}", "")
        return
    said, there = container.environment.get("MPI_GPUS"), batch.nodes * gpus
    ranks = container.environment.get(LAUNCH) == MPI
    if said is None or said == str(there) or (ranks and not gpus):
        return
    asked = f"{plurals.count(batch.nodes, 'node')} with {plurals.count(gpus, 'GPU')}"
    if not gpus:
        c.add((*VARIABLES, "MPI_GPUS"), said, f"nothing: {name} has no GPU", "remove it")
    elif ranks and said.isascii() and said.isdigit() and 0 < int(said) < there:
        return
    else:
        c.add((*VARIABLES, "MPI_GPUS"), said, f"{'at most ' * ranks}{there}: {asked}", "")


def _entry_point(c: Context, batch: BatchConfig) -> None:
    """What the entry point of our own image would refuse."""
    given = batch.container.environment
    for name, example in FOLDERS.items():
        folder = given.get(name)
        if folder is None:
            c.add((*VARIABLES, name), MISSING, f"a folder, like {example}", "the entry point needs it")
        elif not folder.startswith("/"):
            c.add((*VARIABLES, name), folder, f"an absolute path, like {example}", "")
        elif name == "JOB_DIR" and not _shared(c, batch, folder):
            allowed = "a folder that all nodes see: below a volume of a file system under `storage`"
            c.add(
                (*VARIABLES, name), folder, allowed, "results and checkpoints would be lost with the machine"
            )
    batch_size = given.get("BATCH_SIZE", "1")
    if not (batch_size.isascii() and batch_size.isdigit() and int(batch_size)):
        c.add((*VARIABLES, "BATCH_SIZE"), batch_size, "a whole number, 1 or more", "")
    launch = given.get(LAUNCH, LAUNCHES[0])
    if launch not in LAUNCHES:
        c.add((*VARIABLES, LAUNCH), launch, f"one of {', '.join(LAUNCHES)}", "")
    elif launch == MPI and not batch.container.command:
        allowed = "a program: the built-in training of ResNet-50 does not use MPI"
        c.add((*AT, "command"), "nothing: the list is empty", allowed, f"or remove {LAUNCH}")


def _shared(c: Context, batch: BatchConfig, folder: str) -> bool:
    """Whether a folder of the container is on a file system that all nodes mount."""
    storage = c.cluster.storage
    parts = {name: getattr(storage, name) for name in ("home", "apps", "scratch")}
    mounts = [part.mounted_at(name) for name, part in parts.items() if part is not None]
    for volume in batch.container.volumes:
        inside, outside = PurePosixPath(volume.path or volume.source), PurePosixPath(volume.source)
        if PurePosixPath(folder).is_relative_to(inside):
            here = outside / PurePosixPath(folder).relative_to(inside)
            if any(here.is_relative_to(mount) for mount in mounts):
                return True
    return False
