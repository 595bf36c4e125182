"""Of what machines can be made here: processes always, containers where this user and host can have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infra.doctor.finding import Finding, Severity, fine, said
from infra.local import image, possible
from infra.local.cloud.kind import CONTAINER
from infra.node.model import ClusterDesign


def containers(
    design: ClusterDesign, why_not: Callable[[ClusterDesign | None], str | None] = possible.why_not
) -> Iterable[Finding]:
    """Whether `machines: container` is possible, or why not.

    Args:
        design: of the stack that is asked about.
        why_not: finds it out.
    """
    wanted = design.machines == CONTAINER
    reason = why_not(design if wanted else None)
    if reason is None:
        if not wanted:
            yield fine("machines.processes", "they are processes; `machines: container` is possible, too")
            return
        made = (
            "its image is there" if image.there(design) else "`up` makes its image first, some minutes once"
        )
        yield fine("machines.containers", f"each is a container that boots; {made}")
    elif wanted:
        yield said("machines.containers", Severity.STOPS, f"{reason} {possible.INSTEAD}")
    else:
        why = reason.partition(": ")[0].removesuffix(".")
        yield fine("machines.processes", f"they are processes; as containers they are not possible: {why}")
