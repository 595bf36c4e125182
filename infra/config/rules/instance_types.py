"""Rules of instance types: names that exist, their architecture, and what the table says of them."""

from __future__ import annotations

import re

from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, Context
from infra.instance_types.catalog import FEW

# In EC2's names the letter after the generation is the processor's maker: g is Graviton, AWS's own (m7g,
# c7gn), and Grace in p6e-gb200. A1 is older than that rule, and Apple's machines do not follow it.
_EC2_ARM = re.compile(r"[a-z]+[0-9]+[a-z-]*g[a-z0-9-]*\..+|a1\..+|mac(?!1\.).*")
_GOOGLE_ARM = ("t2a", "c4a", "n4a", "a4x")
"""Machine families with ARM processors of Ampere, Google and NVIDIA."""


def is_arm(name: str, provider: str) -> bool:
    """Return whether a cloud's instance type has ARM processors, by its name."""
    if provider == "aws":
        return _EC2_ARM.fullmatch(name) is not None
    return provider == "gcp" and name.partition("-")[0] in _GOOGLE_ARM


def check_instance_types(c: Context) -> None:
    """Check the instance types of the controller and the login machines."""
    if c.cluster.controller.instance_type is not None:
        check_instance_type(c, (*CLUSTER, "controller", "instance_type"), c.cluster.controller.instance_type)
    if c.cluster.login.instance_type is not None:
        check_instance_type(c, (*CLUSTER, "login", "instance_type"), c.cluster.login.instance_type)


def check_instance_type(c: Context, location: Location, name: str) -> None:
    """Check that an instance type can be used; if not, the mistake says what to use instead."""
    retired = c.facts.retired.get(name)
    if retired is not None and retired.provider == c.provider:
        instead = ", or ".join(f"{machine} ({what})" for machine, what in retired.replaced_by.items())
        c.add(
            "instance-type.retired",
            location,
            name,
            f"an instance type that still exists: {retired.why}",
            f"take {instead}",
        )
        return
    if is_arm(name, c.provider):
        c.add(
            "instance-type.arm",
            location,
            name,
            "an instance type with x86-64 processors",
            f"{name} has ARM processors, and Ubuntu's image, the cloud's agent and the training environment "
            "that machines here get are of x86-64",
        )
        return
    machine = c.facts.instance_type(name)
    unusable = c.facts.unusable.get(name)
    series = c.facts.series.get(name.partition("-")[0]) if c.provider == "gcp" else None
    why = unusable.why if unusable and unusable.provider == c.provider else series and series.unusable
    if why and machine is None:
        c.add(
            "instance-type.unusable",
            location,
            name,
            "an instance type that a cluster here can use",
            f"{name} is not one: {why}",
        )
    elif machine is None:
        _unknown(c, location, name)
    elif machine.provider != c.provider:
        few = c.facts.names(c.provider)
        which = f": {', '.join(few)}" if len(few) <= FEW else ""
        c.add(
            "instance-type.other-provider",
            location,
            name,
            f"an instance type of {c.provider}{which}",
            f"{name} is an instance type of {machine.provider}",
        )
    elif c.region is not None and not c.facts.offered(name, c.region):
        where = ", ".join(machine.regions or ())
        advice = f"{name} is offered in {where}"
        if machine.asked:
            advice = f"its facts are kept of {where} only; {_ask(c)}"
        c.add(
            "instance-type.other-region", location, name, f"an instance type that {c.region} offers", advice
        )


def _unknown(c: Context, location: Location, name: str) -> None:
    if c.provider != "local" and (advice := _family(c, name)):
        c.add("instance-type.family", location, name, "one instance type, not a family of them", advice)
        return
    near = c.near(name)
    advice = f"did you mean {' or '.join(near)}? " if near else ""
    if c.provider == "local":
        known = f"an instance type of local: {', '.join(c.facts.names(c.provider))}"
        c.add(
            "instance-type.unknown",
            location,
            name,
            known,
            f"{advice}another one: give its facts under {CLUSTER[0]}.instance_types",
        )
        return
    c.add(
        "instance-type.unknown",
        location,
        name,
        f"an instance type of {c.provider}; {len(c.facts.names(c.provider))} are known",
        f"{advice}another one: {_ask(c)}, or give its facts under {CLUSTER[0]}.instance_types",
    )


def _family(c: Context, name: str) -> str:
    """Return what to take where the name is a family's (`p3 family`, `n1`), or AWS Batch's `optimal`."""
    family = name.lower().removesuffix(" family").removesuffix(".*").rstrip("*.")
    if c.provider == "aws" and family == "optimal":
        slurm = ", and Slurm counts their CPUs before they start" if c.cluster.scheduler == "slurm" else ""
        return f"take one type: nodes of one job are equal{slurm}"
    start = family + {"aws": ".", "gcp": "-"}[c.provider]
    types = [known for known in c.facts.names(c.provider) if known.startswith(start)]
    gone = [retired for retired in c.facts.retired if retired.startswith(start)]
    if not types and gone:
        retired = c.facts.retired[gone[0]]
        instead = ", or ".join(f"{machine} ({what})" for machine, what in retired.replaced_by.items())
        return f"{retired.why}: take {instead}"
    if not types:
        return ""
    more = f" and {len(types) - FEW} more" if len(types) > FEW else ""
    return f"take one of it: {', '.join(types[:FEW])}{more}"


def _ask(c: Context) -> str:
    """Return how to learn a type's facts from the cloud, which `plan` does not ask."""
    cloud = {"aws": "AWS", "gcp": "Google Cloud"}[c.provider]
    command = f"./cluster doctor --stack {c.stack}"
    return f"`{command}` asks {cloud} about it, with your credentials, and keeps the answer"
