"""Checks of the kinds of machines that are possible here, and of the images of container machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cli.doctor.finding import Finding, Severity, fine, from_message
from cli.local import container_support, image
from localcloud import layers
from node.model import CONTAINER, ClusterDesign


def containers(
    design: ClusterDesign,
    unsupported_reason: Callable[[ClusterDesign | None], str | None] = container_support.unsupported_reason,
) -> Iterable[Finding]:
    """Check whether `isolation: container` is possible.

    Args:
        design: the stack's design.
        unsupported_reason: finds it out.
    """
    wanted = design.isolation == CONTAINER
    reason = unsupported_reason(design if wanted else None)
    if reason is None:
        if not wanted:
            yield fine("machines.processes", "they are processes; `isolation: container` is possible, too")
            return
        made = (
            "its image is there" if image.exists(design) else "`up` makes its image first, some minutes once"
        )
        yield fine("machines.containers", f"each is a container that boots; {made}")
    elif wanted:
        yield from_message("machines.containers", Severity.STOPS, f"{reason} {container_support.INSTEAD}")
    else:
        yield fine("machines.processes", f"they are processes; as containers they are not possible: {reason}")


def images() -> Iterable[Finding]:
    """Report the size of the cached images of container machines."""
    if used := layers.size_mib(image.folder()):
        text = f"images take {used} MiB in {image.folder()}; `up` removes those that were unused for a week"
        yield fine("machines.images", text)
