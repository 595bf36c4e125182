"""Stacks of an earlier version, whose code was in other folders: their recorded commands and their agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.local import agent_lifecycle
from cli.local.run_directory import RunDirectory
from tests.support.checkout import ROOT

FORMER = {
    "infra.local.operations": "cli.local.operations",
    "infra.aws.operations": "cli.aws.operations",
    "infra.gcp.operations": "cli.gcp.operations",
    "infra.ssh.client": "cli.ssh.client",
    "infra.local.sshd": "cli.local.sshd",
}


def said(module: str, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("former", FORMER)
def test_a_command_in_a_stacks_state_is_still_run(former: str) -> None:
    """`pulumi destroy` runs the line that the state has, whatever the checkout is by now."""
    now = said(FORMER[former], "no such verb")
    assert "No module named" not in now[2]
    assert now[0] != 0
    assert said(former, "no such verb") == now


def test_an_agent_whose_files_are_gone_makes_room_for_another(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.cloud.mkdir()
    for module, ends in ((agent_lifecycle.AGENT, False), (agent_lifecycle.FORMER_AGENT, True)):
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        agent = subprocess.Popen(
            [sys.executable, "-c", code, module, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == b"up\n"
            (run.cloud / "agent.lock").write_text(str(agent.pid))
            agent_lifecycle.end_former_agent(run)
            assert (agent.poll() if not ends else agent.wait(60)) == (-9 if ends else None)
        finally:
            agent.kill()
            agent.communicate()
