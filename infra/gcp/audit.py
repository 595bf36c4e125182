"""What a cluster has left in its project: by label where Google Cloud has labels, else by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from infra.gcp.account import Account, GoogleError
from infra.node.elastic.drivers.gce_names import CLUSTER, short

Found = Mapping[str, Any]
WORKERS = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing that costs, or that stands in the way of the next cluster of that name.

    Attributes:
        items: the key of the list in its API's answer.
        labelled: it is found by its label; else by its name.
        filters: its API takes a filter for labels; else they are compared here.
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
    """Compute Engine's expression for labels, all of which must hold.

    Args:
        labels: values of further labels: `role`, `host`; their prefix is added.
    """
    words = {CLUSTER: cluster, **{f"slurm-stacks-{key}": value for key, value in labels.items()}}
    # The API's reference has each of several expressions in parentheses.
    return " AND ".join(f"(labels.{key}={value})" for key, value in words.items())


def leftovers(account: Account, cluster: str) -> list[str]:
    """Everything of a cluster, a line each; what belongs to an instance that is there is not named again.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    with ThreadPoolExecutor(WORKERS) as pool:
        found = dict(zip(KINDS, pool.map(lambda kind: _found(account, cluster, kind), KINDS), strict=True))
    there = {str(one["name"]) for kind, parts in found.items() if kind.name == "instance" for one in parts}
    lines = []
    for kind, parts in found.items():
        for part in sorted(parts, key=lambda part: str(part["name"])):
            if kind.name in ("disk", "address") and there & {short(user) for user in part.get("users", [])}:
                continue
            lines.append(f"{kind.name} {short(str(part['name']))}{kind.say(part)}")
    return lines


def bucket(account: Account, cluster: str) -> str | None:
    """The name of the cluster's bucket; None: it has none.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    (kind,) = (kind for kind in KINDS if kind.name == "bucket")
    return next((str(one["name"]) for one in _found(account, cluster, kind)), None)


def _found(account: Account, cluster: str, kind: Kind) -> list[Found]:
    query = {"project": account.project} if kind.service == "storage" else {}
    if kind.labelled and kind.filters:
        query["filter"] = matching(cluster) if kind.service == "compute" else f"labels.{CLUSTER}={cluster}"
    try:
        parts = list(account.pages(kind.service, kind.path, kind.items, **query))
    except GoogleError as error:
        # Nothing can have been made by an API that nobody has enabled.
        if error.reason == "SERVICE_DISABLED" and kind.service in ("secretmanager", "file"):
            return []
        raise
    if kind.labelled:
        return [part for part in parts if part.get("labels", {}).get(CLUSTER) == cluster]
    return [part for part in parts if _is_ours(part, cluster)]


def _is_ours(part: Found, cluster: str) -> bool:
    """By its name, unless its description names another cluster: `a-b-network` may be `a`'s or `a-b`'s."""
    name = str(part["name"])
    named = re.findall(r"\bcluster ([a-z0-9-]+)", str(part.get("description", "")))
    return name == cluster or (name.startswith(f"{cluster}-") and (not named or cluster in named))
