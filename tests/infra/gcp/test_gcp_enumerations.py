"""The words that the components and the checks give to Compute Engine are known to Google's own client."""

from __future__ import annotations

from typing import Any

from google.cloud import compute_v1 as gce

from infra.gcp.network import GcpNetwork
from infra.gcp.storage import GcpStorage
from infra.instance_types.catalog import catalog
from tests.support.gcp_mocks import declare, gcp_design


def known(enumeration: Any) -> set[str]:
    return set(enumeration.__members__)


def test_words_of_the_network() -> None:
    made = declare(lambda: GcpNetwork("n", gcp_design(), ()))
    nat, vpc = made.inputs("n-nat"), made.inputs("n-vpc")
    assert nat["natIpAllocateOption"] in known(gce.RouterNat.NatIpAllocateOption)
    assert nat["sourceSubnetworkIpRangesToNat"] in known(gce.RouterNat.SourceSubnetworkIpRangesToNat)
    (subnetwork,) = nat["subnetworks"]
    asked = known(gce.RouterNatSubnetworkToNat.SourceIpRangesToNat)
    assert set(subnetwork["sourceIpRangesToNats"]) <= asked
    assert vpc["routingMode"] in known(gce.NetworkRoutingConfig.RoutingMode)
    assert made.inputs("n-compute-iap")["direction"] in known(gce.Firewall.Direction)


def test_words_of_disks() -> None:
    modes: list[str] = []

    def program() -> None:
        design = gcp_design()
        attached = GcpStorage("s", design, GcpNetwork("n", design, ())).attached()
        modes.extend(str(disk.mode) for disk in attached)

    declare(program)
    assert set(modes) <= known(gce.AttachedDisk.Mode)
    assert len(modes) == 2


def test_gpus_of_the_snapshot_have_quotas_of_their_own() -> None:
    metrics = known(gce.Quota.Metric)
    for name, gpu in catalog().attachable.items():
        assert gpu.provider == "gcp"
        assert gpu.name == f"nvidia-tesla-{name}"
        assert {f"NVIDIA_{name.upper()}_GPUS", f"PREEMPTIBLE_NVIDIA_{name.upper()}_GPUS"} <= metrics
        # Google attaches GPUs in powers of two. The most vCPUs of the machine never fall as their number
        # grows.
        counts = sorted(gpu.max_vcpus)
        assert counts == [2**power for power in range(len(counts))]
        bounds = [gpu.max_vcpus[count] for count in counts]
        assert bounds == sorted(bounds)
