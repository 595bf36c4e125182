"""The whole cluster on Google Cloud: exact resources, the order of a destroy, and the inventory of every
provider."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pulumi
import pytest
from pulumi.runtime import rpc

from infra.clouds.commands import ClusterRef, WaitRequest
from infra.gcp.cluster import GcpCluster
from infra.inventory import Inventory
from node.model import ClusterDesign, Image, Settings
from node.published import parse_settings
from node.sites import GcpSite
from operations.gcp import __main__
from tests.support.gcp_machines import Machines
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
from tests.support.recorder import Recorder, counts, custom, needs

COMMAND = "command:local:Command"
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


_made: dict[tuple[str, bool], tuple[Recorder, list[Any]]] = {}


def told(design: ClusterDesign, preview: bool = False) -> tuple[Recorder, list[Any]]:
    """The cluster's resources and its outputs, declared once for all tests."""
    key = repr(design), preview
    if key not in _made:
        _made[key] = declared(design, preview)
    return _made[key]


def declared(design: ClusterDesign, preview: bool = False) -> tuple[Recorder, list[Any]]:
    seen: list[Any] = []

    def program() -> Any:
        made = GcpCluster("c", design)
        known = pulumi.Output.all(**made.inventory, host=made.endpoint.host, user=made.endpoint.user)
        return known.apply(seen.append)

    return declare(program, preview=preview, gcp=Machines(preview=preview)), seen


def cluster(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    return told(design, preview)[0]


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
    made = cluster(VARIANTS[variant])
    children = {name for name, parent in made.parents().items() if parent == "c"}
    baked = ("images",) if variant == "baked" else ()
    assert children == {f"c-{part}" for part in (*PARTS, *baked, "head", "termination", "ready")}
    commands = {name for name, kind in made.types().items() if kind == COMMAND}
    assert {name for name in commands if not name.startswith("c-images-")} == {"c-termination", "c-ready"}
    assert [name for name in made.types() if not made.parents()[name] and name != "c"] == []
    components = [name for name, asked in made.asked.items() if not asked.custom]
    assert sorted(made.closed) == sorted([*components, "slurm-stacks-test"])


def test_machines_are_those_of_the_design_and_no_node() -> None:
    found = counts(cluster(gcp_design(hosts=PAIR)))
    assert (found[INSTANCE], found[TEMPLATE]) == (2, 2)


# --- the order of destruction -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_head_goes_then_the_termination_then_all_that_nodes_stand_on(variant: str) -> None:
    """Every custom resource is deleted either before or after the termination of nodes."""
    made = cluster(VARIANTS[variant])
    needed = needs(made)
    on_the_head = {name for name in custom(made) if "c-termination" in needed[name]}
    hosts = [host.name for host in VARIANTS[variant].hosts]
    assert on_the_head == {"c-ready", *(f"c-head-{host}{part}" for host in hosts for part in ("", "-disk"))}
    below = custom(made) - on_the_head - {"c-termination"}
    assert below == {name for name in needed["c-termination"] if made.asked[name].custom}
    assert below > {
        "c-instance-templates-cpu",
        "c-instance-templates-gpu",
        "c-addresses-controller",
        "c-accounts-controller",
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_login_machines_go_before_the_controller(variant: str) -> None:
    made = cluster(VARIANTS[variant])
    for name in (f"c-head-{host.name}" for host in VARIANTS[variant].hosts if host.role == "login"):
        assert "c-head-controller" in made.after(name)


def test_the_termination_does_nothing_until_the_end_and_then_what_the_program_can() -> None:
    made = cluster(gcp_design()).inputs("c-termination")
    assert made["create"] == "true"
    assert "update" not in made
    python, flag, module, *words = made["delete"].split()
    assert (python, flag, module) == (".venv/bin/python", "-m", __main__.__package__)
    options = __main__.parse(words)
    assert (options.verb, options.project, options.cluster) == ("terminate-nodes", "acme-ml", "c")
    assert (options.region, options.zone) == ("europe-west4", "europe-west4-a")
    assert options.seconds <= 1800, "bounded in time"


def test_a_head_boots_when_all_that_it_reads_is_there() -> None:
    needed = needs(cluster(gcp_ssh_design()))["c-head-controller"]
    assert needed >= {"c-bundle-current", "c-bundle-code", "c-bundle-settings", "c-bundle-loader"}
    assert needed >= {"c-network-nat", "c-secrets-munge", "c-storage-home", "c-identity-controller-launcher"}


def test_the_firewall_is_made_when_the_accounts_are_there_that_it_names() -> None:
    made = cluster(gcp_ssh_design())
    needed = needs(made)
    rules = [name for name, kind in made.types().items() if kind == "gcp:compute/firewall:Firewall"]
    assert rules
    for name in rules:
        assert {"c-accounts-controller", "c-accounts-compute"} <= needed[name]


# --- what machines are told -------------------------------------------------------------------------------


def content(made: Recorder, name: str) -> str:
    """The content of an object, which the provider treats as a secret."""
    found = made.inputs(name)["content"]
    assert rpc._special_secret_sig in found.values()
    return str(found["value"])


def settings(made: Recorder) -> Settings:
    return parse_settings(content(made, "c-bundle-settings"))


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
    assert __main__.parse(ready["create"].split()[3:]).verb == "wait"
    assert ready["environment"] == {
        "PUBLISHED": content(made, "c-bundle-current"),
        "MACHINE_CONTROLLER": "c-head-controller-number",
        "MACHINE_LOGIN_0": "c-head-login-0-number",
    }


def test_commands_hold_nothing_of_this_machine_or_moment() -> None:
    twice = [declared(gcp_design())[0] for _ in range(2)]
    texts = [json.dumps([made.inputs(name) for name in ("c-termination", "c-ready")]) for made in twice]
    assert texts[0] == texts[1]
    assert str(__main__.__file__).removesuffix("/operations/gcp/__main__.py") not in texts[0]


# --- the inventory ----------------------------------------------------------------------------------------


def inventory(design: ClusterDesign) -> dict[str, Any]:
    (found,) = told(design)[1]
    assert set(found) == {*Inventory.__annotations__, "host", "user"}
    return dict(found)


def test_the_inventory_of_a_cluster_with_a_public_login_machine() -> None:
    assert inventory(gcp_ssh_design(login=True)) == {
        "id": "c-head-controller-disk-number",
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
    assert proxied.endswith("--project acme-ml --zone europe-west4-a --instance %h --port %p")


def test_in_a_preview_the_inventory_is_unknown() -> None:
    assert told(gcp_design(), preview=True)[1] == []


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
