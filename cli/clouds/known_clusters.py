"""The clusters that a stack of this checkout has made in a cloud and that may still exist.

The next `down` must find what is left of each of them. The engine's outputs are not enough: they are deleted
with the stack, exist only after an `up` that succeeded, and name one cluster. The stack file may name another
one by now. So the user's record of the cluster (`infra.program.clusters`) holds them.
"""

from __future__ import annotations

import dataclasses

from infra.clouds.commands import ClusterRef
from infra.program import clusters, folders
from infra.program.stack import Stack


def read(stack: Stack) -> list[ClusterRef]:
    """Return the clusters in the order in which they were noted; empty if the record cannot be read."""
    record = clusters.of(stack)
    try:
        return [ClusterRef(**fields) for fields in record.places] if record else []
    except TypeError:
        return []


def note(stack: Stack, place: ClusterRef) -> None:
    """Note a cluster, before anything of it is made or asked for."""
    # Only a cluster on Google Cloud has a project.
    provider = "gcp" if place.project else "aws"
    clusters.note(stack, provider, folders.make_state_dir(stack), dataclasses.asdict(place))


def forget(stack: Stack) -> None:
    """Forget all clusters, once nothing of them is left."""
    clusters.forget(stack)
