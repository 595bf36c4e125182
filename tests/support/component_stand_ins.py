"""The package of the component as programs in Python, Node.js and Go import it, without the Pulumi CLI.

Each stand-in prints a component's name and arguments, as the program has given them, as a line of JSON. The
package for Go has the types and fields of the schema, so that a program with another one does not compile.
The tests in `tests/engine/` run the same programs with the packages that the engine generates.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from component.construction import SCHEMA
from tests.support.consumer_program import EXAMPLES, program

IDS = {
    "vpc": "vpc-0123456789abcdef0",
    "public": "subnet-0123456789abcdef1",
    "nodes": "subnet-0123456789abcdef2",
}
"""The name of a resource in the examples -> its id."""
PYTHON = """
import pulumi


class SlurmCluster(pulumi.ComponentResource):
    def __init__(self, name, opts=None, **arguments):
        props = {**arguments, "cluster": None, "loginSsh": None, "benchmarkResult": None}
        super().__init__("slurm-stacks:index:SlurmCluster", name, props, opts, remote=True)
"""
STARTED = f"""
import json, pulumi, runpy
IDS = {IDS}


class Cloud(pulumi.runtime.Mocks):
    def new_resource(self, args):
        if args.typ == "slurm-stacks:index:SlurmCluster":
            # One write: the mocks make resources in threads side by side.
            print(json.dumps([args.name, args.inputs]) + "\\n", end="")
            return "", {{**args.inputs, "cluster": {{"name": args.name}}}}
        return IDS.get(args.name, args.name), {{**args.inputs, "bucket": args.name}}

    def call(self, args):
        return {{}}


pulumi.runtime.set_mocks(Cloud())
pulumi.runtime.test(lambda: runpy.run_path("__main__.py"))()
"""
NODE = {
    "pulumi": "export const interpolate = (texts, ...values) => String.raw({ raw: texts }, ...values);",
    "aws": f"""
        const IDS = {json.dumps(IDS)};
        class Resource {{ constructor(name) {{ this.id = IDS[name] ?? name; this.bucket = name; }} }}
        export const ec2 = {{ Vpc: Resource, Subnet: Resource }};
        export const s3 = {{ Bucket: Resource }};
    """,
    "slurm-stacks": """
        export class SlurmCluster {
            constructor(name, args) {
                console.log(JSON.stringify([name, args]));
                this.cluster = { name };
            }
        }
    """,
}
GO = """
package pulumi

type (
	StringArray []any
	Context     struct{}
)

func String(text string) any                     { return text }
func (*Context) Export(name string, value any)   {}
func Run(program func(*Context) error)           { if err := program(&Context{}); err != nil { panic(err) } }
"""
GO_PACKAGE = """
package slurmstacks

import (
	"encoding/json"
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

type ClusterOutput struct{}
type SlurmCluster struct{ Cluster ClusterOutput }

func (ClusterOutput) Name() any { return nil }

func NewSlurmCluster(ctx *pulumi.Context, name string, args *SlurmClusterArgs) (*SlurmCluster, error) {
	text, err := json.Marshal([]any{name, args})
	fmt.Println(string(text))
	return &SlurmCluster{}, err
}
"""


def run(language: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the example in a language in a folder, and return name -> arguments, by the names of the schema."""
    shutil.copytree(EXAMPLES / language, folder, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    return _arguments({"python": _python, "typescript": _typescript, "go": _go}[language](folder))


def run_python(folder: Path) -> dict[str, dict[str, Any]]:
    """Run the program in Python that is in a folder, and return the same of it."""
    return _arguments(_python(folder))


def _arguments(text: str) -> dict[str, dict[str, Any]]:
    return {name: _in_schema(given) for name, given in map(json.loads, text.splitlines())}


def python_package(folder: Path) -> None:
    """Put the package for Python beside a program."""
    (folder / "pulumi_slurm_stacks.py").write_text(PYTHON)


def _python(folder: Path) -> str:
    python_package(folder)
    return _output(folder, sys.executable, "-c", STARTED)


def _typescript(folder: Path) -> str:
    # A program whose types are left out is one in JavaScript; tests/engine/ compiles it.
    (folder / "index.mjs").write_text(re.sub(r"(\w): string\b", r"\1", program("typescript")))
    for name, text in NODE.items():
        there = folder / "node_modules" / "@pulumi" / name
        there.mkdir(parents=True)
        (there / "index.js").write_text(text)
        (there / "package.json").write_text(json.dumps({"type": "module", "main": "index.js"}))
    return _output(folder, "node", "index.mjs")


def _go(folder: Path) -> str:
    modules = {
        "github.com/pulumi/pulumi/sdk/v3": "go/pulumi",
        "example.com/pulumi-slurm-stacks/sdk": "go/slurmstacks",
    }
    texts = (GO, GO_PACKAGE + "\n".join(_go_types()))
    settings = "module clusters\n\ngo 1.25\n"
    for number, ((module, package), text) in enumerate(zip(modules.items(), texts, strict=True)):
        there = folder / f"stand_in_{number}" / package
        there.mkdir(parents=True)
        (there / "package.go").write_text(text)
        (there.parents[1] / "go.mod").write_text(f"module {module}\n\ngo 1.25\n")
        settings += f"\nrequire {module} v0.0.0\n\nreplace {module} => ./stand_in_{number}\n"
    settings = settings.replace("sdk/v3 v0.0.0", "sdk/v3 v3.0.0")
    (folder / "go.mod").write_text(settings)
    return _output(folder, "env", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local", "go", "run", ".")


def _go_types() -> Iterator[str]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    (resource,) = schema["resources"].values()
    found = {"SlurmCluster": resource["inputProperties"]}
    found |= {name.rpartition(":")[2]: one.get("properties") for name, one in schema["types"].items()}
    for name, properties in found.items():
        if properties is not None:
            keys = (f'\t{key[0].upper()}{key[1:]} any `json:"{key},omitempty"`' for key in properties)
            yield "\n".join([f"type {name}Args struct {{", *keys, "}", f"type {name}Array []any"])


def _output(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _in_schema(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            re.sub("_(.)", lambda found: found[1].upper(), key): _in_schema(one) for key, one in value.items()
        }
    return [_in_schema(one) for one in value] if isinstance(value, list) else value
