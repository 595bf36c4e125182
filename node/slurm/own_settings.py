"""Options of slurm.conf that the stack file gives (`slurm.settings`, `partitions[].settings`). Pure.

A list has our words and the stack file's. Any other option of ours that a stack file may give is a default,
which the stack file's value replaces. What a stack file may not give, `infra.config.slurm_options` refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

LISTS = frozenset({
    "AccountingStorageTRES", "AuthInfo", "CommunicationParameters", "DebugFlags", "LaunchParameters",
    "PriorityFlags", "PrivateData", "PrologFlags", "SchedulerParameters", "SelectTypeParameters",
    "SlurmctldParameters", "SlurmdParameters",
})  # fmt: skip
"""Options whose values are lists of words, to which the stack file adds its own."""
EXCLUDED = {
    "PropagateResourceLimits": ("PropagateResourceLimitsExcept",),
    "PropagateResourceLimitsExcept": ("PropagateResourceLimits",),
    "DefMemPerNode": ("DefMemPerCPU",),
    "DefMemPerGPU": ("DefMemPerCPU",),
}
"""An option of the stack file -> those of ours that cannot stand beside it (slurm.conf(5))."""
VALUE = r"[^\s\"#\\\x00-\x1f\x7f\x85]([^\"#\\\x00-\x1f\x7f\x85\u2028\u2029]*[^\s\"#\\\x00-\x1f\x7f\x85])?"
"""What slurm.conf can hold of a value, in quotes if need be: Slurm's parser ends it at these characters."""

Options = list[tuple[str, object]]


class Value(str):
    """A value of the stack file as slurm.conf has it."""

    __slots__ = ()


def spelled(value: str) -> Value:
    """Return a value for slurm.conf, in quotes if it has spaces.

    Raises:
        ValueError: slurm.conf cannot hold it, or it would be another line.
    """
    if re.fullmatch(VALUE, value) is None:
        raise ValueError(f"slurm.conf cannot hold {value!r}")
    return Value(f'"{value}"' if re.search(r"\s", value) else value)


def word_name(word: str) -> str:
    """Return the name of a word of a list, in small letters: `bf_interval=1` -> `bf_interval`."""
    return word.partition("=")[0].strip().lower()


def words(value: str) -> list[str]:
    """Return the words of a list."""
    return [word for word in (part.strip() for part in value.split(",")) if word]


def merged(sections: Iterable[Options], settings: Mapping[str, str]) -> list[Options]:
    """Return the sections of slurm.conf with the stack file's options: ours in their places, others last."""
    left = dict(settings)
    excluded = {name for key in settings for name in EXCLUDED.get(key, ())} - settings.keys()
    result = [
        [(key, _merged(key, value, left.pop(key, None))) for key, value in section if key not in excluded]
        for section in sections
    ]
    return [*result, [(key, spelled(value)) for key, value in left.items()]]


def _merged(key: str, ours: object, theirs: str | None) -> object:
    if theirs is None:
        return ours
    if key not in LISTS:
        return spelled(theirs)
    present = words(str(ours))
    names = {word_name(word) for word in present}
    return spelled(",".join([*present, *(word for word in words(theirs) if word_name(word) not in names)]))
