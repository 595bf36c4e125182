"""What AWS's service authorization reference says of actions, by the copy that policy_sentry brings.

`tests.support.iam` decides calls by the ARNs that a test chooses. This module decides whether AWS would ever
ask for such an ARN: an action without a resource type is allowed by `"*"` only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policy_sentry.querying.actions import get_action_data

ARNS = {
    "Bucket": "arn:aws:s3:::bucket",
    "BucketV2": "arn:aws:s3:::bucket",
    "LogGroup": "arn:aws:logs:eu-west-1:111122223333:log-group:group",
    "Secret": "arn:aws:secretsmanager:eu-west-1:111122223333:secret:secret",
    "Role": "arn:aws:iam::111122223333:role/role",
    "Repository": "arn:aws:ecr:eu-west-1:111122223333:repository/repository",
    "StateMachine": "arn:aws:states:eu-west-1:111122223333:stateMachine:machine",
}
"""Type of a resource -> the form of its ARN, for a plan that has a placeholder in its place."""
PLACEHOLDER = re.compile(r"^<(?P<name>.+)\.arn>")


def mistakes(
    actions: Sequence[str], resources: Sequence[str], planned: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Name the actions that do not exist, and what a statement allows without effect.

    Args:
        actions: The actions of one statement that allows.
        resources: Its ARNs; those of a plan's resources may be placeholders.
        planned: The resources of that plan.
    """
    used = set()
    arns = [_resolved(resource, planned) for resource in resources]
    for action in actions:
        formats = _formats(action)
        if not formats:
            yield f"{action} does not exist"
        matching = {arn for arn in arns if any(_matches(form, arn) for form in formats)}
        used |= matching
        if formats and not matching:
            yield f"{action} is never asked for {', '.join(resources)}, but for {', '.join(sorted(formats))}"
    for arn, resource in zip(arns, resources, strict=True):
        if arn not in used:
            yield f"no action of {', '.join(actions)} is asked for {resource}"


@functools.cache
def _formats(action: str) -> frozenset[str]:
    """Return the forms of the ARNs of the resources that an action is asked for."""
    service, _, name = action.partition(":")
    rows = get_action_data(service, name)
    return frozenset(row["resource_arn_format"] for row in rows[service]) if rows else frozenset()


def _resolved(resource: str, planned: Sequence[Mapping[str, Any]]) -> str:
    if (match := PLACEHOLDER.match(resource)) is None:
        return resource
    kinds = {row["type"].rpartition(":")[2] for row in planned if row["name"] == match["name"]}
    (arn,) = {ARNS[kind] for kind in kinds if kind in ARNS}
    return arn + resource[match.end() :]


def _matches(form: str, arn: str) -> bool:
    """Return whether some ARN is of a form, with `${…}` for its parts, and of a statement's pattern too."""
    if "*" in (form, arn):
        # A statement about everything covers an action with resources, too.
        return arn == "*"
    parts = (re.sub(r"\$\{[^}]*\}", "*", form).split(":", 5), arn.split(":", 5))
    return len(parts[0]) == len(parts[1]) and all(map(_overlap, *parts))


@functools.cache
def _overlap(one: str, other: str) -> bool:
    """Return whether a text matches both of two patterns whose `*` stands for any text."""
    if not one or not other:
        return (one + other).strip("*") == ""
    if one[0] == "*":
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    if other[0] == "*":
        return _overlap(other, one)
    return one[0] == other[0] and _overlap(one[1:], other[1:])
