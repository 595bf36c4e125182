"""The examples of the component: each program runs, and its arguments make the clusters that it names.

The packages are stand-ins here; `tests/engine/test_engine_component.py` runs the same files with real ones.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import component_stand_ins
from tests.support.component_program import declared
from tests.support.consumer_program import EXAMPLES, FILES, PAGE, code

TOOLS = {"python": sys.executable, "typescript": "node", "go": "go"}
NAMES = {"python": {"train", "small"}, "typescript": {"train", "small"}, "go": {"train"}}


def test_every_language_has_a_project_and_its_files() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(FILES)
    for language, files in FILES.items():
        assert {"Pulumi.yaml", *files} <= {path.name for path in (EXAMPLES / language).iterdir()}


@pytest.mark.parametrize("language", FILES)
def test_a_program_makes_its_clusters(language: str, tmp_path: Path) -> None:
    if shutil.which(TOOLS[language]) is None:
        pytest.skip(f"{TOOLS[language]} is not on PATH")
    found = component_stand_ins.run(language, tmp_path / "program")
    assert found.keys() == NAMES[language]
    made = declared({name: lambda given=given: given for name, given in found.items()})  # type: ignore[misc]
    for name in found:
        assert f"{name}-launch-templates-cpu" in made.types()
        own = "network" in found[name] and "aws" in found[name]["network"]
        assert (f"{name}-network-vpc" in made.types()) != own, (
            "a network of the program's, or of the cluster's"
        )


def test_the_smallest_program_of_the_page_makes_a_cluster(tmp_path: Path) -> None:
    (text,) = code("python", PAGE)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text(text)
    found = component_stand_ins.run_python(folder)
    assert list(found) == ["train"]
    assert "train-launch-templates-cpu" in declared({"train": lambda: found["train"]}).types()


def test_the_programs_test_finds_another_network(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(EXAMPLES / "python", folder, ignore=shutil.ignore_patterns("__pycache__"))
    component_stand_ins.python_package(folder)

    def tested() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "unittest", "test_program.py"]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)

    done = tested()
    assert done.returncode == 0, done.stderr
    file = folder / "__main__.py"
    file.write_text(file.read_text().replace('"vpc": vpc.id', '"vpc": "vpc-elsewhere"'))
    assert "vpc-elsewhere" in tested().stderr


def test_a_key_that_the_schema_has_not_is_found_in_go(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("go is not on PATH")
    folder = tmp_path / "program"
    component_stand_ins.run("go", folder)
    file = folder / "main.go"
    file.write_text(file.read_text().replace("InstanceType:", "InstanceTyp:"))
    words = ["env", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local", "go", "vet", "."]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert "unknown field InstanceTyp" in done.stderr
