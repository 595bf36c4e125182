"""The package's schema: current, complete, and with names that lead back to those of a stack file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from component import schema
from component.construction import SCHEMA, TOKEN
from infra.config.argument_names import camel_case, from_schema, in_schema, path_in_schema
from infra.config.schema import schema as stack_schema
from infra.outputs import contract
from tests.support import shipped
from tests.support.checkout import ROOT

SHIPPED = shipped.files()
MADE: dict[str, Any] = json.loads(schema.text())
TYPES = MADE["types"]


def test_every_key_of_a_stack_file_is_an_argument_and_every_output_a_property() -> None:
    definitions = stack_schema()["$defs"]
    resource = MADE["resources"][TOKEN]
    cluster = {camel_case(key) for key in definitions["ClusterConfig"]["properties"]}
    assert resource["inputProperties"].keys() == {*cluster, "benchmark", "region", "zone", "project"}
    assert resource["requiredInputs"] == ["provider"], "the component's name stands in for the cluster's"
    for name, definition in definitions.items():
        if name != "ClusterConfig":
            there = TYPES[f"slurm-stacks:index:{name}"]["properties"]
            assert there.keys() == {camel_case(key) for key in definition["properties"]}, name
    outputs = contract.schema()
    for name, definition in {**outputs["$defs"], "ClusterOutput": outputs}.items():
        assert TYPES[f"slurm-stacks:index:{name}"]["properties"].keys() == definition["properties"].keys()


def test_every_reference_leads_somewhere() -> None:
    text = SCHEMA.read_text()
    named = {part.partition('"')[0] for part in text.split('"#/types/')[1:]}
    assert named <= TYPES.keys()
    assert TYPES.keys() == named, "and a type that nothing names is none"


def test_no_two_keys_of_a_section_have_one_name() -> None:
    for token, kind in TYPES.items():
        folded = [key.lower().replace("_", "") for key in kind.get("properties", ())]
        assert len(folded) == len({*folded}), token


def test_a_choice_has_constants_and_takes_text() -> None:
    placement = TYPES["slurm-stacks:index:PartitionConfig"]["properties"]["placement"]
    assert [*placement["oneOf"][0].values()] == ["string"]
    token = placement["oneOf"][1]["$ref"].removeprefix("#/types/")
    assert [each["value"] for each in TYPES[token]["enum"]] == ["none", "cluster"]


def test_a_word_that_the_converter_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="x: a package's schema cannot say"):
        schema._Converter({}, {}, str)._type("x", {"type": "date"})


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_names_lead_back_to_those_of_a_stack_file(file: Path) -> None:
    values = yaml.safe_load(file.read_text())["config"]
    cluster, benchmark = (values.get(f"slurm-stacks:{key}") for key in ("cluster", "benchmark"))
    given = {**cluster, **({"benchmark": benchmark} if benchmark else {})}
    assert from_schema(in_schema(given)) == given


def test_keys_of_maps_are_the_users() -> None:
    given = {
        "instanceTypes": {"my_type.large": {"memoryMib": 1}},
        "batch": {"container": {"environment": {"MY_sizeGib": "x"}}, "tags": {"cost_center": "y"}},
    }
    assert from_schema(given) == {
        "instance_types": {"my_type.large": {"memory_mib": 1}},
        "batch": {"container": {"environment": {"MY_sizeGib": "x"}}, "tags": {"cost_center": "y"}},
    }


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("slurm-stacks:cluster.partitions[1].instance_type", "partitions[1].instanceType"),
        ("slurm-stacks:cluster.storage.scratch.size_gib", "storage.scratch.sizeGib"),
        ("slurm-stacks:cluster.network.aws.private_subnets[0]", "network.aws.privateSubnets[0]"),
        ("slurm-stacks:benchmark.learning_rate", "benchmark.learningRate"),
        ("slurm-stacks:cluster.slurm.not_a_key", "slurm.not_a_key"),
        ("slurm-stacks:cluster", ""),
        ("aws:region", "region"),
        ("gcp:project", "project"),
    ],
)
def test_a_path_of_a_message_has_the_schemas_names(path: str, shown: str) -> None:
    assert path_in_schema(path) == shown


def test_the_plugin_reads_the_schema_without_what_a_cluster_is_made_with() -> None:
    """Its start takes as long as the SDK's import."""
    text = (ROOT / "component" / "construction.py").read_text()
    assert "\nfrom infra" not in text.replace("\nif TYPE_CHECKING", "\n#"), "only inside functions"
