"""The firewall's rules as plain data: who may reach whom, on which ports.

The functions are pure, so that a test can read all rules. A VPC of Google's lets nothing in and everything
out, and answers come back without a rule. So only incoming traffic has rules here. Machines are identified by
their service accounts and not by network tags: whoever may tag a machine could put it into the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.clouds.firewall import SSH, Ports, Rule, exports, outside, roles, slurm
from node.model import ClusterDesign

IAP = "35.235.240.0/20"
"""The network of the Identity-Aware Proxy, which asks IAM who may connect."""


@dataclass(frozen=True, slots=True)
class IngressRule:
    """A rule of the firewall: what the machines of a role let in from one source.

    Attributes:
        role: controller | login | compute.
        source: A role, or `iap`, or `ssh`. It is a part of the rule's name.
        ranges: The networks that the traffic comes from. It is empty where `source` is a role.
        ports: The TCP ports. A rule without TCP and UDP ports admits every protocol.
        udp: The UDP ports.
    """

    role: str
    source: str
    ranges: tuple[str, ...]
    ports: tuple[Ports, ...]
    description: str
    udp: tuple[Ports, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.role}-{self.source}"


def ingress_rules(design: ClusterDesign) -> list[IngressRule]:
    """Every rule of a design's firewall. All other traffic is refused."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in _rules(design):
        found.setdefault((rule.group, _source(rule, design)), []).append(rule)
    return [_merged(role, source, rules, design) for (role, source), rules in found.items()]


def _rules(design: ClusterDesign) -> Iterator[Rule]:
    yield Rule("compute", "in", "compute", None, "jobs of several nodes")
    yield from slurm(design)
    yield from exports(design)
    yield from outside(design)
    if design.access.mode == "iap":
        for role in roles(design):
            yield Rule(role, "in", IAP, SSH, "Identity-Aware Proxy")


def _source(rule: Rule, design: ClusterDesign) -> str:
    if rule.peer in roles(design):
        return rule.peer
    return "iap" if rule.peer == IAP and design.access.mode == "iap" else "ssh"


def _merged(role: str, source: str, rules: list[Rule], design: ClusterDesign) -> IngressRule:
    """The rules of one source as one rule of the firewall, which accepts lists."""

    def ports(protocol: str) -> tuple[Ports, ...]:
        return tuple(dict.fromkeys(r.ports for r in rules if r.ports is not None and r.protocol == protocol))

    return IngressRule(
        role,
        source,
        tuple(dict.fromkeys(rule.peer for rule in rules if source not in roles(design))),
        ports("tcp"),
        "; ".join(dict.fromkeys(rule.description for rule in rules)),
        ports("udp"),
    )
