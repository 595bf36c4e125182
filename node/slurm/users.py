"""Names of users as Slurm's configuration files can hold them."""

from __future__ import annotations

import re

MAX_NUMBER = (1 << 31) - 1
"""The largest number that Slurm before 24.11 reads for a user in its files. A user by name may have any."""
_PLAIN = re.compile(r"[^\s#\"'\\]+")


def spelled(name: str, number: int | None) -> str:
    """Returns a user for slurm.conf and slurmdbd.conf: the name, or the number if they cannot hold the name.

    Args:
        number: the user's number; `None` if it is not known.

    Raises:
        ValueError: Slurm can read neither.
    """
    if _PLAIN.fullmatch(name) or number is None:
        return name
    if number > MAX_NUMBER:
        raise ValueError(
            f"slurm.conf cannot hold the name, and Slurm reads numbers up to {MAX_NUMBER} there, not {number}"
        )
    return str(number)
