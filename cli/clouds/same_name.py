"""Whether another stack or checkout has a cluster of the same name in the account and region, or the project.

Two such clusters have secrets, log groups, templates and nearly everything on Google Cloud by the same names.
The second cannot be made, or takes what the first has. And whatever ends machines finds them by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cli.clouds import known_clusters
from cli.clouds.cloud import Cloud
from cli.hints import hint
from infra.clouds.commands import ClusterRef
from infra.errors import UserError
from infra.program.stack import Stack
from node import plurals

LISTED = 5


def is_own(stack: Stack, place: ClusterRef, known: ClusterRef | None) -> bool:
    """Whether this stack has made a cluster of that name there.

    The engine's outputs say so, or this checkout's notes where an `up` has failed.

    Args:
        known: The cluster that is up, by the engine's outputs.
    """
    noted = [*known_clusters.read(stack), *([known] if known is not None else [])]
    return any(_where(one) == _where(place) for one in noted)


def _where(place: ClusterRef) -> tuple[str, str]:
    """Within what a cluster's name is the only one: a project on Google Cloud, a region on AWS."""
    return place.cluster, place.project or place.region


def taken(stack: Stack, place: ClusterRef, there: Sequence[str]) -> tuple[str, str]:
    """What is there, and the cure.

    Args:
        there: One line for each thing of that cluster; not empty.
    """
    where = f"project {place.project}" if place.project else place.region
    more = [f"{plurals.count(len(there) - LISTED, 'thing')} more"] if len(there) > LISTED else []
    what = (
        f"slurm-stacks:cluster.name: {place.cluster} is the name of a cluster in {where} which stack "
        f"{stack.name} of this checkout has not made: {', '.join([*there[:LISTED], *more])}"
    )
    cure = (
        f"Write another `name` into {stack.file.name}. If it is this stack's own, made from another checkout "
        f"or with another backend of Pulumi, run `up` there; or end it: `{hint('down', stack.name)}`."
    )
    return what, cure


def stacks(cloud: Cloud) -> set[str]:
    """The stacks that the labels of a cluster's machines name.

    Raises:
        UserError: As for `Cloud.machines`.
    """
    return {machine.stack for machine in cloud.machines() if machine.stack is not None}


def refusal(place: ClusterRef, stack: Stack, owner: str) -> str:
    """Why `down` of a stack that has made nothing does not end another stack's cluster."""
    return (
        f"nothing was ended: cluster {place.cluster} in {place.region} is of stack {owner}, by the labels of "
        f"what it has, and stack {stack.name} of this checkout has made none there. "
        f"`{hint('down', owner)}` ends it. For a cluster of its own, stack {stack.name} needs another `name` "
        f"in {stack.file.name}"
    )


def asked(look: Callable[[], Sequence[str]], say: Callable[[str], None]) -> Sequence[str]:
    """What is there; nothing, with a message, if the cloud does not say it."""
    try:
        return look()
    except UserError as error:
        say(f"whether another stack has a cluster of this name cannot be told: {error}")
        return []
