"""Rules of the options of slurm.conf that a stack file gives itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.config import slurm_release
from infra.config.mistakes import Location, near
from infra.config.rules.context import CLUSTER, Context
from infra.config.slurm_options import (
    LARGEST,
    NO,
    NO_NUMBER,
    OWNED,
    PARTITION_OWNED,
    PAST_POOLS,
    TIMES,
    WORDS,
    YES,
    Owned,
)
from infra.slurm_releases import options
from infra.slurm_releases.options import Option
from node.slurm import own_settings


def check_slurm_options(c: Context) -> None:
    """Check the settings of slurm.conf, and of each partition's line in it."""
    given = [(c.cluster.slurm.settings, (*CLUSTER, "slurm", "settings"), options.SLURM, OWNED)]
    given += [
        (partition.settings, (*CLUSTER, "partitions", index, "settings"), options.PARTITION, PARTITION_OWNED)
        for index, partition in enumerate(c.cluster.partitions)
    ]
    if c.cluster.scheduler == "batch" or not any(settings for settings, *_ in given):
        return
    release = slurm_release.chosen(c.cluster, c.facts)
    for settings, at, section, owned in given:
        seen: dict[str, str] = {}
        for name, value in settings.items():
            if (first := seen.setdefault(name.lower(), name)) != name:
                allowed = "each option once, in any case of its letters"
                c.add("settings.twice", (*at, name), value, allowed, f"remove it, or {first}")
                continue
            _check(c, (*at, name), value, section, owned, release)
    _check_plugstack(c)
    _check_pools(c)


def _check(
    c: Context, at: Location, value: str, section: str, owned: Mapping[str, Owned], release: str | None
) -> None:
    name, known = str(at[-1]), options.options(section)
    option = known.get(name.lower())
    if option is None:
        _unknown(c, at, value, section, owned, release)
    elif (ours := owned.get(option.name)) is not None:
        c.add("settings.owned", at, value, f"no {option.name} here: {ours.why}", ours.instead)
    elif release is not None and not option.usable_in(release):
        _missing(c, at, value, option, release)
    else:
        _check_value(c, at, value, option, option.type_in(release) or "string")


def _unknown(
    c: Context, at: Location, value: str, section: str, owned: Mapping[str, Owned], release: str | None
) -> None:
    name = str(at[-1])
    allowed = f"an option of {_where(section, release)}"
    usable = {
        option.name: option
        for option in options.options(section).values()
        if option.usable_in(release) and option.name not in owned
    }
    if (elsewhere := _other_section(name, section, release)) is not None:
        c.add("settings.unknown", at, value, allowed, elsewhere)
    elif (meant := near(name, usable)) is not None:
        c.add("settings.unknown", at, value, allowed, f"did you mean {meant}?")
    else:
        c.add("settings.unknown", at, value, allowed, "the manual slurm.conf(5) lists them")


def _other_section(name: str, section: str, release: str | None) -> str | None:
    """Return where an option belongs that the other section has."""
    other, owned, place = (
        (options.PARTITION, PARTITION_OWNED, "settings: of a partition")
        if section == options.SLURM
        else (options.SLURM, OWNED, "slurm: {settings: …}")
    )
    option = options.options(other).get(name.lower())
    if option is None or not option.usable_in(release):
        return None
    return owned[option.name].instead if option.name in owned else f"it belongs to {place}"


def _where(section: str, release: str | None) -> str:
    what = "slurm.conf" if section == options.SLURM else "a partition's line in slurm.conf"
    return f"{what} of Slurm {release}" if release else f"{what} of Slurm {options.releases()[0]} or newer"


def _missing(c: Context, at: Location, value: str, option: Option, release: str) -> None:
    """Report an option that other releases have."""
    has = f"an option of Slurm {release}, which the stack gets"
    if (gone := option.gone_since(release)) is not None:
        c.add("settings.release", at, value, has, f"remove it: Slurm has no {option.name} since {gone}")
        return
    since = next(since for since, kind in option.types.items() if kind is not None)
    advice = f"remove it: {option.name} came with Slurm {since} (docs/versions.md says how a stack gets that)"
    c.add("settings.release", at, value, has, advice)


def _check_value(c: Context, at: Location, value: str, option: Option, kind: str) -> None:
    if kind in LARGEST:
        number = re.fullmatch("[0-9]{1,20}", value) is not None and int(value) <= LARGEST[kind]
        if not number and value.upper() not in NO_NUMBER:
            c.add("settings.number", at, value, f"a whole number from 0 to {LARGEST[kind]}, or UNLIMITED")
    elif kind == "boolean" and value.lower() not in (*YES, *NO):
        c.add("settings.boolean", at, value, "yes or no")
    elif option.name in TIMES and value.isdigit():
        allowed = "a time in quotes: hours:minutes:seconds, or days-hours"
        advice = "YAML reads a bare 24:00:00 as 86400, which Slurm would take for minutes"
        c.add("settings.time", at, value, allowed, advice)
    elif option.name in own_settings.LISTS:
        _check_words(c, at, value, option.name)


def _check_words(c: Context, at: Location, value: str, name: str) -> None:
    ours = {own_settings.word_name(word): (word, why) for word, why in WORDS.get(name, {}).items()}
    for word in own_settings.words(value):
        if (found := ours.get(own_settings.word_name(word))) is not None:
            known, owned = found
            c.add("settings.word", at, word, f"{name} without {known}: {owned.why}", "remove this word")
            return


def _check_plugstack(c: Context) -> None:
    """Refuse another plugstack.conf than ours where jobs' containers need it."""
    containers = c.cluster.containers
    for name, value in c.cluster.slurm.settings.items():
        if name.lower() == "plugstackconfig" and containers is not None and containers.runtime == "pyxis":
            allowed = "no PlugStackConfig with containers: {runtime: pyxis}, which has its own"
            c.add("settings.plugstack", (*CLUSTER, "slurm", "settings", name), value, allowed, "remove it")


def _check_pools(c: Context) -> None:
    """Refuse what lets jobs have nodes of several pools: Slurm does not look at topology.conf then."""
    separate = [
        (index, partition)
        for index, partition in enumerate(c.cluster.partitions)
        if len(partition.pools) > 1 and not partition.mixed
    ]
    if not separate:
        return
    allowed = f"nothing that lets a job of {separate[0][1].name} have nodes of several pools"
    for name, value in c.cluster.slurm.settings.items():
        given = {own_settings.word_name(word) for word in own_settings.words(value)}
        if given & {own_settings.word_name(word) for word in PAST_POOLS.get(name.lower(), ())}:
            where = (*CLUSTER, "slurm", "settings", name)
            c.add("settings.past-pools", where, value, allowed, "remove it, or write mixed: true there")
    for index, partition in separate:
        for name, value in partition.settings.items():
            if name.lower() == "lln" and value.lower() in YES:
                where = (*CLUSTER, "partitions", index, "settings", name)
                c.add("settings.past-pools", where, value, allowed, "remove it, or write mixed: true")
