"""The host keys by which a login machine is known: what its cluster published, never what was met."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UserError

ALIAS = "slurm-stacks"
"""The name under which the keys are kept: that of no address, since addresses and ports move."""

# The client of pulumi-command offers an RSA key's algorithm as `ssh-rsa` alone, which is SHA-1 and which
# OpenSSH has refused since 8.8: a pinned RSA key never matches there.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_KINDS = (*_PREFERRED, "ssh-rsa")
_BODY = re.compile(r"AAAA[A-Za-z0-9+/]+={0,2}")


def parse(lines: Sequence[str]) -> list[str]:
    """The keys as `<kind> <base64>`, without comments, kinds that nobody here knows left out.

    Raises:
        UserError: a line is no public key, or none is left. A line must not smuggle in a second one.
    """
    found = []
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        body = rest.split(" ", 1)[0]
        if not _BODY.fullmatch(body):
            raise UserError(f"the cluster published {line!r}, which is no public SSH host key")
        if kind in _KINDS:
            found.append(f"{kind} {body}")
    if not found:
        raise UserError(
            "the cluster has published no SSH host key of its login machine, and one that is not known is "
            "not trusted: look into the machine's boot report, which `logs` shows, then run `up` again"
        )
    return found


def pin(lines: Sequence[str]) -> str:
    """The one key for a client that takes one.

    In an offline plan, which knows no keys, the placeholder that stands for them.

    Raises:
        UserError: as `parse`, or there are RSA keys only.
    """
    if len(lines) == 1 and lines[0].startswith("<"):
        return lines[0]
    keys = parse(lines)
    for kind in _PREFERRED:
        for key in keys:
            if key.startswith(f"{kind} "):
                return key
    raise UserError(
        "the login machine has RSA host keys only, which Pulumi's SSH client cannot verify: "
        "have it make an Ed25519 key (`ssh-keygen -A`)"
    )


def known_hosts(lines: Sequence[str]) -> str:
    """The text of a `known_hosts` file that knows this machine and no other.

    Raises:
        UserError: as `parse`.
    """
    return "".join(f"{ALIAS} {key}\n" for key in parse(lines))


def keep(folder: Path, lines: Sequence[str]) -> Path:
    """Write the `known_hosts` of a stack into its state folder; its path.

    Raises:
        UserError: as `parse`.
    """
    known = folder / "known_hosts"
    draft = known.with_name(f".{known.name}.new")
    draft.write_text(known_hosts(lines))
    draft.replace(known)
    return known
