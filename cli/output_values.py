"""Checks the values of a cluster's outputs that commands use: each has its form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from infra.errors import EXIT_REFUSED, UserError
from infra.outputs.contract import ClusterOutput, Login, LoginAccess
from infra.program.locations import ID_LENGTH
from node.logs.text import printable
from operations import host_keys

# The values that commands use, and their forms.

OPTION = "--outputs"
LONGEST_VALUE = 60
_USERS = r"[a-z_][a-z0-9_-]{0,31}"
_REGION = (r"[a-z]{2,}[a-z0-9-]{2,38}[a-z0-9]", "a region")
_ZONE = (r"[a-z]{2,}[a-z0-9-]{2,38}[a-z0-9]", "a zone")
_PROJECT = (r"([a-z0-9.-]{1,63}:)?[a-z][a-z0-9-]{1,61}[a-z0-9]", "a project's id")
_MODES: dict[str, tuple[str, ...]] = {"aws": ("ssh", "ssm"), "gcp": ("ssh", "iap"), "local": ("local",)}
_MACHINES = {
    "aws": (r"i-[0-9a-f]{8,17}", "an instance's id, i-…"),
    "gcp": (r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "an instance's name"),
    "local": (rf"[0-9a-f]{{{ID_LENGTH}}}", f"{ID_LENGTH} hexadecimal digits"),
}
_ADDRESS = r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?"


def check(option: str, cluster: ClusterOutput) -> None:
    """Refuse outputs with a value that has not its form, or that do not say how to reach the machine.

    Raises:
        UserError: The message has every such value with its path.
    """
    where = f"{OPTION} {printable(option)}"
    if cluster.scheduler.name == "batch":
        raise UserError(
            f"{where}: this is AWS Batch, which has no login machine to ask. Its stack file has what the "
            "commands need: use --stack in the checkout that has it",
            EXIT_REFUSED,
            code="outputs.batch",
        )
    if cluster.login is None or cluster.login.access is None:
        raise UserError(
            f"{where}: login.access is missing, which says how to reach the login machine: an older version "
            "made the cluster. Update slurm-stacks in its program, and run `pulumi up`",
            EXIT_REFUSED,
            code="outputs.no-access",
        )
    if wrong := [*_wrong(cluster, cluster.login, cluster.login.access)]:
        lines = "\n".join(f"  {path}: {shown(value)}; allowed: {allowed}" for path, value, allowed in wrong)
        raise UserError(
            f"{where}: a cluster of slurm-stacks does not publish such values, so nothing was run:\n{lines}\n"
            "Something changed them on their way, or another program made them. Take the outputs from their "
            "stack: pulumi stack output --json",
            EXIT_REFUSED,
            code="outputs.value",
        )


def _wrong(cluster: ClusterOutput, login: Login, access: LoginAccess) -> Iterator[tuple[str, Any, str]]:
    """Yield path, value and what is allowed of each value that has not its form."""
    provider = cluster.provider
    modes = _MODES[provider]
    rows: list[tuple[str, Any, tuple[str, str]]] = [
        ("name", cluster.name, (r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a cluster's name")),
        ("stack", cluster.stack, (r"[A-Za-z0-9_.-]{1,200}", "a stack's name")),
        ("login.address", login.address, (_ADDRESS, "a host name or an address")),
        ("login.access.mode", access.mode, ("|".join(modes), f"{' or '.join(modes)} on {provider}")),
        ("login.access.machine", access.machine, _MACHINES[provider]),
    ]
    if provider != "local":
        rows.append(("region", cluster.region, _REGION))
    if provider == "aws":
        rows.append(("login.access.user", access.user, (_USERS, "a user's name")))
    if provider == "gcp":
        rows += [("zone", cluster.zone, _ZONE), ("project", cluster.project, _PROJECT)]
    for path, value, (pattern, words) in rows:
        if not isinstance(value, str) or re.fullmatch(pattern, value, re.ASCII) is None:
            yield path, value, words
    if provider == "local":
        return
    if not login.host_keys:
        yield "login.host_keys", [], "at least one public SSH host key"
    for index, line in enumerate(login.host_keys):
        try:
            host_keys.parse_host_keys([line])
        except UserError:
            yield f"login.host_keys[{index}]", line, "a public SSH host key, such as ssh-ed25519 AAAA…"


def shown(value: object) -> str:
    """Return a value as JSON in ASCII, shortened. No control character of it reaches the terminal."""
    text = printable(json.dumps(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
