"""Another controller by the real engine: what it deletes and makes, in which order, and with which disks.

The plugins stand in for the clouds. They replace by the providers' own rules, and log each request.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT
from tests.support.consumer_program import Consumer, Request
from tests.support.replacing_rules import HOLDS

PAGE = ROOT / "docs" / "failures.md"
IMAGES = {
    "amazon": [f"ami-0123456789abcdef{number}" for number in range(3)],
    "lab": [f"projects/acme-ml/global/images/slurm-{number}" for number in range(3)],
}
SLURM = {
    "accounting": True,
    "packages": [{"source": "https://packages.example.org/slurm.deb", "sha256": "a" * 64}],
}
"""Accounting, with which the state is kept, on a Slurm that is not Ubuntu's."""
CLUSTERS: dict[str, dict[str, Any]] = {
    "amazon": {
        "provider": "aws",
        "network": {"zones": ["eu-west-1b"]},
        "access": {"key": "ada"},
        "controller": {"image": {"id": IMAGES["amazon"][0]}},
        "partitions": [{"name": "cpu", "instance_type": "m5.xlarge", "nodes": {"max": 4}}],
        "slurm": SLURM,
    },
    "lab": {
        "provider": "gcp",
        "project": "acme-ml",
        "zone": "europe-west4-a",
        "controller": {"image": {"id": IMAGES["lab"][0]}, "disk_gib": 80},
        "login": {"count": 1},
        "partitions": [{"name": "cpu", "instance_type": "n1-standard-2", "nodes": {"max": 4}}],
        "slurm": SLURM,
    },
}
PROGRAM = """
import json
from pathlib import Path

from pulumi_slurm_stacks import SlurmCluster

for name, arguments in json.loads(Path("clusters.json").read_text()).items():
    SlurmCluster(name, **arguments)
"""
DISKS = ("home", "apps", "state")


class Program:
    """A program with a cluster on each cloud.

    Attributes:
        clusters: Name -> the cluster's arguments, which a test changes.
        seen: The requests of the last `up`.
    """

    def __init__(self, folder: Path) -> None:
        self.clusters = copy.deepcopy(CLUSTERS)
        self.seen: list[Request] = []
        self._consumer = Consumer(folder / "program", folder / "home", folder / "state")
        self._consumer.write()
        self._consumer.generate()
        self._consumer.write_program(PROGRAM)
        self._write()
        self._consumer.pulumi("stack", "init", "dev")

    def up(self, *words: str) -> None:
        self._write()
        self._consumer.log.unlink(missing_ok=True)
        self._consumer.pulumi(*(words or ("up",)), "--yes", "--skip-preview")
        self.seen = self._consumer.requests()

    def check_unchanged(self) -> None:
        self._consumer.pulumi("preview", "--expect-no-changes")

    def give_image(self, number: int) -> None:
        for name, images in IMAGES.items():
            self.clusters[name]["controller"]["image"]["id"] = images[number]

    def names(self, verb: str, cluster: str) -> list[str]:
        """Return the names of a cluster's resources for which a request of the last `up` was, in order."""
        begin = f"{cluster}-"
        return [
            one.name.removeprefix(begin)
            for one in self.seen
            if one.verb == verb and one.name.startswith(begin)
        ]

    def order(self, cluster: str, *ends: str) -> list[tuple[str, str]]:
        """Return the requests for some of a cluster's resources, in order."""
        names = [f"{cluster}-{end}" for end in ends]
        return [(one.verb, one.name.removeprefix(f"{cluster}-")) for one in self.seen if one.name in names]

    def request(self, verb: str, name: str) -> Request:
        (found,) = (one for one in self.seen if (one.verb, one.name) == (verb, name))
        return found

    def _write(self) -> None:
        (self._consumer.folder / "clusters.json").write_text(json.dumps(self.clusters))


def act(host: str, cluster: str = "") -> list[str]:
    """Return the words of the command with which the page gives a host another image.

    Args:
        cluster: The only cluster for which it shall be; all clusters of the program by default.
    """
    (line,) = re.findall(rf"^pulumi (up --stack S --replace '.*-{host}\*')$", PAGE.read_text(), re.MULTILINE)
    if cluster:
        assert "'**::train-head-controller*'" in PAGE.read_text()
        line = line.replace("**-head-", f"**::{cluster}-head-")
    return shlex.split(line.replace("--stack S", "--stack dev"))


def check_amazon(program: Program, first: list[Request], image: str) -> Request:
    """Check that the instance, and nothing but it, was made anew; return the request for its successor."""
    attachments = [f"disks-{disk}" for disk in DISKS]
    deleted, created = program.names("delete", "amazon"), program.names("create", "amazon")
    # Each disk is detached before the machine goes, and the machine has gone before another one is made.
    assert (sorted(deleted[:-1]), deleted[-1]) == (sorted(attachments), "head-controller")
    assert (created[0], sorted(created[1:])) == ("head-controller", sorted(attachments))
    assert program.order("amazon", "head-controller") == [
        ("delete", "head-controller"),
        ("create", "head-controller"),
    ]
    made, former = program.request("create", "amazon-head-controller"), _named(first, "head-controller")
    assert program.request("delete", "amazon-head-controller").id == former.id != made.id
    assert made.inputs["ami"] == image
    assert made.inputs["primaryNetworkInterface"] == former.inputs["primaryNetworkInterface"]
    for disk in DISKS:
        attached = program.request("create", f"amazon-disks-{disk}").inputs
        detached = _named(first, f"disks-{disk}").inputs
        assert detached["stopInstanceBeforeDetaching"] is True, "the machine stops first"
        assert attached["volumeId"] == detached["volumeId"] == _named(first, f"storage-{disk}").id
        assert attached["instanceId"] == made.id
    # The boot of the successor is waited for, with its disks.
    assert program.request("update", "amazon-ready").inputs["environment"]["MACHINE_CONTROLLER"] == made.id
    assert program.order("amazon", "ready", *attachments)[-1] == ("update", "ready")
    return made


def check_lab(program: Program, first: list[Request], image: str) -> Request:
    """Check that the machine and its root disk, and nothing but them, were made anew; return its request."""
    names = ("head-controller", "head-controller-disk")
    # Compute Engine detaches the disks with the machine.
    assert program.names("delete", "lab") == list(names)
    assert program.names("create", "lab") == list(reversed(names))
    assert [verb for verb, _ in program.order("lab", *names)] == ["delete", "delete", "create", "create"]
    made, former = program.request("create", "lab-head-controller"), _named(first, "head-controller")
    assert program.request("create", "lab-head-controller-disk").inputs["image"] == image
    for same in ("attachedDisks", "networkInterfaces", "bootDisk", "name"):
        assert made.inputs[same] == former.inputs[same]
    assert [attached_disk["deviceName"] for attached_disk in made.inputs["attachedDisks"]] == [
        f"slurm-stacks-{disk}" for disk in DISKS
    ]
    before = _named(first, "ready").inputs["environment"]
    after = program.request("update", "lab-ready").inputs["environment"]
    assert after["MACHINE_CONTROLLER"] != before["MACHINE_CONTROLLER"]
    assert after["MACHINE_LOGIN_0"] == before["MACHINE_LOGIN_0"], "the login machine stays"
    return made


def check_data_stays(program: Program, *heads: str) -> None:
    """Check that of all that holds data only what a machine boots from was deleted or created."""
    assert {one.name for one in program.seen if one.verb != "update" and one.type in HOLDS} == {*heads}


def _named(requests: list[Request], end: str) -> Request:
    (found,) = (request for request in requests if request.name.partition("-")[2] == end)
    return found


def test_another_image_replaces_the_head_on_demand_and_nothing_that_holds_data(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.up()
    everything = program.seen
    assert {one.name for one in everything if one.type in HOLDS} >= {
        f"{cluster}-storage-{disk}" for cluster in CLUSTERS for disk in DISKS
    }
    amazon, lab = (
        [one for one in everything if one.name.startswith(f"{name}-")] for name in ("amazon", "lab")
    )

    # Another image alone reaches the machines' settings, and no machine.
    program.give_image(1)
    program.up()
    assert [one.name for one in program.seen if one.verb != "update"] == []
    assert {one.name.partition("-")[2] for one in program.seen} == {
        "bundle-settings", "bundle-current", "ready"
    }  # fmt: skip

    program.up(*act("controller"))
    successor = check_amazon(program, amazon, IMAGES["amazon"][1])
    check_lab(program, lab, IMAGES["lab"][1])
    check_data_stays(program, "amazon-head-controller", "lab-head-controller-disk")
    program.check_unchanged()

    # Another key pair replaces an instance. On Google Cloud only a smaller root disk does, which
    # `./cluster up` refuses. The successor has the image that is in the program by then.
    amazon = [successor if one.name == successor.name else one for one in amazon]
    program.give_image(2)
    program.clusters["amazon"]["access"]["key"] = "bob"
    program.clusters["lab"]["controller"]["disk_gib"] = 60
    program.up()
    assert check_amazon(program, amazon, IMAGES["amazon"][2]).inputs["keyName"] == "bob"
    check_lab(program, lab, IMAGES["lab"][2])
    assert program.request("create", "lab-head-controller-disk").inputs["size"] == 60
    check_data_stays(program, "amazon-head-controller", "lab-head-controller-disk")
    program.check_unchanged()

    # A login machine has the cluster's image, and no disk but its root disk.
    program.clusters["lab"]["image"] = {"id": IMAGES["lab"][1]}
    program.up(*act("login-0", "lab"))
    check_data_stays(program, "lab-head-login-0-disk")
    machines = [one for one in program.seen if "-head-" in one.name]
    assert [(one.verb, one.name) for one in machines] == [
        ("delete", "lab-head-login-0"),
        ("delete", "lab-head-login-0-disk"),
        ("create", "lab-head-login-0-disk"),
        ("create", "lab-head-login-0"),
    ]
    assert machines[2].inputs["image"] == IMAGES["lab"][1]
    address = _named(lab, "head-login-0").inputs["networkInterfaces"]
    assert machines[3].inputs["networkInterfaces"] == address
