"""Tests of the message at login on a machine that boots, that is ready, and that has failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node.bootstrap import step_runner
from node.bootstrap.context import ALL, Context, Step
from node.bootstrap.vm import disks, motd
from tests.support.checkout import ROOT
from tests.support.recorded import Recorder, machine


@pytest.fixture(autouse=True)
def mountinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", file)
    return file


def run_boot(
    context: Context, motds: list[str], *then: Callable[[Context], str], name: str = "mounts"
) -> None:
    """A boot of a few steps that records the message during the first one."""

    def first(context: Context) -> str:
        motds.append(shown(context))
        return "done"

    def ready(context: Context) -> str:
        motd.announce_ready(context)
        return "started"

    steps = [
        Step("users", 30, ALL, first),
        *(Step(name, 30, ALL, one) for one in then),
        Step("ready", 30, ALL, ready),
    ]
    motd.boot_with_messages(context, lambda: step_runner.run_steps(context, steps))


def shown(context: Context) -> str:
    return (context.at("etc/motd")).read_text()


def broadcasts(run: Recorder) -> list[str]:
    return [options["stdin"] for call, options in zip(run.calls, run.options, strict=True) if call == "wall"]


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_login_machine_while_it_boots_and_after(tmp_path: Path, provider: str) -> None:
    context, run = machine(tmp_path, "login", "login-0", provider=provider)
    motds: list[str] = []
    run_boot(context, motds)
    assert motds == [
        "*** Slurm is currently being installed/configured in the background. ***\n"
        "A terminal broadcast will announce when installation and configuration is complete.\n"
        "/home on the controller will be mounted over the existing /home.\n"
        "Any changes in /home will be hidden. Please wait until the installation is complete before making "
        "changes in your home directory.\n"
    ]
    assert broadcasts(run) == [
        "*** Slurm login daemon installation complete ***\n"
        "/home on the controller was mounted over the existing /home.\n"
        "Either log out and log back in or cd into ~.\n"
    ]
    assert shown(context) == (
        "Slurm cluster t, partitions: compute, v100, t4. sinfo shows its nodes, sbatch takes a job.\n"
    )


def test_a_controller_mounts_a_disk_of_its_own(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    motds: list[str] = []
    run_boot(context, motds)
    assert "The cluster's /home will be mounted over the existing /home.\n" in motds[0]
    assert broadcasts(run)[0].startswith(
        "*** Slurm controller daemon installation complete ***\nThe cluster's /home was"
    )


def test_what_is_mounted_already_is_not_announced(tmp_path: Path, mountinfo: Path) -> None:
    """The controller repeats its boot after an update, and no home folder is hidden."""
    context, run = machine(tmp_path, "controller", "controller")
    mountinfo.write_text(f"36 35 8:16 / {tmp_path}/root/home rw - ext4 /dev/sdb rw\n")
    motds: list[str] = []
    run_boot(context, motds)
    assert motds[0].count("\n") == 2
    assert broadcasts(run) == ["*** Slurm controller daemon installation complete ***\n"]


def test_a_cluster_without_a_shared_home_says_nothing_of_it(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "login", "login-0", mounts=())
    motds: list[str] = []
    run_boot(context, motds)
    assert "/home" not in motds[0]


def test_a_boot_that_fails_says_so(tmp_path: Path) -> None:
    def fails(_context: Context) -> str:
        raise TimeoutError("/home: 10.0.0.5:/home could not be mounted\nno route")

    context, run = machine(tmp_path, "login", "login-0")
    run_boot(context, [], fails)
    (told,) = broadcasts(run)
    assert told == shown(context)
    assert told.startswith(
        "*** The installation of Slurm on this machine has failed. ***\n"
        "step mounts: /home: 10.0.0.5:/home could not be mounted\n"
    )
    assert "./cluster logs --stack test login-0" in told


def test_what_fails_after_slurm_has_started_changes_nothing(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")

    def late() -> bool:
        motd.announce_ready(context)
        for name in ("ready", "environment"):
            context.report.begin(name, 30)
            context.report.end("failed" if name == "environment" else "done", 1.0, "no room")
        context.report.finish("failed")
        return False

    motd.boot_with_messages(context, late)
    assert shown(context).startswith("Slurm cluster t")
    assert len(broadcasts(run)) == 1


def test_nobody_is_told_on_a_node_and_no_boot_fails_of_it(tmp_path: Path) -> None:
    node, run = machine(tmp_path)
    motd.boot_with_messages(node, lambda: True)
    motd.announce_ready(node)
    assert not (node.at("etc/motd")).exists()
    assert run.calls == []
    login, run = machine(tmp_path, "login", "login-0")
    run.fail("wall", 127)
    motd.announce_ready(login)
    assert run.calls == ["wall"]


def test_a_local_machine_needs_none_of_it() -> None:
    """A process machine's boot must not spend time on modules that it does not use."""
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import node.bootstrap.main"
    text += "; print(*sys.modules)"
    line = [sys.executable, "-I", "-S", "-c", text]
    loaded = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert [
        name
        for name in loaded
        if name.startswith(("node.bootstrap.vm", "node.system.http_client", "urllib.request"))
    ] == []
