"""Finds the files and jobs that an `up` would delete on a Batch stack that is up.

The engine replaces a resource without a question. No controller has published a design that the stack file
could be compared with, so AWS is asked what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.aws.account import explained
from cli.aws.batch import shutdown, teardown
from cli.aws.batch.service import Client
from cli.hints import hint
from infra.aws.batch import access
from infra.errors import EXIT_REFUSED, UserError
from node import plurals
from node.model import ClusterDesign, Mount


def check(client: Client, design: ClusterDesign) -> None:
    """Refuse what would delete files or end jobs.

    Raises:
        UserError: Exit 3; the message names each, and what to do.
    """
    lines = [*_files(client, design), *_jobs(client, design)]
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise UserError(
            f"nothing was changed: this `up` would delete files or end jobs\n{listed}\n"
            f"`{hint('down', design.stack)}` asks first, and exports files to S3; "
            f"`{hint('up', design.stack, '--replace')}` makes the change without either.",
            EXIT_REFUSED,
        )


def _files(client: Client, design: ClusterDesign) -> Iterator[str]:
    """The file systems that would be replaced or deleted."""
    of_job = access.of(design).file_system == "job"
    wanted = {
        f"{design.name}-{mount.path.strip('/').replace('/', '-')}": mount
        for mount in design.mounts
        if mount.kind == "fsx_lustre" and mount.existing is None and not of_job
    }
    for system in shutdown.systems(client("fsx"), design.name):
        tags = {tag["Key"]: tag["Value"] for tag in system.get("Tags", [])}
        name, own = tags.get("Name", ""), str(system["FileSystemId"])
        if name == f"{design.name}-job" or any(key.endswith(":keep") for key in tags):
            continue
        mount = wanted.get(name)
        if mount is None:
            yield f"{own} ({name}) is not in the stack file any more, and is deleted with its files"
        elif differs := ", ".join(_differences(system, mount)):
            yield f"{own} at {mount.path} is replaced by an empty one: {differs}"


def _differences(system: Mapping[str, Any], mount: Mount) -> Iterator[str]:
    """The differences that need a new file system, because FSx cannot change them (UpdateFileSystem)."""
    lustre = system.get("LustreConfiguration", {})
    linked = lustre.get("DataRepositoryConfiguration", {})
    pairs: dict[str, tuple[Any, Any]] = {
        "deployment": (lustre.get("DeploymentType"), mount.deployment),
        "storage_type": (system.get("StorageType"), mount.storage_type),
    }
    size = int(system.get("StorageCapacity", 0))
    if mount.deployment == "SCRATCH_1" or size > (mount.size_gib or 0):
        pairs["size_gib"] = (size, mount.size_gib)
    if mount.deployment == "SCRATCH_1":
        pairs["s3_import"] = (linked.get("ImportPath"), mount.s3_import)
        if mount.s3_export is not None or shutdown.asked_for(linked):
            pairs["s3_export"] = (linked.get("ExportPath"), mount.s3_export)
    for key, (there, said) in pairs.items():
        if there != said:
            yield f"{key} {there or 'nothing'} → {said or 'nothing'}"


def _jobs(client: Client, design: ClusterDesign) -> Iterator[str]:
    """The jobs of queues that would be deleted: those of another name, or on another environment."""
    own, batch = access.of(design), client("batch")
    with explained():
        other = [
            name for name in teardown.environments(batch, design.name) if name != own.compute_environment
        ]
    for queue in teardown.queues(client, design.name):
        if (queue != own.queue or other) and (jobs := shutdown.unfinished_jobs(batch, queue)):
            yield f"queue {queue} is deleted, and with it {plurals.count(len(jobs), 'job')} that go on"
