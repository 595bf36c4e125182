"""The commands of a cloud stack's resources, which a plain `pulumi` runs, say as whom they ask the cloud."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.engine.plan import plan
from infra.program.stack import Stack
from tests.support.checkout import ROOT

ASKS_NOBODY = "operations.ssh"
"""The module that asks no cloud. It has the ProxyCommand, which does."""
SETTINGS = {"aws": "aws:profile", "gcp": "gcp:impersonateServiceAccount"}
STACKS = ["aws-cpu", "aws-batch", "gcp-cpu"]


def commands(stack: str, folder: Path, value: str | None) -> dict[str, dict[str, Any]]:
    """Return the commands of a shipped stack, baked, with a setting of its provider: name -> inputs."""
    provider = stack.partition("-")[0]
    content = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())
    if value is not None:
        content["config"][SETTINGS[provider]] = value
    if stack != "aws-batch":
        content["config"]["slurm-stacks:cluster"]["image"] = {"source": "ubuntu-24.04", "bake": True}
        content["config"]["slurm-stacks:cluster"]["access"] = {"mode": "iap" if provider == "gcp" else "ssm"}
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "Pulumi.s.yaml").write_text(yaml.safe_dump(content))
    planned = plan(Stack(folder, "s"))["resources"]
    return {each["name"]: each["inputs"] for each in planned if each["type"] == "command:local:Command"}


@pytest.mark.parametrize("stack", STACKS)
def test_every_command_says_as_whom_it_asks_and_another_account_replaces_none(
    stack: str, tmp_path: Path
) -> None:
    without, one, two = (commands(stack, tmp_path, value) for value in (None, "one-1", "two-2"))
    assert without.keys() == one.keys() == two.keys() != set()
    for name, inputs in one.items():
        parts = [inputs.get(key) for key in ("create", "delete", "stdin", "environment")]
        assert "one-1" in json.dumps(parts) or ASKS_NOBODY in json.dumps(parts), name
        assert "provider_settings" not in json.dumps(without[name]), "stacks without settings see no change"
        assert "--provider-settings" not in json.dumps(without[name])
        assert inputs.get("triggers") == without[name].get("triggers") == two[name].get("triggers"), name
    over_ssh = [inputs["environment"] for inputs in one.values() if ASKS_NOBODY in json.dumps(inputs)]
    assert all("one-1" in json.dumps(environment) for environment in over_ssh), "by their ProxyCommand"
