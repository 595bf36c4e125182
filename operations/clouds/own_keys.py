"""The user's own SSH keys; a cloud can make machines accept one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import EXIT_REFUSED, UserError
from operations import programs

if TYPE_CHECKING:
    pass


KEY_FILES = ("id_ed25519.pub", "id_rsa.pub")
PRIVATE = ("id_ed25519", "id_rsa", "id_ecdsa")
"""The names of private keys in `~/.ssh` that `ssh` offers by itself."""
KEY_KINDS = ("ssh-ed25519 ", "ssh-rsa ")
"""The kinds of keys that both EC2 Instance Connect and OS Login take."""


def own_key(folder: Path) -> str:
    """Return a public key whose private half `ssh` will offer: the agent's first, else a usual file's.

    Args:
        folder: The folder `~/.ssh`.

    Raises:
        UserError: Exit 3; there is no such key.
    """
    lines = agent_keys()
    lines += [file.read_text().strip() for name in KEY_FILES if (file := folder / name).is_file()]
    for line in lines:
        if line.startswith(KEY_KINDS):
            return line
    raise UserError(
        "you have no SSH key that the login machine could accept. Make one with `ssh-keygen -t ed25519` and "
        "run the command again: its public half is sent for each connection, nothing else is needed.",
        EXIT_REFUSED,
        code="ssh.no-key",
    )


def any_key(folder: Path) -> bool:
    """Whether `ssh` has a key to offer: one of the agent, or of a file with a usual name in `~/.ssh`."""
    return bool(agent_keys()) or any((folder / name).is_file() for name in PRIVATE)


def agent_keys() -> list[str]:
    """Return the public keys in the user's SSH agent, as lines of authorized_keys; empty without an agent."""
    listed = programs.capture(["ssh-add", "-L"], seconds=10)
    return [] if listed.failed else listed.out.splitlines()
