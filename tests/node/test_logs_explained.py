"""Lines in a job's output that say too little, and what `./cluster logs JOB` says about them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from node.logs.explanations import Explained
from node.logs.sources import LogFile


def meanings_of(path: Path) -> list[str]:
    return Explained([LogFile("output", path, None)]).last(9)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/var/spool/slurmd/job00007/slurm_script: 8: source: not found", "dash, which is /bin/sh"),
        ("slurm_script: 12: [[: not found", "has no [["),
        ("slurm_script: line 9: conda: command not found", "conda.sh before conda activate"),
        ("slurm_script: 9: conda: not found", "conda.sh before conda activate"),
        ("CondaError: Run 'conda init' before 'conda activate'", "conda.sh before conda activate"),
        (
            "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
            "workers that wait for this one wait for ever: cancel the job",
        ),
        ("OSError: [Errno 98] Address already in use", "Pulumi.local-machines.yaml"),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "Give each rank a port of its own",
        ),
        (
            "ValueError: Attempt to convert a value (PerReplica:{ 0: <tf.Tensor> }) with an unsupported type "
            "(<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
            "TF_USE_LEGACY_KERAS=1",
        ),
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


def test_a_recursion_is_explained_where_tensorflow_looks_for_keras(tmp_path: Path) -> None:
    out = tmp_path / "out"
    error = "RecursionError: maximum recursion depth exceeded"
    out.write_text(f'  File "mine.py", line 3, in deep\n{error}\n')
    assert meanings_of(out) == []
    frame = 'File "/x/site-packages/tensorflow/python/util/lazy_loader.py", line 200, in _load'
    out.write_text(f"{frame}\n" * 300 + f"{error}\n")
    (meaning,) = meanings_of(out)
    assert "give keras.py another name" in meaning


def test_lines_that_come_while_a_job_runs_are_explained_once(tmp_path: Path) -> None:
    """As of a job whose workers wait for one that has failed, while somebody follows its logs."""
    out, line = tmp_path / "out", "Could not start gRPC server"
    notes = Explained([LogFile("output", out, None)])
    assert notes.last(9) == []
    out.write_text("epoch 1\n")
    assert notes.more() == []
    with out.open("a") as file:
        file.write(f"{line}\n")
    (meaning,) = notes.more()
    assert meaning.startswith(f"{line}: another process has the port")
    with out.open("a") as file:
        file.write(f"{line}\n")
    assert notes.more() == []


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
