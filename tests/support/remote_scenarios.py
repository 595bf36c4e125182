"""What must hold for the benchmark over SSH, whatever runs the program."""

from __future__ import annotations

from typing import Any

from infra.benchmark import Workload
from operations import login_lines
from tests.support.drivers import Driver
from tests.support.login_machine import LoginMachine

SCRIPT = """#!/bin/bash
#SBATCH --job-name='keras job'
echo "$HOME" `date` \\n 'it'"'"'s' naïve – \t tab
"""


def spec(machine: LoginMachine, **changes: Any) -> dict[str, Any]:
    """Return the program's settings: a benchmark on this machine."""
    made = {
        "endpoint": machine.endpoint,
        "place": machine.place,
        "options": {"patience": 0, "connect_seconds": 60},
        "script": SCRIPT,
        "benchmark": True,
    }
    return {**made, **changes}


def succeeded(outcome: Any) -> Any:
    assert not outcome.failed, outcome.text
    return outcome


def check_life(driver: Driver, machine: LoginMachine) -> None:
    """An `up` copies the files and submits the job, another benchmark is another job, a destroy ends it."""
    first = succeeded(driver.up(spec(machine)))
    assert first.outputs["job"] == "41"
    (folder,) = machine.staged()
    assert machine.staged()[folder] == {file.name: file.content for file in Workload.of(driver.project).files}
    assert machine.litter() == []
    assert [call[0] for call in machine.calls()] == ["submit"]
    (script,) = machine.shared.glob("bench/*/*/run_keras")
    assert script.read_text() == SCRIPT

    logins = machine.sshd.logins()
    again = succeeded(driver.up(spec(machine)))
    assert (again.operations, machine.sshd.logins()) == ({}, logins), "no change does not even connect"
    assert again.outputs["job"] == "41"

    other = succeeded(driver.up(spec(machine, script=SCRIPT + "# other\n")))
    assert other.operations == {"b-job": "replaced"}
    assert [call[0] for call in machine.calls()] == ["cancel", "submit"]
    assert machine.queue() == {41: "CANCELLED", 42: "PENDING"}
    assert other.outputs["job"] == "42"

    (driver.project / "workload" / "a new file's name").write_text("x\n")
    changed = succeeded(driver.up(spec(machine, script=SCRIPT + "# other\n")))
    assert changed.operations["b-job"] == changed.operations["b-stage"] == "replaced"
    assert machine.queue() == {41: "CANCELLED", 42: "CANCELLED", 43: "PENDING"}
    assert set(machine.staged()) > {folder}
    assert machine.litter() == []

    succeeded(driver.up(spec(machine, benchmark=False)))
    assert machine.queue()[43] == "CANCELLED", "a benchmark that is not wanted any more is cancelled"


def check_moved(driver: Driver, machine: LoginMachine, successor: LoginMachine) -> None:
    """The same machine at another address keeps its job. Another machine gets the workload, too."""
    succeeded(driver.up(spec(machine)))
    machine.calls()
    machine.sshd.stop()
    machine.sshd.start()
    moved = succeeded(driver.up(spec(machine)))
    assert "replaced" not in moved.operations.values()
    assert moved.operations["b-job"] == "updated"
    assert moved.outputs["job"] == "41"
    assert machine.queue() == {41: "PENDING"}
    assert [call[0] for call in machine.calls()] == ["submit"], "asked again, and answered with the same job"

    successor.sshd.accept(machine.sshd.client_key)
    succeeded(driver.up(spec(successor)))
    assert successor.staged() == machine.staged()
    assert successor.queue() == {41: "PENDING"}


def check_wrong_key(driver: Driver, machine: LoginMachine, other_key: str) -> Any:
    """Another machine at the same address gets no file and no command."""
    wrong = {**machine.endpoint, "host_keys": [other_key]}
    refused = driver.up(spec(machine, endpoint=wrong))
    assert refused.failed
    assert machine.sshd.logins() == 0
    assert (machine.staged(), machine.litter(), machine.calls()) == ({}, [], [])
    return refused


def check_gone(driver: Driver, machine: LoginMachine) -> None:
    """A cluster whose head is gone is destroyed without a connection to the head."""
    succeeded(driver.up(spec(machine)))
    machine.sshd.stop()
    destroyed = succeeded(driver.destroy())
    assert destroyed.operations["b-job"] == "deleted"
    assert login_lines.NOT_CANCELLED not in destroyed.text, "who tries says so"
