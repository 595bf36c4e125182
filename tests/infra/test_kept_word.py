"""What one release wrote, each later one of its series reads: stack files, and settings on machines.

`contract/stack-v1.json` and `contract/settings-v2.json` list what may be in them. `--update-snapshots` adds
what is new, and nothing else: a key that is gone, or takes less, stays a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from infra.config import schema
from node.design import published
from node.design.model import SETTINGS_VERSION, AwsPartition, AwsSettings, GcpPartition, Settings
from node.design.storage import Gp3
from node.system.codec import to_json

FROZEN = Path(__file__).with_name("contract")
MISSING = "missing"


def accepted(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return each key's path in a JSON Schema, with the kinds of values that it takes."""
    found: dict[str, set[str]] = {}
    for path, kinds in _walk(document, document["$defs"], ""):
        found.setdefault(path, set()).update(kinds)
    return {path: sorted(kinds) for path, kinds in found.items()}


def _walk(node: dict[str, Any], known: dict[str, Any], path: str) -> Iterator[tuple[str, set[str]]]:
    for alternative in _alternatives(node, known):
        for name, value in alternative.get("properties", {}).items():
            kinds = {_kind(inner) for inner in _alternatives(value, known)}
            missing = set() if name in alternative.get("required", ()) else {MISSING}
            yield f"{path}.{name}", kinds | missing
            yield from _walk(value, known, f"{path}.{name}")
        for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(inner := alternative.get(key), dict):
                yield f"{path}{mark}", {_kind(alternative) for alternative in _alternatives(inner, known)}
                yield from _walk(inner, known, f"{path}{mark}")


def _alternatives(node: dict[str, Any], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        yield from _alternatives(known[node["$ref"].removeprefix("#/$defs/")], known)
    elif "anyOf" in node or "oneOf" in node:
        for one in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _alternatives(one, known)
    elif "enum" in node:
        for value in node["enum"]:
            yield {"const": value}
    else:
        yield node


def _kind(node: dict[str, Any]) -> str:
    return json.dumps(node["const"]) if "const" in node else str(node.get("type", "any"))


def broken(before: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """Return what an earlier release wrote and this one would refuse."""
    found = [f"{path} is gone" for path in before.keys() - now.keys()]
    for path in before.keys() & now.keys():
        if lost := set(before[path]) - set(now[path]):
            found.append(f"{path} no longer takes {', '.join(sorted(lost))}")
    for path in now.keys() - before.keys():
        parent = path.rpartition(".")[0]
        if MISSING not in now[path] and (parent in before or not parent) and path[-1] not in "]*":
            found.append(f"{path} is new and must be there: give it a default")
    return sorted(found)


CONTRACTS: dict[str, Callable[[], dict[str, Any]]] = {
    "stack-v1.json": schema.schema,
    "settings-v2.json": lambda: pydantic.TypeAdapter(Settings).json_schema(),
}


@pytest.mark.parametrize("name", CONTRACTS)
def test_what_an_earlier_release_wrote_is_read(name: str, pytestconfig: pytest.Config) -> None:
    file, now = FROZEN / name, accepted(CONTRACTS[name]())
    before = json.loads(file.read_text()) if file.exists() else now
    assert broken(before, now) == [], f"{name}: put it back, or begin another version"
    if pytestconfig.getoption("--update-snapshots"):
        file.write_text(
            "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in now.items()) + "\n}\n"
        )
    assert json.loads(file.read_text()) == now, f"promise what is new: --update-snapshots adds it to {name}"


def test_the_settings_say_their_version() -> None:
    assert accepted(CONTRACTS["settings-v2.json"]())[".api_version"] == [MISSING, "string"]
    assert SETTINGS_VERSION.endswith("/v2"), "the frozen copy is of this version"


def test_what_version_1_of_the_settings_had_is_still_there_or_moved_into_a_section() -> None:
    names = [*published.OF_PARTITION["aws"], *published.OF_PARTITION["gcp"], "template_overrides"]
    moved = [f".design.partitions[].{name}" for name in names]
    moved += [".design.network.nat", *(f".design.{name}" for name in published.OF_CLUSTER)]
    before, now = (json.loads((FROZEN / f"settings-v{n}.json").read_text()) for n in (1, 2))
    gone = {line.removesuffix(" is gone") for line in broken(before, now)}
    whole = {path for path in gone if path.rpartition(".")[0] not in gone and not path.endswith("[]")}
    assert whole == set(moved)


def test_settings_that_version_1_has_published_are_read() -> None:
    """The file was written by the code of that time."""
    documents = json.loads((FROZEN / "settings-v1-published.json").read_text())
    amazon, google = (published.parse_settings(json.dumps(documents[name])) for name in ("aws", "gcp"))
    assert amazon.design.aws == AwsSettings(
        "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012",
        nat=False,
        permissions_boundary="arn:aws:iam::123456789012:policy/edge",
        role_path="/platform/ml/",
    )
    gpu, cpu = amazon.design.partitions
    assert gpu.aws == AwsPartition(
        efa=4,
        capacity_block=True,
        placement_group="lab-p4d",
        gp3=Gp3(6000, 500),
        security_groups=("sg-0123456789abcdef1",),
        launch_template_overrides='{"instance_initiated_shutdown_behavior": "terminate"}',
    )
    assert (cpu.aws, cpu.gcp, gpu.gcp) == (AwsPartition(), GcpPartition(), GcpPartition())
    assert google.design.aws == AwsSettings()
    (gpu,) = google.design.partitions
    assert gpu.gcp == GcpPartition(
        secure_boot=True,
        placement_policy="close",
        disk_type="pd-ssd",
        min_cpu_platform="Intel Skylake",
        network_tags=("lab", "gpu"),
        instance_template_overrides='{"can_ip_forward": true}',
    )
    for name, settings in (("aws", amazon), ("gcp", google)):
        assert settings.api_version == SETTINGS_VERSION
        before, now = documents[name], json.loads(json.dumps(to_json(settings)))
        assert now["site"] == before["site"]
        for was, part in zip(before["design"]["partitions"], now["design"]["partitions"], strict=True):
            kept = part.keys() & was.keys() - {"aws", "gcp"}
            assert {key: part[key] for key in kept} == {key: was[key] for key in kept}
            assert len(kept) > 15


@pytest.mark.parametrize("design", [None, [], {"provider": "aws", "partitions": [7]}, {"partitions": [{}]}])
def test_damaged_settings_of_version_1_are_refused_by_name(design: object) -> None:
    with pytest.raises(ValueError, match=r'settings of "slurm-stacks/settings/v1" that are damaged'):
        published.parse_settings(json.dumps({"design": design, "api_version": published.FORMER_VERSION}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda one: one["properties"].pop("c"), ".c is gone"),
        (lambda one: one["properties"].update(c={"enum": ["x"]}), '.c no longer takes "y"'),
        (lambda one: one.update(required=["c"]), ".c no longer takes missing"),
        (lambda one: one["properties"]["d"]["items"].update(type="integer"), ".d[] no longer takes string"),
        (lambda one: one.update(required=["e"]), ".e is new and must be there: give it a default"),
    ],
)
def test_each_way_to_break_the_word_is_found(change: Any, text: str) -> None:
    def document() -> dict[str, Any]:
        strings = {"type": "array", "items": {"type": "string"}}
        return {"properties": {"c": {"enum": ["x", "y"]}, "d": strings}, "$defs": {}}

    changed = document()
    changed["properties"]["e"] = {"type": "string"}
    assert broken(accepted(document()), accepted(changed)) == []
    change(changed)
    assert broken(accepted(document()), accepted(changed)) == [text]
