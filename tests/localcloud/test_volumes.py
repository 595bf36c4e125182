"""The local cloud's disks: real loop devices, which one machine has at a time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import volumes


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("disks are root's to attach")
    file = tmp_path / "disk" / "state.img"
    yield file
    assert volumes.detach(tmp_path) == []


def attach(image: Path, gib: int = 1) -> Path:
    try:
        return volumes.attach(image, gib)
    except volumes.VolumeError as error:
        if "losetup" in str(error):
            pytest.skip(f"this machine has no loop devices: {error}")
        raise


def size(device: Path) -> int:
    return int(subprocess.run(["blockdev", "--getsize64", device], capture_output=True, check=True).stdout)


def test_a_disk_takes_no_space_keeps_what_was_written_and_grows(image: Path) -> None:
    device = attach(image)
    assert (size(device), image.stat().st_mode & 0o777) == (1 << 30, 0o600)
    assert image.stat().st_blocks < 100
    with device.open("r+b") as disk:
        disk.write(b"queue")
    assert volumes.attached(image) == volumes.attached(image.parent) == [device]
    assert volumes.detach(image) == []
    again = attach(image, 2)
    assert size(again) == 2 << 30
    with again.open("rb") as disk:
        assert disk.read(5) == b"queue"


def test_a_disk_has_one_machine_at_a_time(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = attach(image)
    monkeypatch.setattr(volumes, "DETACH_SECONDS", 0.2)
    with pytest.raises(volumes.VolumeError, match=f"state.img is attached as {device}: one machine has it"):
        volumes.attach(image, 1)
    assert volumes.attached(image) == [device], "it is left to the machine that has it"


def test_a_disk_in_use_is_named_and_goes_with_its_last_user(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = attach(image)
    monkeypatch.setattr(volumes, "DETACH_SECONDS", 0.2)
    with device.open("rb"):
        assert volumes.detach(image) == [device]
    monkeypatch.undo()
    assert volumes.detach(image) == []
