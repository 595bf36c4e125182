"""The labels by which a cluster's resources are found, and names within Google's lengths.

The termination of nodes, the search for leftovers, the driver and the bill use the labels. The functions are
pure, so that a plan shows which accounts the firewall's rules admit.
"""

from __future__ import annotations

import hashlib

from node.design.model import ClusterDesign
from node.elastic.drivers.gce.names import CLUSTER, COMPUTE, HOST, PARTITION, ROLE, STACK, value

__all__ = ["CLUSTER", "COMPUTE", "HOST", "PARTITION", "ROLE", "STACK", "labels", "value"]
DIGEST_DIGITS = 6
ACCOUNT_ID_LENGTH = 30
"""The most characters of a service account's id. The least is 6, which every name with a role has."""


def labels(design: ClusterDesign, **more: str) -> dict[str, str]:
    """Return the labels of one resource: the stack file's and the cluster's own.

    Args:
        more: `role`, `host`, `partition`. The prefix is added.
    """
    return {
        **design.tags,
        CLUSTER: value(design.name),
        STACK: value(design.stack),
        **{f"slurm-stacks-{key}": value(text) for key, text in more.items()},
    }


def shortened(name: str, limit: int) -> str:
    """Return the name, shortened to `limit` characters.

    A longer name is cut, and ends in a digest of all of it.
    """
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{name[: limit - DIGEST_DIGITS - 1].rstrip('-')}-{digest}"


def account_id(cluster: str, role: str) -> str:
    """Return the id of the service account of a role's machines."""
    return shortened(f"{cluster}-{role}", ACCOUNT_ID_LENGTH)


def account_email(design: ClusterDesign, role: str) -> str:
    """Return the email address of the service account of a role's machines.

    The id of a project of a domain is `example.com:p`; its accounts end in `p.example.com`.
    """
    domain, _, project = str(design.project).rpartition(":")
    account_domain = f"{project}.{domain}" if domain else project
    return f"{account_id(design.name, role)}@{account_domain}.iam.gserviceaccount.com"
