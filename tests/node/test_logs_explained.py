"""Lines in a job's output that say too little, and what `./cluster logs JOB` says about them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from node.logs.sources import LogFile, explained


def meanings_of(path: Path) -> list[str]:
    return [line for note in explained([LogFile("output", path, None)]) for line in note.last(9)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/var/spool/slurmd/job00007/slurm_script: 8: source: not found", "dash, which is /bin/sh"),
        ("slurm_script: 12: [[: not found", "has no [["),
        ("slurm_script: line 9: conda: command not found", "conda.sh before conda activate"),
        ("slurm_script: 9: conda: not found", "conda.sh before conda activate"),
        ("CondaError: Run 'conda init' before 'conda activate'", "conda.sh before conda activate"),
    ],
)
def test_a_line_that_says_too_little_is_explained_once(tmp_path: Path, line: str, words: str) -> None:
    out = tmp_path / "out-keras.txt"
    out.write_text(f"debug-0\n{line}\n{line}\nTraceback\n")
    (meaning,) = meanings_of(out)
    assert meaning.startswith(f"{line}: ")
    assert words in meaning
    assert "docs/own_training.md" in meaning


@pytest.mark.parametrize("line", ["epoch 1: source: not found in the table", "mydata: not found", ""])
def test_other_lines_are_left_alone(tmp_path: Path, line: str) -> None:
    out = tmp_path / "out"
    out.write_text(f"{line}\n")
    assert meanings_of(out) == []


def test_an_output_that_is_not_there_needs_no_explanation(tmp_path: Path) -> None:
    assert meanings_of(tmp_path / "none") == []


@pytest.mark.skipif(Path("/bin/sh").resolve().name != "dash", reason="needs dash as /bin/sh")
def test_the_words_are_those_of_dash(tmp_path: Path) -> None:
    script = tmp_path / "slurm_script"
    script.write_text("#!/bin/sh\nsource /nowhere/bin/activate\necho went on\n")
    script.chmod(0o700)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    out = tmp_path / "out"
    out.write_text(done.stderr)
    assert len(meanings_of(out)) == 1
