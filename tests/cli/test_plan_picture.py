"""A plan's overview: the parts of the cluster, and details that a resource's name does not show."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from cli.console.plan import note, picture

PARTITION = {
    "name": "gpu",
    "machine": "big",
    "min": 1,
    "max": 4,
    "cpus": 8,
    "memory_mib": 2048,
    "spot": True,
    "accelerator": {"count": 2, "type": "t4", "gres": "gpu"},
    "time_limit": "INFINITE",
}
CLUSTER = {
    "name": "c[x]",
    "provider": "aws",
    "region": "r",
    "zone": None,
    "scheduler": {"name": "slurm"},
    "partitions": [PARTITION],
    "login": {"ssh": "ssh me@<address.public_ip>"},
}
PARTS = [
    {"name": "controller", "what": "small", "idle": 0.5, "max": 0.5},
    {"name": "partition gpu", "what": "big", "idle": 1.0, "max": 4.0},
    {"name": "/fsx", "what": "fsx", "idle": None, "max": None},
]
POOLS: list[dict[str, Any]] = []


def text(cluster: Any) -> str:
    additions = [{"name": "hooks", "what": "a[b].sh on all"}]
    plan = {
        "stack": "s",
        "outputs": {"cluster": cluster},
        "additions": additions,
        "cost": {"parts": PARTS, "pools": POOLS},
    }
    shown = picture(plan)
    assert shown is not None
    console = Console(file=io.StringIO(), width=160)
    console.print(shown)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_a_picture_has_a_line_for_each_part_of_the_bill_and_the_way_in() -> None:
    lines = [line.split("  ") for line in text(CLUSTER).splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in lines] == [
        ["c[x]: slurm on aws r"],
        ["controller", "small", "0.50 USD an hour"],
        ["partition gpu", "1–4 × big, spot, each 8 CPUs, 2 GiB, 2 × t4 for jobs", "1.00 to 4.00 USD an hour"],
        ["/fsx", "fsx", "price unknown"],
        ["hooks", "a[b].sh on all"],
        ["log in", "./cluster ssh --stack s"],
    ]


def test_pools_stand_below_their_partition_with_the_cheapest_and_the_dearest_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = [
        {"name": "spot", "machine": "big", "min": 0, "max": 4, "cpus": 8, "memory_mib": 2048, "spot": True},
        {"name": "od", "machine": "other", "min": 0, "max": 2, "cpus": 16, "memory_mib": 4096, "spot": False},
    ]
    parts = [
        {"name": "partition gpu/spot", "what": "big", "idle": 0.0, "max": 4.0},
        {"name": "partition gpu/od", "what": "other", "idle": 0.0, "max": 6.0},
    ]
    prices = {"partition": "gpu", "mixed": False, "cheapest": 1.0, "dearest": 3.0, "job": 6.0, "max": 10.0}
    monkeypatch.setitem(globals(), "PARTS", parts)
    monkeypatch.setitem(globals(), "POOLS", [prices])
    shown = text({**CLUSTER, "partitions": [{**PARTITION, "pools": pools}], "login": None})
    lines = [[cell.strip() for cell in line.split("  ") if cell] for line in shown.splitlines()]
    assert lines[1:4] == [
        ["partition gpu", "a job gets nodes of one pool, the first in this order that has enough:",
         "1.00 to 3.00 USD a node and hour, a job at most 6.00"],
        ["pool spot", "0–4 × big, spot, each 8 CPUs, 2 GiB, 2 × t4 for jobs", "0.00 to 4.00 USD an hour"],
        ["pool od", "0–2 × other, each 16 CPUs, 4 GiB, 2 × t4 for jobs", "0.00 to 6.00 USD an hour"],
    ]  # fmt: skip


def test_static_nodes_and_cores_that_jobs_ask_for() -> None:
    cores = {"count": 32, "type": "trainium", "gres": "neuroncore"}
    shown = text({**CLUSTER, "partitions": [{**PARTITION, "min": 4, "accelerator": cores}]})
    assert "4 × big, spot, each 8 CPUs, 2 GiB, 32 NeuronCores of trainium for jobs" in shown


@pytest.mark.parametrize(
    ("limit", "words"),
    [("1-00:00:00", "24 h"), ("00:24:00", "24 min"), ("00:00:30", "30 s"), ("2-12:30:00", "60 h 30 min")],
)
def test_the_longest_run_of_a_job_is_there_in_words(limit: str, words: str) -> None:
    """24 minutes where 24 hours were meant must be seen before the first job ends."""
    shown = text({**CLUSTER, "partitions": [{**PARTITION, "time_limit": limit}]})
    assert f"each 8 CPUs, 2 GiB, 2 × t4 for jobs up to {words}" in shown


def test_without_a_cluster_or_a_login_machine() -> None:
    assert picture({"outputs": {}, "cost": {}}) is None
    assert "log in" not in text({**CLUSTER, "login": None})


@pytest.mark.parametrize(
    ("kind", "inputs", "words"),
    [
        ("aws:ec2/instance:Instance", {"instanceType": "m5.large"}, "m5.large"),
        ("aws:ec2/subnet:Subnet", {"cidrBlock": "10.0.0.0/24"}, "10.0.0.0/24"),
        ("aws:ebs/volume:Volume", {"size": 7}, "7 GiB"),
        (
            "aws:ec2/launchTemplate:LaunchTemplate",
            {
                "instanceType": "p4d.24xlarge",
                "instanceMarketOptions": {"marketType": "spot"},
                "networkInterfaces": [{}, {"interfaceType": "efa-only"}, {"interfaceType": "efa-only"}],
                "placement": {"groupName": "g"},
                "capacityReservationSpecification": {
                    "capacityReservationTarget": {"capacityReservationId": "cr-1"}
                },
            },
            "p4d.24xlarge, spot, 2 × EFA, placement group g, reserved: cr-1",
        ),
        (
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
            {"fromPort": 22.0, "cidrIpv4": "203.0.113.0/24"},
            "SSH from 203.0.113.0/24",
        ),
        (
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
            {"fromPort": 1018.0, "toPort": 1023.0, "referencedSecurityGroupId": "<x.id>"},
            "Lustre 1018–1023 from x",
        ),
        (
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
            {"fromPort": 80, "toPort": 80, "cidrIpv4": "10.0.0.0/8"},
            "port 80 from 10.0.0.0/8",
        ),
        (
            "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
            {"referencedSecurityGroupId": "<x.id>"},
            "everything to x",
        ),
        (
            "gcp:compute/firewall:Firewall",
            {
                "allows": [
                    {"protocol": "tcp", "ports": ["53", "816", "817"]},
                    {"protocol": "udp", "ports": ["53"]},
                ],
                "sourceServiceAccounts": ["c-compute@p.iam.gserviceaccount.com"],
            },
            "DNS, munge key, boot reports from c-compute",
        ),
        ("command:local:Command", {"create": "true"}, ""),
    ],
)
def test_a_resource_says_what_its_name_does_not(kind: str, inputs: dict[str, Any], words: str) -> None:
    assert note({"type": kind, "inputs": inputs}) == words
