"""What Pulumi reads in a stack file and what is read here is the same, or the place is refused.

`data/engine_yaml/read_by_pulumi.json` has what the engine's own code made of the stack files beside it, and
of single values. Its `made_by` names that code, with the versions.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config import ConfigError, engine_yaml, load_file, parse
from infra.config.mistakes import Location, path_of
from infra.config.stack_file import Loader
from tests.support.checkout import ROOT
from tests.support.stack_values import CLUSTER

DATA = Path(__file__).with_name("data") / "engine_yaml"
RECORDED: dict[str, Any] = json.loads((DATA / "read_by_pulumi.json").read_text())
FILES = sorted(RECORDED["files"])
ALIKE = ("Pulumi.plain.yaml", "Pulumi.json.yaml", "Pulumi.ends.yaml", "Pulumi.quotes.yaml", "Pulumi.day.yaml")
"""The files in which nothing means two things."""
OURS = ("slurm-stacks:", "aws:", "gcp:")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in DATA.glob("Pulumi.*.yaml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def leaves(value: Any, location: Location = ()) -> Iterator[tuple[Location, Any]]:
    if isinstance(value, dict | list) and value:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, inner in parts:
            yield from leaves(inner, (*location, part))
    else:
        yield location, value


def engines(file: str) -> dict[str, Any]:
    """Return a file's values as a program gets them: sections are JSON, all else is text."""
    texts = RECORDED["files"][file]
    return {key: json.loads(text) if text.startswith("{") else text for key, text in texts.items()}


def here(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.load(file.read_bytes(), Loader=Loader)["config"]
    found = {}
    for key, value in values.items():
        text = str(value).strip()
        found[key] = json.loads(text) if isinstance(value, str) and text.startswith("{") else value
    return found


def refused(file: Path) -> dict[str, str]:
    """Return path -> code of a file's mistakes. What is merged has the path to which it is merged."""
    try:
        load_file(file)
    except ConfigError as error:
        return {re.sub(r'\["<<"\](\[\d+\])?', "", found.path): found.code for found in error.mistakes}
    return {}


def test_every_file_is_recorded() -> None:
    assert sorted(file.name for file in DATA.glob("Pulumi.*.yaml")) == FILES


@pytest.mark.parametrize("name", FILES)
def test_each_value_is_the_same_for_both_or_refused_here(folder: Path, name: str) -> None:
    mistakes = refused(folder / name)
    theirs, ours = dict(leaves(engines(name))), dict(leaves(here(folder / name)))
    kept = None if mistakes else load_file(folder / name)
    for location, value in ours.items():
        path = path_of(location)
        if not path.startswith(OURS) or path in mistakes:
            continue
        at_top = len(location) == 1  # where the engine has text only
        same = repr(theirs.get(location)) == repr(str(value) if at_top else value)
        assert same or kept is not None or "max_usd" in path or "accept_unmaintained" in path, (path, value)
    if kept is not None:
        assert parse(engines(name), kept.stack) == kept


@pytest.mark.parametrize("name", FILES)
def test_no_more_is_refused_than_is_read_in_two_ways(folder: Path, name: str) -> None:
    theirs = dict(leaves(engines(name)))
    ours = {path_of(location): (location, value) for location, value in leaves(here(folder / name))}
    for path, code in refused(folder / name).items():
        if code == "value.two-readings":
            location, value = ours[path]
            assert repr(theirs.get(location)) != repr(value)
    assert (set(refused(folder / name).values()) & {"value.two-readings", "key.not-text"} == set()) == (
        name in ALIKE
    )


@pytest.mark.parametrize("text", RECORDED["scalars"])
def test_a_value_without_quotes_is_known_as_the_engine_reads_it(text: str) -> None:
    assert repr(engine_yaml.value(text)) == repr(RECORDED["scalars"][text])


@pytest.mark.parametrize("text", RECORDED["refused"])
def test_what_the_engine_refuses_is_no_number_here(text: str) -> None:
    value = engine_yaml.value(text)
    assert isinstance(value, float)
    assert value in (float("inf"), -float("inf")) or value != value


@pytest.mark.parametrize("file", sorted(ROOT.glob("Pulumi.*.yaml")), ids=lambda file: str(file.stem))
def test_shipped_stack_files_are_read_alike(file: Path) -> None:
    assert "value.two-readings" not in refused(file).values()


def test_values_of_the_project_are_read_as_those_of_the_stack(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text(
        "name: slurm-stacks\nruntime: python\nconfig:\n"
        "  slurm-stacks:cluster:\n    value: {provider: aws, tags: {v: 1.0},\n"
        "      partitions: [{name: c, instance_type: c7i.large, nodes: {max: 1}, default: yes}]}\n"
    )
    file = tmp_path / "Pulumi.mine.yaml"
    file.write_text("config: {aws:region: eu-central-1}\n")
    with pytest.raises(ConfigError) as caught:
        load_file(file)
    assert {mistake.path: mistake.code for mistake in caught.value.mistakes} == {
        f"{CLUSTER}.value.tags.v": "value.two-readings",
        f"{CLUSTER}.value.partitions[0].default": "value.two-readings",
    }
    assert all("the value is in Pulumi.yaml" in mistake.advice for mistake in caught.value.mistakes)
    # The stack's own section counts, and not the project's.
    shutil.copy(DATA / "Pulumi.plain.yaml", file)
    assert load_file(file)
