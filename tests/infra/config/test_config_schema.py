"""The checked-in JSON Schemas are current, and say the same as the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra import outputs
from infra.config import schema
from tests.support import shipped
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, STACKS, mistakes, values

ROOT = Path(__file__).parents[3]
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), *shipped.files()]


LIMITS: list[dict[str, Any]] = [
    {"partitions[0].time_limit": text}
    for text in ("90", "24:00:00", "2-12", "2-12:30", "1-0:0:1", "Infinite")
]


VALIDATOR = jsonschema.Draft202012Validator(schema.schema())


def accepts(content: object) -> bool:
    return VALIDATOR.is_valid(content)


@pytest.mark.parametrize("made", [schema.schema(), outputs.schema()], ids=["stack", "outputs"])
def test_the_schemas_are_schemas_and_describe_every_key(made: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(made)
    for name, definition in made["$defs"].items():
        for key, value in definition["properties"].items():
            assert "description" in value or "$ref" in value, f"{name}.{key}"


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_the_stacks_fit_the_schema(file: Path) -> None:
    assert accepts(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "changes",
    [
        {"nodez": 1},
        {"partitions[0].nodes.max": "ten"},
        {"partitions[0].nodes.max": 0},
        {"partitions[0].name": "A"},
        {"partitions[0].instance_type": REMOVE},
        {"provider": REMOVE},
        {"partitions[0].time_limit": "24:00"},
        {"partitions[0].time_limit": "1 day"},
        {"provider": "azure"},
        {"@profile": "fast"},
        {"slurm-stacks:bench": {}},
        {CLUSTER: REMOVE},
        {"cluster:": 1},
        {"budget.max_usd": 0},
    ],
    ids=str,
)
def test_schema_and_models_refuse_the_same(changes: dict[str, Any]) -> None:
    config = values("local", changes)
    assert mistakes(config)
    assert not accepts({"config": config})


@pytest.mark.parametrize("name", ["local", "aws", "gcp", "batch"])
def test_schema_and_models_accept_the_same(name: str) -> None:
    # AWS Batch has no partitions.
    limits = [] if name == "batch" else LIMITS
    some: list[dict[str, Any]] = [
        {},
        {BENCHMARK: {"enabled": False}},
        {"name": REMOVE},
        {"azure:location": "x"},
    ]
    for changes in [*some, *limits]:
        config = values(name, changes)
        assert not mistakes(config)
        assert accepts({"config": config, "encryptionsalt": "v1:x"})


def test_the_project_declares_its_keys() -> None:
    """A key that the project file types must be one of ours: Pulumi refuses types for other namespaces."""
    project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    declared = {f"{project['name']}:{key}": value for key, value in project["config"].items()}
    assert set(declared) == {CLUSTER, BENCHMARK}
    for value in declared.values():
        assert value["type"] == "object"
        assert value["description"]
    # The value that the CLI fills in for a stack without a benchmark means the same as none.
    config = values("local", {BENCHMARK: declared[BENCHMARK]["default"]})
    assert not mistakes(config)
    assert config[BENCHMARK] == {"enabled": False}
