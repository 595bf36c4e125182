"""Names of users as Slurm's configuration files can hold them.

Slurm's traps (docs/internals/slurm_traps.md): user-numbers.
"""

from __future__ import annotations

import re

_ESCAPED = re.compile(r"([\\#])")


class Spelled(str):
    """A user in the notation of slurm.conf."""

    __slots__ = ()


def spelled(name: str) -> Spelled:
    """Return a user's name for slurm.conf and slurmdbd.conf (`_strip_escapes` in Slurm's parse_config.c).

    slurmdbd 22.05 takes no number there, and slurmctld before 24.11 none above 2147483647.

    Raises:
        ValueError: The files cannot hold the name.
    """
    if not name.isprintable():
        raise ValueError("slurm.conf cannot hold a name with a control character")
    escaped = _ESCAPED.sub(r"\\\1", name)
    if " " not in name:
        return Spelled(escaped)
    if '"' in name:
        raise ValueError("slurm.conf cannot hold a name with both a space and a quote")
    return Spelled(f'"{escaped}"')
