"""Tests of a node's line in slurm.conf while its hardware changes, and of the record."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign, Partition
from node.slurm import hardware
from node.slurm.conf import render
from node.slurm.configure import configure
from node.slurm.version import parse
from tests.support.doubles import design, settings
from tests.support.whole_boot import short_folder

SMALL = Partition("debug", "local.small", 2, 1000, 0, 4, default=True)
GPU = Partition("gpu", "local.gpu", 2, 1000, 1, 3, accelerator=Accelerator("v100", 1, simulated=True))
OTHER = Partition("other", "local.small", 2, 1000, 0, 2)
LARGE = dataclasses.replace(SMALL, instance_type="local.large", cpus=8, memory_mib=9000)
A100 = dataclasses.replace(GPU, accelerator=Accelerator("a100", 2, simulated=True))
RELEASE = "slurm-wlm 22.05.8"
OLD, NEW = design(SMALL, GPU, OTHER), design(LARGE, A100, OTHER)


class Controller:
    """The files of Slurm on a controller."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lib = root / "lib" / "elastic"
        for folder in (root / "etc", self.lib):
            folder.mkdir(parents=True)

    def start(self, design: ClusterDesign) -> hardware.Lines:
        """Does what happens before each start of slurmctld."""
        known = settings(self.root, design)
        return configure(known, RELEASE, lambda path, content: path.write_bytes(content)).lines

    def cpus(self) -> dict[str, str]:
        return dict(re.findall(r"^NodeName=(\S+) .*CPUs=(\d+)", self.text("slurm.conf"), re.MULTILINE))

    def closed(self) -> list[str]:
        return re.findall(r"^PartitionName=(\S+) .*State=DOWN", self.text("slurm.conf"), re.MULTILINE)

    def text(self, name: str) -> str:
        return (self.root / "etc" / name).read_text()


@pytest.fixture
def controller() -> Iterator[Controller]:
    # The path is short, because slurm.conf has sockets below it.
    with short_folder() as folder:
        yield Controller(folder)


def test_a_first_start_says_what_the_design_says(controller: Controller) -> None:
    assert controller.start(OLD) == hardware.Lines()
    plain = render(settings(controller.root, OLD), parse(RELEASE))
    assert {name: controller.text(name) for name in plain} == plain


def test_a_line_of_a_former_release_stays_as_it_was_written(controller: Controller) -> None:
    """It says neither sockets nor temporary disk. With others slurmctld would end the jobs of its nodes."""
    controller.start(OLD)
    file = controller.lib / hardware.RECORD
    record = json.loads(file.read_text())
    for line in record["lines"]:
        del line["hardware"]["sockets"], line["hardware"]["tmp_disk_mib"]
    file.write_text(json.dumps(record))
    controller.start(OLD)
    assert controller.cpus() == {"debug-[0-3]": "2", "gpu-0": "2", "gpu-[1-2]": "2", "other-[0-1]": "2"}
    assert "Sockets=" not in controller.text("slurm.conf")
    hardware.request_renewal(controller.lib, ["debug-0"], [])
    controller.start(OLD)
    assert re.findall(r"NodeName=(\S+) .*Sockets=1 ", controller.text("slurm.conf")) == ["debug-0"]


def test_nodes_keep_their_lines_and_nothing_starts_until_somebody_has_looked(controller: Controller) -> None:
    controller.start(OLD)
    for _ in range(2):  # a second start changes nothing
        controller.start(NEW)
        assert controller.cpus() == {"debug-[0-3]": "2", "gpu-0": "2", "gpu-[1-2]": "2", "other-[0-1]": "2"}
        assert controller.closed() == ["debug", "gpu"]
    assert "Type=v100" in controller.text("gres.conf")
    assert "a100" not in controller.text("gres.conf")


def test_empty_nodes_get_their_new_lines_and_busy_ones_keep_theirs(controller: Controller) -> None:
    controller.start(OLD)
    controller.start(NEW)
    hardware.request_renewal(
        controller.lib, ["debug-0", "debug-2", "gpu-0", "gpu-1"], ["debug-1", "debug-3", "gpu-2"]
    )
    controller.start(NEW)
    assert controller.cpus() == {
        "debug-0": "8", "debug-1": "2", "debug-2": "8", "debug-3": "2",
        "gpu-0": "2", "gpu-1": "2", "gpu-2": "2", "other-[0-1]": "2",
    }  # fmt: skip
    assert controller.closed() == []
    assert re.findall(r"NodeName=(\S+) Name=gpu Type=(\S+)", controller.text("gres.conf")) == [
        ("gpu-[0-1]", "a100"), ("gpu-2", "v100"),
    ]  # fmt: skip
    # This is also true of the last node, after the controller was switched off and on.
    controller.start(NEW)
    assert controller.cpus()["debug-1"] == "2"
    assert controller.closed() == []
    hardware.request_renewal(controller.lib, ["debug-1", "debug-3", "gpu-2"], [])
    assert controller.start(NEW) == hardware.Lines()
    plain = render(settings(controller.root, NEW), parse(RELEASE))
    assert {name: controller.text(name) for name in plain} == plain


def test_a_word_that_is_old_or_was_heard_is_not_believed(controller: Controller) -> None:
    """A job may hold the node by then."""
    controller.start(OLD)
    controller.start(NEW)
    hardware.request_renewal(controller.lib, ["debug-0"], [])
    file = controller.lib / hardware.RENEWAL
    old = json.loads(file.read_text())
    file.write_text(json.dumps({**old, "at": old["at"] - hardware.FRESH_SECONDS - 1}))
    assert "debug-0" in controller.start(NEW).kept
    assert not file.exists()
    for damaged in ("", "[]", '{"at": "x"}'):
        file.write_text(damaged)
        assert "debug-0" in controller.start(NEW).kept


def test_what_is_put_back_is_no_change(controller: Controller) -> None:
    controller.start(OLD)
    controller.start(NEW)
    assert controller.start(OLD) == hardware.Lines()
    assert controller.closed() == []


def test_a_node_that_keeps_its_line_through_two_changes_has_the_first(controller: Controller) -> None:
    controller.start(OLD)
    controller.start(NEW)
    hardware.request_renewal(controller.lib, ["debug-[0-2]"], ["debug-3", *(f"gpu-{i}" for i in range(3))])
    again = dataclasses.replace(LARGE, cpus=4)
    kept = controller.start(design(again, A100, OTHER)).kept
    assert kept["debug-3"].cpus == 2


def test_a_damaged_record_is_none(controller: Controller) -> None:
    (controller.lib / hardware.RECORD).write_text("{")
    assert hardware.read(controller.lib) is None
    assert controller.start(NEW) == hardware.Lines()


def test_an_older_slurm_does_not_read_what_a_newer_one_has_written(controller: Controller) -> None:
    """A new controller may have another image: it changes nothing if its Slurm is too old."""
    cluster_design = design(SMALL)
    known = settings(controller.root, cluster_design)

    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content)

    configure(known, "slurm 23.11.4", write)
    before = controller.text("slurm.conf")
    with pytest.raises(ValueError, match=r"Slurm 22\.05\.8 is older than Slurm 23\.11\.4, which has written"):
        configure(known, "slurm-wlm 22.05.8", write)
    assert controller.text("slurm.conf") == before
    configure(known, "slurm 23.11.10", write)
    configure(known, "slurm 23.11.4", write)
    assert "EpilogSlurmctld" in controller.text("slurm.conf")
    configure(known, "slurm 24.11.5", write)
    assert "EpilogSlurmctld" not in controller.text("slurm.conf"), "this release needs none"
