"""The sbatch script: the published directives and names, and a shell that runs it."""

import os
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import HOSTILE
from workload.script import Job, Training, render


def script(**changes: Any) -> str:
    values: dict[str, Any] = {"partition": "debug", "nodes": 4, "python": "/apps/py", "code": "/home/bench/x"}
    names = {field.name for field in fields(Job)}
    of_job = {name: value for name, value in changes.items() if name in names}
    options = {name: value for name, value in changes.items() if name not in names}
    return render(Job(**(values | of_job)), Training(**options))


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_directives_of_the_published_cpu_script() -> None:
    assert directives(script(exclusive=False)) == [
        "--partition=debug",
        "--job-name=keras-job",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--output=out-keras.txt",
        "--open-mode=append",
        "--requeue",
        "--signal=TERM@60",
    ]
    assert "srun --kill-on-bad-exit=1 --nodes=4 " in script()
    assert "gres" not in script()


def test_directives_of_the_published_gpu_script() -> None:
    text = script(nodes=8, gpus_per_node=1, partition="compute")
    assert directives(text) == [
        "--partition=compute",
        "--job-name=kerasGPU-job",
        "--gres=gpu:1",
        "--nodes=8",
        "--ntasks-per-node=1",
        "--exclusive",
        "--output=out-kerasGPU.txt",
        "--open-mode=append",
        "--requeue",
        "--signal=TERM@60",
    ]
    assert "srun --kill-on-bad-exit=1 --gres=gpu:1 --nodes=8 " in text
    assert "--gpus-per-node 1" in text


def test_a_gpu_of_a_type() -> None:
    assert script(gpus_per_node=8, gpu_type="v100").count("--gres=gpu:v100:8") == 2


def test_directives_stand_before_the_first_command() -> None:
    """sbatch reads directives only up to the first line that is neither empty nor a comment."""
    lines = script(gpus_per_node=2).splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


def test_the_same_arguments_give_the_same_text() -> None:
    """The text is part of the digest that decides whether anything changed."""
    assert script(stack="local") == script(stack="local")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "two words"}, "partition 'two words' cannot stand"),
        ({"partition": "debug\n#SBATCH --uid=0"}, "cannot stand"),
        ({"gpus_per_node": 1, "gpu_type": "v100,"}, "gpu_type"),
        ({"nodes": 0}, "nodes: 0"),
        ({"profile": "local"}, "profile 'local' is none of published, sync, local-sgd"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        script(**changes)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with an `srun` that starts the command twice, as on two nodes, and a "python" that records."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\n'
        'for node in n0 n1; do SLURMD_NODENAME=$node "$@" || exit; done\n',
        encoding="utf-8",
    )
    (folder / "python 3").write_text(
        '#!/bin/sh\nprintf "%s|" "$SLURMD_NODENAME" "$PYTHONPATH" "$SLURM_STACKS_RUN" '
        '"$SLURM_STACKS_STARTED" "$SLURM_STACKS_STACK" "$SLURM_STACKS_PRICE_HOUR" '
        '"$SLURM_STACKS_ELIGIBLE" "$@"\necho\n',
        encoding="utf-8",
    )
    squeue(folder, 'echo "$TZ $SLURM_TIME_FORMAT $*" > "$0.asked"; printf "%-20s\\n" 1700000000')
    (folder / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n', encoding="utf-8")
    for tool in folder.iterdir():
        tool.chmod(0o755)
    return folder


def squeue(folder: Path, does: str) -> None:
    """The fake squeue, which the script asks for the job's eligible time."""
    (folder / "squeue").write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")


def run(text: str, tools: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {
        **variables,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "n0",
        "SLURM_JOB_NODELIST": "n[0-1]",
    }
    return subprocess.run(
        ["sh"], input=text, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_shell_runs_it(tools: Path) -> None:
    text = script(
        nodes=2,
        python=str(tools / "python 3"),
        code="/home/a b",
        result="it's.json",
        stack="local",
        price_hour=0.19,
        cache="/apps/$cache",
    )
    done = run(text, tools)
    assert (done.returncode, done.stderr) == (0, "")
    name, nodes, *tasks = done.stdout.splitlines()
    assert (name, nodes) == ("n0", "n[0-1]")  # as the published script prints them
    fields = [task.split("|") for task in tasks]
    assert [f[0] for f in fields] == ["n0", "n1"]
    assert fields[0][2] == fields[1][2]  # one nonce for the whole start
    _, code, nonce, started, stack, price, eligible, *arguments = fields[0]
    assert eligible == "1700000000"
    asked = (tools / "squeue.asked").read_text(encoding="utf-8")
    assert asked == "UTC0 %s --noheader --jobs=3 --Format=EligibleTime:20\n"
    assert nonce == f"3.1.{started}"
    assert float(started) > 1.6e9
    assert (code, stack, price) == ("/home/a b", "local", "0.19")
    assert arguments[:-1] == [
        *("-m", "workload.train", "--profile", "local-sgd", "--epochs", "8", "--data", "auto"),
        *("--batch", "64", "--seed", "0", "--learning-rate", "0.2", "--gpus-per-node", "0"),
        *("--cache", "/apps/$cache", "--result", "it's.json"),
    ]


def test_no_variable_of_the_job_changes_what_the_script_asks_slurm(tools: Path) -> None:
    """A profile script on the node may set them, or the user's own submission of the script."""
    squeue(tools, 'env > "$0.env"; printf "%-20s\\n" 1700000000')
    done = run(script(python=str(tools / "python 3")), tools, **HOSTILE)
    assert (done.returncode, done.stderr) == (0, "")
    seen = dict(
        line.split("=", 1) for line in (tools / "squeue.env").read_text(encoding="utf-8").splitlines()
    )
    for name in ("PWD", "SHLVL", "_", "OLDPWD"):
        seen.pop(name, None)
    assert seen.pop("PATH").startswith(str(tools))
    assert seen == {
        "SLURM_CONF": HOSTILE["SLURM_CONF"], "TZ": "UTC0", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s",
    }  # fmt: skip


@pytest.mark.parametrize("answer", ["echo N/A", "echo Unknown", "echo no such job >&2; exit 1", "exit 0"])
def test_an_eligible_time_that_is_not_told_is_empty(tools: Path, answer: str) -> None:
    squeue(tools, answer)
    done = run(script(python=str(tools / "python 3")), tools)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("|")[6] for line in done.stdout.splitlines()[2:]] == ["", ""]


def test_no_environment_is_one_clear_message(tools: Path) -> None:
    done = run(script(python="/apps/envs/0123/bin/python"), tools)
    assert done.returncode == 1
    assert done.stderr == "n0: the training environment is not there: /apps/envs/0123/bin/python\n"


def ending(tools: Path, srun: str) -> tuple[int, str]:
    """Return the exit status of a script whose step does this, and the script's calls of Slurm."""
    (tools / "srun").write_text(f"#!/bin/sh\n{srun}\n", encoding="utf-8")
    done = run(script(python=str(tools / "python 3")), tools)
    asked = tools / "asked"
    return done.returncode, asked.read_text(encoding="utf-8") if asked.exists() else ""


def test_a_training_that_was_saved_is_queued_again(tools: Path) -> None:
    """The script requeues the job if Slurm signals only its tasks, as the warning before the time limit."""
    assert ending(tools, "exit 75") == (75, "requeue 3\n")


@pytest.mark.parametrize("status", [0, 1, 137])
def test_any_other_end_is_one(tools: Path, status: int) -> None:
    assert ending(tools, f"exit {status}") == (status, "")


def test_the_script_stays_until_its_tasks_have_saved(tools: Path) -> None:
    """When Slurm ends the job it signals the script too, and requeues the job by itself."""
    assert ending(tools, f"kill -TERM $PPID; sleep 0.5; touch '{tools}/saved'; exit 75") == (75, "")
    assert (tools / "saved").exists()
