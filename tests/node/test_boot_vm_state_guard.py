"""The table of what may become of a controller and of its disk with Slurm's state, case by case.

| case | what holds |
|---|---|
| the controller is dead | the next one mounts the disk, after the kernel's wait for a sign of life |
| it is cut off, and goes on | the kernel of the next one refuses the disk |
| it was frozen, and goes on behind its successor | its daemons are killed before anything else |
| its disk is slow | nothing happens, up to `LOST_SECONDS`; then its daemons stop until the disk is back |
| its disk is gone | its daemons are killed, and none starts again |
| the next one is half up | the disk has one owner: whoever has it mounted, until that one ends |
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcloud import volumes
from node.bootstrap.vm import state_guard
from node.bootstrap.vm.state_guard import Guard, held, reason
from tests.support.checkout import ROOT, until
from tests.support.private_mounts import EXT4_SHUTDOWN, WITHOUT_LOG, PrivateMounts


class Machine:
    """A controller: its clock, its disk, and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.time = 1000.0
        self.running = ["slurmctld", "mariadb"]
        self.did: list[str] = []
        self.write: Callable[[], None] = lambda: None
        self.status = folder / "state.json"
        self.guard = Guard(self._write, self._stop, self._start, self.status, lambda: self.time)

    def _write(self) -> None:
        self.write()

    def _stop(self) -> list[str]:
        ran, self.running = self.running, []
        self.did.append(f"killed {' '.join(ran)}")
        return ran

    def _start(self, units: list[str]) -> None:
        self.running = units
        self.did.append(f"started {' '.join(units)}")

    def look(self, seconds: float = 2.0) -> None:
        self.time += seconds
        self.guard.look(0.2)

    @property
    def held(self) -> bool:
        return held(self.status, lambda: self.time)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_disk_that_takes_writes_is_held(machine: Machine) -> None:
    assert not machine.held
    assert reason(machine.status) == "nothing watches it"
    for _ in range(50):
        machine.look()
        assert machine.held
    assert machine.did == []
    assert state_guard.main(str(machine.status)) == 1, "by the clock of this machine it is long ago"


def test_a_guard_that_died_holds_nothing(machine: Machine) -> None:
    machine.look()
    machine.time += state_guard.LOST_SECONDS
    assert machine.held
    machine.time += 1
    assert not machine.held
    # After a restart the clock begins anew, and a status of before says nothing.
    machine.time = 5.0
    assert not machine.held


def test_a_slow_disk_ends_nothing_and_a_too_slow_one_stops_the_daemons_until_it_is_back(
    machine: Machine,
) -> None:
    answers = threading.Event()
    machine.look()
    machine.write = answers.wait  # type: ignore[assignment]
    while machine.time < 1002 + state_guard.LOST_SECONDS - 2:
        machine.look()
    assert machine.did == []
    machine.look(4)
    assert machine.did == ["killed slurmctld mariadb"]
    assert not machine.held
    assert "no write for" in reason(machine.status)
    machine.look(60)
    assert machine.did == ["killed slurmctld mariadb"]
    answers.set()

    def is_back() -> bool:
        machine.look(0)
        return machine.held

    until(is_back, 60, "the disk")
    assert machine.did == ["killed slurmctld mariadb", "started slurmctld mariadb"]


def test_a_disk_that_is_gone_stops_the_daemons_at_once_and_for_good(machine: Machine) -> None:
    def gone() -> None:
        raise OSError(5, "Input/output error")

    machine.look()
    machine.write = gone
    for _ in range(30):
        machine.look()
    assert machine.did == ["killed slurmctld mariadb"]
    assert not machine.held
    assert "Input/output error" in reason(machine.status)


def test_a_machine_that_stood_still_kills_its_daemons_before_it_asks_its_disk(machine: Machine) -> None:
    order: list[str] = []
    machine.look()
    machine.write = lambda: order.append(" ".join(machine.running))
    machine.look(state_guard.LOST_SECONDS + 60)
    assert order == [""], "nothing ran when the disk was asked"
    assert machine.did == ["killed slurmctld mariadb", "started slurmctld mariadb"], "it was still its own"


def test_units_are_killed_and_not_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def systemctl(*words: str) -> int:
        calls.append(words)
        return 3 if words == ("is-active", "--quiet", "mariadb") else 0

    monkeypatch.setattr(state_guard, "_systemctl", systemctl)
    ran = state_guard.kill_units()
    assert ran == ["slurm-stacks-slurmctld", "slurm-stacks-elastic", "slurm-stacks-slurmdbd"]
    first_stop = next(number for number, call in enumerate(calls) if call[0] == "stop")
    assert all(("kill", "--signal=KILL", unit) in calls[:first_stop] for unit in state_guard.UNITS)
    calls.clear()
    state_guard.start_units(ran)
    assert [call[1] for call in calls] == ran[::-1], "the database's client starts before its clients"


# What the kernel says, on real disks.

WRITE = """
import sys
from pathlib import Path
from node.bootstrap.vm import state_guard
folder, device = Path(sys.argv[1]), sys.argv[2]
try:
    state_guard.write_through(folder, device or str(state_guard.mounted_device(folder)))
except OSError as error:
    sys.exit(str(error))
"""
LOSE = f"""
import fcntl, os, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), {EXT4_SHUTDOWN}, {WITHOUT_LOG!r})
"""


class Disks:
    """One disk image, which several machines would like to have: each by a loop device of its own.

    The mounts are in a namespace: one that another process has copied would live on in its namespace.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inside = PrivateMounts()
        self._devices: list[str] = []
        self.image = folder / "state.img"
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        self.run("mkfs.ext4", "-q", "-O", "mmp", "-E", "mmp_update_interval=1,nodiscard", str(self.image))

    def run(self, *command: str) -> str:
        done = subprocess.run(self._inside(*command), capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise OSError(done.stderr.strip())
        return done.stdout

    def attach(self, image: Path) -> str:
        device = self.run("losetup", "--find", "--show", str(image)).strip()
        self._devices.append(device)
        return device

    def mount(self, device: str, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        self.run("blockdev", "--flushbufs", device)
        self.run("mount", "-o", "noatime,errors=remount-ro", device, str(folder))
        return folder

    def write(self, folder: Path, device: str = "") -> None:
        """Write as the guard does, to the device that is mounted now or to this one."""
        self.run(sys.executable, "-c", WRITE, str(folder), device)

    def lose(self, folder: Path) -> None:
        """Take the disk away from a file system that is mounted."""
        self.run(sys.executable, "-c", LOSE, str(folder))

    def close(self) -> None:
        self._inside.close()
        for device in self._devices:
            subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    try:
        try:
            device = made.attach(made.image)
        except OSError as error:
            pytest.skip(f"this machine has no loop devices: {error}")
        made.mount(device, "first")
        yield made
    finally:
        made.close()
    until(lambda: volumes.attached(tmp_path) == [], 60, "the end of the devices")


def test_a_disk_that_is_taken_away_takes_no_write(disks: Disks, tmp_path: Path) -> None:
    first = tmp_path / "first"
    disks.write(first)
    assert disks.run("cat", str(first / ".held")).strip().isdigit()
    disks.lose(first)
    with pytest.raises(OSError, match="Input/output error"):
        disks.write(first)
    disks.run("umount", str(first))
    with pytest.raises(OSError, match=r"nothing is mounted at .*first, and should be 7:0"):
        disks.write(first, "7:0")


def test_a_disk_that_became_read_only_takes_no_write(disks: Disks, tmp_path: Path) -> None:
    """As MMP makes it when another machine has written its sign of life."""
    first = tmp_path / "first"
    disks.run("mount", "-o", "remount,ro", str(first))
    with pytest.raises(OSError, match="Read-only file system"):
        disks.write(first)


@pytest.mark.wide
def test_a_controller_that_is_cut_off_but_lives_keeps_its_disk_from_the_next_one(
    disks: Disks, tmp_path: Path
) -> None:
    second = disks.attach(disks.image)
    with pytest.raises(OSError, match="already mounted or mount point busy"):
        disks.mount(second, "second")
    disks.write(tmp_path / "first")
    # It is given back: now the next one has it, and the first one comes back behind it.
    disks.run("umount", str(tmp_path / "first"))
    disks.mount(second, "second")
    with pytest.raises(OSError, match="already mounted or mount point busy"):
        disks.mount(disks.attach(disks.image), "first")
    disks.write(tmp_path / "second")


@pytest.mark.wide
def test_the_disk_of_a_dead_controller_is_taken_over_after_the_wait(disks: Disks, tmp_path: Path) -> None:
    """What a power loss leaves: a file system that was never unmounted, and no further sign of life."""
    first = tmp_path / "first"
    disks.run("sh", "-c", f"echo queue >{first}/job_state && sync")
    disks.write(first)
    left = tmp_path / "left.img"
    shutil.copyfile(disks.image, left)
    began = time.monotonic()
    second = disks.mount(disks.attach(left), "second")
    took = time.monotonic() - began
    assert took > 10, "the kernel has waited for a sign of life"
    assert disks.run("cat", str(second / "job_state")) == "queue\n"
