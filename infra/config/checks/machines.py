"""Checks of machine types: known, alive, of this cloud, offered where the stack is."""

from __future__ import annotations

import re

from infra.config.checks.context import CLUSTER, Context
from infra.config.mistakes import Location

# EC2 writes the processor's maker behind the generation: g is AWS's own, Graviton (m7g, c7gn), and
# Grace in p6e-gb200. A1 is older than that rule, and Apple's machines do not follow it.
_EC2_ARM = re.compile(r"[a-z]+[0-9]+[a-z-]*g[a-z0-9-]*\..+|a1\..+|mac(?!1\.)[0-9].*")
_GOOGLE_ARM = ("t2a", "c4a", "n4a", "a4x")
"""Families with Ampere's, Google's own and NVIDIA's ARM processors."""


def is_arm(name: str, provider: str) -> bool:
    """Whether a cloud's machine type has ARM processors, by its name."""
    if provider == "aws":
        return _EC2_ARM.fullmatch(name) is not None
    return provider == "gcp" and name.partition("-")[0] in _GOOGLE_ARM


def check_machines(c: Context) -> None:
    """The controller's and the login machines'."""
    if c.cluster.controller.machine is not None:
        check_machine(c, (*CLUSTER, "controller", "machine"), c.cluster.controller.machine)
    if c.cluster.login.machine is not None:
        check_machine(c, (*CLUSTER, "login", "machine"), c.cluster.login.machine)


def check_machine(c: Context, location: Location, name: str) -> None:
    """Whether a machine can be had; says what to take instead."""
    retired = c.facts.retired.get(name)
    if retired is not None and retired.provider == c.provider:
        instead = ", or ".join(f"{machine} ({what})" for machine, what in retired.replaced_by.items())
        c.add(location, name, f"a machine that exists: {retired.why}", f"take {instead}")
        return
    machine = c.facts.machine(name)
    if machine is None:
        near = c.facts.near(name, c.provider)
        advice = f"did you mean {' or '.join(near)}?" if near else ""
        known = f"known: {', '.join(c.facts.names(c.provider))}"
        own = f"another one needs its facts under {CLUSTER[0]}.machines"
        c.add(location, name, f"a machine of {c.provider}; {known}", f"{advice} {own}".strip())
    elif machine.provider != c.provider:
        names = ", ".join(c.facts.names(c.provider))
        c.add(
            location,
            name,
            f"a machine of {c.provider}: {names}",
            f"{name} is a machine of {machine.provider}",
        )
    elif machine.regions is not None and c.region is not None and c.region not in machine.regions:
        where = ", ".join(machine.regions)
        c.add(location, name, f"a machine that {c.region} offers", f"{name} is offered in {where}")
    elif is_arm(name, c.provider):
        c.add(
            location,
            name,
            "a machine with x86-64 processors",
            f"{name} has ARM processors, and Ubuntu's image, the cloud's agent and the training environment "
            "that machines here get are of x86-64",
        )
