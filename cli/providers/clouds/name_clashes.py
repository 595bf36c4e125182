"""Whether another stack or checkout has a cluster of the same name in the account and region, or the project.

Two such clusters have secrets, log groups, templates and nearly everything on Google Cloud by the same
names. The second cannot be made, or takes what the first has. And whatever ends machines finds them by that
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cli.findings import Finding, fine, stops, warns
from cli.hints import hint
from cli.providers.clouds.known_clusters import known_places
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.system import plurals
from operations.access import Outputs, StackUp
from operations.clouds.cloud import Cloud

LISTED = 5
Say = Callable[[str], None]


class Provider(Protocol):
    """What is asked of a cloud's provider here."""

    def require(self, provider_settings: str | None) -> None: ...

    def cloud(self, place: ClusterRef) -> Cloud: ...

    def of_name(self, design: ClusterDesign) -> list[str]: ...

    def stacks_of(self, design: ClusterDesign) -> set[str]: ...


def is_own(stack: Stack, place: ClusterRef, known: ClusterRef | None) -> bool:
    """Whether this stack has made a cluster of that name there.

    The engine's outputs say so, or this checkout's notes where an `up` has failed.

    Args:
        known: The cluster that is up, by the engine's outputs.
    """
    noted = [*known_places(stack), *([known] if known is not None else [])]
    return any(_where(other) == _where(place) for other in noted)


def _where(place: ClusterRef) -> tuple[str, str]:
    """Within what a cluster's name is the only one: a project on Google Cloud, a region on AWS."""
    return place.cluster, place.project or place.region


def taken(stack: Stack, place: ClusterRef, lines: Sequence[str]) -> tuple[str, str]:
    """Return what is there, and the cure.

    Args:
        lines: One line for each thing of that cluster; not empty.
    """
    where = f"project {place.project}" if place.project else place.region
    more = [f"{plurals.count(len(lines) - LISTED, 'thing')} more"] if len(lines) > LISTED else []
    what = (
        f"slurm-stacks:cluster.name: {place.cluster} is the name of a cluster in {where} which stack "
        f"{stack.name} of this checkout has not made: {', '.join([*lines[:LISTED], *more])}"
    )
    cure = (
        f"Write another `name` into {stack.file.name}. If it is this stack's own, made from another checkout "
        f"or with another backend of Pulumi, run `up` there; or end it: `{hint('down', stack.name)}`."
    )
    return what, cure


def stacks_of_name(cloud: Cloud) -> set[str]:
    """Return the stacks that the labels of a cluster's machines name.

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


def refuse_taken(
    provider: Provider, stack: Stack, design: ClusterDesign, known: ClusterRef | None, say: Say
) -> None:
    """Refuse to make a cluster beside another one of the same name.

    Args:
        known: As for `is_own`.

    Raises:
        UserError: Exit 3; the message lists what is there, and says what to do.
    """
    place = ClusterRef.of(design)
    if is_own(stack, place, known):
        return
    try:
        namesakes = provider.of_name(design)
    except UserError as error:
        say(f"whether another stack has a cluster of this name cannot be told: {error}")
        return
    if namesakes:
        what, cure = taken(stack, place, namesakes)
        raise UserError(f"nothing was made: {what}. {cure}", EXIT_REFUSED, code="cluster.name-taken")


def name_findings(provider: Provider, stack: Stack, design: ClusterDesign) -> Iterable[Finding]:
    """Whether the cluster's name is free; no finding without credentials, which another check reports."""
    from cli import engine

    place = ClusterRef.of(design)
    try:
        provider.require(design.provider_settings)
    except UserError:
        return
    if is_own(stack, place, None):
        return
    try:
        namesakes = provider.of_name(design)
    except UserError as error:
        yield warns("name", f"could not be asked for: {error}", "Nothing is known about it.")
        return
    if not namesakes:
        yield fine("name", f"no cluster is named {place.cluster} there yet")
        return
    try:
        known = ClusterRef.known(engine.outputs_of(engine.select(stack, design.provider))())
    except UserError:  # without the engine, which another check reports
        known = None
    if not is_own(stack, place, known):
        yield stops("name", *taken(stack, place, namesakes))


def refuse_foreign(provider: Provider, up: StackUp, outputs: Outputs) -> None:
    """Refuse a `down` that would end the cluster of another stack, because the stack file has its name.

    Raises:
        UserError: Exit 3; the message names that stack.
    """
    stack = up.stack
    if ClusterRef.known(outputs()) is not None or known_places(stack):
        return
    try:
        design = up.design
        others = provider.stacks_of(design) - {provider.cloud(ClusterRef.of(design)).label_of(stack.name)}
    except UserError:  # what `down` itself needs fails again, with its own message
        return
    if others:
        raise UserError(
            refusal(ClusterRef.of(design), stack, min(others)), EXIT_REFUSED, code="cluster.of-another-stack"
        )
