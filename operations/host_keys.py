"""The host keys by which a login machine is recognized: those that its cluster published, and no others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UserError
from infra.program.files import write_atomically

ALIAS = "slurm-stacks"
"""The name under which the keys are kept. It is not an address, because addresses and ports change."""

_KEY_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_KEY_BODY = re.compile(r"AAAA[A-Za-z0-9+/]+={0,2}")


def parse_host_keys(lines: Sequence[str]) -> list[str]:
    """Return the keys as `<kind> <base64>`, without comments and without unknown kinds.

    Raises:
        UserError: A line is not a public key, or no key is left. A line must not bring in a second key.
    """
    keys = []
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        body = rest.split(" ", 1)[0]
        if not _KEY_BODY.fullmatch(body):
            raise UserError(
                f"the cluster published {line!r}, which is no public SSH host key", code="ssh.host-key-form"
            )
        if kind in _KEY_KINDS:
            keys.append(f"{kind} {body}")
    if not keys:
        raise UserError(
            "the cluster has published no SSH host key of its login machine, and one that is not known is "
            "not trusted: look into the machine's boot report, which `logs` shows, then run `up` again",
            code="ssh.no-host-key",
        )
    return keys


def known_hosts(lines: Sequence[str]) -> str:
    """Return the text of a `known_hosts` file that knows this machine and no other.

    Raises:
        UserError: As `parse`.
    """
    return "".join(f"{ALIAS} {key}\n" for key in parse_host_keys(lines))


def keep_host_keys(folder: Path, lines: Sequence[str]) -> Path:
    """Write the `known_hosts` of a stack into its state folder, and return its path.

    Raises:
        UserError: As `parse`.
    """
    known = folder / "known_hosts"
    write_atomically(known, known_hosts(lines))
    return known
