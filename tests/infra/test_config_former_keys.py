"""Keys with a new name: the old name is read with one notice, and refused beside the new one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra.config import parse, schema, stack_file
from infra.config.former_keys import EACH, KEYS
from infra.design import benchmark_design, design
from infra.instance_types.catalog import catalog
from tests.support.checkout import ROOT
from tests.support.stack_values import CLUSTER, mistakes, values

SHIPPED = sorted(ROOT.glob("Pulumi.*.yaml"))


def former(value: Any, section: tuple[str, ...] = ()) -> Any:
    """A section `slurm-stacks:cluster` with the former keys."""
    if isinstance(value, list):
        return [former(item, (*section, EACH)) for item in value]
    if not isinstance(value, dict):
        return value
    old = {key.new: key.old for key in KEYS if key.section == section}
    return {old.get(key, key): former(inner, (*section, key)) for key, inner in value.items()}


@pytest.mark.parametrize("file", SHIPPED, ids=[f.stem for f in SHIPPED])
def test_old_and_new_keys_make_the_same_cluster(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    present: dict[str, Any] = content["config"]
    old = {**copy.deepcopy(present), CLUSTER: former(present[CLUSTER])}
    now, then = (parse(config, stack_file.stack_of(file)) for config in (present, old))
    cluster = design(now, catalog())
    assert design(then, catalog()) == cluster
    assert benchmark_design(then, cluster) == benchmark_design(now, cluster)
    # A file of AWS Batch has none of these keys.
    assert (old == present) == (now.cluster.scheduler == "batch")
    assert bool(then.former_keys) == (old != present)
    assert now.former_keys == ()
    validator = jsonschema.Draft202012Validator(schema.schema())
    assert list(validator.iter_errors({**content, "config": old})) == []


def test_one_sentence_names_the_paths_and_the_new_key() -> None:
    changes = {"controller.machine": "local.small", "local": {"machines": "container"}}
    config = values("local", changes)
    config[CLUSTER]["partitions"] = former(config[CLUSTER]["partitions"], ("partitions",))
    assert parse(config, "t").former_keys == (
        f"{CLUSTER}.controller.machine, {CLUSTER}.partitions[0].machine: write instance_type instead of "
        "machine; the former name is still read",
        f"{CLUSTER}.local.machines: write isolation instead of machines; the former name is still read",
    )


@pytest.mark.parametrize(
    ("path", "new", "value"),
    [
        ("partitions[0].machine", "instance_type", "local.small"),
        ("local.machines", "isolation", "process"),
        ("machines", "instance_types", {"local.small": {"price_hour": 1}}),
    ],
)
def test_both_keys_are_one_mistake(path: str, new: str, value: Any) -> None:
    old = path.rpartition(".")[2]
    config = values("local", {path: value, f"{path.removesuffix(old)}{new}": value})
    (found,) = mistakes(config)
    assert (found.path, found.advice) == (f"{CLUSTER}.{path}", f"remove {old}")
    assert new in found.given
    assert list(jsonschema.Draft202012Validator(schema.schema()).iter_errors({"config": config}))


def test_a_mistake_has_the_key_that_is_in_the_file() -> None:
    config = values("local", {"controller.machine": "m5.large", "local": {"machines": "namespace"}})
    assert {found.path for found in mistakes(config)} == {
        f"{CLUSTER}.controller.machine",
        f"{CLUSTER}.local.machines",
    }
    for key in ("machines", "instance_types"):
        (found,) = mistakes(values("local", {key: {"local.small": {"cpus": 1}}}))
        assert found.path == f'{CLUSTER}.{key}["local.small"].cpus'


def test_facts_of_types_are_read_by_both_names() -> None:
    facts = {"local.small": {"price_hour": 36}}
    now, then = (parse(values("local", {key: facts}), "t") for key in ("instance_types", "machines"))
    assert now.cluster == then.cluster
    assert now.cluster.instance_types["local.small"].price_hour == 36
    assert then.former_keys == (
        f"{CLUSTER}.machines: write instance_types instead of machines; the former name is still read",
    )
