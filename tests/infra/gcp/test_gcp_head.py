"""The head's machines and addresses: exact resources, what no change may replace, and who gets a public
address."""

from __future__ import annotations

from dataclasses import replace

import pulumi_command as command
import pytest
from pulumi_gcp import compute

from infra.gcp.addresses import GcpAddresses
from infra.gcp.head import GcpHead
from node.model import ClusterDesign
from tests.support.gcp_machines import IMAGE, RESOURCES_BY_ROLE, Machines
from tests.support.gcp_mocks import CONTROLLER, LOGIN, declare, gcp_design, gcp_ssh_design
from tests.support.gcp_rules import weaknesses
from tests.support.recorder import Recorder, counts

INSTANCE, ADDRESS = "gcp:compute/instance:Instance", "gcp:compute/address:Address"
DISK = "gcp:compute/disk:Disk"
COMPONENTS = {"slurm-stacks:index:GcpHead": 1, "slurm-stacks:index:GcpAddresses": 1}
GROUND = {"command:local:Command": 1}
LABELS = {
    "slurm-stacks-cluster": "c",
    "slurm-stacks-stack": "test",
    "slurm-stacks-role": "controller",
    "slurm-stacks-host": "controller",
}
PAIR = gcp_design(hosts=(replace(CONTROLLER, tags=("controller", "nfs")), LOGIN))


def head(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    def program() -> None:
        dependency = command.local.Command("dependency", create="true")
        addresses = GcpAddresses("s", design, RESOURCES_BY_ROLE)
        home = compute.InstanceAttachedDiskArgs(source="disk-home", device_name="slurm-stacks-home")
        GcpHead("h", design, RESOURCES_BY_ROLE, addresses, [home], dependency, [])

    return declare(program, preview=preview, gcp=Machines(preview=preview))


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_behind_the_proxy_is_exactly_these_resources(preview: bool) -> None:
    made = head(gcp_design(), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 1, DISK: 1, ADDRESS: 1}
    assert {made.parents()[name] for name in ("h-controller", "h-controller-disk")} == {"h"}
    assert sorted(made.closed) == ["h", "s", "slurm-stacks-test"]


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_with_login_machines_is_exactly_these_resources(preview: bool) -> None:
    made = head(gcp_ssh_design(login=True), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 2, DISK: 2, ADDRESS: 3}
    assert "s-login-0-public" in made.types(), "users reach the login machine, nobody the controller"
    assert "h-controller" in made.after("h-login-0"), "it mounts what the controller exports"


def test_as_many_login_machines_as_asked() -> None:
    logins = tuple(replace(LOGIN, name=f"login-{number}") for number in range(3))
    made = head(gcp_design(hosts=(CONTROLLER, *logins)))
    assert counts(made)[INSTANCE] == 4
    assert {made.inputs(f"h-{host.name}")["name"] for host in logins} == {
        "c-login-0",
        "c-login-1",
        "c-login-2",
    }
    assert made.inputs("h-login-2")["networkInterfaces"] == [
        {"subnetwork": "subnet-1", "networkIp": "s-login-2-address"}
    ]


def test_only_access_by_ssh_gives_a_public_address() -> None:
    for made in (head(gcp_design()), head(PAIR)):
        assert not [name for name in made.types() if name.endswith("-public")]
        assert all("accessConfigs" not in one for one in made.inputs("h-controller")["networkInterfaces"])
    login = head(gcp_ssh_design(login=True))
    assert login.inputs("h-login-0")["networkInterfaces"][0]["accessConfigs"] == [
        {"natIp": "s-login-0-public-address"}
    ]
    assert "accessConfigs" not in login.inputs("h-controller")["networkInterfaces"][0]
    alone = head(gcp_ssh_design())
    assert alone.inputs("h-controller")["networkInterfaces"][0]["accessConfigs"] == [
        {"natIp": "s-controller-public-address"}
    ]


def test_an_address_outlives_its_machine() -> None:
    made = head(gcp_ssh_design())
    assert made.inputs("s-controller") == {
        "name": "c-controller",
        "description": "controller of cluster c",
        "addressType": "INTERNAL",
        "purpose": "GCE_ENDPOINT",
        "project": "acme-ml",
        "region": "europe-west4",
        "subnetwork": "subnet-1",
        "labels": LABELS,
    }
    assert made.inputs("s-controller-public")["addressType"] == "EXTERNAL"
    assert made.after("s-controller") == set(), "there before any machine is"


def test_neither_a_new_image_nor_a_new_script_touches_a_head_with_jobs() -> None:
    made = head(gcp_design())
    machine, disk = made.asked["h-controller"], made.asked["h-controller-disk"]
    assert list(machine.ignoreChanges) == ['metadata["startup-script"]', 'metadata["user-data"]']
    assert list(disk.ignoreChanges) == ["image"]
    assert machine.deleteBeforeReplace is True, "its address has one machine at a time"
    assert disk.deleteBeforeReplace is True, "a name has one disk at a time"


def test_the_root_disk_grows_and_outlives_the_machine() -> None:
    """A disk inside the instance would make a new machine when its size changes, and the queue is on it."""
    made = head(gcp_design(hosts=(replace(CONTROLLER, disk_gib=123),)))
    assert made.inputs("h-controller")["bootDisk"] == {
        "source": "https://compute/h-controller-disk",
        "autoDelete": False,
    }
    assert made.inputs("h-controller-disk") == {
        "name": "c-controller",
        "description": "root disk of controller of cluster c",
        "project": "acme-ml",
        "zone": "europe-west4-a",
        "image": IMAGE,
        "size": 123,
        "type": "pd-balanced",
        "labels": LABELS,
    }


def test_what_a_head_is_made_of() -> None:
    made = head(gcp_design()).inputs("h-controller")
    script = made["metadata"].pop("startup-script")
    assert made["metadata"].pop("user-data") == f"#cloud-boothook\n{script}"
    for part in ("bootDisk", "networkInterfaces"):
        made.pop(part)
    assert made == {
        "name": "c-controller",
        "description": "controller of cluster c",
        "project": "acme-ml",
        "zone": "europe-west4-a",
        "machineType": "n1-standard-2",
        "attachedDisks": [{"source": "disk-home", "deviceName": "slurm-stacks-home"}],
        "serviceAccount": {
            "email": "controller@acme-ml.iam",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "scheduling": {"onHostMaintenance": "MIGRATE", "automaticRestart": True},
        "shieldedInstanceConfig": {
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
            "enableSecureBoot": False,
        },
        "metadata": {
            "enable-oslogin": "TRUE",
            "block-project-ssh-keys": "TRUE",
            "serial-port-enable": "FALSE",
            # This serves users who may see the machine and may not list buckets.
            "slurm-stacks-bucket": "bucket-1",
        },
        "labels": LABELS,
        "allowStoppingForUpdate": True,
        "deletionProtection": False,
    }
    words = "--bucket bucket-1 --region europe-west4 --cluster c --role controller"
    assert f"{words} --host controller" in script


def test_the_exports_disks_are_the_controllers_alone() -> None:
    made = head(PAIR)
    assert "attachedDisks" in made.inputs("h-controller")
    assert "attachedDisks" not in made.inputs("h-login-0")
    assert "guestAccelerators" not in made.inputs("h-login-0")


def test_a_hosts_own_image_wins() -> None:
    own = "projects/acme-ml/global/images/head-1"
    made = head(gcp_design(hosts=(replace(CONTROLLER, image=own),)))
    assert made.inputs("h-controller-disk")["image"] == own


def test_a_head_waits_for_what_it_stands_on() -> None:
    assert head(gcp_design()).after("h-controller") == {"dependency", "s-controller", "h-controller-disk"}


@pytest.mark.parametrize("design", [PAIR, gcp_ssh_design(login=True), gcp_ssh_design()])
def test_heads_have_no_weakness(design: ClusterDesign) -> None:
    made = head(design)
    resources = [
        {"type": kind, "name": name, "inputs": made.inputs(name)} for name, kind in made.types().items()
    ]
    assert weaknesses(resources) == []
