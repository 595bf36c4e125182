"""The contracts of v1 against their frozen copies in `contract/`: what other teams' programs rely on.

If a test here fails, do not change the frozen copy: the message says what to do instead. Only new fields are
added to the copy, so that they are kept from then on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from test_outputs import of_a_program

from infra.outputs import contract
from infra.outputs.fields import fields
from workload import result

FROZEN = Path(__file__).with_name("contract")
OUTPUTS: dict[str, dict[str, str]] = json.loads((FROZEN / "outputs-v1.json").read_text(encoding="utf-8"))
RESULT: dict[str, str] = json.loads((FROZEN / "result-v1.json").read_text(encoding="utf-8"))
PROGRAM_RESULT: dict[str, str] = json.loads((FROZEN / "program-result-v1.json").read_text(encoding="utf-8"))

JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    bool: "boolean",
    NoneType: "null",
}

Fields = Mapping[str, str]
"""Paths to types, as in `infra.outputs.fields`."""


def compare(frozen: Fields, now: Fields, version: str, file: str) -> list[str]:
    """Return what differs from the promise, and what to do about it."""
    family, _, number = version.rpartition("/v")
    advice = (
        "Other teams' programs rely on it. Put it back and give what is new a field of its own, or make this "
        f"{family}/v{int(number) + 1}: another apiVersion, another frozen copy, a word in CHANGELOG.md"
    )
    found = [f"{path} is gone; it was {frozen[path]}. {advice}" for path in frozen.keys() - now.keys()]
    for path in frozen.keys() & now.keys():
        if frozen[path] != now[path]:
            found.append(f"{path} was {frozen[path]} and is {now[path]}. {advice}")
    for path in now.keys() - frozen.keys():
        if "missing" in now[path].split(" | "):
            line = f"{json.dumps(path)}: {json.dumps(now[path])}"
            found.append(f"{path} is new: promise it, by the line {line} in tests/infra/contract/{file}")
        else:
            found.append(
                f"{path} is new and must be there, but what an older {version} published has not got it: a "
                "reader would refuse that. Give it a default"
            )
    return sorted(f"{version}: {text}" for text in found)


def of_schema(schema: dict[str, Any]) -> dict[str, str]:
    return {field.path: field.type for field in fields(schema)}


def named(types: tuple[type, ...]) -> str:
    return " | ".join(JSON_TYPES[t] for t in types if not (t is int and float in types))


def optional() -> dict[str, str]:
    """Return the fields that a record may lack."""
    return {key: f"{named(types)} | missing" for key, types in result.OPTIONAL_KEYS.items()}


def of_program_result() -> dict[str, str]:
    """Return the fields of the record of a user's program."""
    found = {key: named(types) for key, types in result.PROGRAM_KEYS.items()} | optional()
    return {**found, "apiVersion": json.dumps(result.PROGRAM_API_VERSION)}


def of_result() -> dict[str, str]:
    """Return the fields of the result record, from the table by which it is written and checked."""
    found = {key: named(types) for key, types in result.KEYS.items()} | optional()
    found["apiVersion"] = json.dumps(result.API_VERSION)
    return found | {f"history[].{key}": named(types) for key, types in result.HISTORY_KEYS.items()}


# --- the contracts ---------------------------------------------------------------------------------------


def test_the_cluster_output_is_as_v1_promised() -> None:
    now = of_schema(contract.schema())
    assert compare(OUTPUTS["cluster"], now, "slurm-stacks/v1", "outputs-v1.json") == []


def test_what_may_be_null_may_be_missing() -> None:
    """Pulumi's SDK for Python drops nulls on the way from stack to stack."""
    nullable = {path: kind for path, kind in OUTPUTS["cluster"].items() if "null" in kind}
    assert nullable
    assert [path for path, kind in nullable.items() if not kind.endswith(" | null | missing")] == []


def test_the_outputs_of_a_stack_are_as_v1_promised() -> None:
    always = {name for name, kind in OUTPUTS["stack"].items() if "missing" not in kind}
    assert of_a_program(trained=True).keys() == OUTPUTS["stack"].keys()
    assert of_a_program(trained=False).keys() == always


def test_the_result_record_is_as_v1_promised() -> None:
    assert compare(RESULT, of_result(), "slurm-stacks/result/v1", "result-v1.json") == []


def test_the_record_of_a_users_program_is_as_v1_promised() -> None:
    version, file = "slurm-stacks/program-result/v1", "program-result-v1.json"
    assert compare(PROGRAM_RESULT, of_program_result(), version, file) == []


# --- the comparison can fail -----------------------------------------------------------------------------


def properties(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield each property of a schema, with the object that it is part of."""
    for part in (schema, *schema["$defs"].values()):
        for name, value in part["properties"].items():
            yield part, name, value


def remove(part: dict[str, Any], name: str) -> None:
    del part["properties"][name]
    part["required"] = [key for key in part["required"] if key != name]


def rename(part: dict[str, Any], name: str) -> None:
    part["properties"][f"{name}s"] = part["properties"].pop(name)
    part["required"] = [f"{key}s" if key == name else key for key in part["required"]]


def allow_null(part: dict[str, Any], name: str) -> None:
    old = part["properties"][name]
    if any(branch == {"type": "null"} for branch in old.get("anyOf", ())):
        part["properties"][name] = {**old, "anyOf": [b for b in old["anyOf"] if b != {"type": "null"}]}
    else:
        part["properties"][name] = {"anyOf": [old, {"type": "null"}]}


def another_type(part: dict[str, Any], name: str) -> None:
    part["properties"][name] = {
        "type": "string" if part["properties"][name].get("type") != "string" else "number"
    }


def another_need(part: dict[str, Any], name: str) -> None:
    """Make a required property optional, or an optional one required."""
    needed = [key for key in part["required"] if key != name]
    part["required"] = needed if name in part["required"] else [*needed, name]


@pytest.mark.parametrize("change", [remove, rename, allow_null, another_type, another_need])
def test_no_change_of_any_field_passes(change: Callable[[dict[str, Any], str], None]) -> None:
    """Each change of each field of the present schema is found, and nothing else is."""
    now = contract.schema()
    places = [index for index, _ in enumerate(properties(now))]
    assert len(places) > 40
    for index in places:
        changed = copy.deepcopy(now)
        part, name, _ = list(properties(changed))[index]
        change(part, name)
        found = compare(of_schema(now), of_schema(changed), "slurm-stacks/v1", "f.json")
        assert any(f".{name} " in line or f" {name} " in line for line in found), name
        assert any("slurm-stacks/v2" in line for line in found), found


@pytest.mark.parametrize(
    ("part", "name", "key", "value"),
    [
        ("", "provider", "enum", ["aws", "gcp"]),
        ("", "provider", "enum", ["aws", "gcp", "local", "azure"]),
        ("", "apiVersion", "const", "slurm-stacks/v2"),
        ("PartitionOutput", "max", "minimum", 1),
        ("CostOutput", "unknown", "items", {"type": "object", "properties": {}}),
        ("CostOutput", "unknown", "items", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ],
)
def test_no_change_of_what_a_field_may_hold_passes(part: str, name: str, key: str, value: object) -> None:
    changed = contract.schema()
    (changed["$defs"][part] if part else changed)["properties"][name][key] = value
    (line,) = compare(OUTPUTS["cluster"], of_schema(changed), "slurm-stacks/v1", "f.json")
    assert f"{name} was " in line


def test_what_programs_do_not_see_may_change() -> None:
    changed = contract.schema()
    text = json.dumps(changed).replace("AcceleratorOutput", "Accelerator").replace("CPUs a node.", "Cores.")
    assert json.loads(text) != changed
    assert of_schema(json.loads(text)) == OUTPUTS["cluster"]


def test_a_new_field_is_promised_and_may_be_missing() -> None:
    changed = contract.schema()
    changed["$defs"]["Login"]["properties"]["port"] = {"type": "integer"}
    (line,) = compare(OUTPUTS["cluster"], of_schema(changed), "slurm-stacks/v1", "f.json")
    assert 'login.port is new: promise it, by the line "login.port": "integer | missing" in' in line
    changed["$defs"]["Login"]["required"].append("port")
    (line,) = compare(OUTPUTS["cluster"], of_schema(changed), "slurm-stacks/v1", "f.json")
    assert "login.port is new and must be there" in line
    assert "Give it a default" in line


def test_what_the_list_of_fields_could_not_show_is_an_error() -> None:
    changed = contract.schema()
    changed["properties"]["name"]["pattern"] = "^[a-z]+$"
    with pytest.raises(ValueError, match="pattern: not understood"):
        of_schema(changed)


@pytest.mark.parametrize(
    "change", [{"nodes": (str,)}, {"loss": (int,)}, {"cost_usd": (float, int)}, {"new": (str,)}]
)
def test_no_change_of_the_result_record_passes(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result, "KEYS", {**result.KEYS, **change})
    (line,) = compare(RESULT, of_result(), "slurm-stacks/result/v1", "result-v1.json")
    assert line.startswith(f"slurm-stacks/result/v1: {next(iter(change))} ")
    monkeypatch.setattr(
        result, "KEYS", {k: v for k, v in result.KEYS.items() if k not in ("digest", *change)}
    )
    assert any("digest is gone" in line for line in compare(RESULT, of_result(), "a/v1", "f.json"))
