"""Of what machines can be made here: processes always, namespaces where the kernel lets this user."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infra.doctor.finding import Finding, Severity, fine, said
from infra.errors import UserError
from infra.local import possible
from infra.local.cloud.kind import NAMESPACE

WAYS = {
    "root": "as root: they have users, cgroups and an SSH server of their own",
    "rootless": "in a user namespace of this user's: they have this one user, and no cgroups",
}


def namespaces(machines: str, way: Callable[[], str] = possible.way) -> Iterable[Finding]:
    """Whether `machines: namespace` is possible, in which way, or why not.

    Args:
        machines: what the stack file asks for.
        way: finds it out.
    """
    wanted = machines == NAMESPACE
    try:
        found = WAYS[way()]
    except UserError as error:
        if wanted:
            yield said("machines.namespaces", Severity.STOPS, str(error))
        else:
            why = str(error).partition(". ")[0]
            yield fine(
                "machines.processes", f"they are processes; as namespaces they are not possible: {why}"
            )
        return
    if wanted:
        yield fine("machines.namespaces", f"they are namespaces, {found}")
    else:
        yield fine("machines.processes", "they are processes; `machines: namespace` is possible here, too")
