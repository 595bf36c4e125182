"""What reads a stack file reads it where Pulumi looks for it, with what Pulumi.yaml gives to all stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import options
from cli.commands import init, list_clusters
from cli.commands.doctor import general
from cli.engine import project
from cli.providers import instance_type_lookup
from cli.providers import provider as providers
from cli.providers.clouds import known_clusters
from infra.config import ConfigError, load_file, stack_file
from infra.config.advice import warnings
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.program import project_file
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support.checkout import ROOT

CLUSTER = "slurm-stacks:cluster"


def checkout(folder: Path, settings: dict[str, Any], own: dict[str, Any] | None, **more: Any) -> Stack:
    """Make a project with a stack `s` of AWS.

    Args:
        settings: What Pulumi.yaml has beside its name.
        own: The values of the stack file; `None` for a file without `config`.
        **more: What the stack file has beside `config`.
    """
    (folder / "Pulumi.yaml").write_text(
        yaml.safe_dump({"name": "slurm-stacks", "runtime": "python", **settings})
    )
    stack = Stack(folder, "s")
    stack.file.parent.mkdir(parents=True, exist_ok=True)
    content = {**({} if own is None else {"config": own}), **more}
    stack.file.write_text(yaml.safe_dump(content) if content else "")
    return stack


def aws() -> dict[str, Any]:
    """Return the values of the shipped stack without its region."""
    values: dict[str, Any] = yaml.safe_load((ROOT / "Pulumi.aws-cpu.yaml").read_text())["config"]
    return {key: value for key, value in values.items() if key != "aws:region"}


REGION = {"aws:region": {"value": "eu-central-1"}, "aws:profile": {"value": "research"}}
READERS: dict[str, Callable[[Stack], tuple[str | None, str | None]]] = {
    "plan, up and status": lambda stack: (
        options.load(stack).region,
        options.load(stack).provider_settings,
    ),
    "down, the audit and the sweep": lambda stack: (
        StackUp(stack, "aws").design.region,
        StackUp(stack, "aws").design.provider_settings,
    ),
    "the account of `down`": lambda stack: (
        StackUp(stack, "aws").design.region,
        known_clusters.settings(stack),
    ),
    "up without the Pulumi CLI": lambda stack: (
        project.load(stack).config["aws:region"],
        json.dumps({"profile": project.load(stack).config["aws:profile"]}, separators=(",", ":")),
    ),
    "instance types": lambda stack: (
        instance_type_lookup._read(stack)[1].region,  # type: ignore[union-attr]
        instance_type_lookup._read(stack)[1].provider_settings,  # type: ignore[union-attr]
    ),
    "list": lambda stack: next(
        (ref.region, ref.provider_settings) for _, ref in list_clusters._places(stack.project, [])
    ),
}
"""What reads a stack file -> its region and its provider's settings there."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("folder", [None, "stacks", "deeper/stacks", "../stacks", "{absolute}", "inner"])
def test_every_reader_has_the_values_of_the_project(reader: str, folder: str | None, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    # A project of its own, which has nothing to do with this one.
    for inner in (mine / "inner", tmp_path / "elsewhere"):
        inner.mkdir(parents=True)
        (inner / "Pulumi.yaml").write_text("name: other\nconfig:\n  aws:profile: another\n")
    folder = folder and folder.format(absolute=tmp_path / "elsewhere")
    settings = {"config": REGION, **({} if folder is None else {"stackConfigDir": folder})}
    stack = checkout(mine, settings, aws())
    assert stack.file == mine / (folder or "") / "Pulumi.s.yaml"
    assert READERS[reader](stack) == ("eu-central-1", '{"profile":"research"}')


@pytest.mark.parametrize("reader", READERS)
def test_the_stacks_own_value_wins(reader: str, tmp_path: Path) -> None:
    own = {**aws(), "aws:region": "us-east-1", "aws:profile": "mine"}
    assert READERS[reader](checkout(tmp_path, {"config": REGION}, own)) == ("us-east-1", '{"profile":"mine"}')


@pytest.mark.parametrize(
    ("declared", "own"),
    [
        ({CLUSTER: {"value": aws()[CLUSTER]}, **REGION}, {}),
        ({"cluster": {"type": "object", "default": aws()[CLUSTER]}, **REGION}, {"aws:profile": "p"}),
        ({"cluster": {"type": "object", "default": aws()[CLUSTER]}, **REGION}, None),
        ({"aws:region": "eu-central-1", "cluster": {"type": "object"}}, aws()),
    ],
    ids=["value", "default", "no config", "short form"],
)
def test_any_key_may_come_from_the_project(
    declared: dict[str, Any], own: dict[str, Any] | None, tmp_path: Path
) -> None:
    config = load_file(checkout(tmp_path, {"config": declared}, own).file)
    assert (config.cluster.name, config.region) == ("aws-cpu", "eu-central-1")


def test_a_mistake_in_a_value_of_the_project_is_placed_there(tmp_path: Path) -> None:
    stack = checkout(tmp_path, {"config": {**REGION, "aws:accessKey": {"value": "A"}}}, aws())
    with pytest.raises(ConfigError) as raised:
        load_file(stack.file)
    (mistake,) = raised.value.mistakes
    assert (mistake.path, mistake.code) == ("aws:accessKey", "provider.refused")
    assert mistake.advice.endswith("; the value is in Pulumi.yaml")


def test_a_secret_of_the_project_is_refused_where_it_would_be_shown(tmp_path: Path) -> None:
    settings = {"config": {**REGION, "aws:profile": {"value": "hidden", "secret": True}}}
    stack = checkout(tmp_path, settings, aws())
    with pytest.raises(ConfigError) as raised:
        load_file(stack.file)
    assert [mistake.code for mistake in raised.value.mistakes] == ["provider.form"]
    assert "hidden" not in str(raised.value)
    assert project.load(stack).secure == {"aws:profile"}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        (["acme/aws-dev"], "acme/aws-dev"),
        (["one", {"two": {"merge": False}}], "one, two"),
        ({"imports": ["acme/aws-dev"], "values": {}}, "acme/aws-dev"),
        ({"values": {"pulumiConfig": {}}}, "the environment in the stack file"),
    ],
)
def test_a_key_that_may_come_from_an_environment_is_named_as_such(
    environment: Any, names: str, tmp_path: Path
) -> None:
    stack = checkout(tmp_path, {}, aws(), environment=environment)
    with pytest.raises(ConfigError) as raised:
        load_file(stack.file)
    (mistake,) = raised.value.mistakes
    assert mistake.path == "aws:region"
    assert f"environment: {names} is read by Pulumi's engine only" in mistake.advice


def test_a_plan_says_what_an_environment_may_change(tmp_path: Path) -> None:
    endpoints = [{"s3": "http://s3.example.test"}]
    own = {**aws(), "aws:region": "eu-central-1", "aws:endpoints": endpoints}
    config = load_file(checkout(tmp_path, {}, own, environment=["acme/aws-dev"]).file)
    found = warnings(config, design(config, catalog()), catalog())
    assert [line for line in found if "acme/aws-dev" in line and "not in this plan" in line]
    assert [line for line in found if "aws:endpoints: s3: http://s3.example.test is not encrypted" in line]


def test_stack_files_are_looked_for_where_pulumi_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = checkout(tmp_path, {"stackConfigDir": "stacks"}, {**aws(), "aws:region": "eu-central-1"})
    (tmp_path / "Pulumi.other.yaml").write_text("config: {}\n")
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path))
    assert options.known_stacks("") == ["s"] == stack_file.stacks(tmp_path)
    assert providers.of_cluster(stack) == "aws"
    with pytest.raises(ConfigError, match="Stacks here: s"):
        load_file(Stack(tmp_path, "t").file)
    finding, up, _ = general.stack_file(stack)
    assert up is not None
    assert (up.config is not None, up.provider) == (True, "aws"), finding
    assert init.check_new("new", new=True) == tmp_path / "stacks" / "Pulumi.new.yaml"


def test_scripts_lie_in_the_project_wherever_its_stack_files_are(tmp_path: Path) -> None:
    values = {**aws(), "aws:region": "eu-central-1"}
    values[CLUSTER] = {**values[CLUSTER], "hooks": [{"role": "compute", "source": "hook.sh"}]}
    stack = checkout(tmp_path, {"stackConfigDir": "stacks"}, values)
    with pytest.raises(ConfigError, match=r"hook\.sh"):
        load_file(stack.file, scripts=True)
    (tmp_path / "hook.sh").write_text("#!/bin/sh\n")
    assert load_file(stack.file, scripts=True).cluster.hooks


def test_the_old_name_of_the_folder_is_known(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: p\nconfig: ./old\n")
    assert project_file.stack_folder(tmp_path) == tmp_path / "old"


@pytest.mark.parametrize("text", ["", "[", "- a", "name: 7", "config: 7", "stackConfigDir: [a]"])
def test_a_project_file_that_says_nothing_changes_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text(text)
    assert Stack(tmp_path, "s").file == tmp_path / "Pulumi.s.yaml"
    assert project_file.name_of(tmp_path) == "slurm-stacks"
