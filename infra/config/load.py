"""From a stack file, or from Pulumi's configuration, to a `StackConfig`."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from infra.config.checks import Place, check
from infra.config.cluster import BenchmarkConfig, ClusterConfig
from infra.config.mistakes import (
    ConfigError,
    Location,
    Mistake,
    from_pydantic,
    near,
    shown,
    unknown_key,
)
from infra.machines import Catalog, catalog

NAMESPACE = "slurm-stacks"
CLUSTER = f"{NAMESPACE}:cluster"
BENCHMARK = f"{NAMESPACE}:benchmark"
PLACE_KEYS = ("aws:region", "gcp:project", "gcp:region", "gcp:zone")
# What the Pulumi CLI itself writes into a stack file.
FILE_KEYS = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")

# Shape mistakes are taken out of a copy so that the rest can be checked as well. What is needed there gets a
# value that no check asks about, because its place is known to be wrong.
_STAND_INS: dict[str, Any] = {
    "name": "unnamed",
    "provider": "local",
    "machine": "",
    "max": 1,
    "type": "unknown",
}
_STAND_INS |= {"role": "all", "source": "/unknown", "instance_types": [""], "nodes": 1}
_ANYTHING: tuple[Any, ...] = ({}, 1, "unknown", [])
_ROUNDS = 16

M = TypeVar("M", bound=BaseModel)


class StackConfig(BaseModel):
    """A stack file that says nothing wrong."""

    model_config = ConfigDict(frozen=True)

    stack: str
    cluster: ClusterConfig
    benchmark: BenchmarkConfig | None
    """None: the file has no `slurm-stacks:benchmark`, so nothing is trained."""
    region: str | None
    zone: str | None
    """Google Cloud only."""
    project: str | None
    """Google Cloud only."""

    def catalog(self, facts: Catalog | None = None) -> Catalog:
        """The facts of machines with this stack's own over them."""
        return (facts or catalog()).with_overrides(self.cluster.machines, self.cluster.provider)


def parse(values: Mapping[str, Any], stack: str, *, subject: str | None = None) -> StackConfig:
    """Read the configuration of a stack.

    Args:
        values: key with namespace -> value, as under `config:` of a stack file; objects may be JSON text, as
            Pulumi hands them to a program.
        stack: the stack's short name; the cluster's name where the file gives none.
        subject: what the message calls the configuration.

    Raises:
        ConfigError: with every mistake.
    """
    mistakes: list[Mistake] = _unknown_keys(values)
    broken: set[Location] = set()
    raw_cluster = _section(values, CLUSTER, mistakes, broken)
    cluster = None
    if raw_cluster is not None:
        raw_cluster.setdefault("name", stack)
        cluster = _validated(ClusterConfig, raw_cluster, (CLUSTER,), mistakes, broken)
    benchmark = None
    if BENCHMARK in values:
        raw_benchmark = _section(values, BENCHMARK, mistakes, broken)
        if raw_benchmark is not None:
            benchmark = _validated(BenchmarkConfig, raw_benchmark, (BENCHMARK,), mistakes, broken)
    place = _place(values, mistakes, broken)
    if cluster is not None:
        mistakes += check(cluster, benchmark, place, catalog(), broken)
    if mistakes or cluster is None:
        raise ConfigError(subject or f"the configuration of stack {stack}", mistakes)
    return StackConfig(
        stack=stack,
        cluster=cluster,
        benchmark=benchmark,
        region=place.region_of(cluster.provider),
        zone=place.zone if cluster.provider == "gcp" else None,
        project=place.project if cluster.provider == "gcp" else None,
    )


def load_file(path: Path | str) -> StackConfig:
    """Read `Pulumi.<stack>.yaml`.

    Raises:
        ConfigError: the file is missing, is not YAML, is no stack file, or holds mistakes.
    """
    path = Path(path)
    name = path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(_missing(path)) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not text in UTF-8: save it as a plain text file.") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context
        raise ConfigError(
            f"{name}{where}: this is not YAML: {problem}. Indent by spaces, two for each level."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: this is not YAML: {error}.") from None
    if content is None:
        raise ConfigError(
            f"{name} is empty: it needs `config:` with `{CLUSTER}` in it. See Pulumi.local.yaml."
        )
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must be keys and values, beginning with `config:`, not {shown(content)}.")
    unknown = [unknown_key((str(key),), FILE_KEYS) for key in content if key not in FILE_KEYS]
    values = content.get("config")
    if not isinstance(values, dict):
        what = (
            "has no `config:`"
            if values is None
            else f"must have a section under `config:`, not {shown(values)}"
        )
        hint = f" {unknown[0].path}: {unknown[0].advice}" if unknown else ""
        raise ConfigError(f"{name} {what}: write `config:` with `{CLUSTER}` in it.{hint}")
    try:
        config = parse(values, _stack_of(path), subject=name)
    except ConfigError as error:
        raise (ConfigError(name, [*unknown, *error.mistakes]) if unknown else error) from None
    if unknown:
        raise ConfigError(name, unknown)
    return config


def _stack_of(path: Path) -> str:
    return path.stem.removeprefix("Pulumi.")


def _missing(path: Path) -> str:
    there = sorted(p.stem.removeprefix("Pulumi.") for p in path.parent.glob("Pulumi.*.yaml"))
    meant = near(_stack_of(path), there)
    hint = f" Did you mean {meant}?" if meant else ""
    known = f" Stacks here: {', '.join(there)}." if there else ""
    return f"{path.name} does not exist.{hint}{known}"


def _unknown_keys(values: Mapping[Any, Any]) -> list[Mistake]:
    """Keys that should be ours and are not. Other namespaces belong to other programs and pass."""
    ours = [CLUSTER, BENCHMARK]
    mistakes = []
    for key in map(str, values):
        namespace, _, name = key.partition(":")
        # An almost right namespace (slurm-stack:cluster) would otherwise pass as somebody else's.
        foreign = name and namespace != NAMESPACE and near(namespace, [NAMESPACE]) is None
        if key not in ours and not foreign:
            mistakes.append(unknown_key((key,), [*ours, *PLACE_KEYS]))
    return mistakes


def _section(
    values: Mapping[str, Any], key: str, mistakes: list[Mistake], broken: set[Location]
) -> dict[str, Any] | None:
    """A private copy of one of our objects, or a mistake."""
    value = values.get(key)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # The text itself is shown as the mistake.
            value = json.loads(value)
    if isinstance(value, Mapping):
        return copy.deepcopy(dict(value))
    broken.add((key,))
    given = shown(value) if key in values else "nothing: the key is missing"
    mistakes.append(
        Mistake(key, given, "a section of keys and values", "see Pulumi.local.yaml for an example")
    )
    return None


def _place(values: Mapping[str, Any], mistakes: list[Mistake], broken: set[Location]) -> Place:
    """Where the clouds' own settings put the stack."""
    found: dict[str, str | None] = {}
    for key in PLACE_KEYS:
        value = values.get(key)
        if value is not None and not (isinstance(value, str) and value):
            mistakes.append(Mistake(key, shown(value), "text", "write it in quotes"))
            broken.add((key,))
            value = None
        found[key] = value
    return Place(
        aws_region=found["aws:region"],
        gcp_region=found["gcp:region"],
        zone=found["gcp:zone"],
        project=found["gcp:project"],
    )


def _validated(
    model: type[M], raw: dict[str, Any], top: Location, mistakes: list[Mistake], broken: set[Location]
) -> M | None:
    """The model; where shapes are wrong, the model of what is left, with the mistakes noted.

    None where nothing that makes sense is left.
    """
    for attempt in range(_ROUNDS):
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                location = tuple(detail["loc"])
                # What later rounds find is of our own making: a stand-in is missing, or does not fit.
                if attempt == 0:
                    mistakes.append(from_pydantic(detail, top, model))
                    broken.add(top + location)
                _take_out(raw, location, detail["type"], attempt)
    return None


def _take_out(raw: Any, location: Location, kind: str, attempt: int) -> None:
    """Remove a wrong value, so that its default holds, or put a stand-in where there must be one."""
    if not location:
        return
    owner = raw
    for part in location[:-1]:
        try:
            owner = owner[part]
        except (KeyError, IndexError, TypeError):
            return  # An earlier mistake of this round took it out.
    last = location[-1]
    if isinstance(owner, list):
        if isinstance(last, int) and last < len(owner) and kind in ("model_type", "model_attributes_type"):
            owner[last] = {}
        else:
            _take_out(raw, location[:-1], "", attempt)
    elif isinstance(owner, dict):
        owner.pop(last, None)
        if kind == "invalid_key":
            for key in [k for k in owner if str(k) == str(last)]:
                del owner[key]
        if kind == "missing" and isinstance(last, str):
            # A value that does not fit is taken out in one round and missed in the next.
            other = _ANYTHING[attempt // 2 % len(_ANYTHING)]
            owner[last] = copy.deepcopy(_STAND_INS.get(last, other))


class _Loader(yaml.SafeLoader):
    """YAML's safe loader; a key that is there twice is an error, or the first one would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value} is there twice", key.start_mark
                    )
                seen.add(key.value)
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result
