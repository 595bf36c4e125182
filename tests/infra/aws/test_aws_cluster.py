"""The whole cluster on AWS: exact resources, the order of a destroy, and the inventory of every provider."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pulumi
import pulumi_command as command
import pytest

from infra.aws.cluster import AwsAddresses, AwsCluster, AwsHead
from infra.aws.network import Zones, with_zones
from infra.clouds.cluster import parse_boot_facts
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.inventory import Inventory
from node.design.model import Access, AwsPartition, AwsSettings, ClusterDesign, Settings
from node.design.published import parse_settings
from node.design.sites import AwsSite
from operations.aws import __main__
from tests.support import whole_cluster
from tests.support.aws_machines import AMI, RESOURCES_BY_ROLE, Machines
from tests.support.aws_mocks import (
    CONTROLLER,
    EFS,
    EXISTING,
    LOGIN,
    LUSTRE,
    NFS,
    aws_design,
    declare,
    ssh_design,
)
from tests.support.operation_lines import operation_words, words_pasted
from tests.support.recorder import Recorder, counts, needs

PARTS = {
    "network",
    "bucket",
    "secrets",
    "logs",
    "storage",
    "identity",
    "addresses",
    "launch-templates",
    "bundle",
}
VARIANTS = {
    "ssm": aws_design(),
    "ssh": ssh_design(),
    "login": ssh_design(login=True),
    "efs-fsx": aws_design(mounts=(EFS, LUSTRE)),
    "existing": aws_design(network=EXISTING),
}


def declared(design: ClusterDesign, preview: bool = False) -> tuple[Recorder, list[Any]]:
    seen: list[Any] = []

    def program() -> Any:
        aws_cluster = AwsCluster("c", design)
        return pulumi.Output.all(**aws_cluster.inventory, host=aws_cluster.endpoint.host).apply(seen.append)

    return declare(program, preview=preview, aws=Machines(preview=preview)), seen


cluster = whole_cluster.Clusters(declared)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cluster_is_its_parts_the_termination_the_head_and_the_wait(variant: str) -> None:
    parts = (*PARTS, "head", "disks", "termination", "ready")
    whole_cluster.check_parts(cluster(VARIANTS[variant]), parts)


def test_a_cluster_without_login_machines_has_one_instance_and_no_public_address() -> None:
    found = counts(cluster(aws_design()))
    assert found["aws:ec2/instance:Instance"] == 1
    assert found["aws:ec2/launchTemplate:LaunchTemplate"] == 2
    assert found["aws:ec2/eip:Eip"] == 1, "the NAT gateway's"
    assert counts(cluster(ssh_design()))["aws:ec2/eip:Eip"] == 2


# --- the order of destruction -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_head_goes_then_the_termination_then_all_that_nodes_stand_on(variant: str) -> None:
    hosts = [f"c-head-{host.name}" for host in VARIANTS[variant].hosts]
    attached = [f"c-disks-{m.path.strip('/')}" for m in VARIANTS[variant].mounts if m.kind == "nfs"]
    last = ["launch-templates-cpu", "launch-templates-gpu", "identity-compute-policy", "addresses-controller"]
    first = [*hosts, "c-ready", *attached]
    whole_cluster.check_destruction(cluster(VARIANTS[variant]), first, [f"c-{name}" for name in last])


def test_public_addresses_go_before_the_gateway() -> None:
    """AWS refuses to remove a gateway from a network with public addresses."""
    assert "c-network-internet-gateway" in needs(cluster(ssh_design()))["c-addresses-controller-public"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_login_machines_go_before_the_controller(variant: str) -> None:
    whole_cluster.check_login_machines_go_first(cluster(VARIANTS[variant]))


def test_the_termination_does_nothing_until_the_end_and_then_what_the_program_can() -> None:
    made = cluster(aws_design())
    *place, vpc, nodes, head = made.inputs("c-termination")["triggers"]
    assert place == ["--region", "eu-west-1", "--cluster", "c"], "elsewhere: the old one terminates its nodes"
    assert (vpc, nodes) == ("c-network-vpc-id", "c-network-private-b-id"), "the head's zone is b"
    assert head == "c-network-head-id"
    options = whole_cluster.terminates(made, __main__)
    assert (options.region, options.cluster) == ("eu-west-1", "c")


def test_a_head_boots_when_all_that_it_reads_is_there() -> None:
    needed = needs(cluster(ssh_design()))["c-head-controller"]
    assert needed >= whole_cluster.CODE
    assert needed >= {"c-identity-controller-policy", "c-network-private-route", "c-secrets-munge"}


# --- what machines are told -------------------------------------------------------------------------------


def settings(recorder: Recorder) -> Settings:
    return parse_settings(recorder.inputs("c-bundle-settings")["content"])


def test_the_settings_name_what_the_driver_and_the_machines_need() -> None:
    site = settings(cluster(aws_design(mounts=(*NFS, LUSTRE)))).site
    assert (site.root, site.user, site.apps, site.shared) == ("/", "slurm", "/apps", "/home")
    assert (site.controller_host, site.controller_address) == ("controller", "10.0.0.7")
    cloud = site.of(AwsSite)
    assert cloud.subnets == {
        "eu-west-1b": "c-network-private-b-id",
        "eu-west-1c": "c-network-private-c-id",
        "eu-west-1a": "c-network-private-a-id",
    }
    assert cloud.templates == {"cpu": "c-launch-templates-cpu-id", "gpu": "c-launch-templates-gpu-id"}
    assert set(site.mounts) == {"/home", "/apps", "/fsx"}
    assert (cloud.region, cloud.cluster, cloud.log_group) == ("eu-west-1", "c", "/slurm-stacks/c")
    assert (site.bucket, site.secret) == ("c-bucket-store-id", "arn:c-secrets-munge")
    assert not site.cloud_dns, "nodes register their addresses"


def test_partitions_know_their_zones_and_those_with_a_fabric_have_one() -> None:
    partitions = {p.name: p.zones for p in settings(cluster(aws_design())).design.partitions}
    assert partitions["cpu"] == ("eu-west-1b", "eu-west-1c", "eu-west-1a")
    assert partitions["gpu"] == ("eu-west-1b",)


def test_the_wait_is_for_these_machines_and_this_bundle() -> None:
    made = cluster(ssh_design(login=True))
    ready = made.inputs("c-ready")
    wish = WaitRequest.parse(ready["stdin"])
    place = ClusterRef("c", "eu-west-1")
    assert wish == WaitRequest(
        place, "c-bucket-store-id", ["controller", "login-0"], "login-0", "ssh", "key", "ubuntu"
    )
    assert ready["update"] == ready["create"]
    assert __main__.parse(operation_words(ready, "create")[1:]).verb == "wait"
    assert ready["environment"] == {
        "PUBLISHED": made.inputs("c-bundle-current")["content"],
        "MACHINE_CONTROLLER": "c-head-controller-id",
        "MACHINE_LOGIN_0": "c-head-login-0-id",
    }


def test_commands_hold_nothing_of_this_machine_or_moment() -> None:
    one, same = (declared(aws_design())[0] for _ in range(2))
    whole_cluster.check_commands(one, same, __main__)


# --- the inventory ----------------------------------------------------------------------------------------


def inventory(design: ClusterDesign) -> dict[str, Any]:
    return cluster.inventory(design, keys=Inventory.__annotations__, also=("host",))


def test_the_inventory_of_a_cluster_with_a_public_head() -> None:
    assert inventory(ssh_design()) == {
        "id": "c-head-controller-id",
        "login_machine": "c-head-controller-id",
        "login_address": "198.51.100.7",
        "controller_address": "10.0.0.7:6817",
        "login_ssh": "ssh ubuntu@198.51.100.7",
        "scheduler_version": "slurm 23.11.4",
        "host_keys": ["ssh-ed25519 AAAAkey"],
        "shared": "/home",
        "host": "198.51.100.7",
    }


def test_behind_session_manager_a_machine_is_its_id() -> None:
    found = inventory(aws_design(access=Access("ssm", key="mine", user="ubuntu")))
    assert (found["login_address"], found["host"]) == ("10.0.0.7", "c-head-controller-id")
    assert found["login_ssh"] == (
        "ssh -o 'ProxyCommand=aws ssm start-session --region eu-west-1 --target %h --document-name "
        "AWS-StartSSHSession --parameters portNumber=%p' ubuntu@c-head-controller-id"
    )
    without = inventory(aws_design(hosts=(CONTROLLER, LOGIN)))
    ssh, option, proxy, target = shlex.split(without["login_ssh"])
    assert (ssh, option, target) == ("ssh", "-o", "ubuntu@c-head-login-0-id")
    module, verb, *_ = words_pasted(proxy.removeprefix("ProxyCommand="))
    assert (module, verb) == ("operations.aws", "proxy"), "which brings a key along"
    assert without["host"] == "c-head-login-0-id"


def test_in_a_preview_the_inventory_is_unknown() -> None:
    assert cluster.told(aws_design(), preview=True)[1] == []


def test_a_wait_that_prints_no_json_is_an_error() -> None:
    assert parse_boot_facts("<c-ready.stdout>")["host_keys"] == ["<c-ready.stdout.host_keys[0]>"]
    with pytest.raises(ValueError, match="Expecting value"):
        parse_boot_facts("Traceback")


def test_placement_alone_or_efa_alone_means_one_zone() -> None:
    from dataclasses import replace

    base = aws_design().partitions[0]
    design = aws_design(
        partitions=(replace(base, aws=AwsPartition(efa=1)), replace(base, name="p", placement="cluster"))
    )
    where = Zones("a", {"cpu": ("a", "b"), "p": ("b", "a")})
    assert [p.zones for p in with_zones(design, where).partitions] == [("a",), ("b",)]


INSTANCE, INTERFACE = "aws:ec2/instance:Instance", "aws:ec2/networkInterface:NetworkInterface"
EIP = "aws:ec2/eip:Eip"
COMPONENTS = {"slurm-stacks:index:AwsHead": 1, "slurm-stacks:index:AwsAddresses": 1}
GROUND = {"command:local:Command": 1}


def head(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    def program() -> None:
        dependency = command.local.Command("dependency", create="true")
        addresses = AwsAddresses("s", design, RESOURCES_BY_ROLE, [dependency])
        AwsHead("h", design, RESOURCES_BY_ROLE, addresses, dependency, [])

    return declare(program, preview=preview, aws=Machines(preview=preview))


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_behind_session_manager_is_exactly_these_resources(preview: bool) -> None:
    made = head(aws_design(), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 1, INTERFACE: 1}
    assert {made.parents()[name] for name in ("h-controller",)} == {"h"}


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_with_login_machines_is_exactly_these_resources(preview: bool) -> None:
    made = head(ssh_design(login=True), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 2, INTERFACE: 2, EIP: 1}
    assert "s-login-0-public" in made.types(), "users reach the login machine, nobody the controller"
    assert "h-controller" in made.after("h-login-0"), "it mounts what the controller exports"


def test_only_access_by_ssh_gives_a_public_address() -> None:
    assert EIP not in counts(head(aws_design(hosts=(CONTROLLER, LOGIN))))
    assert counts(head(ssh_design()))[EIP] == 1
    for made in (head(aws_design()), head(ssh_design())):
        assert "associatePublicIpAddress" not in made.inputs("h-controller")


def test_without_a_nat_gateway_every_host_has_an_address_for_its_way_out() -> None:
    """Users do not log in there. They log in as `access.mode` says."""
    design = aws_design(hosts=(CONTROLLER, LOGIN), aws=AwsSettings(nat=False))
    assert counts(head(design))[EIP] == 2
    seen: list[AwsAddresses] = []
    declare(lambda: seen.append(AwsAddresses("s", design, RESOURCES_BY_ROLE)), aws=Machines())
    assert seen[0].public == {}


def test_disks_of_hosts_have_the_customers_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    disk = head(aws_design(aws=AwsSettings(kms_key=key))).inputs("h-controller")["rootBlockDevice"]
    assert (disk["encrypted"], disk["kmsKeyId"]) == (True, key)


def test_an_address_outlives_its_machine() -> None:
    made = head(ssh_design())
    assert made.inputs("h-controller")["primaryNetworkInterface"] == {"networkInterfaceId": "s-controller-id"}
    assert made.inputs("s-controller-public")["networkInterface"] == "s-controller-id"
    assert made.inputs("s-controller") == {
        "description": "controller of cluster c",
        "subnetId": "subnet-head",
        "securityGroups": ["sg-head"],
        "tags": {
            "Name": "c-controller",
            "slurm-stacks:cluster": "c",
            "slurm-stacks:stack": "test",
            "slurm-stacks:host": "controller",
        },
    }
    assert made.after("s-controller") == set(), "there before any machine is"
    assert made.after("s-controller-public") == {"dependency", "s-controller"}, (
        "no public address without a gateway"
    )


def test_neither_a_new_image_nor_new_user_data_touches_a_head_with_jobs() -> None:
    asked = head(aws_design()).asked["h-controller"]
    assert set(asked.ignoreChanges) == {"ami", "userData", "userDataBase64"}
    assert asked.deleteBeforeReplace is True, "its address has one machine at a time"


def test_what_a_head_is_made_of() -> None:
    made = head(aws_design(hosts=(replace(CONTROLLER, disk_gib=123),))).inputs("h-controller")
    assert (made["ami"], made["instanceType"]) == (AMI, "m5.large")
    assert made["iamInstanceProfile"] == "controller-profile"
    assert made["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
        "instanceMetadataTags": "enabled",
    }
    disk = made["rootBlockDevice"]
    assert (disk["volumeSize"], disk["encrypted"], disk["deleteOnTermination"]) == (123, True, True)
    assert made["tags"]["slurm-stacks:bucket"] == "bucket-1", "by which its host keys are found"
    assert "--role controller --host controller" in made["userData"]
    assert made["userDataReplaceOnChange"] is False


def test_ec2_brings_heads_back_whose_host_fails() -> None:
    """Simplified automatic recovery. A type that lacks it takes the option all the same."""
    made = head(aws_design(hosts=(CONTROLLER, LOGIN)))
    options = [made.inputs(f"h-{host}")["maintenanceOptions"] for host in ("controller", LOGIN.name)]
    assert options == [{"autoRecovery": "default"}] * 2


def test_only_a_login_machines_metadata_reaches_containers() -> None:
    made = head(aws_design(hosts=(CONTROLLER, replace(LOGIN, open_metadata=True))))
    options = {host: made.inputs(f"h-{host}")["metadataOptions"] for host in ("controller", LOGIN.name)}
    assert {host: option["httpPutResponseHopLimit"] for host, option in options.items()} == {
        "controller": 1,
        LOGIN.name: 2,
    }
    assert {option["httpTokens"] for option in options.values()} == {"required"}


def test_a_hosts_own_image_wins() -> None:
    own = replace(CONTROLLER, image="ami-0fedcba9876543210")
    assert head(aws_design(hosts=(own,))).inputs("h-controller")["ami"] == "ami-0fedcba9876543210"


def test_a_head_waits_for_what_it_stands_on() -> None:
    assert head(aws_design()).after("h-controller") == {"dependency", "s-controller"}
