"""A program that is not ours, with two clusters in a network of its own, and the engine that runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import stand_in_plugin
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "component.md"
CLUSTERS = {"train": 4, "small": 2}
"""The clusters of the page's program, each with the most nodes that it may have."""


def program(language: str) -> str:
    """Return the program that the page shows in a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


LOCK = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "consumer"
version = "0"
source = { virtual = "." }
"""


@dataclass
class Consumer:
    """A program in a folder, and the engine's folders that it shares with other copies of it.

    Attributes:
        component: The folder `component` of the checkout that the program uses.
        shared: The folder of the state, which several engineers have in common.
        key: The key pair of all clusters, with which a program has other machines.
        refuses: The name of a resource whose deletion fails.
    """

    folder: Path
    home: Path
    shared: Path
    component: Path = ROOT / "component"
    clusters: dict[str, int] = field(default_factory=lambda: dict(CLUSTERS))
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
            "PULUMI_BACKEND_URL": f"file://{self.shared}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            stand_in_plugin.LOG: str(self.log),
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

    def write_program(self) -> None:
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

    def calls(self, verb: str) -> list[str]:
        """Return the names of the resources that the plugins were asked to create, update or delete."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [one["urn"].rpartition("::")[2] for one in map(json.loads, lines) if one["verb"] == verb]

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the resources that were created, by name."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return {one["urn"].rpartition("::")[2]: one["inputs"] for one in lines if one["verb"] == "create"}
