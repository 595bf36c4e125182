"""The instance templates are exactly these, with the accelerators, placement and reservation of the stack
file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pulumi
import pytest

from infra.gcp.instance_templates import LONGEST_PREFIX, GcpInstanceTemplates, image_id, prefix
from infra.gcp.policies import permissions
from node.design.accelerators import Accelerator
from node.design.model import ClusterDesign, GcpPartition, Image, Partition
from node.elastic.drivers.gce.names import NAME_LENGTH
from tests.support import varied
from tests.support.gcp_machines import IMAGE, RESOURCES_BY_ROLE, Machines
from tests.support.gcp_mocks import CPU, GPU, declare, gcp_design
from tests.support.gcp_rules import weaknesses
from tests.support.recorder import Recorder, counts

TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
POLICY = "gcp:compute/resourcePolicy:ResourcePolicy"
COMPONENT = "slurm-stacks:index:GcpInstanceTemplates"
CLOSE = replace(CPU, instance_type="n2-standard-4", cpus=4, placement="cluster")


def templates(*partitions: Partition, preview: bool = False, **changes: Any) -> Recorder:
    design: ClusterDesign = gcp_design(**({"partitions": partitions} if partitions else {}), **changes)
    gcp = Machines(preview=preview)
    return declare(
        lambda: GcpInstanceTemplates("f", design, RESOURCES_BY_ROLE["compute"]), preview=preview, gcp=gcp
    )


def template(**changes: Any) -> dict[str, Any]:
    """The template of one partition with these changes."""
    return templates(replace(CPU, **changes)).inputs("f-cpu")


def test_nodes_retire_for_their_template_and_their_line_in_slurm_conf_and_nothing_else() -> None:
    made = varied.renewed(CLOSE, "gcp", lambda one: templates(one).inputs(f"f-{one.name}"))
    assert {"partitions.instance_type", "partitions.gcp.secure_boot", "partitions.cpus"} <= made


@pytest.mark.parametrize("preview", [False, True])
def test_templates_are_exactly_these_resources(preview: bool) -> None:
    recorder = templates(CLOSE, GPU, preview=preview)
    assert counts(recorder) == {COMPONENT: 1, TEMPLATE: 2, POLICY: 1}
    assert {recorder.parents()[name] for name in ("f-cpu", "f-gpu", "f-cpu-policy")} == {"f"}
    assert recorder.after("f-cpu") == {"f-cpu-policy"}
    assert recorder.after("f-gpu") == set()
    assert recorder.closed.count("f") == 1


def test_a_template_is_whole_but_for_zone_and_name() -> None:
    made = template(disk_gib=77)
    script = made["metadata"].pop("startup-script")
    assert made["metadata"].pop("user-data") == f"#cloud-boothook\n{script}"
    labels = {
        "slurm-stacks-cluster": "c",
        "slurm-stacks-stack": "test",
        "slurm-stacks-role": "compute",
        "slurm-stacks-partition": "cpu",
    }
    assert made == {
        "namePrefix": "c-cpu-",
        "description": "template of a node of partition cpu, cluster c",
        "instanceDescription": "node of partition cpu, cluster c",
        "project": "acme-ml",
        "machineType": "n1-standard-2",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "sourceImage": IMAGE,
                "diskSizeGb": 77,
                "diskType": "pd-balanced",
                "labels": labels,
            }
        ],
        "networkInterfaces": [{"subnetwork": "subnet-1"}],
        "scheduling": {
            "automaticRestart": False,
            "onHostMaintenance": "MIGRATE",
            "preemptible": False,
            "provisioningModel": "STANDARD",
        },
        "serviceAccount": {
            "email": "compute@acme-ml.iam",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "shieldedInstanceConfig": {
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
            "enableSecureBoot": False,
        },
        "metadata": {
            "enable-oslogin": "TRUE",
            "block-project-ssh-keys": "TRUE",
            "serial-port-enable": "FALSE",
        },
        "labels": labels,
    }
    assert "--role compute" in script
    assert " --host " not in script, "each finds its name by its instance's"


def test_disk_and_processors_that_the_stack_file_asks_for() -> None:
    made = template(gcp=GcpPartition(disk_type="pd-ssd", min_cpu_platform="Intel Skylake"))
    assert made["disks"][0]["diskType"] == "pd-ssd"
    assert made["minCpuPlatform"] == "Intel Skylake"


def test_a_template_is_replaced_before_the_old_one_goes() -> None:
    """Its content cannot change, so its name is new each time: two templates must exist at once."""
    made = templates().asked["f-cpu"]
    assert "name" not in made.object.fields
    assert not made.deleteBeforeReplace


@pytest.mark.parametrize("count", [1, 2, 4])
def test_gpus_are_attached_by_one_number_and_keep_the_machine_where_it_is(count: int) -> None:
    made = template(accelerator=Accelerator("v100", count))
    assert made["guestAccelerators"] == [{"type": "nvidia-tesla-v100", "count": count}]
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE", "a machine with GPUs cannot move"
    assert made["machineType"] == "n1-standard-2"


def test_a_machine_that_always_has_its_gpus_names_none() -> None:
    made = template(instance_type="a2-highgpu-1g", accelerator=Accelerator("a100", 1))
    assert "guestAccelerators" not in made
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"


@pytest.mark.parametrize("kind", ["SEV", "SEV_SNP", "TDX"])
def test_a_confidential_node_is_stopped_for_maintenance(kind: str) -> None:
    overrides = json.dumps({"confidential_instance_config": {"confidential_instance_type": kind}})
    made = template(gcp=GcpPartition(instance_template_overrides=overrides))
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE", "the template is made, and no node starts"
    assert made["confidentialInstanceConfig"] == {"confidentialInstanceType": kind}


def test_a_node_that_cannot_move_is_stopped_for_maintenance() -> None:
    made = template(instance_type="h4d-standard-192")
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert made["scheduling"]["automaticRestart"] is False, "it would come back without its jobs"


def test_what_spot_takes_back_is_gone_and_never_comes_back_alone() -> None:
    assert template(spot=True)["scheduling"] == {
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptible": True,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
    }


def test_nodes_close_together_have_a_compact_policy_of_their_partition() -> None:
    recorder = templates(CLOSE)
    policy = recorder.inputs("f-cpu-policy")
    assert policy["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}, "of any number of machines"
    assert (policy["name"], policy["region"]) == ("c-cpu", "europe-west4")
    assert recorder.inputs("f-cpu")["resourcePolicies"] == "https://compute/f-cpu-policy"
    assert recorder.inputs("f-cpu")["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_a_full_reservation_never_falls_back_to_on_demand() -> None:
    assert template(reservation="ours")["reservationAffinity"] == {
        "type": "SPECIFIC_RESERVATION",
        "specificReservation": {"key": "compute.googleapis.com/reservation-name", "values": ["ours"]},
    }
    assert "reservationAffinity" not in template()


def test_a_shared_reservation_is_named_with_its_project() -> None:
    """Its form is that of Compute Engine's ReservationAffinity.values."""
    shared = "projects/other-lab/reservations/ours"
    assert template(reservation=shared)["reservationAffinity"]["specificReservation"]["values"] == [shared]
    placed = template(reservation=shared, gcp=GcpPartition(placement_policy="its-policy"))
    assert placed["resourcePolicies"].startswith("projects/other-lab/regions/"), "a policy of the owner's"


def test_the_policy_of_a_reservation_is_used_and_not_made() -> None:
    """slurm-gcp does the same (`update_reservation_props`): the reservation's own policies, and no others."""
    own = replace(
        CLOSE, placement="none", reservation="close", gcp=GcpPartition(placement_policy="its-policy")
    )
    recorder = templates(own)
    assert counts(recorder) == {COMPONENT: 1, TEMPLATE: 1}
    inputs = recorder.inputs("f-cpu")
    assert inputs["resourcePolicies"] == "projects/acme-ml/regions/europe-west4/resourcePolicies/its-policy"
    assert inputs["scheduling"]["onHostMaintenance"] == "TERMINATE", "nothing with a policy moves elsewhere"
    assert "compute.resourcePolicies.use" in permissions(gcp_design(partitions=(own,)))
    assert "compute.resourcePolicies.use" not in permissions(gcp_design(partitions=(CPU,)))


def test_secure_boot_is_the_partitions_choice() -> None:
    assert template(gcp=GcpPartition(secure_boot=True))["shieldedInstanceConfig"]["enableSecureBoot"] is True


def test_a_partition_with_an_open_metadata_address_has_another_template() -> None:
    """Otherwise the driver would not see which nodes booted before the change. Their boot reads settings."""
    shut, opened = template()["metadata"], template(open_metadata=True)["metadata"]
    assert opened == {**shut, "slurm-stacks-open-metadata": "true"}


def test_local_ssds_come_as_nvme_beside_the_root_disk() -> None:
    root, *scratch = template(local_ssds=2)["disks"]
    assert root["boot"] is True
    ssd = {"type": "SCRATCH", "diskType": "local-ssd", "interface": "NVME", "diskSizeGb": 375}
    assert scratch == [{**ssd, "autoDelete": True}] * 2


def test_an_image_of_the_partitions_own_wins() -> None:
    image = "projects/acme-ml/global/images/family/slurm"
    assert template(image=image)["disks"][0]["sourceImage"] == image


def test_all_nodes_get_the_same_script() -> None:
    recorder = templates()
    first, second = (recorder.inputs(name)["metadata"]["startup-script"] for name in ("f-cpu", "f-gpu"))
    assert first == second


@pytest.mark.parametrize("cluster", ["c", "slurm8", "k" * 40])
@pytest.mark.parametrize("partition", ["debug", "p" * 20, "q" * 60])
def test_templates_of_long_names_have_names_that_google_takes_and_that_differ(
    cluster: str, partition: str
) -> None:
    text = prefix(cluster, partition)
    assert len(text) <= LONGEST_PREFIX
    assert len(text) + 26 <= NAME_LENGTH, "what the provider writes behind it"
    assert text.endswith("-")
    assert "--" not in text
    assert text != prefix(cluster, f"{partition}x")


@pytest.mark.parametrize("partition", [CPU, GPU, CLOSE, replace(CPU, spot=True)])
def test_templates_have_no_weakness(partition: Partition) -> None:
    recorder = templates(partition)
    resources = [
        {"type": kind, "name": name, "inputs": recorder.inputs(name)}
        for name, kind in recorder.types().items()
    ]
    assert weaknesses(resources) == []


def image(wanted: Image) -> tuple[Any, list[str]]:
    seen: list[Any] = []
    gcp = Machines()
    declare(lambda: pulumi.Output.from_input(image_id(wanted)).apply(seen.append), gcp=gcp)
    (found,) = seen
    return found, gcp.calls


def test_ubuntu_is_the_newest_of_its_family_once_and_for_all_machines() -> None:
    """The image has its own name. With the family's name, nodes of one template could differ."""
    assert image(Image("ubuntu-24.04")) == (IMAGE, ["gcp:compute/getImage:getImage"])


@pytest.mark.parametrize("own", ["projects/lab/global/images/slurm-1", "slurm-1", "family/slurm"])
def test_an_image_of_ones_own_needs_no_question(own: str) -> None:
    assert image(Image(id=own)) == (own, [])


@pytest.mark.parametrize("wanted", [Image("ubuntu-24.04", bake=True), Image("ubuntu-24.04")])
def test_a_baked_image_begins_with_the_same(wanted: Image) -> None:
    assert image(wanted)[0] == IMAGE
