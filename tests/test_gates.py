"""The quality gates are the same in `./cluster test`, before a commit and on GitHub."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cli.commands.run_tests import GATES
from tests.support.checkout import ROOT

COMMAND = "./cluster test"


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_readmes_command_is_what_ci_runs() -> None:
    assert re.search(rf"^{re.escape(COMMAND)} +#", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == f"exec {COMMAND}"
    job = read(".github/workflows/test.yml")["jobs"]["test"]
    assert job["runs-on"] == "ubuntu-24.04"
    checkout, run = job["steps"]
    assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
    assert run == {"run": COMMAND}


def test_a_commit_passes_the_gates_of_the_tests() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    commands = {hook["name"]: hook["entry"].split() for hook in repository["hooks"]}
    assert set(commands) == set(GATES)
    for name, words in commands.items():
        assert words[:3] == ["uv", "run", "--frozen"]
        # A gate is `python -m TOOL …`; pre-commit adds the files.
        tool, *options = [word for word in GATES[name][2:] if word not in ("--quiet", ".")]
        assert words[3:] == [tool, *(option for option in options if not option.startswith("--cache-dir"))]


def test_no_two_files_of_tests_have_one_name() -> None:
    """The folders of tests are no packages, so pytest and Python know a file by its name alone."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    names = [path.stem for path in files if "support" not in path.parts]
    twice = {name for name in names if names.count(name) > 1}
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert twice == set()
    assert packages.isdisjoint(names)
