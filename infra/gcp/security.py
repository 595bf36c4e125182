"""The firewall's rules as data: who may reach whom, on what. Pure, so that a test reads them whole.

A VPC of Google's lets nothing in and everything out, and answers come back by themselves: only ways in are
named here. Machines are told by their service accounts, not by network tags: whoever may tag a machine could
put it into the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.clouds.reach import SSH, Ports, Rule, exports, outside, roles, slurm
from infra.node.model import ClusterDesign

IAP = "35.235.240.0/20"
"""Where TCP connections of the Identity-Aware Proxy come from; it asks IAM who may have one."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A rule of the firewall: what a kind of machines lets in from one side.

    Attributes:
        role: controller | login | compute: whose machines.
        side: what is behind it in a word: a role, or iap, or ssh.
        ranges: networks it comes from; empty where `side` is a role.
        ports: TCP ports; with none of either kind: every protocol.
        udp: UDP ports.
    """

    role: str
    side: str
    ranges: tuple[str, ...]
    ports: tuple[Ports, ...]
    why: str
    udp: tuple[Ports, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.role}-{self.side}"


def openings(design: ClusterDesign) -> list[Opening]:
    """Every rule of a design's firewall. What is not here is closed."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in _rules(design):
        found.setdefault((rule.group, _side(rule, design)), []).append(rule)
    return [_opening(role, side, rules, design) for (role, side), rules in found.items()]


def _rules(design: ClusterDesign) -> Iterator[Rule]:
    yield Rule("compute", "in", "compute", None, "jobs of several nodes")
    yield from slurm(design)
    yield from exports(design)
    yield from outside(design)
    if design.access.mode == "iap":
        for role in roles(design):
            yield Rule(role, "in", IAP, SSH, "Identity-Aware Proxy")


def _side(rule: Rule, design: ClusterDesign) -> str:
    if rule.peer in roles(design):
        return rule.peer
    return "iap" if rule.peer == IAP and design.access.mode == "iap" else "ssh"


def _opening(role: str, side: str, rules: list[Rule], design: ClusterDesign) -> Opening:
    """Several rules of one side are one in the firewall, which takes lists."""

    def ports(protocol: str) -> tuple[Ports, ...]:
        return tuple(dict.fromkeys(r.ports for r in rules if r.ports is not None and r.protocol == protocol))

    return Opening(
        role,
        side,
        tuple(dict.fromkeys(rule.peer for rule in rules if side not in roles(design))),
        ports("tcp"),
        "; ".join(dict.fromkeys(rule.why for rule in rules)),
        ports("udp"),
    )
