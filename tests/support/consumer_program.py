"""A program that is not ours, with two clusters in a network of its own, and the engine that runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import stand_in_plugin
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "component.md"
EXAMPLES = ROOT / "examples" / "component"
FILES = {
    "python": ("__main__.py", "test_program.py"),
    "typescript": ("index.ts", "program_test.ts"),
    "go": ("main.go",),
}
"""Language -> its program, and the test of it."""
CLUSTERS = {"train": 4, "small": 2}
"""The clusters of the example in Python, each with the most nodes that it may have."""


def code(language: str, page: Path) -> list[str]:
    """Return what a page shows in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def program(language: str, *, test: bool = False) -> str:
    """Return the example's program in a language, or its test."""
    return (EXAMPLES / language / FILES[language][test]).read_text(encoding="utf-8")


NODE = {
    "@pulumi/pulumi": "3.270.0",
    "@pulumi/slurm-stacks": "file:sdk/nodejs",
    "@types/node": "^20",
    "typescript": "^5.9",
}
GO_SDK = "github.com/pulumi/pulumi/sdk/v3 v3.256.0"
"""The SDK of programs in Go, in the release that generated packages ask for."""
COMPILER = {
    "strict": True,
    "target": "es2020",
    "module": "commonjs",
    "moduleResolution": "node",
    "skipLibCheck": True,
}

LOCK = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "consumer"
version = "0"
source = { virtual = "." }
"""


@dataclass(frozen=True)
class Request:
    """What a plugin was asked for.

    Attributes:
        verb: create | update | delete.
        id: The resource's id, which a creation has assigned.
        inputs: The properties that it shall have; none for a deletion.
    """

    verb: str
    urn: str
    id: str
    inputs: dict[str, Any]

    @property
    def name(self) -> str:
        return self.urn.rpartition("::")[2]

    @property
    def type(self) -> str:
        return self.urn.split("::")[2].rpartition("$")[2]


@dataclass
class Consumer:
    """A program in a folder, and the engine's folders that it shares with other copies of it.

    Attributes:
        component: The folder `component` of the checkout that the program uses.
        shared: The folder of the state, which several engineers have in common.
        variables: More variables of the environment.
        key: The key pair of all clusters, with which a program has other machines.
        refuses: The name of a resource whose deletion fails.
    """

    folder: Path
    home: Path
    shared: Path
    component: Path = ROOT / "component"
    clusters: dict[str, int] = field(default_factory=lambda: dict(CLUSTERS))
    variables: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    refuses: str = ""

    @property
    def log(self) -> Path:
        return self.shared / "log"

    def env(self) -> dict[str, str]:
        tools = self.home / "bin"
        return {
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "PULUMI_HOME": str(self.home / ".pulumi"),
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            "PULUMI_BACKEND_URL": f"file://{self.shared}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            stand_in_plugin.LOG: str(self.log),
            **self.variables,
            stand_in_plugin.REFUSES: self.refuses,
        }

    def write(self) -> None:
        """Write the program, and what the engine needs of this user."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shared.mkdir(exist_ok=True)
        if not self.home.exists():
            stand_in_plugin.with_plugins(self.home / ".pulumi")
            # The environment of these tests is the plugin's, too, and nobody changes it while they run.
            tool = self.home / "bin" / "uv"
            tool.parent.mkdir()
            real = Path(sys.executable).parent / "uv"
            tool.write_text(f'#!/bin/sh\n[ "$1" = sync ] && exit 0\nexec {real} "$@"\n')
            tool.chmod(0o755)
        project = f"""
            name: consumer
            runtime:
              name: python
              options: {{toolchain: uv, virtualenv: {Path(sys.executable).parents[1]}}}
            packages:
              slurm-stacks: {self.component}
            """
        (self.folder / "Pulumi.yaml").write_text(textwrap.dedent(project))
        (self.folder / "Pulumi.dev.yaml").write_text("config:\n  aws:region: eu-west-1\n")
        (self.folder / "pyproject.toml").write_text(
            '[project]\nname = "consumer"\nversion = "0"\nrequires-python = ">=3.11"\n'
        )
        (self.folder / "uv.lock").write_text(LOCK)
        self.write_program()

    def write_program(self, text: str | None = None) -> None:
        """Write the example with these clusters, or another program."""
        if text is None:
            text = program("python")
            usual = json.dumps(CLUSTERS)
            assert usual in text
            text = text.replace(usual, json.dumps(self.clusters))
            if self.key is not None:
                text = text.replace("partitions=", f'access={{"key": "{self.key}"}}, partitions=')
        sdk = self.folder / "sdk" / "python"
        (self.folder / "__main__.py").write_text(f"import sys\nsys.path.insert(0, {str(sdk)!r})\n{text}")

    def generate(self) -> None:
        """Generate the SDK as `pulumi package add` does, and note its version as an installer does."""
        self.pulumi("package", "gen-sdk", str(self.component), "--language", "python", "--out", "sdk")
        note = self.folder / "sdk" / "python" / "pulumi_slurm_stacks-0.1.0.dist-info" / "METADATA"
        note.parent.mkdir()
        note.write_text("Metadata-Version: 2.1\nName: pulumi_slurm_stacks\nVersion: 0.1.0\n")

    def typescript(self, packages: Mapping[str, str], **files: str) -> None:
        """Make it a program in TypeScript, `index.ts`, with packages besides the usual ones.

        Args:
            files: Module -> its text.
        """
        folder = self.folder
        self._runtime("nodejs")
        package = {"name": "consumer", "dependencies": {**NODE, **packages}}
        (folder / "package.json").write_text(json.dumps(package))
        settings = {"compilerOptions": COMPILER, "files": [f"{name}.ts" for name in files]}
        (folder / "tsconfig.json").write_text(json.dumps(settings))
        for name, text in files.items():
            (folder / f"{name}.ts").write_text(text)
        self.pulumi("package", "gen-sdk", str(self.component), "--language", "nodejs", "--out", "sdk")
        self.run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--install-links=false")
        sdk = folder / "sdk" / "nodejs"
        self.run("npx", "tsc", "--project", str(sdk), "--outDir", str(sdk / "bin"))
        shutil.copy(sdk / "package.json", sdk / "bin")
        self.run("npx", "tsc", "--noEmit", "--project", str(folder))

    def go(self, text: str) -> None:
        """Make it a program in Go, with the package as the engine adds it."""
        for name in ("GOPATH", "GOCACHE", "GOPROXY", "GOTOOLCHAIN"):
            # What this user has downloaded and compiled.
            done = subprocess.run(["go", "env", name], capture_output=True, text=True, check=True)
            self.variables[name] = done.stdout.strip()
        self._runtime("go")
        (self.folder / "go.mod").write_text(f"module consumer\n\ngo 1.25\n\nrequire {GO_SDK}\n")
        (self.folder / "main.go").write_text(text)
        self.pulumi("package", "add", str(self.component))
        self.run("go", "mod", "tidy")

    def _runtime(self, name: str) -> None:
        for file in ("__main__.py", "pyproject.toml", "uv.lock"):
            (self.folder / file).unlink()
        project = (self.folder / "Pulumi.yaml").read_text()
        (self.folder / "Pulumi.yaml").write_text(re.sub("runtime:\n.*\n.*\n", f"runtime: {name}\n", project))

    def plugin(self, name: str, version: str) -> None:
        """Put the stand-in of a cloud also where the engine looks for another version of its plugin."""
        plugins = self.home / ".pulumi" / "plugins"
        (there,) = plugins.glob(f"resource-{name}-v*")
        if not (plugins / f"resource-{name}-v{version}").exists():
            shutil.copytree(there, plugins / f"resource-{name}-v{version}")

    def run(self, *words: str) -> None:
        """Run another tool in the program's folder."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.env(), capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def pulumi(self, *words: str, fails: bool = False) -> str:
        """Run the CLI, and return all that it printed."""
        done = subprocess.run(
            [shutil.which("pulumi") or "pulumi", *words, "--non-interactive"],
            cwd=self.folder, env=self.env(), capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
        text = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, text
        return text

    def requests(self) -> list[Request]:
        """Return what the plugins were asked to create, update and delete, in this order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [Request(**one) for one in map(json.loads, lines)]

    def calls(self, verb: str) -> list[str]:
        """Return the names of the resources that the plugins were asked to create, update or delete."""
        return [request.name for request in self.requests() if request.verb == verb]

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the resources that were created, by name."""
        return {request.name: request.inputs for request in self.requests() if request.verb == "create"}
