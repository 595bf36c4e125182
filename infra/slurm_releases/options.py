"""The options of slurm.conf that each release of Slurm knows, and of the line of a partition in it.

`options.json` is made from the table in the release's own parser (`tools/slurm_conf_options.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("options.json")
SLURM, PARTITION = "slurm.conf", "PartitionName"
"""The sections: options of the file, and of a line that begins with PartitionName."""
DEFUNCT = "defunct"
"""The type of an option that a release reads and ignores, with an error in each log."""
LINES = "array"
"""The type of an option that begins a line with options of its own, such as NodeName."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of slurm.conf.

    Attributes:
        name: The name in the parser's spelling. Slurm itself reads it in any case.
        types: Release -> the type from this release on (string, uint16, uint32, uint64, boolean, `LINES`,
            `DEFUNCT`); `None` means that there is no such option any more.
    """

    name: str
    types: Mapping[str, str | None]

    def type_in(self, release: str | None) -> str | None:
        """Return the option's type in a release.

        Args:
            release: The release, such as 24.11. One that is newer than the table has what its last one has.
                `None` means that it is not known: the type is that of the last release with the option.

        Returns:
            `None` if the release does not have the option.
        """
        if release is None:
            return next(kind for kind in reversed([*self.types.values()]) if kind not in (None, DEFUNCT))
        return next((kind for since, kind in reversed([*self.types.items()]) if since <= release), None)

    def usable_in(self, release: str | None) -> bool:
        """Return whether a release has the option, and does something with it."""
        return self.type_in(release) not in (None, DEFUNCT)

    def gone_since(self, release: str) -> str | None:
        """Return the release that has taken away what an earlier one had; `None` if it is none up to this."""
        past = [(since, kind) for since, kind in self.types.items() if since <= release]
        return past[-1][0] if past and past[-1][1] in (None, DEFUNCT) else None


@functools.cache
def options(section: str) -> Mapping[str, Option]:
    """Return the options of a section that any release of the table uses, by name in small letters."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    every = (Option(name, types) for name, types in content[section].items())
    return {option.name.lower(): option for option in every if set(option.types.values()) - {None, DEFUNCT}}


@functools.cache
def releases() -> tuple[str, ...]:
    """Return the releases of the table, the oldest first."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8"))["releases"])
