"""The host keys by which a login machine is recognized. They are what its cluster published, and never what a
connection has shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UserError

ALIAS = "slurm-stacks"
"""The name under which the keys are kept. It is not an address, because addresses and ports change."""

# The client of pulumi-command offers an RSA key only as `ssh-rsa`, which is SHA-1 and which OpenSSH has
# refused since 8.8. A pinned RSA key never matches there.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
_KINDS = (*_PREFERRED, "ssh-rsa")
_BODY = re.compile(r"AAAA[A-Za-z0-9+/]+={0,2}")


def parse(lines: Sequence[str]) -> list[str]:
    """The keys as `<kind> <base64>`, without comments and without unknown kinds.

    Raises:
        UserError: A line is not a public key, or no key is left. A line must not bring in a second key.
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
    """The one key for a client that accepts one key only.

    An offline plan, which knows no keys, gets the placeholder that stands for them.

    Raises:
        UserError: As `parse`, or there are only RSA keys.
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
        UserError: As `parse`.
    """
    return "".join(f"{ALIAS} {key}\n" for key in parse(lines))


def keep(folder: Path, lines: Sequence[str]) -> Path:
    """Writes the `known_hosts` of a stack into its state folder, and returns its path.

    Raises:
        UserError: As `parse`.
    """
    known = folder / "known_hosts"
    draft = known.with_name(f".{known.name}.new")
    draft.write_text(known_hosts(lines))
    draft.replace(known)
    return known
