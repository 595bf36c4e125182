"""What the elastic daemon makes of the reports that the controller has taken: whose they are, and of when."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from node.bootstrap import report, report_server
from node.elastic.driver import Machine, MachineState
from node.elastic.drivers import boot_reports
from node.elastic.drivers.boot_reports import SILENCE, SILENT_SECONDS, BootReports, BootStatus, with_boots

NOW = 1_795_269_600.0
WHY = "step mounts: no route"


class World:
    """The server's folder, and the clocks of the controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        with socket.socket() as listener:
            self._server = report_server.ReportServer(listener, folder, lambda: self.now)
        self.reports = BootReports(
            folder, notices=True, clock=lambda: self.now, monotonic=lambda: self.now - NOW
        )

    def serves(self, since: float) -> None:
        """Mark that the server runs, since this time and still."""
        mark = self.folder / report_server.SERVING
        mark.write_text(json.dumps(since - NOW))
        os.utime(mark, (self.now, self.now))

    def hear(self, address: str, state: str = "failed", **more: object) -> None:
        content = {"state": state, "steps": [{"name": "mounts", "note": "no route"}], **more}
        assert self._server.take(address, json.dumps(content).encode()) == ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def machine(node: str, address: str, launched: float = NOW - 60, *more: str) -> Machine:
    return Machine(f"m-{node}", node, MachineState.RUNNING, launched, addresses=(address, *more))


A, B = machine("c-0", "10.0.0.1"), machine("c-1", "10.0.0.2")


def test_a_report_is_of_the_machine_with_its_address(world: World) -> None:
    """A report's own words about whose it is count for nothing."""
    world.hear("10.0.0.1", host="c-1", node="c-1")
    world.hear("10.0.0.9", host="c-1")
    assert world.reports([A, B]) == {"m-c-0": BootStatus(WHY)}
    world.hear("10.0.0.1", "ready")
    assert world.reports([A, B]) == {}
    several = machine("c-2", "10.0.0.3", NOW - 60, "10.0.0.4")
    world.hear("10.0.0.4")
    assert world.reports([several]) == {"m-c-2": BootStatus(WHY)}, "any of a machine's addresses is its own"


def test_the_last_machines_report_is_not_the_next_ones(world: World) -> None:
    """What counts is when the controller heard it, not what the report says of its age."""
    world.hear("10.0.0.1", started=NOW + 1e6, notice=NOW + 5)
    assert world.reports([machine("c-0", "10.0.0.1", NOW)])
    assert world.reports([machine("c-0", "10.0.0.1", NOW + 1)]) == {}


def test_a_notice_is_the_machines_own_and_within_its_life(world: World) -> None:
    world.hear("10.0.0.1", "ready", notice=NOW + 30)
    assert world.reports([A, B]) == {"m-c-0": BootStatus(None, NOW + 30)}
    world.hear("10.0.0.1", "ready", notice=A.launched - 1)
    assert world.reports([A, B]) == {}


def test_where_the_cloud_tells_of_notices_a_machine_cannot(world: World) -> None:
    of_ec2 = BootReports(world.folder, notices=False, clock=lambda: world.now)
    world.hear("10.0.0.1", notice=NOW + 30)
    assert of_ec2([A]) == {"m-c-0": BootStatus(WHY)}


def test_a_machine_that_says_nothing_for_long_has_failed(world: World) -> None:
    """Otherwise Slurm would wait for the node until ResumeTimeout, which covers every step of a boot."""
    late, early = NOW - SILENT_SECONDS, NOW - SILENT_SECONDS + 1
    world.serves(NOW - 1e5)
    world.hear("10.0.0.2", "booting")
    machines = [
        machine("c-0", "10.0.0.1", late),
        machine("c-1", "10.0.0.2", late),
        machine("c-2", "10.0.0.3", early),
    ]
    assert world.reports(machines) == {"m-c-0": BootStatus(SILENCE)}
    world.hear("10.0.0.1", "booting")
    assert world.reports(machines) == {}
    former = machine("c-3", "10.0.0.1", NOW + 1)
    world.now = NOW + 1 + SILENT_SECONDS
    world.serves(NOW - 1e5)
    assert world.reports([former]) == {"m-c-3": BootStatus(SILENCE)}, "a former machine's word does not count"


def test_nobody_is_silent_while_nobody_listens(world: World) -> None:
    silent = machine("c-0", "10.0.0.1", NOW - 1e5)
    assert world.reports([silent]) == {}, "the server has never run"
    world.serves(NOW - SILENT_SECONDS + 1)
    assert world.reports([silent]) == {}, "it runs not long enough"
    world.serves(NOW - SILENT_SECONDS)
    assert world.reports([silent]) == {"m-c-0": BootStatus(SILENCE)}
    world.now += boot_reports.ALIVE_SECONDS + 1
    assert world.reports([silent]) == {}, "it runs no more"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, '{"received": NaN, "failure": null, "notice": null}',
     '{"received": "x"}', f'{{"received": {NOW}, "failure": 7, "notice": null}}',
     f'{{"received": {NOW}, "failure": null, "notice": 1{"0" * 400}}}',
     f'{{"received": {NOW}, "failure": null, "notice": "x"}}'],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
def test_a_damaged_file_hides_no_other_machine(
    world: World, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that was full, a power failure: the server itself writes no such file."""
    (world.folder / "10.0.0.1.json").write_text(content)
    world.hear("10.0.0.2")
    for _ in range(3):
        assert world.reports([A, B]) == {"m-c-1": BootStatus(WHY)}
    assert capsys.readouterr().out.count("10.0.0.1.json cannot be read") == 1, "said once"


def test_only_a_changed_report_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over thousands of nodes must not read thousands of files."""
    world.hear("10.0.0.1")
    assert world.reports([A])
    with monkeypatch.context() as patch:
        patch.setattr(boot_reports, "_parsed", lambda file: pytest.fail(f"{file} is read again"))
        assert world.reports([A])
    world.hear("10.0.0.1", "ready")
    assert world.reports([A]) == {}


def test_what_reports_change_and_whom() -> None:
    stopped = Machine("m-2", "c-2", MachineState.STOPPING, NOW, addresses=("10.0.0.3",))
    nameless = Machine("m-3", None, MachineState.RUNNING, NOW, addresses=("10.0.0.4",))
    asked: list[str] = []

    def boots(machines: object) -> dict[str, BootStatus]:
        assert isinstance(machines, list)
        asked.extend(m.id for m in machines)
        told = {"m-c-0": BootStatus("x", NOW + 5)}
        return told | {one: BootStatus("of no such machine") for one in ("m-2", "m-3", "m-9")}

    found = with_boots([A, B, stopped, nameless], boots)
    assert asked == ["m-c-0", "m-c-1"]
    assert [(m.failure, m.notice) for m in found] == [("x", NOW + 5), *[(None, None)] * 3]


def test_the_bound_of_a_notice_is_a_week() -> None:
    assert report.NOTICE_SECONDS == 7 * 24 * 3600
