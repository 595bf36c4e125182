"""Loads a `StackConfig` from a stack file or from Pulumi's configuration."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from infra.config import foreign_keys, placeholders, provider_settings, stack_file
from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import (
    NO_SECRET,
    ConfigError,
    Location,
    Mistake,
    fitting,
    from_pydantic,
    near,
    path_of,
    same_at,
    shown,
    unknown_key,
)
from infra.config.rules import check
from infra.config.rules.context import CloudLocation
from infra.config.stack_file import NAMESPACE
from infra.instance_types.catalog import Catalog, catalog
from infra.program import project_file


def engine_values() -> dict[str, Any]:
    """Return all keys of the stack with their namespaces, and their values.

    `pulumi.Config` gives only the values of known keys, so a misspelt key would not be found.
    """
    from pulumi.runtime import config

    return {**config.get_config_env(), **config.CONFIG.get()}


def engine_secrets() -> frozenset[str]:
    """Return the keys of the stack whose values are secret, which the engine gives to a program in clear."""
    from pulumi.runtime import config

    return frozenset(key for key in engine_values() if config.is_config_secret(key))


CLUSTER = f"{NAMESPACE}:cluster"
BENCHMARK = f"{NAMESPACE}:benchmark"
LOCATION_KEYS = ("aws:region", "gcp:project", "gcp:region", "gcp:zone")
# The keys that the Pulumi CLI writes into a stack file.
FILE_KEYS = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")
# Values of a wrong type are removed from a copy, so that the rest can be checked, too. A required key gets a
# placeholder, about which no check reports anything, because its location is known to be wrong.
_PLACEHOLDERS: dict[str, Any] = {
    "name": "unnamed",
    "provider": "local",
    "instance_type": "",
    "max": 1,
    "role": "all",
    "source": "/unknown",
    "instance_types": [""],
    "nodes": 1,
}
_ROUNDS = 3
"""A wrong value is removed in the first round; if a required one is missing then, it gets its placeholder."""
_INDENT = "indent it, with `config:` on a line above"
M = TypeVar("M", bound=BaseModel)


class StackConfig(BaseModel):
    """The values of a stack file without mistakes.

    Attributes:
        benchmark: `None` if the file has no `slurm-stacks:benchmark`; then nothing is trained.
        zone: Google Cloud only.
        project: Google Cloud only.
        provider_settings: The settings of the cloud's Pulumi provider that our own calls follow, as text
            (`infra.config.provider_settings`); `None` if there are none.
        environment: The Pulumi ESC environments that the stack file names. Only the engine reads them.
        placeholders: Values that the user still has to fill in: the stack can be planned but not brought up.
    """

    model_config = ConfigDict(frozen=True)

    stack: str
    cluster: ClusterConfig
    benchmark: BenchmarkConfig | None
    region: str | None
    zone: str | None
    project: str | None
    provider_settings: str | None = None
    environment: tuple[str, ...] = ()
    placeholders: tuple[Mistake, ...] = ()

    @property
    def provider(self) -> str:
        """The provider: local, aws or gcp."""
        return self.cluster.provider

    def catalog(self, facts: Catalog | None = None) -> Catalog:
        """Return the facts of instance types; this stack's own win."""
        return (facts or catalog()).with_overrides(self.cluster.instance_types, self.cluster.provider)


def parse(
    values: Mapping[str, Any],
    stack: str,
    *,
    subject: str | None = None,
    project: Path | None = None,
    secret: frozenset[str] = frozenset(),
    environment: tuple[str, ...] = (),
) -> StackConfig:
    """Read the configuration of a stack.

    Args:
        values: Key with namespace -> value, as under `config:` of a stack file. Objects may be JSON text, as
            Pulumi gives them to a program.
        stack: The stack's short name, which is also the cluster's name if the file gives none.
        subject: The name of the configuration in messages.
        project: The project's folder, in which the hooks' scripts must exist; `None` checks no scripts.
        secret: The keys whose values are secret, and in clear in `values`.
        environment: As in `StackConfig`.

    Raises:
        ConfigError: The configuration has mistakes; the error has all of them.
    """
    mistakes: list[Mistake] = _unknown_keys(values)
    broken: set[Location] = set()
    cluster = None
    misspelt = CLUSTER not in values and any(m.advice == f"did you mean {CLUSTER}?" for m in mistakes)
    raw_cluster = None if misspelt else _section(values, CLUSTER, secret, mistakes, broken)
    if raw_cluster is not None:
        named = "name" in raw_cluster
        raw_cluster.setdefault("name", stack)
        cluster = _validated(ClusterConfig, raw_cluster, (CLUSTER,), mistakes, broken)
        if not named:
            fits = fitting(stack) or "…"
            advice = f"the stack's name stands in where the file gives none: write name: {fits}"
            mistakes = [replace(m, advice=advice) if m.path == f"{CLUSTER}.name" else m for m in mistakes]
    benchmark = None
    if BENCHMARK in values:
        raw_benchmark = _section(values, BENCHMARK, secret, mistakes, broken)
        if raw_benchmark is not None:
            benchmark = _validated(BenchmarkConfig, raw_benchmark, (BENCHMARK,), mistakes, broken)
    location = _cloud_location(values, mistakes, broken)
    settings = None
    if cluster is not None and (CLUSTER, "provider") not in broken:
        settings, wrong = provider_settings.read(cluster.provider, values, secret, environment)
        mistakes += wrong
    if cluster is not None:
        mistakes += check(cluster, benchmark, location, catalog(), broken, stack, project)
    unfilled: tuple[Mistake, ...] = ()
    if cluster is not None:
        unfilled = placeholders.in_project(location.project if cluster.provider == "gcp" else None)
        unfilled += placeholders.in_cluster(cluster, (CLUSTER,))
    if mistakes or cluster is None:
        mistakes += placeholders.words(unfilled)
        raise ConfigError(subject or f"the configuration of stack {stack}", mistakes)
    return StackConfig(
        stack=stack,
        cluster=cluster,
        benchmark=benchmark,
        region=location.region_of(cluster.provider),
        zone=location.zone if cluster.provider == "gcp" else None,
        project=location.project if cluster.provider == "gcp" else None,
        provider_settings=settings,
        environment=environment,
        placeholders=unfilled,
    )


def load_file(path: Path | str, folder: Path | None = None, *, scripts: bool = False) -> StackConfig:
    """Read `Pulumi.<stack>.yaml`, with the values that the project's Pulumi.yaml gives to every stack.

    Args:
        folder: The project's folder; `None` if only the file is known.
        scripts: Whether the hooks' scripts must exist. Only a deployment needs them.

    Raises:
        ConfigError: A file is missing, is not YAML, is not a stack file, or has mistakes.
    """
    path = Path(path)
    name = path.name
    content, found = stack_file.read(path, _same)
    folder = folder or project_file.project_of(path)
    shared, found_there = stack_file.checked_project(folder, _same)
    if content is None and not shared.values.keys() & {CLUSTER}:
        raise ConfigError(f"{name} is empty: it needs {_needed()}", code="file.empty")
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(
            f"{name} must be keys and values, beginning with `config:`, not {shown(content)}.",
            code="file.no-keys",
        )
    reported = {mistake.path for mistake in found}
    for key, value in content.items():
        if key not in FILE_KEYS:
            found += [mistake for mistake in _unknown_at_top(key, value) if mistake.path not in reported]
    own = content.get("config")
    if own is None and CLUSTER in shared.values:
        own = {}
    if not isinstance(own, dict):
        if not any(mistake.advice in ("did you mean config?", _INDENT) for mistake in found):
            given = shown(own) if "config" in content else "nothing: the key is missing"
            allowed = "a section of keys and values"
            found.append(Mistake("file.no-config", "config", given, allowed, f"write {_needed()}"))
        raise ConfigError(name, found)
    reported |= {mistake.path for mistake in found}
    values = stack_file.merged(shared, own)
    environment = stack_file.environments(content)
    used = (m for m in found_there if _key_of(m) in shared.values and _key_of(m) not in own)
    found += [_placed(mistake, own, values, environment) for mistake in used]
    try:
        config = parse(
            values,
            stack_file.stack_of(path),
            subject=name,
            project=folder if scripts else None,
            secret=stack_file.secrets(shared, own),
            environment=environment,
        )
    except ConfigError as error:
        elsewhere = [_placed(m, own, values, environment) for m in error.mistakes if m.path not in reported]
        raise ConfigError(name, [*found, *elsewhere]) from None
    if found:
        raise ConfigError(name, found)
    return config


def _needed() -> str:
    return f"`config:` with `{CLUSTER}` in it. See Pulumi.local.yaml."


def _placed(
    mistake: Mistake, own: Mapping[str, Any], values: Mapping[str, Any], environment: Sequence[str]
) -> Mistake:
    """Return the mistake with the place of its value, if that is not the stack file.

    Args:
        own: The values of the stack file itself.
        values: Those of Pulumi.yaml, too.
    """
    key = _key_of(mistake)
    more = ""
    if key not in own and key in values:
        more = f"the value is in {project_file.NAME}"
    elif key not in values and environment:
        more = (
            f"environment: {', '.join(environment)} is read by Pulumi's engine only: write the key into the "
            "stack file"
        )
    return replace(mistake, advice="; ".join(filter(None, (mistake.advice, more)))) if more else mistake


def _key_of(mistake: Mistake) -> str:
    """Return the key below `config:` in which a mistake is."""
    return re.split(r"[.\[]", mistake.path)[0]


def _same(location: Location, one: Any, other: Any) -> bool:
    """Return whether two values mean the same at a location in a stack file, or in Pulumi.yaml."""
    _, key, *inner = location
    models: dict[str, type[BaseModel]] = {CLUSTER: ClusterConfig, BENCHMARK: BenchmarkConfig}
    model = models.get(str(key))
    if model is None:
        return False
    if inner[:1] in (["value"], ["default"]):  # as Pulumi.yaml has it
        del inner[0]
    # What is merged has the place of the section into which it is merged.
    while "<<" in inner:
        at = inner.index("<<")
        del inner[at : at + (2 if isinstance(inner[at + 1], int) else 1)]
    return same_at(model, tuple(inner), one, other)


def _unknown_at_top(key: str, value: Any) -> list[Mistake]:
    if ":" in key:
        return [
            Mistake(
                "key.at-top",
                path_of((key,)),
                "a key at the top of the file",
                "its place is below `config:`",
                _INDENT,
            )
        ]
    return unknown_key((key,), FILE_KEYS, value)


def _unknown_keys(values: Mapping[Any, Any]) -> list[Mistake]:
    """Return the unknown keys in our namespace or without one. Others belong to other programs."""
    ours = [CLUSTER, BENCHMARK]
    mistakes = []
    for key in map(str, values):
        namespace, _, name = key.partition(":")
        # A misspelt namespace (slurm-stack:cluster) must not count as another program's.
        foreign = name and namespace != NAMESPACE and near(namespace, [NAMESPACE]) is None
        if key not in ours and not foreign:
            unknown = unknown_key((key,), [*ours, *LOCATION_KEYS], values.get(key))
            # `cluster:` without a namespace is not similar enough to any of these keys.
            meant = near(key, ["cluster", "benchmark"])
            if meant and foreign_keys.find((key,)) is None:
                unknown = [replace(unknown[0], advice=f"did you mean {NAMESPACE}:{meant}?")]
            mistakes += unknown
    return mistakes


def _section(
    values: Mapping[str, Any],
    key: str,
    secret: frozenset[str],
    mistakes: list[Mistake],
    broken: set[Location],
) -> dict[str, Any] | None:
    """Return a copy of one of our sections. If it cannot be used, add a mistake and return `None`."""
    value = values.get(key)
    # The engine says of a whole key that something in it is secret, and a file shows what.
    secrets = [(key,)] if key in secret else list(_secrets(value, (key,)))
    mistakes += [_no_secret(location) for location in secrets]
    broken.update(secrets)
    if (key,) in secrets:
        return None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):  # The message then shows the text.
            value = json.loads(value)
    if isinstance(value, Mapping):
        with contextlib.suppress(RecursionError):  # It is deeper than any model; the message shows it.
            return copy.deepcopy(dict(value))
    broken.add((key,))
    given = shown(value) if key in values else "nothing: the key is missing"
    mistakes.append(
        Mistake(
            "value.type", key, given, "a section of keys and values", "see Pulumi.local.yaml for an example"
        )
    )
    return None


def _secrets(value: Any, location: Location) -> Iterator[Location]:
    """Yield where a section has encrypted values, as the engine tells them: `{secure: text}`."""
    if len(location) > stack_file.DEEPEST:
        return
    if isinstance(value, Mapping):
        if len(value) == 1 and isinstance(value.get("secure"), str):
            yield location
            return
        parts: Iterable[tuple[str | int, Any]] = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return
    for part, inner in parts:
        yield from _secrets(inner, (*location, part))


def _no_secret(location: Location) -> Mistake:
    path = path_of(location)
    where = shlex.quote(path if len(location) > 1 else f"{path}.…")
    advice = f"write it in plain text, if it is none: `pulumi config set --plaintext --path {where} …`"
    return Mistake("value.secret", path, "a secret", NO_SECRET, advice)


def _cloud_location(
    values: Mapping[str, Any], mistakes: list[Mistake], broken: set[Location]
) -> CloudLocation:
    """Return the region, zone and project from the settings of the clouds' providers."""
    settings: dict[str, str | None] = {}
    for key in LOCATION_KEYS:
        value = values.get(key)
        if value is not None and not (isinstance(value, str) and value):
            mistakes.append(Mistake("value.type", key, shown(value), "text", "write it in quotes"))
            broken.add((key,))
            value = None
        settings[key] = value
    return CloudLocation(
        aws_region=settings["aws:region"],
        gcp_region=settings["gcp:region"],
        zone=settings["gcp:zone"],
        project=settings["gcp:project"],
    )


def _validated(
    model: type[M], raw: dict[str, Any], top: Location, mistakes: list[Mistake], broken: set[Location]
) -> M | None:
    """Return the validated section without the values that are wrong, and add their mistakes.

    Returns:
        The model, or `None` if no valid one is left.
    """
    secret = frozenset(broken)
    for attempt in range(_ROUNDS):
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                location = tuple(detail["loc"])
                whole = top + location
                known = any(whole[:length] in secret for length in range(len(whole) + 1))
                # In later rounds a key is missing only because its wrong value was removed.
                if attempt == 0 and not known:
                    mistakes += from_pydantic(detail, top, model)
                    broken.add(whole)
                _remove_value(raw, location, detail["type"])
    return None


def _remove_value(raw: Any, location: Location, kind: str) -> None:
    """Remove a wrong value, so that its default is used, or replace a required one by a placeholder."""
    if not location:
        return
    owner = raw
    for part in location[:-1]:
        try:
            owner = owner[part]
        except (KeyError, IndexError, TypeError):
            return  # An earlier mistake of this round removed it.
    last = location[-1]
    if isinstance(owner, list):
        if isinstance(last, int) and last < len(owner) and kind in ("model_type", "model_attributes_type"):
            owner[last] = {}
        else:
            _remove_value(raw, location[:-1], "")
    elif isinstance(owner, dict):
        owner.pop(last, None)
        if kind == "invalid_key":
            for key in [k for k in owner if str(k) == str(last)]:
                del owner[key]
        if kind == "missing" and isinstance(last, str):
            owner[last] = copy.deepcopy(_PLACEHOLDERS.get(last, "unknown"))
