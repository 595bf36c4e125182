"""The launcher starts a user's program, tells it where the others are, and records its results."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workload import program, rendezvous, result
from workload.slurm import Step

ROOT = Path(__file__).resolve().parents[2]
ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_PARTITION": "debug",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_STACKS_STACK": "local",
    "SLURM_STACKS_PRICE_HOUR": "36",
}


def test_a_port_stays_reserved_for_whoever_binds_it_without_any_option() -> None:
    port, lock = rendezvous.reserve_program_port()
    assert rendezvous.FIRST_PORT <= port <= rendezvous.LAST_PORT
    assert lock.get_inheritable(), "the program that the task becomes keeps it"
    with lock, socket.socket() as server:
        server.bind(("", port))
        server.listen()


def test_no_two_tasks_get_a_port_and_no_task_one_that_is_used() -> None:
    class InOrder(random.Random):
        def shuffle(self, x: Any) -> None:
            """Leave the ports in their order."""

    first, lock = rendezvous.reserve_program_port(InOrder())
    with lock, socket.socket() as used:
        second, other = rendezvous.reserve_program_port(InOrder())
        other.close()
        assert second > first
        used.bind(("", second))
        used.listen()
        third, other = rendezvous.reserve_program_port(InOrder())
        other.close()
        assert third > second
    again, lock = rendezvous.reserve_program_port(InOrder())
    lock.close()
    assert again == first, "a lock ends with its task"


def test_a_task_knows_its_place() -> None:
    step = Step(2, ("a", "a", "b", "b"), "b", "7.0.0")
    addresses = ["a:10001", "a:10002", "b:10003", "b:10004"]
    found = program.variables(step, addresses, 10005)
    tf_config = json.loads(found.pop("TF_CONFIG"))
    assert tf_config == {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 2}}
    assert found == {"MASTER_ADDR": "a", "MASTER_PORT": "10005", "RANK": "2", "WORLD_SIZE": "4"}
    local = program.local_variables({"SLURM_LOCALID": "0", "SLURM_NODEID": "1"}, step)
    assert local == {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}


def test_python_runs_python_and_linux_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    assert program.command("a b.py", ["-x"], "/env/python") == ["/env/python", "a b.py", "-x"]
    assert program.command("folder", [], "/env/python") == ["/env/python", "folder"]
    assert program.command("run.sh", ["1"], "/env/python") == [str(tmp_path / "run.sh"), "1"]
    assert os.access("run.sh", os.X_OK)


def staged(folder: Path) -> Path:
    """The launcher as it is staged: only its own files."""
    for name in program.LAUNCHER:
        place = folder / "workload" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((ROOT / "workload" / name).read_bytes())
    return folder


def test_the_staged_files_start_a_program_and_are_gone_from_its_path(tmp_path: Path) -> None:
    """This also holds without Slurm's step: for a single task, with the standard library only."""
    code, run = staged(tmp_path / "code"), tmp_path / "run"
    work = run / program.WORK
    work.mkdir(parents=True)
    (work / "show.py").write_text(
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'])\n"
        "print('PYTHONPATH' in os.environ, [m for m in sys.modules if m.startswith('workload')])\n"
        "sys.exit(9)\n"
    )
    for name in ("random.py", "json.py", "workload.py"):
        (work / name).write_text("raise SystemExit('a file of the program, not of the launcher')\n")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(code), "SLURM_STACKS_FOLDER": str(run)}
    env["SLURM_LAUNCH_NODE_IPADDR"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "workload.program", "launch", "show.py", "--lr", "two words"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines()[0].startswith("['--lr', 'two words'] 0 1 ")
    assert done.stdout.splitlines()[1] == "False []"
    assert (done.returncode, done.stderr) == (9, "")
    options = ["--status=9", "--began=5.5", "--ended=8.0", "--"]
    ended = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "workload.program", "conclude", *options, "show.py", "--", "-x"],
        cwd=run, env={**env, **ENV}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "show.py ended with status 9 after 2.5 s\n")
    assert not (run / ".rendezvous").exists()
    assert not (run / "result.json").exists(), "it can be submitted again"
    assert json.loads((run / "progress.json").read_text()) == {
        "state": "failed",
        "script": "show.py",
        "exit_status": 9,
        "seconds": 2.5,
        "cost_usd": pytest.approx(0.05),
    }


def concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    words = [f"--status={status}", "--began=1", "--ended=11", "--tasks-per-node=2", "--", "train.py", "--lr"]
    assert program.conclude([*words, "0.1"]) == 0
    record: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert result.program_mistakes(record) == []
    return record


def test_the_result_of_a_program_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = concluded(tmp_path, monkeypatch)
    assert (record["script"], record["arguments"]) == ("train.py", ["--lr", "0.1"])
    assert (record["nodes"], record["workers"], record["seconds_total"]) == (2, 4, 10)
    assert record["cost_usd"] == pytest.approx(0.2)
    assert (record["values"], record["history"], record["notes"]) == ({}, [], [])


def test_what_a_program_says_is_kept_and_what_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"epoch": 1}', "no json", '{"deep": {"a": 1}}', "[1]", '{"epoch": 2, "note": "x"}', '{"epo']
    (tmp_path / "progress.jsonl").write_text("\n".join(lines))
    (tmp_path / "values.json").write_text('{"accuracy": 0.5, "name": "x", "good": true, "none": null}')
    record = concluded(tmp_path, monkeypatch)
    assert record["values"] == {"accuracy": 0.5, "name": "x", "good": True, "none": None}
    assert record["history"] == [{"epoch": 1}, {"epoch": 2, "note": "x"}]
    assert record["notes"] == ["left out of progress.jsonl, because they are no objects of values: 4"]
    assert record["notes"][0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "it is nested deeper than 20 levels"),
        ('{"a": 1' + "0" * 30 + "}", "values.a: 1000"),
        ('{"\\u001b[2J": []}', "values.\N{REPLACEMENT CHARACTER}[2J: a number, a text"),
        ("[1, 2]", "an object is expected"),
        ('{"a": [1]}', "values.a: a number, a text"),
        ('{"a": NaN}', "values.a: nan is no finite number"),
        (json.dumps({"a": "x" * 1001}), "values.a: more than 1000 characters"),
        (json.dumps({str(n): n for n in range(101)}), "101 values are more than 100"),
        ("x" * (result.MOST_BYTES + 1), "is larger than"),
    ],
)
def test_values_that_cannot_be_used_are_left_out(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "values.json"
    file.write_text(text)
    values, (note,) = result.read_values(file)
    assert values == {}
    assert note.startswith("values.json")
    assert said in note


def test_a_record_that_is_not_valid_says_where() -> None:
    record = {key: types[0]() for key, types in result.PROGRAM_KEYS.items()}
    record |= {"apiVersion": result.PROGRAM_API_VERSION, "nodes": 1, "workers": 1, "job_id": "7"}
    assert result.program_mistakes(record) == []
    changes: list[tuple[dict[str, Any], str]] = [
        ({"accuracy": 1.0}, "result.accuracy: unknown"),
        ({"nodes": 0}, "result.nodes: 0 is less than 1"),
        ({"seconds_total": -1.0}, "result.seconds_total: -1.0 is negative"),
        ({"exit_status": "0"}, "result.exit_status: '0' is no int"),
        ({"arguments": [1]}, "result.arguments: texts are expected"),
        ({"values": {"a": {}}}, "result.values.a: a number, a text"),
        ({"history": [{}, 1]}, "result.history[1]: an object is expected"),
        ({"versions": {"torch": 2}}, "result.versions: texts are expected"),
        ({"apiVersion": "x"}, "result.apiVersion: 'x' is not slurm-stacks/program-result/v1"),
    ]
    for change, said in changes:
        (wrong,) = result.program_mistakes({**record, **change})
        assert wrong.startswith(said)


def test_only_the_end_of_a_long_progress_is_read(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    line = json.dumps({"step": 1234567, "text": "x" * 500}) + "\n"
    file.write_text(line * 4000 + json.dumps({"step": "last"}))
    lines, notes = result.read_lines(file)
    assert (len(lines), lines[-1], notes) == (result.MOST_LINES, {"step": "last"}, [])


def test_lines_that_are_nested_without_end_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    file.write_text('{"epoch": 1}\n' + "[" * 100_000 + '\n{"epoch": 2}\n')
    lines, (note,) = result.read_lines(file)
    assert lines == [{"epoch": 1}, {"epoch": 2}]
    assert note.endswith("because they are no objects of values: 1")
