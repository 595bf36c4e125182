"""Reading the `cluster` output: what is accepted or refused, and which packages the reader needs."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_outputs import built

from infra import outputs
from infra.outputs import contract
from infra.outputs.fields import SCHEMA
from tests.support.checkout import ROOT
from tests.support.stack_values import STACKS

VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.fixture
def output() -> dict[str, Any]:
    return built(STACKS / "Pulumi.gcp-gpu.yaml")


def without_nulls(value: Any) -> Any:
    """Return the value without nulls, as the SDK passes it from stack to stack."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def changed(value: Any, new: object) -> Iterator[tuple[str, Any]]:
    """Yield the value with one of its parts replaced, for each part, with the part's path."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        twin = copy.copy(value)
        twin[key] = new
        yield str(key), twin
        if isinstance(value[key], dict | list):
            for path, inner in changed(value[key], new):
                twin = copy.copy(value)
                twin[key] = inner
                yield f"{key}.{path}", twin


# --- what is accepted ------------------------------------------------------------------------------------


def test_the_loaded_output_is_typed(output: dict[str, Any]) -> None:
    cluster = outputs.load(output)
    assert cluster.api_version == "slurm-stacks/v1"
    assert cluster.login is not None
    assert cluster.login.ssh == "ssh ubuntu@198.51.100.7"
    (partition,) = cluster.partitions
    assert (partition.max, partition.accelerator and partition.accelerator.type) == (8, "v100")
    with pytest.raises(ValueError, match="frozen"):
        cluster.name = "other"  # type: ignore[misc]


def test_fields_that_a_newer_v1_adds_are_left_out(output: dict[str, Any]) -> None:
    newer = copy.deepcopy(output)
    newer["topology"] = {"racks": 2}
    newer["partitions"][0]["accelerator"]["memory_gib"] = 16
    newer["login"]["port"] = 22
    assert outputs.load(newer) == outputs.load(output)
    VALIDATOR.validate(newer)


def test_what_may_be_null_may_be_missing() -> None:
    output = built(STACKS / "Pulumi.aws-cpu.yaml")
    passed = without_nulls(output)
    assert passed != output, "there were nulls"
    assert outputs.load(passed) == outputs.load(output)
    VALIDATOR.validate(passed)


def test_pulumis_numbers_are_floats(output: dict[str, Any]) -> None:
    output["partitions"][0]["cpus"] = 2.0
    cpus = outputs.load(output).partitions[0].cpus
    assert (cpus, type(cpus)) == (2, int)


@pytest.mark.parametrize("new", [None, "text", 7, 2.5, True, [], {}, -1], ids=repr)
def test_the_reader_and_the_schema_agree(output: dict[str, Any], new: object) -> None:
    """Each change is refused by both or by neither."""
    verdicts = set()
    for path, other in changed(output, new):
        try:
            outputs.load(other)
        except outputs.OutputError:
            accepted = False
        else:
            accepted = True
        assert VALIDATOR.is_valid(other) == accepted, f"{path}: {new!r}"
        verdicts.add(accepted)
    assert False in verdicts


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, ["there is no such output", "not up", "./cluster up"]),
        ("[secret]", ['"[secret]" is no object', "json.loads(text)"]),
        ([1], ["[1] is no object"]),
        (object(), ["a value of type object is no object", "read(reference)"]),
        ({"cluster": {}, "login_ssh": "x"}, ["all outputs of a stack", "Give the one called `cluster`"]),
        ({}, ["its apiVersion is nothing", "slurm-stacks/v1 is expected"]),
        ({"apiVersion": "v1", "kind": "Pod"}, ['its apiVersion is "v1"', "no cluster of slurm-stacks"]),
        ({"apiVersion": 1}, ["its apiVersion is 1"]),
        (
            {"apiVersion": "slurm-stacks/v2", "id": 3},
            ["its apiVersion is slurm-stacks/v2", "this reader knows slurm-stacks/v1", "Update the reader"],
        ),
    ],
    ids=["none", "text", "list", "object", "all", "empty", "other", "number", "v2"],
)
def test_what_is_no_cluster_of_v1_is_refused_in_one_message(value: object, said: list[str]) -> None:
    with pytest.raises(outputs.OutputError) as raised:
        outputs.load(value)
    message = str(raised.value)
    assert message.startswith("output `cluster`: ")
    assert "\n" not in message
    for text in said:
        assert text in message


def test_every_mistake_is_named_at_once(output: dict[str, Any]) -> None:
    output["partitions"][0]["cpus"] = "four"
    output["provider"] = "azure"
    output["cost"]["idle_usd_per_hour"] = -1
    del output["name"]
    with pytest.raises(outputs.OutputError) as raised:
        outputs.load(output, source="stack a/b/c")
    first, *mistakes, advice = str(raised.value).splitlines()
    assert first == "stack a/b/c is not as slurm-stacks/v1 promises:"
    assert mistakes == [
        "  name: missing (Field required)",
        "  provider: \"azure\" (Input should be 'aws', 'gcp' or 'local')",
        '  partitions[0].cpus: "four" (Input should be a valid integer)',
        "  cost.idle_usd_per_hour: -1 (Input should be greater than or equal to 0)",
    ]
    assert "bring that stack up again" in advice


def test_a_long_value_is_shortened(output: dict[str, Any]) -> None:
    output["partitions"] = "x" * 5000
    with pytest.raises(outputs.OutputError) as raised:
        outputs.load(output)
    assert len(str(raised.value)) < 500


# --- what the reader needs -------------------------------------------------------------------------------


def run(code: str, folder: Path) -> str:
    """Run Python without this project on its path; importing any of its other dependencies fails."""
    prelude = f"""
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pulumi", "yaml", "jinja2", "rich", "typer", "workload"):
            raise ImportError(f"{{name}} is not there")
sys.meta_path.insert(0, No())
sys.path.insert(0, {str(folder)!r})
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", prelude + code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


READ = """
import json
from {module} import load
print(load(json.load(open("cluster.json"))).partitions[0].max)
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "infra"))
"""


def test_the_file_alone_is_a_reader(tmp_path: Path, output: dict[str, Any]) -> None:
    shutil.copy(str(contract.__file__), tmp_path / "slurm_stacks.py")
    (tmp_path / "cluster.json").write_text(json.dumps(output))
    assert run(READ.format(module="slurm_stacks"), tmp_path) == "8\n\n"


def test_a_checkout_on_the_import_path_is_a_reader(tmp_path: Path, output: dict[str, Any]) -> None:
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    (tmp_path / "cluster.json").write_text(json.dumps(output))
    found = run(READ.format(module="infra.outputs"), tmp_path)
    assert found == "8\ninfra infra.outputs infra.outputs.contract\n"
