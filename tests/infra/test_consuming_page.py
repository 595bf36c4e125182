"""docs/consuming.md is true: its tables are the contracts, its programs run, and its links exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_consumer_example import EXAMPLE, Consumer, cluster, on_the_path  # noqa: F401  an automatic fixture
from test_contracts import OUTPUTS, PROGRAM_RESULT, RESULT

from tests.support.checkout import ROOT

TEXT = (ROOT / "docs" / "consuming.md").read_text(encoding="utf-8")
FIELDS = (ROOT / "docs" / "reference" / "outputs.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """Return the first two columns of the table whose first column has this heading, without Markdown."""
    (rows,) = re.findall(
        rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT + FIELDS + RESULTS, re.MULTILINE
    )
    cells = [re.split(r"(?<!\\)\|", row)[1:3] for row in rows.splitlines()]
    return {path.strip(" `"): kind.strip().replace("\\|", "|") for path, kind in cells}


RESULTS = (ROOT / "docs" / "reference" / "results.md").read_text(encoding="utf-8")


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_fields_are_the_contracts() -> None:
    assert table("field") == OUTPUTS["cluster"]


def test_the_outputs_and_the_result_are_the_contracts() -> None:
    assert table("output").keys() == OUTPUTS["stack"].keys()
    found = table("key")
    assert found.pop("apiVersion") == "`slurm-stacks/result/v1`"
    assert found == {key: kind for key, kind in RESULT.items() if key != "apiVersion"}
    found = table("key of it")
    assert found.pop("apiVersion") == "`slurm-stacks/program-result/v1`"
    assert found == {key: kind for key, kind in PROGRAM_RESULT.items() if key != "apiVersion"}


def test_its_pulumi_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "__main__.py"
    program.write_text(programs()[0])
    consumer = Consumer(cluster("aws-p4de-inference"), program=program)
    assert consumer.exports == {"partitions": ["compute-gpu", "inference-gpu"]}
    assert Consumer(None, preview=True, program=program).exports == {}


@pytest.mark.parametrize(
    ("given", "said", "status"),
    [
        (
            cluster("aws-p4de-inference")["cluster"],
            "aws-p4de-inference: partitions with GPUs: compute-gpu, ",
            0,
        ),
        (cluster("aws-cpu")["cluster"], "aws-cpu: partitions with GPUs: none", 0),
        (cluster("aws-cpu"), "these are all outputs of a stack", 1),
        (None, "that stack is not up", 1),
    ],
    ids=["gpus", "none", "all", "down"],
)
def test_its_script_runs(given: Any, said: str, status: int, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "slurm_stacks.py", tmp_path)
    (tmp_path / "script.py").write_text(programs()[1])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, input=json.dumps(given), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(programs()) == 2, "every program of the page is run"
