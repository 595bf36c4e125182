"""Google Cloud for the tests of its components: designs, and a mock that answers like the cloud."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pulumi.runtime import mocks

from node.design.accelerators import Accelerator
from node.design.model import Access, ClusterDesign, Host, Network, Partition
from node.design.storage import Mount
from tests.support.recorder import Recorder, run

PROJECT = "acme-ml"
REGION = "europe-west4"
ZONE = "europe-west4-a"
CPU = Partition("cpu", "n1-standard-2", 2, 7055, 0, 10, default=True, disk_gib=50)
V100 = Accelerator("v100", 2)
GPU = Partition("gpu", "n1-standard-8", 8, 29420, 0, 4, accelerator=V100, disk_gib=50)
CONTROLLER = Host("controller", "controller", ("controller", "nfs", "login"), "n1-standard-2", 50)
LOGIN = Host("login-0", "login", ("login",), "n1-standard-2", 50)
NFS = (
    Mount("/home", "nfs", served_by="controller", size_gib=50),
    Mount("/apps", "nfs", served_by="controller", size_gib=60),
)
FILESTORE = Mount("/home", "filestore", size_gib=1024, deployment="BASIC_HDD")
OWN = Network(cidr="10.0.0.0/16", public_cidr="10.0.0.0/17", private_cidr="10.0.128.0/17")
EXISTING = Network(vpc="corp", private_subnets=("corp-ml",))
MACHINES = {"n1-standard-2": 2, "n1-standard-8": 8, "n2-standard-4": 4}
"""Machine types that every zone has, and their vCPUs."""
UNIQUE = "100000000000000000001"
"""The unique id that the mock gives to every service account."""


def gcp_design(**changes: Any) -> ClusterDesign:
    """A design with two partitions, one host that serves NFS, the Identity-Aware Proxy, its own network."""
    design = ClusterDesign(
        "c",
        "test",
        "gcp",
        "vm",
        (CONTROLLER,),
        (CPU, GPU),
        NFS,
        region=REGION,
        zone=ZONE,
        project=PROJECT,
        access=Access("iap"),
        network=OWN,
    )
    return dataclasses.replace(design, **changes)


def gcp_ssh_design(*cidrs: str, login: bool = False, **changes: Any) -> ClusterDesign:
    """Like `gcp_design`, but reached over SSH."""
    public = (*(LOGIN if login else CONTROLLER).tags, "public")
    hosts = (
        (CONTROLLER, dataclasses.replace(LOGIN, tags=public))
        if login
        else (dataclasses.replace(CONTROLLER, tags=public),)
    )
    return gcp_design(hosts=hosts, access=Access("ssh", cidrs or ("203.0.113.0/24",)), **changes)


class Gcp(mocks.Mocks):
    """Answers with ids, links and addresses. In a preview the answers are empty, like the engine's.

    Args:
        machines: zone -> machine type -> vCPUs; every zone has `MACHINES` by default.
    """

    def __init__(self, *, preview: bool = False, machines: Mapping[str, Mapping[str, int]] | None = None):
        self._preview = preview
        self._machines = machines
        self.calls: list[str] = []

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if self._preview:
            return "", args.inputs
        known: dict[str, Any] = {
            "name": f"{args.name}-name",
            "selfLink": f"https://compute/{args.name}",
            "uniqueId": UNIQUE,
        }
        match args.typ:
            case "gcp:serviceaccount/account:Account":
                email = f"{args.inputs['accountId']}@{PROJECT}.iam.gserviceaccount.com"
                known |= {"email": email, "member": f"serviceAccount:{email}"}
                known["name"] = f"projects/{PROJECT}/serviceAccounts/{email}"
            case "gcp:projects/iAMCustomRole:IAMCustomRole":
                known["name"] = f"projects/{PROJECT}/roles/{args.inputs['roleId']}"
            case "gcp:compute/address:Address":
                known["address"] = f"{args.name}-address"
            case "gcp:filestore/instance:Instance":
                (network,) = args.inputs["networks"]
                known["networks"] = [{**network, "ipAddresses": ["10.9.8.2"]}]
                return f"{args.name}-id", {**args.inputs, **known}
        return f"{args.name}-id", {**known, **args.inputs}

    def call(self, args: mocks.MockCallArgs) -> Any:
        self.calls.append(args.token)
        match args.token:
            case "gcp:compute/getMachineTypes:getMachineTypes":
                zone = args.args["zone"]
                having = MACHINES if self._machines is None else self._machines.get(zone, {})
                found = [{"name": name, "guestCpus": cpus} for name, cpus in having.items()]
                return {"machineTypes": found, "id": "x", **args.args}
        raise AssertionError(args.token)


def declare(program: Callable[[], Any], *, preview: bool = False, gcp: Gcp | None = None) -> Recorder:
    """Run a program against Google Cloud's mock."""
    recorder = Recorder(gcp or Gcp(preview=preview))
    run(recorder, program, preview=preview)
    return recorder
