"""Baked images: exact resources, one image for equal content, and the wait for the machines that become
images."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pulumi_command as command
import pytest

from infra.clouds import recipes
from infra.gcp.bake import GcpImages, image_name
from node.design.model import ClusterDesign, Image
from operations.clouds.cloud import Machine
from operations.gcp import __main__, image_builds
from tests.support import sentences
from tests.support.gcp_machines import IMAGE, RESOURCES_BY_ROLE, Machines
from tests.support.gcp_mocks import CONTROLLER, CPU, GPU, LOGIN, declare, gcp_design
from tests.support.gcp_rules import weaknesses
from tests.support.operation_lines import operation_words
from tests.support.recorder import Recorder, counts

BAKED = gcp_design(image=Image("ubuntu-24.04", bake=True), hosts=(CONTROLLER, LOGIN))
IMAGE_RESOURCES = replace(RESOURCES_BY_ROLE["compute"], account="image@acme-ml.iam")
KINDS = ("controller", "login", "compute", "compute-nvidia-closed")


def bake(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    def program() -> None:
        GcpImages("b", design, IMAGE_RESOURCES, [command.local.Command("dependency", create="true")])

    return declare(program, preview=preview, gcp=Machines(preview=preview))


@pytest.mark.parametrize("preview", [False, True])
def test_an_image_is_a_disk_a_machine_its_wait_and_the_image(preview: bool) -> None:
    made = bake(BAKED, preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:GcpImages": 1,
        "gcp:compute/disk:Disk": 4,
        "gcp:compute/instance:Instance": 4,
        "gcp:compute/image:Image": 4,
        "command:local:Command": 4 + 1,
    }
    assert {f"b-{kind}" for kind in KINDS} <= set(made.types())
    for kind in KINDS:
        assert made.after(f"b-{kind}-machine") == {f"b-{kind}-disk", "dependency"}
        assert f"b-{kind}-machine" in made.after(f"b-{kind}-baked")
        assert {f"b-{kind}-baked", f"b-{kind}-disk"} <= made.after(f"b-{kind}"), "not of half a machine"


def test_what_a_machine_is_that_becomes_an_image() -> None:
    made = bake(BAKED)
    machine = made.inputs("b-compute-nvidia-closed-machine")
    assert "guestAccelerators" not in machine, "a GPU would cost, and an image needs none to hold its driver"
    assert machine["machineType"] == "n1-standard-2"
    assert machine["scheduling"]["automaticRestart"] is False
    assert "--role image --host image-compute-nvidia-closed" in machine["metadata"]["user-data"]
    # It runs late: a machine that has tidied up and is being switched off would get its unit back, and a node
    # from its image would switch itself off.
    assert "startup-script" not in machine["metadata"]
    assert machine["labels"]["slurm-stacks-role"] == "image", "neither a node nor a host"
    assert machine["bootDisk"]["autoDelete"] is False, "its disk is the image"
    resources = [{"type": kind, "name": n, "inputs": made.inputs(n)} for n, kind in made.types().items()]
    assert weaknesses(resources) == []


def test_an_image_says_which_slurm_it_has() -> None:
    """By this a cluster refuses to take over with an older one."""
    for design, release in (
        (BAKED, "23-11"),
        (replace(BAKED, image=Image("debian-13", bake=True)), "24-11"),
        (replace(BAKED, image=Image(id="projects/p/global/images/own", bake=True)), None),
    ):
        labels = bake(design).inputs("b-controller")["labels"]
        assert labels.get("slurm-stacks-slurm") == release


def test_without_cloud_init_a_machine_becomes_an_image_by_the_agents_script() -> None:
    """Debian's image has no cloud-init. The agent runs the script once, before the unit exists."""
    made = bake(replace(BAKED, image=Image("debian-13", bake=True)))
    metadata = made.inputs("b-compute-nvidia-closed-machine")["metadata"]
    assert "user-data" not in metadata
    assert "--role image --host image-compute-nvidia-closed" in metadata["startup-script"]


def test_an_image_is_made_of_the_disk_in_the_clusters_region() -> None:
    made = bake(BAKED)
    image, disk = made.inputs("b-compute"), made.inputs("b-compute-disk")
    assert image["sourceDisk"] == "https://compute/b-compute-disk"
    assert image["storageLocations"] == ["europe-west4"]
    assert (disk["image"], disk["size"]) == (IMAGE, 16)
    names = {made.inputs(f"b-compute{part}")["name"] for part in ("", "-disk", "-machine")}
    assert len(names) == 1, "what belongs together is found together"
    small = bake(replace(BAKED, partitions=(replace(CPU, disk_gib=10),)))
    assert small.inputs("b-compute-disk")["size"] == 10, "a node's disk must hold it"
    own = bake(replace(BAKED, image=Image(id="projects/x/global/images/y", bake=True)))
    assert "size" not in own.inputs("b-compute-disk"), "as large as the one that it begins with"


def names(design: ClusterDesign, parent: str = IMAGE) -> set[str]:
    return {image_name(design, recipe, parent, 16) for recipe in recipes.recipes(design)}


def test_equal_contents_are_one_image_and_others_are_others() -> None:
    assert names(BAKED) == names(replace(BAKED, partitions=(replace(CPU, max=99, spot=True), GPU)))
    assert not names(BAKED) & names(BAKED, parent=f"{IMAGE}-newer")
    long = replace(BAKED, name="k" * 40)
    assert max(map(len, names(long))) <= 63
    assert len(names(long)) == 4


def test_the_wait_is_a_command_that_the_program_has() -> None:
    made = bake(BAKED).inputs("b-compute-baked")
    module, *words = operation_words(made, "create")
    assert module == __main__.__package__
    options = __main__.parse(words)
    assert (options.verb, options.host, options.bucket) == ("baked", "image-compute", "bucket-1")
    assert (options.project, options.zone) == ("acme-ml", "europe-west4-a")
    assert options.instance.startswith("c-compute-")
    assert "delete" not in made
    assert made["triggers"] == ["b-compute-machine-number"], "another machine is waited for anew"


# --- the wait ---------------------------------------------------------------------------------------------


@dataclass
class FakeCloud:
    """Returns one look at a machine after another. The last one repeats."""

    looks: list[tuple[str, dict[str, Any] | None]]
    label: str = "Compute Engine"
    now: int = -1
    launched: list[float] = field(default_factory=lambda: [100.0])
    started: list[str] = field(default_factory=list)

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        assert labels == {"role": "image", "host": "image-compute"}
        self.now = min(self.now + 1, len(self.looks) - 1)
        other = Machine("c-compute-old", "image-compute", "image", "stopped", 1.0, None, None, None)
        state = self.looks[self.now][0]
        if state == "gone":
            return [other]
        launched = self.launched[min(len(self.started), len(self.launched) - 1)]
        return [other, Machine("c-compute-1", "image-compute", "image", state, launched, None, None, None)]

    def read(self, bucket: str, key: str) -> bytes | None:
        assert (bucket, key) == ("bucket-1", "boot/image-compute.json")
        report = self.looks[self.now][1]
        return None if report is None else json.dumps(report).encode()

    def start(self, machines: list[Machine]) -> None:
        self.started += [machine.id for machine in machines]

    def console_line(self, machine: Machine) -> str:
        return f"console {machine.id}"


def report(state: str, started: float = 101.0, step: str = "packages") -> dict[str, Any]:
    steps = [{"name": step, "note": "no network", "tail": ["E: cannot resolve"]}]
    return {"state": state, "started": started, "steps": steps}


def wait(*looks: tuple[str, dict[str, Any] | None], seconds: float = 60.0) -> tuple[str, list[str]]:
    said: list[str] = []
    cloud: Any = FakeCloud(list(looks))
    found = image_builds.wait_until_baked(
        cloud, "c-compute-1", "image-compute", "bucket-1", said.append, seconds, lambda _: None
    )
    return found, said


def test_it_waits_until_the_machine_is_done_and_off() -> None:
    found, said = wait(
        ("pending", None),
        ("running", report("ready", started=5.0)),
        ("running", report("booting")),
        ("running", report("booting")),
        ("stopping", report("ready", step="clean")),
        ("stopped", report("ready", step="clean")),
    )
    assert found == "c-compute-1"
    assert said == ["image-compute: packages", "image-compute: clean"], "each step once, none of the old one"


@pytest.mark.parametrize(
    ("look", "seconds", "code", "named"),
    [
        (("running", report("failed")), 60.0, "boot.step-failed", ["packages", "no network\n  E: cannot"]),
        (("stopped", report("failed")), 60.0, "boot.step-failed", ["packages", "no network\n  E: cannot"]),
        (("stopped", None), 60.0, "image.not-reported", ["console c-compute-1"]),
        (("stopped", report("ready", started=5.0)), 60.0, "image.not-reported", ["console c-compute-1"]),
        (("stopped", report("booting")), 60.0, "image.machine-stopped", ["packages", "c-compute-1"]),
        (("gone", None), 60.0, "image.machine-gone", ["c-compute-1"]),
        (("running", report("booting")), -1.0, "image.late", ["console c-compute-1"]),
    ],
)
def test_what_goes_wrong_is_one_message(
    look: tuple[str, dict[str, Any] | None], seconds: float, code: str, named: list[str]
) -> None:
    with sentences.raises(code, *named):
        wait(("running", None), look, seconds=seconds)


@pytest.mark.parametrize("left", [report("failed"), report("booting"), report("ready", started=5.0), None])
def test_a_machine_that_an_earlier_up_left_stopped_is_started_again(left: dict[str, Any] | None) -> None:
    again = report("ready", started=203.0, step="clean")
    looks = [("stopped", left), ("running", left), ("running", again), ("stopped", again)]
    cloud: Any = FakeCloud(looks, launched=[100.0, 200.0])
    said: list[str] = []
    args = ("c-compute-1", "image-compute", "bucket-1", said.append, 60.0, lambda _: None)
    assert image_builds.wait_until_baked(cloud, *args) == "c-compute-1"
    assert cloud.started == ["c-compute-1"]
    assert said == ["image-compute: starting it again", "image-compute: clean"]


def test_a_machine_that_is_done_is_not_started_again() -> None:
    cloud: Any = FakeCloud([("stopped", report("ready"))])
    image_builds.wait_until_baked(
        cloud, "c-compute-1", "image-compute", "bucket-1", print, 60.0, lambda _: None
    )
    assert cloud.started == []
