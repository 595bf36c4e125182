"""What a cluster's status says of its controller's disks, in sentences for `status` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from node.logs.text import printable

HOLDS = {
    "state": "Slurm's state",
    "ledger": "the record of node-hours",
    "logs": "the logs",
    "database": "the accounting",
}
REMOVABLE = {
    "logs": "old logs in /var/log",
    "database": "old records of the accounting (PurgeJobAfter)",
    "state": "what is not Slurm's",
}
"""What a disk holds -> what can be removed from there."""


def troubles(status: Mapping[str, Any], stack: str) -> Iterable[tuple[str, str]]:
    """Yield what is wrong and its cure; first of all, that Slurm cannot save its state.

    Args:
        status: The cluster's. Clusters of earlier releases say nothing of disks.
        stack: The stack's name, for the cures.
    """
    disks = status.get("disks") or ()
    if why := status.get("unsaved"):
        state = next((disk for disk in disks if "state" in disk["holds"]), None)
        yield (
            f"Slurm cannot save its state: {printable(str(why))}. Jobs go on, and what changes in the queue "
            "is lost when slurmctld starts again",
            "" if state is None else _cure(state, stack),
        )
    for disk in disks:
        if disk["condition"] != "ok":
            holds = " and ".join(HOLDS.get(name, printable(str(name))) for name in disk["holds"])
            yield (
                f"{printable(str(disk['path']))}, the disk with {holds}, {_condition(disk)}",
                _cure(disk, stack),
            )


def _condition(disk: Mapping[str, Any]) -> str:
    condition = disk["condition"]
    if condition == "silent":
        return "does not answer"
    if condition == "read-only":
        return "is read-only, as the kernel makes a disk with errors"
    word = "full" if condition == "full" else "nearly full"
    if disk["short_of"] == "inodes":
        return f"is {word}: it has space for {disk['free_inodes']} more files"
    return f"is {word}: {disk['free_mib']} of {disk['size_mib']} MiB are free"


def _cure(disk: Mapping[str, Any], stack: str) -> str:
    if disk["condition"] in ("silent", "read-only"):
        return (
            f"`./cluster logs --stack {stack}` has the controller's last messages, and its kernel's log more."
        )
    removable = [REMOVABLE[name] for name in disk["holds"] if name in REMOVABLE]
    remove = f"Remove {', '.join(removable) or 'what nobody needs'} from there"
    if disk["setting"] is None:
        return f"{remove}."
    return (
        f"{remove}, or raise {disk['setting']} in Pulumi.{stack}.yaml and run "
        f"`./cluster up --stack {stack}`: the disk grows while jobs go on."
    )
