"""Ctrl-C, a closed terminal and SIGTERM in every wait: a message, an exit status, and nothing half made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import Checkout, until
from tests.support.mishaps import Command, Terminal, made, pids, quick_benchmark

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 6}
        hooks: [{role: controller, source: hooks/wait.sh, args: [HOLD]}]
      slurm-stacks:benchmark: {nodes: 1, epochs: 1, data: synthetic}
"""
WAIT = """#!/bin/sh
echo waiting
while [ -e "$1" ]; do sleep 0.05; done
"""
INTERRUPTED = 130


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """One checkout, whose cluster is used by all tests in order."""
    folder = tmp_path_factory.mktemp("terminal")
    checkout = Checkout(folder / "a checkout", STACK.replace("HOLD", str(folder / "boot")))
    (checkout.folder / "hooks").mkdir()
    hook = checkout.folder / "hooks" / "wait.sh"
    hook.write_text(WAIT)
    quick_benchmark(checkout)
    yield checkout
    assert checkout.close() == []


def boot_hold(checkout: Checkout) -> Path:
    return checkout.folder.parent / "boot"


def training_hold(checkout: Checkout) -> Path:
    return checkout.folder.parent / "hold"


def clean(terminal: Terminal) -> None:
    assert "Traceback" not in terminal.text
    assert "Exception" not in terminal.text
    assert terminal.cursor_is_shown


def test_ctrl_c_while_the_controller_boots(life: Checkout) -> None:
    boot_hold(life).touch()
    up = Terminal.cluster(life, "up")
    up.until("controller: hooks")
    agent = pids(life, "localcloud.agent")
    up.press()
    assert up.end() == INTERRUPTED
    clean(up)
    assert "interrupted; of the stack there is" in up.text
    assert "./cluster up --stack test" in up.text
    assert "./cluster down --stack test" in up.text
    assert pids(life, "localcloud.agent") == agent, "the cluster has a session of its own"
    assert not made(life)["head"]["whole"]
    assert not pids(life, "operations.local"), "no command goes on"


# By default tests/cli/test_mishaps_life_interrupt.py shows that these signals end a command as Ctrl-C does,
# which the test above presses at the same place.
@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_while_the_controller_boots(life: Checkout, number: signal.Signals) -> None:
    up = Command(life, "up")
    up.until_said("controller: hooks")
    assert up.end(number) == INTERRUPTED
    assert "interrupted; of the stack there is" in up.said
    assert "Traceback" not in up.said


def test_ctrl_c_while_it_follows_the_job(life: Checkout) -> None:
    training_hold(life).touch()
    boot_hold(life).unlink()
    up = Terminal.cluster(life, "up")
    up.until("running on")
    up.press()
    assert up.end() == INTERRUPTED
    clean(up)
    assert "not waiting any longer: the cluster and its job go on" in up.text
    assert life.execute("squeue", "--noheader", "--format=%i %T").split() == ["1", "RUNNING"]


def test_a_terminal_that_is_closed_while_it_follows_the_job(life: Checkout) -> None:
    up = Terminal.cluster(life, "up")
    up.until("running on")
    up.hang_up()
    assert up.end() == INTERRUPTED
    assert life.execute("squeue", "--noheader", "--format=%i %T").split() == ["1", "RUNNING"]


@pytest.mark.wide
def test_ctrl_c_while_the_nodes_go_back(life: Checkout) -> None:
    up = Terminal.cluster(life, "up")
    up.until("running on")
    # The job ends only here: otherwise a slow `up` would find the node off already.
    training_hold(life).unlink()
    up.until("nodes go back after")
    up.press()
    assert up.end() == INTERRUPTED
    clean(up)
    assert "Result of job 1" in up.text
    assert "the nodes go back by themselves" in up.text


def test_ctrl_c_ends_what_exec_runs(life: Checkout) -> None:
    sleep = Terminal.cluster(life, "exec", "--", "sh", "-c", "echo ready; exec sleep 600")
    sleep.until("ready")
    sleep.press()
    assert sleep.end() == -signal.SIGINT
    assert "Traceback" not in sleep.text


def test_ctrl_c_while_status_waits_for_a_daemon_that_hangs(life: Checkout) -> None:
    (daemon,) = pids(life, "elastic.daemon")
    os.kill(daemon, signal.SIGSTOP)
    try:
        status = Terminal.cluster(life, "status")
        until(lambda: pids_of_tool(life), 120, "the question")
        status.press()
        assert status.end() == INTERRUPTED
        clean(status)
        assert "interrupted" in status.text
    finally:
        os.kill(daemon, signal.SIGCONT)


def pids_of_tool(checkout: Checkout) -> list[str]:
    """Return the processes of the cluster's own tool, which `status` calls."""
    wanted = str(checkout.run_directory / "code" / "current" / "bin" / "slurm-stacks").encode()
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in line.read_bytes():
                found.append(line.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.wide
def test_ctrl_c_while_it_goes_down_with_daemons_that_hang(life: Checkout) -> None:
    for program in ("/usr/sbin/slurmctld\0", "/usr/sbin/munged", "elastic.daemon"):
        (daemon,) = pids(life, program)
        os.kill(daemon, signal.SIGSTOP)
    down = Terminal.cluster(life, "down")
    down.until("the daemons are ending")
    down.press()
    assert down.end() == INTERRUPTED
    clean(down)
    assert "interrupted; of the stack there is" in down.text
    assert "`./cluster down --stack test` continues" in down.text
    # `down` takes a limited time: the daemons' grace is some seconds.
    again = life.cluster("down", check=True, timeout=120)
    assert "nothing is left" in again.stderr
