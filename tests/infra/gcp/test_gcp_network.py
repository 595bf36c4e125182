"""The network on Google Cloud: exact resources, and that only those who are named can come in."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from infra.clouds import firewall
from infra.gcp import names
from infra.gcp.names import labels, value
from infra.gcp.network import IAP, GcpNetwork, check_zones, ingress_rules, subnetwork_cidr, with_zones
from node.design.model import Access, ClusterDesign, Network
from tests.support import sentences
from tests.support.gcp_machines import Machines
from tests.support.gcp_mocks import (
    CPU,
    EXISTING,
    FILESTORE,
    GPU,
    LOGIN,
    OWN,
    PROJECT,
    declare,
    gcp_design,
    gcp_ssh_design,
)
from tests.support.recorder import Recorder, counts, unknown

FIREWALL = "gcp:compute/firewall:Firewall"
OWN_VPC = {
    "gcp:compute/network:Network": 1,
    "gcp:compute/subnetwork:Subnetwork": 1,
    "gcp:compute/router:Router": 1,
    "gcp:compute/routerNat:RouterNat": 1,
}
WITH_LOGIN = gcp_design(hosts=(*gcp_design().hosts, LOGIN))
VARIANTS = {
    "iap": gcp_design(),
    "iap-login": WITH_LOGIN,
    "ssh": gcp_ssh_design(),
    "ssh-login": gcp_ssh_design("203.0.113.0/24", "198.51.100.7/32", login=True),
    "existing": gcp_design(network=EXISTING),
    "filestore": gcp_design(mounts=(FILESTORE,)),
}


_made: dict[str, Recorder] = {}


def network(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    """The resources of a network, declared once for all tests."""
    key = f"{preview} {design}"
    if key not in _made:
        _made[key] = declare(lambda: GcpNetwork("n", design, ()), preview=preview)
    return _made[key]


def firewalls(recorder: Recorder) -> dict[str, dict[str, Any]]:
    return {name: recorder.inputs(name) for name, kind in recorder.types().items() if kind == FIREWALL}


def account(role: str) -> str:
    return f"c-{role}@{PROJECT}.iam.gserviceaccount.com"


# --- what there is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_is_exactly_these_resources(variant: str) -> None:
    design = VARIANTS[variant]
    made = network(design)
    assert counts(made) == {
        "slurm-stacks:index:GcpNetwork": 1,
        **({} if design.network.vpc else OWN_VPC),
        FIREWALL: len(ingress_rules(design)),
    }
    parents = made.parents()
    assert {parents[name] for name in made.types() if name != "n"} == {"n"}
    assert all(name.startswith("n-") for name in made.types() if name != "n")
    assert made.closed.count("n") == 1
    assert {made.inputs(name)["project"] for name in made.types() if name != "n"} == {PROJECT}


def test_one_subnetwork_with_all_addresses_and_a_way_out() -> None:
    made = network(VARIANTS["iap"])
    vpc, subnetwork, nat = (made.inputs(f"n-{part}") for part in ("vpc", "subnetwork", "nat"))
    assert (vpc["name"], vpc["autoCreateSubnetworks"]) == ("c", False)
    assert subnetwork["ipCidrRange"] == "10.0.0.0/16"
    assert subnetwork["privateIpGoogleAccess"] is True
    assert subnetwork["network"] == "n-vpc-id"
    assert "logConfig" not in subnetwork, "flow logs cost more than the network"
    assert (nat["natIpAllocateOption"], nat["router"]) == ("AUTO_ONLY", "c")
    assert nat["sourceSubnetworkIpRangesToNat"] == "LIST_OF_SUBNETWORKS"
    assert nat["subnetworks"] == [{"name": "n-subnetwork-id", "sourceIpRangesToNats": ["PRIMARY_IP_RANGE"]}]
    ports = int(nat["minPortsPerVm"]), int(nat["maxPortsPerVm"])
    assert all(number >= 32 and number & (number - 1) == 0 for number in ports), "powers of two"
    assert nat["enableDynamicPortAllocation"] is not nat["enableEndpointIndependentMapping"]


def test_the_nat_of_a_cluster_of_one_letter_has_a_name_of_more() -> None:
    """The upstream provider requires two letters in the name of a RouterNat, and one in all other names."""
    for cluster, wanted in (("c", "c-nat"), ("ab", "ab")):
        made = network(gcp_design(name=cluster))
        assert (made.inputs("n-nat")["name"], made.inputs("n-router")["name"]) == (wanted, cluster)


@pytest.mark.parametrize("preview", [False, True])
def test_an_existing_network_keeps_all_that_it_has(preview: bool) -> None:
    seen: list[Any] = []

    def program() -> None:
        built = GcpNetwork("n", VARIANTS["existing"], ())
        built.network.apply(seen.append)
        built.subnetwork.apply(seen.append)

    made = declare(program, preview=preview)
    assert not set(counts(made)) & set(OWN_VPC)
    assert set(seen) == {
        "projects/acme-ml/global/networks/corp",
        "projects/acme-ml/regions/europe-west4/subnetworks/corp-ml",
    }
    assert {rule["network"] for rule in firewalls(made).values()} == {"projects/acme-ml/global/networks/corp"}


def test_a_preview_invents_nothing() -> None:
    made = network(VARIANTS["ssh-login"], preview=True)
    assert unknown(made, "n-subnetwork") == {"network"}
    assert all(unknown(made, name) == {"network"} for name in firewalls(made))


def test_machines_wait_for_the_way_out_and_the_rules() -> None:
    seen: list[GcpNetwork] = []
    declare(lambda: seen.append(GcpNetwork("n", VARIANTS["ssh"], ())))
    assert len(seen[0].routes) == 1 + len(ingress_rules(VARIANTS["ssh"]))


# --- who reaches whom -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_nobody_comes_in_who_was_not_named(variant: str) -> None:
    design = VARIANTS[variant]
    rules = firewalls(network(design))
    wide = {name: rule for name, rule in rules.items() if "sourceRanges" in rule}
    targets = {target for rule in wide.values() for target in rule["targetServiceAccounts"]}
    if design.access.mode == "iap":
        assert {tuple(rule["sourceRanges"]) for rule in wide.values()} == {("35.235.240.0/20",)}
        assert targets == {account(role) for role in firewall.roles(design)}
    else:
        assert [rule["sourceRanges"] for rule in wide.values()] == [list(design.access.ssh_cidrs)]
        assert targets == {account(host.role) for host in design.hosts if "public" in host.tags}
    assert all(rule["allows"] == [{"protocol": "tcp", "ports": ["22"]}] for rule in wide.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_inside_machines_are_told_by_their_accounts(variant: str) -> None:
    design = VARIANTS[variant]
    for rule in firewalls(network(design)).values():
        assert rule["direction"] == "INGRESS"
        assert ("sourceServiceAccounts" in rule) != ("sourceRanges" in rule)
        assert len(rule["targetServiceAccounts"]) == 1, "without a target it is the whole network's"
        assert not {"sourceTags", "targetTags", "denies"} & set(rule)


def test_the_rules_of_slurm_and_of_the_exports() -> None:
    found = {
        (rule["sourceServiceAccounts"][0], rule["targetServiceAccounts"][0]): rule["allows"]
        for rule in firewalls(network(WITH_LOGIN)).values()
        if "sourceServiceAccounts" in rule
    }
    controller, login, compute = map(account, ("controller", "login", "compute"))

    def tcp(*ports: str) -> list[dict[str, Any]]:
        return [{"protocol": "tcp", "ports": list(ports)}]

    dns = {"protocol": "udp", "ports": ["53"]}
    assert found == {
        (compute, compute): [{"protocol": "all"}],
        (controller, compute): tcp("6818", "22"),
        (login, compute): tcp("6818", "22"),
        (compute, controller): [*tcp("32768-60999", "6817", "817", "816", "53", "2049"), dns],
        (compute, login): tcp("32768-60999"),
        (login, controller): [*tcp("816", "53", "6817", "22", "2049"), dns],
        (controller, login): tcp("32768-60999"),
    }


def test_without_exports_port_2049_is_shut() -> None:
    ports = {port for rule in ingress_rules(VARIANTS["filestore"]) for port in rule.ports}
    assert firewall.NFS not in ports
    assert firewall.SLURMCTLD in ports


def test_networks_without_mode_ssh_open_nothing() -> None:
    """The configuration refuses this. If it did not, the port would still stay closed."""
    design = dataclasses.replace(gcp_ssh_design(), access=Access("iap", ("0.0.0.0/0",)))
    ranges = {cidr for rule in ingress_rules(design) for cidr in rule.ranges}
    assert ranges == {IAP}


def test_a_cluster_reached_by_ssh_leaves_the_proxy_out() -> None:
    assert all(IAP not in o.ranges for o in ingress_rules(VARIANTS["ssh"]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_fit_with_the_longest_cluster(variant: str) -> None:
    design = dataclasses.replace(VARIANTS[variant], name="c" * 40)
    names = [rule["name"] for rule in firewalls(network(design)).values()]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 63


# --- addresses, accounts, labels --------------------------------------------------------------------------


def test_the_subnetwork_has_all_of_the_networks_addresses() -> None:
    assert subnetwork_cidr(gcp_design(network=dataclasses.replace(OWN, cidr="10.0.0.0/27"))) == "10.0.0.0/27"


def test_an_existing_networks_room_is_its_owners() -> None:
    huge = gcp_design(network=EXISTING, partitions=(dataclasses.replace(CPU, max=5000),))
    assert counts(network(huge))[FIREWALL]
    assert isinstance(EXISTING, Network)


@pytest.mark.parametrize("cluster", ["c", "c" * 20, "c" * 40, "a-cluster-of-a-name-that-is-too-long"])
def test_account_ids_fit(cluster: str) -> None:
    found = [names.account_id(cluster, role) for role in ("controller", "login", "compute")]
    assert len(set(found)) == 3
    for name in found:
        assert 6 <= len(name) <= 30
        assert name[0].isalpha()
        assert "--" not in name


def test_clusters_that_begin_alike_have_accounts_of_their_own() -> None:
    one, other = "training-cluster-of-team-a", "training-cluster-of-team-b"
    assert names.account_id(one, "compute") != names.account_id(other, "compute")


def test_an_accounts_address() -> None:
    assert names.account_email(gcp_design(), "login") == account("login")
    domain = gcp_design(project="example.com:acme")
    assert names.account_email(domain, "login") == "c-login@acme.example.com.iam.gserviceaccount.com"


def test_labels_are_as_google_takes_them() -> None:
    design = gcp_design(stack="Dev.Team/Alpha" + "x" * 80)
    made = labels(design, role="login", host="login-0")
    assert made["slurm-stacks-cluster"] == "c"
    assert made["slurm-stacks-host"] == "login-0"
    assert made["slurm-stacks-stack"].startswith("dev-team-alphax")
    assert len(made["slurm-stacks-stack"]) == 63
    assert value("cpu_1-a") == "cpu_1-a"


A, B, C = "europe-west4-a", "europe-west4-b", "europe-west4-c"


def placed_zones(design: ClusterDesign) -> dict[str, tuple[str, ...]]:
    return {p.name: p.zones for p in with_zones(design).partitions}


def test_a_zone_that_nobody_names_is_the_stacks_own() -> None:
    assert placed_zones(gcp_design()) == {"cpu": (A,), "gpu": (A,)}


def test_a_partitions_zones_win_over_the_networks_and_keep_their_order() -> None:
    partitions = (replace(CPU, zones=(C, B)), GPU)
    design = gcp_design(partitions=partitions, network=Network(cidr="10.0.0.0/16", zones=(B, A)))
    assert placed_zones(design) == {"cpu": (C, B), "gpu": (B, A)}


def test_nodes_close_together_are_in_one_zone() -> None:
    close = replace(CPU, placement="cluster", zones=(B, A))
    assert placed_zones(gcp_design(partitions=(close,))) == {"cpu": (B,)}


def compared(design: ClusterDesign, **offered: dict[str, int]) -> list[str]:
    known = {zone.replace("_", "-"): machines for zone, machines in offered.items()}
    gcp = Machines(machines=known or None)
    declare(lambda: check_zones(with_zones(design)), gcp=gcp)
    return gcp.calls


def test_each_zone_is_asked_once() -> None:
    design = gcp_design(partitions=(replace(CPU, zones=(A, B)), replace(GPU, zones=(B,))))
    assert compared(design) == ["gcp:compute/getMachineTypes:getMachineTypes"] * 2


def test_a_machine_that_a_zone_does_not_offer_is_named_with_it() -> None:
    both = {"n1-standard-2": 2, "n1-standard-8": 8}
    design = gcp_design(partitions=(CPU, replace(GPU, zones=(B,))))
    with sentences.raises("zones.no-machine", B, "n1-standard-8"):
        compared(design, europe_west4_a=both, europe_west4_b={"n1-standard-2": 2})
    with sentences.raises("zones.no-machine", A, "n1-standard-2"):
        compared(design, europe_west4_a={"n1-standard-8": 8}, europe_west4_b=both)


def test_a_machine_that_is_not_what_the_snapshot_says_is_named() -> None:
    """Otherwise Slurm would drain the nodes one after another."""
    offered = {"n1-standard-2": 2, "n1-standard-8": 6}
    with sentences.raises("machine.vcpus", "n1-standard-8", "instance_types"):
        compared(gcp_design(), europe_west4_a=offered)


def test_an_offline_plan_compares_nothing() -> None:
    compared(gcp_design(), europe_west4_a={"<getMachineTypes.machineTypes[0].name>": 0})
