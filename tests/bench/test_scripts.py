"""Each script of this folder takes the command lines that its docstring names, and its quick form runs."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operations.local import system_packages
from tests.bench.figures import ROOT

SCRIPTS = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path != Path(__file__) and "__main__" in path.read_text()
)
ROOTS = {"node_boot", "shaped_link"}
"""Scripts that need root."""
SLURMS = {"node_boot", "peers", "scale", "shares", "soak", "start_latency", "up_time"}
"""Scripts that need Slurm's packages."""


def load(name: str) -> Any:
    return importlib.import_module(f"tests.bench.{name}")


def command_lines(name: str) -> list[list[str]]:
    """Return the options of each command line in a script's docstring."""
    head = f"    .venv/bin/python -m tests.bench.{name}"
    lines = (load(name).__doc__ or "").splitlines()
    return [shlex.split(line.removeprefix(head)) for line in lines if f"{line} ".startswith(f"{head} ")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_the_command_lines_of_its_docstring(name: str) -> None:
    assert command_lines(name), "the docstring names no command line"
    for words in command_lines(name):
        load(name).options().parse_args(words)
    assert load(name).options().parse_args(["--quick"]).quick


def test_a_quick_form_has_only_values_that_options_set() -> None:
    for name in SCRIPTS:
        usual, quick = (vars(load(name).options().parse_args(words)) for words in ([], ["--quick"]))
        assert usual.keys() == quick.keys(), f"{name}: --quick sets what no option has"


def test_options_behind_quick_count_more() -> None:
    chosen = load("drivers").options().parse_args(["--quick", "--nodes", "7"])
    assert (chosen.quick, chosen.nodes) == (True, 7)


def test_documents_name_scripts_and_options_that_there_are() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("workload/*.py")]
    text = "\n".join(page.read_text() for page in pages)
    commands = re.findall(r"-m tests\.bench\.(\w+)([^`\n]*)", text)
    named = {*re.findall(r"tests/bench/(\w+)\.py", text), *(name for name, _ in commands)}
    assert {"soak", "exchange"} <= named, "the pages name scripts"
    assert named <= set(SCRIPTS)
    for name, words in commands:
        load(name).options().parse_args(shlex.split(words))


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_quick_form_prints_its_figures(name: str, tmp_path: Path) -> None:
    if name in ROOTS and os.geteuid():
        pytest.skip("needs root")
    if name in SLURMS and (missing := system_packages.missing()):
        pytest.skip(f"packages are missing: {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}", "--quick"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert re.search(load(name).PRINTS, done.stdout, re.MULTILINE), done.stdout
