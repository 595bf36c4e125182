"""The stack's commands, with the real agent and machines whose boot does nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import bundle
from infra.benchmark import Workload
from infra.errors import EXIT_REFUSED, UserError
from infra.outputs import load
from infra.program.stack import Stack
from node.design.model import SlurmSettings
from node.system.processes import ProcessId
from operations.local import __main__ as entry
from operations.local import benchmark, cluster, system_packages
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT, until
from tests.support.doubles import DEBUG, design
from tests.support.fake_machines import FakeMachines
from tests.support.processes import with_words

DESIGN = design()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachines]:
    machines = FakeMachines(tmp_path, monkeypatch)
    yield machines
    assert machines.close() == []


@pytest.fixture
def published(local: FakeMachines) -> FakeMachines:
    local.do("cloud-up")
    local.publish(DESIGN)
    return local


def kill(pid: int) -> None:
    process = ProcessId.of(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process.alive(), 60, "the end")


def agent(local: FakeMachines) -> int:
    """Return the agent's pid; there is exactly one agent."""
    (pid,) = with_words(local.processes(), "localcloud.agent")
    return pid


# --- the whole life --------------------------------------------------------------------------------------


def test_a_clusters_life(published: FakeMachines, capsys: pytest.CaptureFixture[str]) -> None:
    facts = published.do("head-up")
    site = published.run.settings(DESIGN).site
    assert facts == {
        "id": published.run.path.name,
        "login_ssh": f"{ROOT}/cluster ssh --outputs {published.run.outputs}",
        "login": "127.0.0.1",
        "controller": f"127.0.0.1:{site.slurmctld_port}",
        "scheduler_version": "slurm-wlm 22.05.8",
        "shared": str(published.run.shared),
    }
    assert not published.run.outputs.exists(), "the stack file says how to log in"
    assert "controller: hooks" in capsys.readouterr().err, "which step it waits for"
    head = published.machines(role="controller")
    assert list(head) == ["controller"]
    published.launch("debug-0", "debug-1")
    until(lambda: published.booted("debug-0") and published.booted("debug-1"), 60, "the nodes")
    before = published.processes()
    assert len(before) >= 7, "the agent, and of each of three machines its init and what it left"

    published.do("head-down")
    assert sorted(published.machines()) == ["debug-0", "debug-1"], "the termination's work, not the head's"
    assert published.do("terminate-nodes") == {"terminated": 2}
    assert published.machines() == {}
    assert published.do("terminate-nodes") == {"terminated": 0}
    assert published.do("cloud-down") == {}
    assert not published.run.path.exists()
    assert list(published.run.path.parent.iterdir()) == [], "nor the public note of its ports"
    assert published.processes() == []
    for verb in ("head-down", "terminate-nodes", "cloud-down"):
        published.do(verb)


def test_a_cluster_of_another_name_is_neither_changed_nor_ended(published: FakeMachines) -> None:
    """The engine may be run by hand, with what a stack file with another name makes of the resources."""
    published.do("cloud-up", cluster="one")
    published.do("head-up")
    published.launch("debug-0")
    before = published.processes()
    with pytest.raises(UserError) as refused:
        published.do("cloud-up", cluster="two")
    assert (refused.value.code, refused.value.exit_code) == ("cluster.other-name", EXIT_REFUSED)
    for verb in ("head-down", "terminate-nodes", "cloud-down"):
        published.do(verb, cluster="two")
    assert set(before) <= set(published.processes())
    assert sorted(published.machines()) == ["controller", "debug-0"]
    published.do("cloud-down", cluster="one")
    assert published.processes() == []


def test_the_guard_of_a_cluster_with_jobs_refuses_and_a_dead_controller_has_none(
    published: FakeMachines,
) -> None:
    assert published.do("guard") == {}, "no head has come up yet"
    published.do("head-up")
    tool = published.run.tool
    tool.parent.mkdir(parents=True, exist_ok=True)
    running = {"slurm_id": "3", "name": "train", "user": "ann", "state": "RUNNING"}
    for script, code in (
        (f"echo '{json.dumps({'jobs': [running]})}'", "guard.ends-jobs"),
        ("echo slurmctld does not answer >&2; exit 1", "guard.jobs-unknown"),
    ):
        tool.write_text(f'#!/bin/sh\n[ "$*" = status ] || exit 9\n{script}\n')
        tool.chmod(0o755)
        with sentences.raises(code):
            published.do("guard")
    tool.write_text("#!/bin/sh\necho '{\"jobs\": []}'\n")
    assert published.do("guard") == {}
    tool.write_text("#!/bin/sh\nexit 1\n")
    published.do("head-down")
    assert published.do("guard") == {}


def test_a_head_of_another_program_writes_its_outputs(
    published: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_ID", "made-by-the-engine")
    facts = published.do("head-up")
    found = load(json.loads(published.run.outputs.read_text()))
    assert (found.id, found.name, found.provider) == ("made-by-the-engine", DESIGN.name, "local")
    assert found.login is not None
    assert found.login.access is not None
    assert (found.login.access.mode, found.login.access.machine) == ("local", published.run.path.name)
    assert found.login.ssh == facts["login_ssh"]


def test_the_termination_leaves_the_head(published: FakeMachines) -> None:
    published.do("head-up")
    published.launch("debug-0")
    assert published.do("terminate-nodes") == {"terminated": 1}
    assert list(published.machines()) == ["controller"]


# --- the head --------------------------------------------------------------------------------------------


def test_a_head_is_kept_until_what_is_published_changes(published: FakeMachines) -> None:
    first = published.do("head-up")
    head = published.machines(role="controller")
    assert published.do("head-up") == first
    assert published.machines(role="controller") == head
    published.publish(dataclasses.replace(DESIGN, slurm=SlurmSettings(suspend_time=7)))
    assert published.do("head-up") == first, "an output that changed would change what depends on it"
    second = published.machines(role="controller")
    assert list(second) == ["controller"]
    assert second != head
    node_code = published.project / "node" / "system" / "rpc.py"
    node_code.write_text(node_code.read_text() + "# new\n")
    published.publish(dataclasses.replace(DESIGN, slurm=SlurmSettings(suspend_time=7)))
    published.do("head-up")
    assert published.machines(role="controller") != second


def test_a_head_whose_port_was_taken_meanwhile_gets_another(
    published: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port is taken between its choice and the start, and once more while the controller is dead."""
    for _ in range(2):
        port = published.run.settings(DESIGN).site.slurmctld_port
        with socket.create_server(("127.0.0.2", port)):
            facts = published.do("head-up")
        moved = published.run.settings(DESIGN).site.slurmctld_port
        assert moved != port
        assert facts["controller"] == f"127.0.0.1:{moved}"
        assert f"it moves to {moved} and following" in capsys.readouterr().err
        assert published.do("head-up") == facts, "and stays there"
        ids = list(published.machines(role="controller").values())
        published.call("terminate", ids=ids)
    pointer = json.loads((published.run.bucket / "current.json").read_text())
    settings = json.loads((published.run.bucket / pointer["settings"]["key"]).read_text())
    assert settings["site"]["slurmctld_port"] == moved, "what the machines read"


def test_nodes_end_where_a_change_finds_the_controllers_port_taken(
    published: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would wait for a controller at the former port, which would wait for them at other ones."""
    published.do("head-up")
    published.launch("debug-0")
    port = published.run.settings(DESIGN).site.slurmctld_port
    changed = dataclasses.replace(DESIGN, slurm=SlurmSettings(suspend_time=7))
    published.publish(changed)
    assert sorted(published.machines()) == ["controller", "debug-0"]
    with socket.create_server(("127.0.0.2", port)):
        published.publish(DESIGN)
        assert list(published.machines()) == ["controller"]
        assert "queued again" in capsys.readouterr().err
        published.do("head-up")
    assert "moves" not in capsys.readouterr().err, "it has moved already"


def test_slurmdbds_port_moves_alone_if_it_was_taken_meanwhile(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes keep their ports, so they are not restarted."""
    installed: list[bool] = []
    monkeypatch.setattr(system_packages, "ensure", lambda _say, *, accounting: installed.append(accounting))
    with_it = dataclasses.replace(DESIGN, slurm=SlurmSettings(accounting=True))
    local.do("cloud-up")
    local.publish(with_it)
    assert installed == [True], "whoever calls the engine itself has not installed anything"
    before = local.run.settings(with_it).site
    local.launch("debug-0")
    node = local.machines()
    with socket.create_server(("127.0.0.2", before.slurmdbd_port)):
        local.do("head-up")
    pointer = json.loads((local.run.bucket / "current.json").read_text())
    site = json.loads((local.run.bucket / pointer["settings"]["key"]).read_text())["site"]
    assert site["slurmdbd_port"] != before.slurmdbd_port
    assert (site["slurmctld_port"], site["slurmd_port"]) == (before.slurmctld_port, before.slurmd_port)
    assert local.machines().items() >= node.items()


def test_a_dead_head_is_made_anew(published: FakeMachines) -> None:
    published.do("head-up")
    head = published.machines(role="controller")
    (record,) = published.call("list", tags={"role": "controller"})["machines"]
    for pid in [record["process"]["pid"]]:
        kill(pid)
    published.do("head-up")
    assert published.machines(role="controller") != head


def test_a_failed_boot_is_told_with_its_step_and_made_anew(published: FakeMachines) -> None:
    published.outcome("failed")
    with pytest.raises(UserError) as caught:
        published.do("head-up")
    text = str(caught.value)
    assert "the controller's boot failed at step 'hooks': driver.sh ended with status 3" in text
    assert "\n  no driver\n" in text
    assert f"{published.run.path}/log" in text
    published.outcome("ready")
    assert published.do("head-up")["login"] == "127.0.0.1"
    assert len(published.machines(role="controller")) == 1


@pytest.mark.parametrize(
    ("outcome", "seconds", "code", "named"),
    [
        # Long before its time is up: nobody is there any more who could boot.
        ("mute", 60.0, "boot.ended", "the loader cannot start"),
        ("booting", 0.7, "boot.late", "0.7 s"),
    ],
)
def test_a_boot_that_does_not_end_is_told(
    published: FakeMachines,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    seconds: float,
    code: str,
    named: str,
) -> None:
    monkeypatch.setattr(cluster, "HEAD_START_SECONDS", seconds)
    published.outcome(outcome)
    with sentences.raises(code, named):
        published.do("head-up")


# --- the cloud -------------------------------------------------------------------------------------------


def test_one_agent_however_often_it_is_asked_for(local: FakeMachines) -> None:
    assert local.do("cloud-up", '{"boot_delay": 0.0, "quota_nodes": 3}') == {"run": str(local.run.path)}
    pid = agent(local)
    assert os.getsid(pid) == pid, "it outlives the caller's terminal"
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    local.do("cloud-up", '{"boot_delay": 0.0, "quota_nodes": 5}')
    assert agent(local) == pid
    assert local.call("limits")["quota_nodes"] == 5
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"PYTEST_CURRENT_TEST" not in environment, "nothing of the caller's"


def test_an_agent_that_died_is_started_again_and_knows_its_machines(published: FakeMachines) -> None:
    published.do("cloud-up", '{"quota_nodes": 3}')
    published.launch("debug-0")
    until(lambda: published.booted("debug-0"), 60, "the node")
    before = published.machines()
    kill(agent(published))
    published.do("cloud-up")
    assert published.machines() == before
    assert published.call("limits")["quota_nodes"] == 3


def test_down_works_with_the_agent_dead(published: FakeMachines, capsys: pytest.CaptureFixture[str]) -> None:
    published.do("head-up")
    published.launch("debug-0")
    until(lambda: published.booted("debug-0"), 60, "the node")
    kill(agent(published))
    published.do("head-down")
    assert published.do("terminate-nodes") == {"terminated": 0}
    published.do("cloud-down")
    assert published.processes() == []
    assert not published.run.path.exists()
    assert "its machines end with it" in capsys.readouterr().err


def test_an_agent_that_cannot_start_says_why(local: FakeMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_file = local.project / "localcloud" / "agent.py"
    agent_file.write_text("raise SystemExit('no agent today')\n")
    with sentences.raises("agent.not-started", "no agent today"):
        local.do("cloud-up")


# --- the bucket, the workload, the environment -----------------------------------------------------------


def test_what_is_published_is_named_by_its_digest(local: FakeMachines) -> None:
    printed = local.publish(DESIGN)
    pointer = json.loads((local.run.bucket / "current.json").read_text())
    assert printed == {part: pointer[part]["sha256"] for part in ("code", "settings")}
    for part in ("code", "settings"):
        assert (
            bundle.digest((local.run.bucket / pointer[part]["key"]).read_bytes()) == pointer[part]["sha256"]
        )
    settings = json.loads((local.run.bucket / pointer["settings"]["key"]).read_text())
    assert settings["site"]["root"] == str(local.run.path)
    assert local.publish(DESIGN) == printed
    again = local.publish(dataclasses.replace(DESIGN, partitions=(dataclasses.replace(DEBUG, max=12),)))
    assert (again["code"], again["settings"] != printed["settings"]) == (printed["code"], True)
    assert not list(local.run.bucket.rglob(".*"))


def test_the_workload_is_staged_once_and_whole(local: FakeMachines) -> None:
    (local.project / "workload" / "__pycache__").mkdir(exist_ok=True)
    (local.project / "workload" / "__pycache__" / "x.pyc").touch()
    staged = local.do("stage")
    folder = Path(staged["folder"])
    assert staged["digest"] == Workload.of(local.project).digest
    assert folder == local.run.shared / "bench" / staged["digest"][:16]
    assert Workload.of(folder).digest == staged["digest"]
    (folder / "run").mkdir()
    assert local.do("stage") == staged
    assert (folder / "run").is_dir(), "runs below it are kept"
    shutil.copy(local.project / "workload" / "loop.py", local.project / "workload" / "another.py")
    assert local.do("stage")["folder"] != staged["folder"]
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
@pytest.mark.parametrize("kind", ["folder", "full folder", "file", "link"])
def test_what_another_user_put_there_is_not_taken_for_the_workload(
    local: FakeMachines, tmp_path: Path, kind: str
) -> None:
    theirs = local.run.shared / "bench" / Workload.of(local.project).digest[:16]
    theirs.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        theirs.symlink_to(elsewhere)
    elif kind == "file":
        theirs.touch()
    else:
        theirs.mkdir()
    if kind == "full folder":
        (theirs / "workload").symlink_to(elsewhere)
    os.chown(theirs, 2002, 2002, follow_symlinks=False)
    # Before, a draft was named after the process that made it, and any of these could become it.
    drafts = [theirs.with_name(f".{theirs.name}.{pid}") for pid in range(os.getpid() - 50, os.getpid() + 50)]
    for draft in drafts:
        draft.mkdir()
        (draft / "workload").symlink_to(elsewhere)
        os.chown(draft, 2002, 2002)
    assert local.do("stage")["folder"] == str(theirs)
    assert theirs.lstat().st_uid == 0, "root has put its own in that place"
    assert (theirs / "workload" / "train.py").is_file()
    assert not (theirs / "workload").is_symlink()
    assert list(elsewhere.iterdir()) == []
    assert set(theirs.parent.iterdir()) == {theirs, *drafts}, "no draft of ours is left"


def test_the_environment_lies_where_the_cluster_looks(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def build(*given: Any) -> Path:
        asked.append(given)
        return Path("/envs/abc")

    monkeypatch.setattr(benchmark, "build_environment", build)
    assert local.do("environment") == {"environment": "abc"}
    ((project, kind, envs, uv),) = asked
    assert (project, kind, envs) == (local.project, "cpu", (local.run.apps / "envs").resolve())
    assert uv == Path(sys.executable).with_name("uv")


# --- the contract of the verbs that delete ---------------------------------------------------------------


@pytest.mark.parametrize("made", range(4), ids=["nothing", "a folder", "a cloud", "no head"])
def test_what_deletes_succeeds_on_what_is_half_made_and_on_what_is_gone(
    local: FakeMachines, made: int
) -> None:
    """An engine runs these verbs of all that was begun, and stops where one of them fails."""
    steps: list[Callable[[], object]] = [
        lambda: RunDirectory.make(Stack(local.project, "test")),
        lambda: local.do("cloud-up"),
        lambda: local.publish(DESIGN),
    ]
    for step in steps[:made]:
        step()
    for verb in ("head-down", "terminate-nodes", "cloud-down") * 2:
        local.do(verb)
    assert not local.run.path.exists()


# --- the command line ------------------------------------------------------------------------------------


def main(local: FakeMachines, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(local.project))
    monkeypatch.setattr(sys, "argv", ["operations", *arguments])
    return entry.main()


def test_the_tool_and_its_cancel(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cancel = ("cancel", "--stack", "test", "--run", "a/b")
    assert main(local, monkeypatch, *cancel) == 0, "a cluster that is gone has no job"
    local.run.tool.parent.mkdir(parents=True)
    local.run.tool.write_text('#!/bin/sh\necho "$*"; exit 7\n')
    local.run.tool.chmod(0o755)
    assert main(local, monkeypatch, "tool", "--stack", "test", "submit", "--run", "a/b") == 7
    assert capfd.readouterr().out == "submit --run a/b\n"
    assert main(local, monkeypatch, *cancel) == 0, "a destroy goes on"
    assert capfd.readouterr().out == "cancel --run a/b\n"
    local.run.tool.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(benchmark, "CANCEL_SECONDS", 0.2)
    assert main(local, monkeypatch, *cancel) == 0
    assert "the job was not cancelled" in capfd.readouterr().err


def test_what_goes_wrong_is_one_message(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local.publish(DESIGN)
    (local.project / "localcloud" / "agent.py").write_text("raise SystemExit('not today')\n")
    assert main(local, monkeypatch, "head-up", "--stack", "test") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "agent did not start" in err
    assert "not today" in err
    assert "Traceback" not in err
    monkeypatch.setitem(entry.VERBS, "stage", lambda *_: (local.run.path / "no" / "such").write_text(""))
    assert main(local, monkeypatch, "stage", "--stack", "test") == 1
    assert capsys.readouterr().err == f"{local.run.path}/no/such: No such file or directory\n"
    with pytest.raises(SystemExit) as caught:
        main(local, monkeypatch, "nonsense", "--stack", "test")
    assert caught.value.code == 2
    assert main(local, monkeypatch, "terminate-nodes", "--stack", "test") == 0
    assert json.loads(capsys.readouterr().out) == {"terminated": 0}
