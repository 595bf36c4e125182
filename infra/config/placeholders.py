"""Values that a stack file leaves to its user: a stack with them can be planned but not brought up.

A placeholder is a word that begins with `PLACEHOLDER_`, as in AWS's published cluster files, at one of the
keys of `KEYS`. An example network in `access.ssh_cidrs` is one, too: nobody has its addresses (RFC 5737,
RFC 3849). So is the example project of the shipped stack files for Google Cloud.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.config.cluster import ClusterConfig
from infra.config.fields import (
    BUCKET,
    IN_WORDS,
    KEY_PAIR,
    KMS_KEY,
    PLACEHOLDER,
    PLACEMENT_GROUP,
    SUBNET,
    VPC,
)
from infra.config.mistakes import Location, Mistake, path_of, shown
from infra.errors import EXIT_USAGE, UserError
from node.system import plurals

_OWN_NETWORK = "or remove network.aws: the stack then makes a network of its own"
_OWN_IMAGE = "or remove this key: machines then start from Ubuntu's own image"
_NO_PACKAGES = "or remove containers: jobs then run without Enroot and Pyxis"
KEYS = {
    "access.key": (IN_WORDS[KEY_PAIR], "or write access: {mode: ssm}: Session Manager needs no key pair"),
    "access.ssh_cidrs": ("your own network, or your address with /32", "or write access: {mode: ssm}"),
    "aws.kms_key": (IN_WORDS[KMS_KEY], "or remove kms_key: disks then have the account's default key"),
    "containers.packages.sha256": ("the hash of this package, as `sha256sum FILE` prints it", _NO_PACKAGES),
    "containers.packages.source": (
        "where your package is: an address that ends in .deb, or a path in this project",
        _NO_PACKAGES,
    ),
    "controller.image.id": ("the id of your image of Ubuntu 24.04, ami-…", _OWN_IMAGE),
    "image.id": ("the id of your image of Ubuntu 24.04, ami-…", _OWN_IMAGE),
    "network.aws.private_subnets": (f"{IN_WORDS[SUBNET]}, for the nodes", _OWN_NETWORK),
    "network.aws.public_subnet": (f"{IN_WORDS[SUBNET]}, for controller and login", _OWN_NETWORK),
    "network.aws.vpc": (f"{IN_WORDS[VPC]}: that of the subnets", _OWN_NETWORK),
    "partitions.aws.placement_group": (IN_WORDS[PLACEMENT_GROUP], "or remove placement_group"),
    "partitions.image.id": ("the id of your image of Ubuntu 24.04, ami-…", _OWN_IMAGE),
    "partitions.reservation": (
        "the id of your capacity reservation, cr-…, a list of several, or the ARN of a group of them",
        "or remove it, and write placement: cluster for nodes close together",
    ),
    **{
        f"storage.{part}.{key}": (f"{IN_WORDS[BUCKET]}: {what}", f"or remove {key}: {without}")
        for part in ("home", "apps", "scratch")
        for key, what, without in (
            ("s3_import", "the bucket, or a part of it, whose objects are to be files", "it begins empty"),
            ("s3_export", "where changed files are to go", "nothing is written back to S3"),
        )
    },
}
"""Key below `slurm-stacks:cluster`, without the numbers of lists -> what to fill in, the way without it."""
EXAMPLE_PROJECT = "my-project"
"""The project of the shipped stack files. Ids of projects are unique, so this one is no reader's."""
_NOBODYS = tuple(
    map(ipaddress.ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"))
)


def is_placeholder(value: object) -> bool:
    """Return whether a value is a placeholder's word."""
    return isinstance(value, str) and re.fullmatch(PLACEHOLDER, value) is not None


def stands_at(location: Location, value: object) -> bool:
    """Return whether a value is a placeholder at a key that may have one; it is not checked further."""
    return is_placeholder(value) and _key(location[1:]) in KEYS


def in_cluster(cluster: ClusterConfig, top: Location) -> tuple[Mistake, ...]:
    """Return all placeholders of a cluster, in the order of the stack file's keys.

    Args:
        top: The location of the cluster.
    """
    return tuple(
        Mistake("value.placeholder", path_of((*top, *location)), shown(value), *KEYS[_key(location)])
        for location, value in _texts(cluster.model_dump(exclude_unset=True))
        if _key(location) in KEYS and (is_placeholder(value) or _nobodys(location, value))
    )


def in_project(project: str | None) -> tuple[Mistake, ...]:
    """Return the example project, if the stack file still names it."""
    if project != EXAMPLE_PROJECT:
        return ()
    allowed = "the id of your Google Cloud project, as `gcloud projects list` shows it"
    return (Mistake("value.placeholder", "gcp:project", shown(project), allowed, ""),)


def words(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Return the mistakes whose value is a placeholder's word, for a message about other mistakes."""
    return [
        replace(mistake, unfilled=True) for mistake in mistakes if is_placeholder(mistake.given.strip('"'))
    ]


def listed(mistakes: Sequence[Mistake]) -> str:
    """Return the placeholders in one list, with what to fill in. docs/architectures.md has ways without."""
    values = plurals.count(len(mistakes), "value is", "values are")
    head = f"{values} still to be filled in, and nothing is made until then:"
    return "\n".join(
        [head, *(f"  {mistake.path}: {mistake.given} → {mistake.allowed}" for mistake in mistakes)]
    )


def refuse(file: str, found: Sequence[Mistake]) -> None:
    """Refuse a stack with placeholders.

    Raises:
        UserError: With exit code 2; the message has all of them.
    """
    if found:
        raise UserError(f"{file}: {listed(found)}", EXIT_USAGE, code="file.placeholders")


def _key(location: Location) -> str:
    return ".".join(part for part in location if isinstance(part, str))


def _nobodys(location: Location, value: str) -> bool:
    if _key(location) != "access.ssh_cidrs":
        return False
    net = ipaddress.ip_network(value)
    return any(net.version == network.version and net.subnet_of(network) for network in _NOBODYS)  # type: ignore[arg-type]


def _texts(value: Any, location: Location = ()) -> Iterator[tuple[Location, str]]:
    """Yield every text in nested sections and lists, with its location."""
    if isinstance(value, str):
        yield location, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*location, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*location, index))
