"""The whole cluster on Google Cloud: exact resources, the order of a destroy, and the inventory of every
provider."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pulumi
import pulumi_command as command
import pytest
from pulumi.runtime import rpc
from pulumi_gcp import compute

from infra.clouds.commands import ClusterRef, WaitRequest
from infra.gcp.cluster import GcpAddresses, GcpCluster, GcpHead
from infra.inventory import Inventory
from node.design.model import ClusterDesign, Image, Settings
from node.design.published import parse_settings
from node.design.sites import GcpSite
from operations.gcp import __main__
from tests.support import whole_cluster
from tests.support.gcp_machines import IMAGE, RESOURCES_BY_ROLE, Machines
from tests.support.gcp_mocks import (
    CONTROLLER,
    CPU,
    EXISTING,
    FILESTORE,
    GPU,
    LOGIN,
    NFS,
    declare,
    gcp_design,
    gcp_ssh_design,
)
from tests.support.gcp_rules import weaknesses
from tests.support.operation_lines import operation_words, words_anywhere
from tests.support.recorder import Recorder, counts, needs

INSTANCE = "gcp:compute/instance:Instance"
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
PARTS = {
    "accounts",
    "network",
    "bucket",
    "secrets",
    "storage",
    "identity",
    "addresses",
    "instance-templates",
    "bundle",
}
PAIR = (replace(CONTROLLER, tags=("controller", "nfs")), LOGIN)
VARIANTS = {
    "iap": gcp_design(),
    "ssh": gcp_ssh_design(),
    "login": gcp_ssh_design(login=True),
    "filestore": gcp_design(mounts=(FILESTORE, NFS[1])),
    "existing": gcp_design(network=EXISTING, hosts=PAIR),
    "baked": gcp_design(image=Image("ubuntu-24.04", bake=True), hosts=PAIR),
}


def declared(design: ClusterDesign, preview: bool = False) -> tuple[Recorder, list[Any]]:
    seen: list[Any] = []

    def program() -> Any:
        gcp_cluster = GcpCluster("c", design)
        known = pulumi.Output.all(
            **gcp_cluster.inventory, host=gcp_cluster.endpoint.host, user=gcp_cluster.endpoint.user
        )
        return known.apply(seen.append)

    return declare(program, preview=preview, gcp=Machines(preview=preview)), seen


cluster = whole_cluster.Clusters(declared)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_preview_names_what_will_be_made(variant: str) -> None:
    """Unknown ids and addresses hide no resource, and change no name, parent or order of deletion.

    So the counts in the tests of the parts hold in a preview as well.
    """
    real, preview = (cluster(VARIANTS[variant], preview=preview) for preview in (False, True))
    assert preview.types() == real.types()
    assert preview.parents() == real.parents()
    assert needs(preview) == needs(real)
    assert sorted(preview.closed) == sorted(real.closed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cluster_is_its_parts_the_termination_the_head_and_the_wait(variant: str) -> None:
    baked = ("images",) if variant == "baked" else ()
    parts = (*PARTS, *baked, "head", "termination", "ready")
    whole_cluster.check_parts(cluster(VARIANTS[variant]), parts)


def test_machines_are_those_of_the_design_and_no_node() -> None:
    found = counts(cluster(gcp_design(hosts=PAIR)))
    assert (found[INSTANCE], found[TEMPLATE]) == (2, 2)


# --- the order of destruction -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_head_goes_then_the_termination_then_all_that_nodes_stand_on(variant: str) -> None:
    hosts = [f"c-head-{host.name}{part}" for host in VARIANTS[variant].hosts for part in ("", "-disk")]
    last = ["instance-templates-cpu", "instance-templates-gpu", "addresses-controller", "accounts-controller"]
    first = [*hosts, "c-ready"]
    whole_cluster.check_destruction(cluster(VARIANTS[variant]), first, [f"c-{name}" for name in last])


@pytest.mark.parametrize("variant", VARIANTS)
def test_login_machines_go_before_the_controller(variant: str) -> None:
    whole_cluster.check_login_machines_go_first(cluster(VARIANTS[variant]))


def test_the_termination_does_nothing_until_the_end_and_then_what_the_program_can() -> None:
    options = whole_cluster.terminates(cluster(gcp_design()), __main__)
    assert (options.project, options.cluster) == ("acme-ml", "c")
    assert (options.region, options.zone) == ("europe-west4", "europe-west4-a")


def test_a_head_boots_when_all_that_it_reads_is_there() -> None:
    needed = needs(cluster(gcp_ssh_design()))["c-head-controller"]
    assert needed >= whole_cluster.CODE
    assert needed >= {"c-network-nat", "c-secrets-munge", "c-storage-home", "c-identity-controller-launcher"}


def test_the_firewall_is_made_when_the_accounts_are_there_that_it_names() -> None:
    made = cluster(gcp_ssh_design())
    needed = needs(made)
    rules = [name for name, kind in made.types().items() if kind == "gcp:compute/firewall:Firewall"]
    assert rules
    for name in rules:
        assert {"c-accounts-controller", "c-accounts-compute"} <= needed[name]


# --- what machines are told -------------------------------------------------------------------------------


def content(recorder: Recorder, name: str) -> str:
    """The content of an object, which the provider treats as a secret."""
    found = recorder.inputs(name)["content"]
    assert rpc._special_secret_sig in found.values()
    return str(found["value"])


def settings(recorder: Recorder) -> Settings:
    return parse_settings(content(recorder, "c-bundle-settings"))


def test_the_settings_name_what_the_driver_and_the_machines_need() -> None:
    partitions = (replace(CPU, zones=("europe-west4-b", "europe-west4-a")), GPU)
    site = settings(cluster(gcp_design(partitions=partitions))).site
    assert (site.root, site.user, site.apps, site.shared) == ("/", "slurm", "/apps", "/home")
    assert (site.controller_host, site.controller_address) == ("controller", "c-addresses-controller-address")
    cloud = site.of(GcpSite)
    assert cloud.templates == {
        "cpu": "https://compute/c-instance-templates-cpu",
        "gpu": "https://compute/c-instance-templates-gpu",
    }
    assert cloud.zones == {"cpu": ("europe-west4-b", "europe-west4-a"), "gpu": ("europe-west4-a",)}
    assert set(site.mounts) == {"/home", "/apps"}
    assert (cloud.project, cloud.region, cloud.cluster, cloud.logs) == ("acme-ml", "europe-west4", "c", True)
    assert (site.bucket, site.secret) == ("c-bucket-store-name", "c-secrets-munge-id")


def test_the_settings_design_has_every_partitions_zones() -> None:
    partitions = settings(cluster(gcp_design())).design.partitions
    assert {p.name: p.zones for p in partitions} == {"cpu": ("europe-west4-a",), "gpu": ("europe-west4-a",)}


def test_the_wait_is_for_these_machines_and_this_bundle() -> None:
    made = cluster(gcp_ssh_design(login=True))
    ready = made.inputs("c-ready")
    place = ClusterRef("c", "europe-west4", "europe-west4-a", "acme-ml")
    wish = WaitRequest(place, "c-bucket-store-name", ["controller", "login-0"], "login-0", "ssh")
    assert WaitRequest.parse(ready["stdin"]) == wish
    assert ready["update"] == ready["create"]
    assert __main__.parse(operation_words(ready, "create")[1:]).verb == "wait"
    assert ready["environment"] == {
        "PUBLISHED": content(made, "c-bundle-current"),
        "MACHINE_CONTROLLER": "c-head-controller-number",
        "MACHINE_LOGIN_0": "c-head-login-0-number",
    }


def test_commands_hold_nothing_of_this_machine_or_moment() -> None:
    one, same = (declared(gcp_design())[0] for _ in range(2))
    whole_cluster.check_commands(one, same, __main__)


# --- the inventory ----------------------------------------------------------------------------------------


def inventory(design: ClusterDesign) -> dict[str, Any]:
    return cluster.inventory(design, keys=Inventory.__annotations__, also=("host", "user"))


def test_the_inventory_of_a_cluster_with_a_public_login_machine() -> None:
    assert inventory(gcp_ssh_design(login=True)) == {
        "id": "c-head-controller-disk-number",
        "login_machine": "c-login-0",
        "login_address": "c-addresses-login-0-public-address",
        "controller_address": "c-addresses-controller-address:6817",
        "login_ssh": "ssh ada_example_org@c-addresses-login-0-public-address",
        "scheduler_version": "slurm 23.11.4",
        "host_keys": ["ssh-ed25519 AAAAkey"],
        "shared": "/home",
        "host": "c-addresses-login-0-public-address",
        "user": "",
    }


def test_behind_the_proxy_a_machine_is_its_name() -> None:
    found = inventory(gcp_design(hosts=PAIR))
    assert (found["login_address"], found["host"]) == ("c-addresses-login-0-address", "c-login-0")
    assert found["login_ssh"] == (
        "gcloud compute ssh c-login-0 --project acme-ml --zone europe-west4-a --tunnel-through-iap --"
    )
    assert inventory(gcp_design())["host"] == "c-controller"


def test_only_the_proxy_needs_a_proxy_command() -> None:
    seen: list[Any] = []

    def program() -> None:
        seen.extend(GcpCluster(name, design).proxy_command for name, design in designs.items())

    designs = {"a": gcp_design(), "b": gcp_ssh_design()}
    declare(program, gcp=Machines())
    proxied, plain = seen
    assert plain is None
    assert words_anywhere(proxied)[1:] == [
        "proxy", "--project", "acme-ml", "--zone", "europe-west4-a", "--instance", "%h", "--port", "%p",
    ]  # fmt: skip


def test_in_a_preview_the_inventory_is_unknown() -> None:
    assert cluster.told(gcp_design(), preview=True)[1] == []


# --- baked images -----------------------------------------------------------------------------------------


def test_machines_start_from_the_images_that_were_baked_for_them() -> None:
    made = cluster(VARIANTS["baked"])
    images = {
        "c-head-controller-disk": "controller",
        "c-head-login-0-disk": "login",
        "c-instance-templates-cpu": "compute",
        "c-instance-templates-gpu": "compute-nvidia-closed",
    }
    for name, kind in images.items():
        inputs = made.inputs(name)
        image = inputs["disks"][0]["sourceImage"] if "disks" in inputs else inputs["image"]
        assert image == f"https://compute/c-images-{kind}"


def test_a_machine_becomes_an_image_when_all_that_it_needs_is_there() -> None:
    needed = needs(cluster(VARIANTS["baked"]))["c-images-compute-machine"]
    assert needed >= {"c-bundle-image", "c-bundle-code", "c-bundle-loader", "c-network-nat"}
    assert needed >= {"c-accounts-image", "c-identity-image-reports"}
    assert "c-bundle-current" not in needed, "nothing of the cluster is known yet"


ADDRESS = "gcp:compute/address:Address"
DISK = "gcp:compute/disk:Disk"
COMPONENTS = {"slurm-stacks:index:GcpHead": 1, "slurm-stacks:index:GcpAddresses": 1}
GROUND = {"command:local:Command": 1}
LABELS = {
    "slurm-stacks-cluster": "c",
    "slurm-stacks-stack": "test",
    "slurm-stacks-role": "controller",
    "slurm-stacks-host": "controller",
}
HEAD_PAIR = gcp_design(hosts=(replace(CONTROLLER, tags=("controller", "nfs")), LOGIN))


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
    for made in (head(gcp_design()), head(HEAD_PAIR)):
        assert not [name for name in made.types() if name.endswith("-public")]
        assert all(
            "accessConfigs" not in network_interface
            for network_interface in made.inputs("h-controller")["networkInterfaces"]
        )
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


@pytest.mark.parametrize(
    ("machine", "maintenance"),
    [
        ("n2-standard-4", "MIGRATE"), ("e2-standard-2", "MIGRATE"), ("g2-standard-4", "TERMINATE"),
        ("h4d-standard-192", "TERMINATE"), ("c3-standard-192-metal", "TERMINATE"),
    ],
)  # fmt: skip
def test_a_head_that_cannot_move_is_stopped_for_maintenance_and_started_again(
    machine: str, maintenance: str
) -> None:
    """Compute Engine refuses MIGRATE for these types, and TERMINATE for E2."""
    hosts = tuple(replace(host, instance_type=machine) for host in HEAD_PAIR.hosts)
    made = head(replace(HEAD_PAIR, hosts=hosts))
    found = [made.inputs(f"h-{host.name}")["scheduling"] for host in hosts]
    assert found == [{"onHostMaintenance": maintenance, "automaticRestart": True}] * 2


def test_the_exports_disks_are_the_controllers_alone() -> None:
    made = head(HEAD_PAIR)
    assert "attachedDisks" in made.inputs("h-controller")
    assert "attachedDisks" not in made.inputs("h-login-0")
    assert "guestAccelerators" not in made.inputs("h-login-0")


def test_a_hosts_own_image_wins() -> None:
    image = "projects/acme-ml/global/images/head-1"
    made = head(gcp_design(hosts=(replace(CONTROLLER, image=image),)))
    assert made.inputs("h-controller-disk")["image"] == image


def test_a_head_waits_for_what_it_stands_on() -> None:
    assert head(gcp_design()).after("h-controller") == {"dependency", "s-controller", "h-controller-disk"}


@pytest.mark.parametrize("design", [HEAD_PAIR, gcp_ssh_design(login=True), gcp_ssh_design()])
def test_heads_have_no_weakness(design: ClusterDesign) -> None:
    made = head(design)
    resources = [
        {"type": kind, "name": name, "inputs": made.inputs(name)} for name, kind in made.types().items()
    ]
    assert weaknesses(resources) == []
