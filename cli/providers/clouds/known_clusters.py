"""The clusters that a stack of this checkout has made in a cloud and that may still exist.

The next `down` must find what is left of each of them. The engine's outputs are not enough: they are deleted
with the stack, exist only after an `up` that succeeded, and name one cluster. The stack file may name another
one by now. So the user's record of the cluster (`infra.program.clusters`) holds them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator

from cli.hints import hint
from infra.clouds.commands import ClusterRef
from infra.config import ConfigError, provider_settings
from infra.errors import UserError
from infra.program import clusters, folders
from infra.program.stack import Stack
from operations.access import Outputs, StackUp
from operations.clouds import environment


def known_places(stack: Stack) -> list[ClusterRef]:
    """Return the clusters in the order in which they were noted; empty if the record cannot be read."""
    record = clusters.of(stack)
    try:
        return [ClusterRef(**fields) for fields in record.places] if record else []
    except TypeError:
        return []


def settings(stack: Stack) -> str | None:
    """Return the provider's settings of a stack file, also if it has mistakes elsewhere.

    If there is no such file, or it cannot be read, they are those of the cluster that was noted last.

    Raises:
        ConfigError: A setting is refused, so nobody but the engine knows which account is meant.
    """
    try:
        return provider_settings.of_file(stack.file, stack.project)
    except ConfigError as error:
        if error.mistakes:
            raise
    return next((place.provider_settings for place in reversed(known_places(stack))), None)


def made(up: StackUp, outputs: Outputs) -> list[ClusterRef]:
    """Return the clusters that this stack has made; without a record of any, the stack file's cluster.

    Raises:
        UserError: The stack file has mistakes, or its settings of the provider are refused.
    """
    named = settings(up.stack)
    known = ClusterRef.known(outputs(), named)
    noted = known_places(up.stack)
    # A cluster was made as the settings of then say, and the engine ends it as those of now say.
    others = [p for p in noted if not provider_settings.same_account(p.provider_settings, named)]
    noted = [*(dataclasses.replace(place, provider_settings=named) for place in noted), *others]
    places = dict.fromkeys([*([known] if known else []), *noted])
    if places:
        return list(places)
    try:
        return [ClusterRef.of(up.design)]
    except UserError as error:
        raise UserError(
            f"the engine knows no cluster of stack {up.stack.name}, and its file does not say which one "
            f"to look for:\n{error}",
            error.exit_code,
            code="cluster.unknown",
        ) from error


def refuse_unknown_account(stack: Stack) -> None:
    """Refuse a `down` whose sweep and audit would not know which account the engine asks.

    Raises:
        UserError: A setting of the provider is refused (exit 2), or only the engine can read it (exit 3).
    """
    environment.known(settings(stack))


@contextlib.contextmanager
def as_former_account(stack: Stack, place: ClusterRef) -> Iterator[None]:
    """Explain an error of the body if the cluster was made as somebody else than the stack file says now.

    Raises:
        UserError: As the body; the message says whose account cannot be asked, and what to do.
    """
    try:
        yield
    except UserError as error:
        record = clusters.of(stack)
        if record is None or provider_settings.same_account(place.provider_settings, settings(stack)):
            raise
        former = place.provider_settings or "no settings of the provider"
        raise UserError(
            f"the stack is destroyed, and it is not known what is left of cluster {place.cluster} in "
            f"{place.region} where an earlier {stack.file.name} had it made, with {former}: {error}\n"
            f"Make that account usable again and run `{hint('down', stack.name)}`. If nothing of yours is "
            f"there, remove the record of it: `rm {shlex.quote(str(record.file))}`",
            error.exit_code,
            code="cluster.former-account",
        ) from error


def note_cluster(stack: Stack, place: ClusterRef) -> None:
    """Note a cluster, before anything of it is made or asked for."""
    # Only a cluster on Google Cloud has a project.
    provider = "gcp" if place.project else "aws"
    clusters.note(stack, provider, folders.make_state_dir(stack), place.plain())


def forget_cluster(stack: Stack) -> None:
    """Forget all clusters, once nothing of them is left."""
    clusters.forget(stack)
