"""Tests of the configuration for containers."""

from __future__ import annotations

from typing import Any

import pytest

from node.design.accelerators import Accelerator
from node.design.model import Partition, Settings, Site, SlurmSettings
from node.design.sites import LocalSite
from node.slurm.conf import render
from node.slurm.version import Version
from tests.support.doubles import design

VERSIONS: tuple[Version, ...] = ((22, 5), (23, 11), (24, 11))
FLEET = (
    Partition("debug", "local.small", 1, 1024, 0, 4, default=True),
    Partition("gpu", "local.medium", 2, 4096, 1, 2, Accelerator("v100", 4, simulated=True), exclusive=True),
)


def files(version: Version, *, cgroups: str | None = None, **slurm: Any) -> dict[str, str]:
    site = Site(
        root="/",
        user="slurm",
        controller_host="controller",
        controller_address="10.99.0.2",
        cloud_dns=True,
        cgroups=cgroups,
        cloud=LocalSite("/run/agent.sock"),
    )
    cluster_design = design(*FLEET, isolation="container", slurm=SlurmSettings(**slurm))
    return render(Settings(cluster_design, site), version)


def options(text: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, value in pairs if key not in ("NodeName", "PartitionName")}


COMMON = {
    "ClusterName": "t",
    "SlurmctldHost": "controller(10.99.0.2)",
    "SlurmctldPort": "6817",
    "SlurmdPort": "6818",
    # munge's default socket is used, because every machine has its own munged.
    "AuthInfo": "cred_expire=30",
    "StateSaveLocation": "/var/spool/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd",
    "SlurmctldPidFile": "/run/slurm-stacks/slurmctld.pid",
    "SlurmdPidFile": "/run/slurm-stacks/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "SlurmdParameters": "config_overrides",
    "LaunchParameters": "use_interactive_step",
    "TreeWidth": "65533",
    "PropagateResourceLimitsExcept": "MEMLOCK",
    "SlurmctldParameters": (
        "cloud_dns,idle_on_node_suspend,reboot_from_controller,power_save_interval=1,enable_configless"
    ),
    "ResumeProgram": "/opt/slurm-stacks/current/bin/resume",
    "PrologSlurmctld": "/opt/slurm-stacks/current/bin/prolog-slurmctld",
    "GresTypes": "gpu",
    "JobAcctGatherType": "jobacct_gather/none",
}
BY_ROOT = COMMON | {
    "SlurmUser": "slurm",
    "ProctrackType": "proctrack/cgroup",
    # Memory is limited, but nothing is bound to cores, because all machines share them.
    "TaskPlugin": "task/cgroup",
    "SelectTypeParameters": "CR_CPU_Memory",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_slurm_conf(version: Version) -> None:
    found = options(files(version)["slurm.conf"])
    assert {key: found.get(key) for key in BY_ROOT} == BY_ROOT
    assert "SlurmdUser" not in found
    assert ("PrivateData" in found) == (version == (22, 5))


@pytest.mark.parametrize("version", VERSIONS)
def test_cgroups_are_handed_on_by_systemd_or_lie_aside(version: Version) -> None:
    limits = {"ConstrainCores": "no", "ConstrainRAMSpace": "yes", "ConstrainDevices": "no"}
    assert options(files(version)["cgroup.conf"]) == {"CgroupPlugin": "autodetect", **limits}
    # On a host with cgroups version 1 the container's systemd has a hierarchy without controllers.
    place = "/srv/slurm-stacks/cgroup"
    old = options(files(version, cgroups=place)["cgroup.conf"])
    assert old == {"CgroupPlugin": "cgroup/v1", "CgroupMountpoint": place, **limits}


def test_nodes_and_partitions() -> None:
    text = files((22, 5))["slurm.conf"]
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert nodes == [
        "NodeName=debug-[0-3] CPUs=1 Sockets=1 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=1024 "
        "Feature=local.small,ondemand Weight=10 State=CLOUD",
        "NodeName=gpu-0 CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4096 Gres=gpu:v100:4 "
        "Feature=local.medium,ondemand,v100 Weight=1 State=CLOUD",
        "NodeName=gpu-1 CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4096 Gres=gpu:v100:4 "
        "Feature=local.medium,ondemand,v100 Weight=10 State=CLOUD",
    ], "by name: no address, no port"
    # A job that requests no memory gets the share of its CPUs.
    shares = [part for line in text.splitlines() for part in line.split() if part.startswith("DefMem")]
    assert shares == ["DefMemPerCPU=1024", "DefMemPerCPU=2048"]


def test_simulated_devices_are_files_that_every_machine_has() -> None:
    text = files((22, 5))["gres.conf"]
    assert (
        "NodeName=gpu-[0-1] Name=gpu Type=v100 File=/dev/null,/dev/./null,/dev/././null,/dev/./././null"
        in text
    )


def test_with_accounting_usage_is_gathered() -> None:
    found = options(files((22, 5), accounting=True)["slurm.conf"])
    assert found["JobAcctGatherType"] == "jobacct_gather/cgroup"
    assert found["AccountingStorageHost"] == "10.99.0.2"
    assert "AccountingStoragePass" not in found
