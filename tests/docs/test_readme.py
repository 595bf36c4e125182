"""What a stranger meets first: the table of commands, CONTRIBUTING.md, the forms of issues."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from tests.support import shipped
from tests.support.checkout import ROOT

COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_every_command_is_in_the_table() -> None:
    names = {c.name or c.callback.__name__ for c in main.app.registered_commands if c.callback}
    names |= {str(group.name) for group in main.app.registered_groups}
    names = {{"execute": "exec", "main_options": ""}.get(name, name) for name in names} - {""}
    rows = set(re.findall(r"^\| `\./cluster ([\w-]+)", COMMANDS, re.MULTILINE))
    assert len(names) > 12
    assert names - rows == set()


def test_every_stack_file_is_in_the_readmes_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in shipped.files()}
    table = readme.partition("## Which stack file to open first")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(Pulumi\.[\w.-]+\.yaml)`", table)) == files


def test_what_a_contributor_runs_is_there() -> None:
    modules = re.findall(r"python -m ([\w.]+)", CONTRIBUTING)
    assert modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    scripts = re.findall(r"python ([\w/]+\.py)", CONTRIBUTING)
    assert [path for path in scripts if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("path", FORMS, ids=[path.name for path in FORMS])
def test_a_form_is_one_that_github_shows(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in FIELDS
        attributes = field["attributes"]
        assert attributes["value"] if field["type"] == "markdown" else attributes["label"]
        assert (
            field["type"] != "dropdown" or len(attributes["options"]) == len(set(attributes["options"])) > 1
        )
    assert any(field.get("validations", {}).get("required") for field in form["body"])
