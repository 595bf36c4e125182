"""The example consumer under the real CLI: a `StackReference` to a real cluster, and real jobs on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_engine_local_stack import Engine, engine, pytestmark  # noqa: F401  the fixture, and what it needs

from infra import outputs
from tests.support import consumer
from tests.support.checkout import ROOT


def run(folder: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The CLI needs uv, which the project's toolchain names, on PATH.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["pulumi", *verb.split(), "--non-interactive", "--stack", "dev", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_example_from_its_first_job_to_another_cluster(
    engine: Engine,  # noqa: F811
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "hush")
    folder = consumer.copy(tmp_path / "my job", engine.checkout)
    # The example uses the packages of this environment instead of one of its own.
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    project = folder / "Pulumi.yaml"
    content = yaml.safe_load(project.read_text())
    assert content["runtime"]["options"]["virtualenv"] == ".venv"
    content["runtime"]["options"]["virtualenv"] = sys.prefix
    project.write_text(yaml.safe_dump(content, sort_keys=False))

    def done(verb: str, *arguments: str) -> str:
        ended = run(folder, verb, *arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def up() -> tuple[dict[str, Any], int]:
        summary = done("up", "--yes", "--skip-preview").rpartition("Resources:")[2]
        changes = re.findall(r"(\d+) (?:created|replaced|updated|deleted)", summary)
        return json.loads(done("stack output", "--json")), sum(map(int, changes))

    def refused() -> str:
        ended = run(folder, "up", "--yes", "--skip-preview")
        assert ended.returncode != 0
        assert "Traceback" not in ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def cluster_up() -> None:
        engine("up", "--yes", "--skip-preview")

    def cluster_down() -> None:
        engine("destroy", "--yes", "--skip-preview")

    engine("stack init")
    cluster_up()
    printed = json.loads(engine("stack output", "cluster", "--json").stdout)
    assert outputs.load(printed).name == "test"
    done("stack init")
    try:
        consumer.Story(
            engine.checkout,
            folder,
            up=up,
            refused=refused,
            destroy=lambda: (done("destroy", "--yes", "--skip-preview"), None)[1],
            cluster_up=cluster_up,
            cluster_down=cluster_down,
        ).tell()
    finally:
        run(folder, "destroy", "--yes", "--skip-preview")
