"""The programs that Slurm calls, run as Slurm runs them, and the daemon's process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.machines import base_python
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic import client, programs
from node.system import rpc
from node.system.codec import to_json
from tests.support.checkout import ROOT, until
from tests.support.doubles import settings


@pytest.fixture
def machine(tmp_path: Path) -> Settings:
    """A controller's folders with its programs. The path has characters that shells often get wrong."""
    root = tmp_path / "it's a folder"
    # As the local stack does: a checkout's interpreter may have a path that does not fit into a first line.
    made = settings(root, python=base_python())
    folders = Folders(made)
    for folder in (folders.run, folders.log, folders.lib, folders.etc):
        Path(str(folder)).mkdir(parents=True)
    Path(str(folders.code)).parent.mkdir()
    (Path(str(folders.code))).mkdir()
    (Path(str(folders.code)) / "node").symlink_to(ROOT / "node")
    (root / "settings.json").write_text(json.dumps(to_json(made)))
    programs.write(made, root / "settings.json")
    return made


def run(
    settings: Settings, name: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as slurmctld does: without PATH, without our environment, in another folder."""
    program = Path(str(Folders(settings).code)) / "bin" / name
    return subprocess.run(
        [str(program), *arguments],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def left(settings: Settings) -> list[dict[str, Any]]:
    folder = Path(str(Folders(settings).elastic)) / "requests"
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


@pytest.fixture
def daemon(machine: Settings) -> Iterator[list[dict[str, Any]]]:
    """A server that takes requests at the daemon's socket."""
    taken: list[dict[str, Any]] = []

    def handle(method: str, params: dict[str, Any]) -> Any:
        if method in client.WAITING.values():
            taken.append({"program": method, **params})
            return {"over": True}
        taken.append(params["request"])
        return {}

    server = rpc.Server(str(Folders(machine).daemon_socket), handle)
    threading.Thread(target=server.serve, daemon=True).start()
    yield taken
    server.close()


def test_what_slurm_conf_names_is_there() -> None:
    assert programs.NAMES == ("resume", "resume-fail", "suspend", "prolog-slurmctld", "epilog-slurmctld")


def test_programs_hand_their_request_on(machine: Settings, daemon: list[dict[str, Any]]) -> None:
    for name in ("resume", "resume-fail", "suspend"):
        done = run(machine, name, "debug-[0-3]")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [(r["program"], r["nodes"]) for r in daemon] == [
        ("resume", "debug-[0-3]"),
        ("resume-fail", "debug-[0-3]"),
        ("suspend", "debug-[0-3]"),
    ]
    assert len({r["id"] for r in daemon}) == 3
    assert left(machine) == []


def test_the_resume_files_content_goes_along(
    machine: Settings, daemon: list[dict[str, Any]], tmp_path: Path
) -> None:
    wish = tmp_path / "resume"
    # A user has asked for features that are no text.
    wish.write_bytes(b'{"all_nodes": "debug-0", "jobs": [{"features": "\xff"}]}')
    run(machine, "resume", "debug-0", SLURM_RESUME_FILE=str(wish))
    run(machine, "resume", "debug-0", SLURM_RESUME_FILE=str(tmp_path / "gone"))
    run(machine, "suspend", "debug-0", SLURM_RESUME_FILE=str(wish))
    text = '{"all_nodes": "debug-0", "jobs": [{"features": "\ufffd"}]}'
    assert [r.get("resume_file", "-") for r in daemon] == [text, None, "-"]


LANGUAGES = pytest.mark.parametrize("language", ["perl", "python"])
"""A machine without Perl has the programs that wait in Python."""


@pytest.fixture
def waiting(machine: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Settings]:
    """Write the programs that wait in a language."""

    def write(language: str) -> Settings:
        if language == "python":
            monkeypatch.setattr(programs, "PERL", "/nowhere/perl")
        elif not os.access(programs.PERL, os.X_OK):
            pytest.skip("this machine has no Perl")
        programs.write(machine, Path(machine.site.root) / "settings.json")
        program = Path(str(Folders(machine).code)) / "bin" / "prolog-slurmctld"
        assert ("perl" in program.read_text().partition("\n")[0]) is (language == "perl")
        return machine

    return write


@LANGUAGES
@pytest.mark.parametrize(("name", "method"), client.WAITING.items())
def test_a_program_waits_with_its_job(
    waiting: Callable[[str], Settings], daemon: list[dict[str, Any]], language: str, name: str, method: str
) -> None:
    machine = waiting(language)
    # Nobody can have Perl or Python run something of theirs.
    strange = {"PERL5OPT": "-Mnothing", "PERL5LIB": "/nowhere", "PYTHONSTARTUP": "/nowhere"}
    done = run(machine, name, SLURM_JOB_ID="12", SLURM_JOB_NODELIST="debug-[1-2],x", **strange)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run(machine, name, SLURM_JOB_NODELIST='a"\\b').returncode == 0
    assert daemon == [
        {"program": method, "job": 12, "nodes": "debug-[1-2],x"},
        {"program": method, "job": 0, "nodes": 'a"\\b'},
    ]


@contextlib.contextmanager
def serving(machine: Settings) -> Iterator[queue.Queue[rpc.Caller]]:
    """A daemon that does not answer by itself."""
    callers: queue.Queue[rpc.Caller] = queue.Queue()
    server = rpc.Server(str(Folders(machine).daemon_socket), lambda *_: rpc.Later(callers.put))
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield callers
    finally:
        server.close()


def start(machine: Settings, name: str) -> subprocess.Popen[bytes]:
    program = Path(str(Folders(machine).code)) / "bin" / name
    return subprocess.Popen([str(program)], env={"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "debug-0"})


@LANGUAGES
@pytest.mark.parametrize("name", client.WAITING)
def test_a_program_waits_on_while_the_daemon_is_away_or_fails(
    waiting: Callable[[str], Settings], language: str, name: str
) -> None:
    machine = waiting(language)
    with start(machine, name) as program:
        try:
            with serving(machine) as callers:
                # This daemon is told that there is more to wait for, fails, and then dies.
                callers.get(timeout=60).answer({"over": False})
                callers.get(timeout=60).refuse(ValueError("?"))
                callers.get(timeout=60)._connection.close()
                assert program.poll() is None
            with serving(machine) as callers:
                callers.get(timeout=60).answer({"over": True})
                assert program.wait(60) == 0
        finally:
            program.kill()


@LANGUAGES
def test_nothing_is_left_of_a_program_that_slurm_kills(
    waiting: Callable[[str], Settings], language: str
) -> None:
    machine = waiting(language)
    run_folder = Path(str(Folders(machine).run))
    with serving(machine) as callers:
        before = sorted(run_folder.rglob("*"))
        with start(machine, "prolog-slurmctld") as program:
            caller = callers.get(timeout=60)
            assert not caller.is_gone()
            program.kill()
        until(caller.is_gone, 60, "the end of its connection")
        assert sorted(run_folder.rglob("*")) == before
        caller.answer({"over": True})


@pytest.mark.parametrize("name", client.WAITING)
def test_a_program_that_finds_no_daemon_ends_well(
    waiting: Callable[[str], Settings], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prolog that fails would requeue the job, and one that never ends would hold it for ever.

    tests/node/test_daemon.py has the same of those in Python.
    """
    monkeypatch.setitem(client.WAIT_RETRIES, client.WAITING[name], 2)
    monkeypatch.setattr(client, "SILENT_SECONDS", 0.5)
    machine = waiting("perl")
    assert run(machine, name, SLURM_JOB_ID="1", SLURM_JOB_NODELIST="x").returncode == 0
    with serving(machine) as callers:
        assert run(machine, name, SLURM_JOB_ID="1", SLURM_JOB_NODELIST="x").returncode == 0, "it hangs"
        assert callers.qsize() == 1


def test_requests_are_left_where_the_daemon_looks(machine: Settings) -> None:
    for name in ("resume", "suspend"):
        assert run(machine, name, "debug-0").returncode == 0
    assert [r["program"] for r in left(machine)] == ["resume", "suspend"]


def test_programs_start_without_the_cloud_and_without_packages(machine: Settings) -> None:
    """Slurm starts one for every job, so every job's start waits for their imports."""
    program = Path(str(Folders(machine).code)) / "bin" / "resume"
    done = subprocess.run(
        [sys.executable, "-IS", "-X", "importtime", str(program), "debug-0"],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "node.elastic.client" in imported
    ours = {name for name in imported if name.split(".")[0] == "node"}
    assert ours == {
        "node",
        "node.elastic",
        "node.elastic.client",
        "node.system",
        "node.system.rpc",
        "node.system.waiting",
    }
    assert not {"asyncio", "subprocess", "pathlib", "dataclasses"} & imported


def test_the_tool_reads_its_settings_anew(machine: Settings) -> None:
    done = run(machine, "slurm-stacks", "status")
    assert done.returncode == 1
    assert "slurmctld does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(machine, "slurm-stacks", "nonsense").returncode == 2


def test_one_daemon_at_a_time(machine: Settings) -> None:
    """The second one waits for the end of the first, so that no machine is launched twice."""
    service = programs.daemon_service(machine, Path(machine.site.root) / "settings.json")
    socket = str(Folders(machine).daemon_socket)
    daemons: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with service.log.open("ab") as log:
            daemons.append(
                subprocess.Popen(service.argv, env={**os.environ, **service.env}, stdout=log, stderr=log)
            )
        return daemons[-1]

    def answering() -> int | None:
        try:
            return int(rpc.call(socket, "ping", 1.0)["pid"])
        except rpc.RpcUnavailableError:
            return None

    try:
        first = start()
        assert until(answering, 60, "the daemon") == first.pid
        second = start()
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.7)
        assert until(answering, 60, "the daemon, as before") == first.pid
        first.send_signal(signal.SIGKILL)
        first.wait()
        until(lambda: answering() == second.pid, 60, "the second daemon")
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
    assert "Traceback" not in service.log.read_text().replace("SlurmError", "")
