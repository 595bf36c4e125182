"""What a destroyed cluster leaves on purpose: what it costs, and how a later cluster takes it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.cost import HOURS_A_MONTH

Value = str | int | bool


@dataclass(frozen=True, slots=True)
class KeptStorage:
    """A disk, a file system, a snapshot or a backup that outlives its cluster.

    Attributes:
        name: Its key below `storage` in the stack file.
        what: The kind and the id, with which the cloud's console finds it.
        size_gib: The size that is paid for; `None` if it is not known.
        created: When it was made, as text that sorts by time.
        keys: The keys of the stack file with which a cluster has it again.
        rate: USD for each GiB and month; `None` if it is not known.
    """

    name: str
    what: str
    size_gib: float | None
    created: str
    keys: Mapping[str, Value] = field(hash=False)
    rate: float | None = None

    def line(self) -> str:
        """Return the line of the report: what it is, and what it costs."""
        size = "" if self.size_gib is None else f", {self.size_gib:g} GiB"
        if self.rate is None or self.size_gib is None:
            return f"{self.what} ({self.name}{size}): price unknown"
        month = self.rate * self.size_gib
        hour = month / HOURS_A_MONTH
        return f"{self.what} ({self.name}{size}): {hour:.4f} USD an hour, {month:.2f} USD a month"


def disk_kind(name: str) -> str:
    """Return the stack file's kind of a disk of the controller's, by its name there."""
    return "disk" if name == "state" else "nfs"


def kept_report(found: Sequence[KeptStorage], file: str, paths: Mapping[str, str]) -> list[str]:
    """Return the lines that name what is kept, its cost, and the lines of the stack file that take it back.

    Args:
        file: The name of the stack file.
        paths: Name -> where the stack file mounts it; empty where that is not known.
    """
    if not found:
        return []
    order = sorted(found, key=lambda storage: (storage.name, storage.created))
    newest = {storage.name: storage for storage in order}
    lines = ["kept, and paid for until you delete it:", *(f"  {storage.line()}" for storage in order)]
    lines.append(f"with these lines below slurm-stacks:cluster in {file} a later `up` has the files again:")
    lines.append("    storage:")
    for name, storage in newest.items():
        path = paths.get(name)
        usual = "/fsx" if storage.keys.get("kind") == "fsx_lustre" else f"/{name}"
        keys = {**storage.keys, **({"path": path} if path not in (None, usual) else {})}
        settings = ", ".join(f"{key}: {_text(value)}" for key, value in keys.items())
        lines.append(f"      {name}: {{{settings}}}")
    return lines


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
