"""A cluster's leftovers in its project, found by label, or by name where Google Cloud has no labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from node.elastic.drivers.gce.names import CLUSTER, short
from operations.gcp.account import Account, GoogleError

Found = Mapping[str, Any]
WORKERS = 8
LAST = re.compile(r"-\d{8}-\d{6}$")
"""The end of the name of a snapshot that the provider makes before it deletes a disk."""
KEPT = "slurm-stacks-keep"
"""The label of a disk or an instance that stays after a destroy: its name in the stack file."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource that costs money or blocks the next cluster of the same name.

    Attributes:
        items: The key of the list in its API's answer.
        labelled: Whether it is found by its label; otherwise it is found by its name.
        filters: Whether its API can filter by label; otherwise labels are compared here.
        say: Gives the details for its line.
    """

    name: str
    service: str
    path: str
    items: str = "items"
    labelled: bool = True
    filters: bool = True
    say: Callable[[Found], str] = lambda _: ""


def _size(part: Found) -> str:
    return f" ({part.get('sizeGb', '?')} GiB, {part.get('status', '?')})"


def _state(part: Found) -> str:
    return f" ({part.get('status') or part.get('state') or '?'})"


def _address(part: Found) -> str:
    return f" ({part.get('address', '?')}, {part.get('status', '?')})"


def _compute(name: str, path: str, say: Callable[[Found], str] = lambda _: "", labelled: bool = True) -> Kind:
    return Kind(name, "compute", f"projects/{{project}}/{path}", labelled=labelled, filters=labelled, say=say)


KINDS: Sequence[Kind] = (
    _compute("instance", "aggregated/instances", _state),
    _compute("disk", "aggregated/disks", _size),
    _compute("address", "aggregated/addresses", _address),
    _compute("image", "global/images", _state),
    _compute("snapshot", "global/snapshots", _state),
    _compute("instance template", "aggregated/instanceTemplates", labelled=False),
    _compute("resource policy", "aggregated/resourcePolicies", labelled=False),
    _compute("firewall rule", "global/firewalls", labelled=False),
    _compute("router", "aggregated/routers", labelled=False),
    _compute("subnetwork", "aggregated/subnetworks", labelled=False),
    _compute("network", "global/networks", labelled=False),
    Kind("bucket", "storage", "b", filters=False),
    Kind("secret", "secretmanager", "projects/{project}/secrets", "secrets"),
    Kind("Filestore instance", "file", "projects/{project}/locations/-/instances", "instances", say=_state),
)


def matching(cluster: str, **labels: str) -> str:
    """Compute Engine's filter expression for resources with all of these labels.

    Args:
        labels: Values of further labels: `role`, `host`. Their prefix is added.
    """
    words = {CLUSTER: cluster, **{f"slurm-stacks-{key}": value for key, value in labels.items()}}
    # The API's reference puts each of several expressions in parentheses.
    return " AND ".join(f"(labels.{key}={value})" for key, value in words.items())


def leftovers(account: Account, cluster: str) -> list[str]:
    """One line for each resource of a cluster, without the disks and addresses of listed hosts.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        by_kind = dict(zip(KINDS, pool.map(lambda kind: _found(account, cluster, kind), KINDS), strict=True))
    hosts = {
        str(part["name"]) for kind, parts in by_kind.items() if kind.name == "instance" for part in parts
    }
    lines = []
    for kind, parts in by_kind.items():
        for part in sorted(parts, key=lambda part: str(part["name"])):
            if kind.name in ("disk", "address") and hosts & {short(user) for user in part.get("users", [])}:
                continue
            lines.append(f"{kind.name} {short(str(part['name']))}{kind.say(part)}")
    return lines


def bucket(account: Account, cluster: str) -> str | None:
    """Return the name of the cluster's bucket; `None` if it has none.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    (kind,) = (kind for kind in KINDS if kind.name == "bucket")
    return next((str(bucket["name"]) for bucket in _found(account, cluster, kind)), None)


def _found(account: Account, cluster: str, kind: Kind) -> list[Found]:
    """Return the resources of one kind that are left, without those that are to stay."""
    parts = _parts(account, cluster, kind)
    if kind.name == "snapshot":
        # What the provider saves of a disk before it deletes the disk stays on purpose.
        parts = [part for part in parts if not LAST.search(str(part["name"]))]
    if kind.labelled:
        return [part for part in parts if _labels(part).get(CLUSTER) == cluster and KEPT not in _labels(part)]
    return [part for part in parts if _belongs_to(part, cluster)]


def _parts(account: Account, cluster: str, kind: Kind) -> list[Found]:
    query = {"project": account.project} if kind.service == "storage" else {}
    if kind.labelled and kind.filters:
        query["filter"] = matching(cluster) if kind.service == "compute" else f"labels.{CLUSTER}={cluster}"
    try:
        return list(account.pages(kind.service, kind.path, kind.items, **query))
    except GoogleError as error:
        # A disabled API cannot have made anything.
        if error.reason == "SERVICE_DISABLED" and kind.service in ("secretmanager", "file"):
            return []
        raise


def kept_parts(account: Account, cluster: str, name: str) -> Iterator[tuple[str, Found]]:
    """Yield a cluster's resources of one kind that are to stay, with the names that their labels give.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    (kind,) = (kind for kind in KINDS if kind.name == name)
    for part in _parts(account, cluster, kind):
        if _labels(part).get(CLUSTER) == cluster and KEPT in _labels(part):
            yield _labels(part)[KEPT], part


def _labels(part: Found) -> Mapping[str, str]:
    labels: Mapping[str, str] = part.get("labels", {})
    return labels


def _belongs_to(part: Found, cluster: str) -> bool:
    """Whether a resource is the cluster's by its name, unless its description names another cluster.

    `a-b-network` may be `a`'s or `a-b`'s.
    """
    name = str(part["name"])
    named = re.findall(r"\bcluster ([a-z0-9-]+)", str(part.get("description", "")))
    return name == cluster or (name.startswith(f"{cluster}-") and (not named or cluster in named))
