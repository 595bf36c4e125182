"""The package's schema, made from the JSON Schemas of the stack file and of the outputs.

Checked in as `component/schema.json`, because the plugin answers with it at once; `tools/generate.py`
writes it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from component.construction import TOKEN
from infra import bundle
from infra.config import schema as stack_file
from infra.config.argument_names import BENCHMARK, Place, camel_case
from infra.outputs import contract

PACKAGE = TOKEN.partition(":")[0]
_ANY = "pulumi.json#/Any"
_PRIMITIVES = ("string", "integer", "number", "boolean")


def schema() -> dict[str, Any]:
    """Return the package's schema."""
    arguments, outputs = stack_file.schema()["$defs"], contract.schema()
    cluster, benchmark = arguments.pop("ClusterConfig"), arguments["BenchmarkConfig"]
    types: dict[str, Any] = {}
    inputs = _Converter(arguments, types, camel_case)
    for name in arguments:
        inputs.section(name)
    properties = inputs.properties("SlurmCluster", cluster["properties"])
    properties |= {key: {"type": "string", "description": _PLACE[key]} for key in Place.model_fields}
    properties[BENCHMARK] = {"$ref": _ref("BenchmarkConfig"), "description": benchmark["description"]}
    properties["name"]["description"] = (
        "The cluster's name, in the names of all it owns; the component's by default."
    )
    results = _Converter(outputs["$defs"], types, str)
    for name in outputs["$defs"]:
        results.section(name)
    types[f"{PACKAGE}:index:ClusterOutput"] = results.object("ClusterOutput", outputs)
    project = tomllib.loads((bundle.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "name": PACKAGE,
        "version": project["version"],
        "description": project["description"],
        "license": project["license"],
        "meta": {"supportPack": True},
        "language": {language: {"respectSchemaVersion": True} for language in _LANGUAGES},
        "types": dict(sorted(types.items())),
        "resources": {
            TOKEN: {
                "isComponent": True,
                "description": "An elastic Slurm cluster, or an AWS Batch environment, and the training that "
                "follows its creation.",
                "inputProperties": properties,
                "requiredInputs": sorted(map(camel_case, set(cluster["required"]) - {"name"})),
                "properties": {
                    "cluster": {
                        "$ref": _ref("ClusterOutput"),
                        "description": "What other programs need of the cluster, under a version.",
                    },
                    "loginSsh": {
                        "type": "string",
                        "description": "Command for a shell on the login machine; nothing with AWS Batch.",
                    },
                    "benchmarkResult": {
                        "type": "string",
                        "description": "Where the training's result.json will be, on the login machine.",
                    },
                },
                "required": ["cluster"],
            }
        },
    }


_LANGUAGES = ("csharp", "go", "nodejs", "python")
_PLACE = {
    "region": "Region of the cluster: that of the program's aws:region or gcp:region by default.",
    "zone": "Google Cloud: zone of the controller; the program's gcp:zone by default.",
    "project": "Google Cloud: project; the program's gcp:project by default.",
}


class _Converter:
    """Converts the definitions of a JSON Schema to types of a package.

    Args:
        definitions: The definitions, by name.
        types: Token -> type, to which the converted ones are added.
        named: Returns the name of a property from its key.
    """

    def __init__(self, definitions: Mapping[str, Any], types: dict[str, Any], named: Any) -> None:
        self._definitions = definitions
        self._types = types
        self._named = named

    def section(self, name: str) -> None:
        self._types[f"{PACKAGE}:index:{name}"] = self.object(name, self._definitions[name])

    def object(self, name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
        schema = {
            "type": "object",
            "description": definition.get("description", ""),
            "properties": self.properties(name, definition["properties"]),
        }
        required = [
            self._named(key)
            for key in definition.get("required", ())
            if not _nullable(definition["properties"][key])
        ]
        return {**schema, "required": sorted(required)} if required else schema

    def properties(self, owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            self._named(key): self._described(owner + key.title().replace("_", ""), value)
            for key, value in given.items()
        }

    def _described(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the type of a property with its description and its default."""
        schema = self._type(name, value)
        if "description" in value:
            schema["description"] = value["description"]
        if isinstance(value.get("default"), str | int | float):
            # The schema's own `default` would be written into every program's inputs.
            default = json.dumps(value["default"])
            schema["description"] = f"{schema.get('description', '').rstrip('.')}. Default: {default}."
        return schema

    def _type(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        if "$ref" in value:
            return {"$ref": _ref(value["$ref"].rpartition("/")[2])}
        if "anyOf" in value:
            return self._one_of(name, [each for each in value["anyOf"] if each.get("type") != "null"])
        if "enum" in value:
            return self._enumeration(name, value)
        kind = value.get("type")
        if isinstance(kind, list):
            return self._one_of(name, [{"type": each} for each in kind if each != "null"])
        if kind == "array":
            return {"type": "array", "items": self._type(name, value["items"])}
        if kind == "object":
            values = value.get("additionalProperties")
            inner = self._type(name, values) if isinstance(values, dict) else {"$ref": _ANY}
            return {"type": "object", "additionalProperties": inner}
        if kind in _PRIMITIVES:
            return {"type": kind}
        if isinstance(value.get("const"), str):
            return {"type": "string"}
        raise ValueError(f"{name}: a package's schema cannot say {value}")

    def _one_of(self, name: str, choices: list[Mapping[str, Any]]) -> dict[str, Any]:
        if len(choices) == 1:
            return self._type(name, choices[0])
        return {"oneOf": [self._type(name, each) for each in choices]}

    def _enumeration(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a type for which a language has constants, and of which plain text is as good."""
        token = f"{PACKAGE}:index:{name}"
        self._types[token] = {"type": "string", "enum": [{"value": each} for each in value["enum"]]}
        return {"oneOf": [{"type": "string"}, {"$ref": _ref(name)}]}


def _nullable(value: Mapping[str, Any]) -> bool:
    return any(each.get("type") == "null" for each in value.get("anyOf", ()))


def _ref(name: str) -> str:
    return f"#/types/{PACKAGE}:index:{name}"


def text() -> str:
    """Return the schema as it is checked in."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
