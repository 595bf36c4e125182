"""The names of the cluster's service accounts: pure, so that a plan shows whom the network's rules let in."""

from __future__ import annotations

from infra.gcp.names import fitting
from infra.node.model import ClusterDesign

LONGEST = 30
"""Characters of an account's id, at most; 6 at least, which any name with a role has."""


def account_id(cluster: str, role: str) -> str:
    return fitting(f"{cluster}-{role}", LONGEST)


def email(design: ClusterDesign, role: str) -> str:
    """Of the account of this role's machines; projects of a domain (`example.com:p`) have it the other way
    round in there."""
    domain, _, project = str(design.project).rpartition(":")
    place = f"{project}.{domain}" if domain else project
    return f"{account_id(design.name, role)}@{place}.iam.gserviceaccount.com"
