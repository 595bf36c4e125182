"""The published reference architectures: each plan beside a transcription of its tables, key by key.

`SEED` has the words and figures of AWS's page "Distributed Training Reference Architectures" for
ParallelCluster, in its sections 3.2 (what to replace), 4.1 (compute), 4.2 and 4.3 (reservation, network) and
4.4 (storage).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import main as cli
from cli.commands.doctor import general as doctor
from cli.commands.operate import make_plan
from cli.engine.plan import Plan
from cli.findings import Severity
from infra.config import ConfigError, load_file, parse, placeholders
from infra.errors import EXIT_USAGE
from infra.program.stack import Stack
from tests.support.checkout import ROOT
from tests.support.stack_values import FILLED_IN, filled_in, values

# Section -> key -> the page's value.
HEAD = {"machine": "m5.8xlarge", "root_gib": 200, "apps_gib": 200, "subnet": "PLACEHOLDER_PUBLIC_SUBNET"}
TRAIN = {
    "name": "compute-gpu",
    "machine": "p4de.24xlarge",
    "min": 4,
    "max": 4,
    "root_gib": 200,
    "subnet": "PLACEHOLDER_PRIVATE_SUBNET",
    "exclusive": True,
    "efa_cards": 4,
    "placement_group": False,  # with a targeted reservation
    "reservation": "PLACEHOLDER_CAPACITY_RESERVATION_ID",
}
INFER = {
    "name": "inference-gpu",
    "machine": "g5.12xlarge",
    "min": 0,
    "max": 10,
    "root_gib": 200,
    "subnet": "PLACEHOLDER_PRIVATE_SUBNET",
    "exclusive": False,
    "efa_cards": 0,
    "placement_group": False,  # "only relevant for distributed training, not inference"
    "reservation": None,
}
STORAGE = {
    "/home": ("nfs", "controller"),
    "/apps": ("nfs", "controller"),
    "/fsx": ("fsx_lustre", None),
    "/local_scratch": ("nvme", None),
}
FSX = {"gib": 4800, "gb_a_second": 1.2}
SEED: dict[str, list[dict[str, Any]]] = {
    "aws-p4de": [TRAIN],
    "aws-p4de-inference": [TRAIN, INFER],
    "aws-trn1": [
        {**TRAIN, "machine": "trn1.32xlarge", "efa_cards": 8, "placement_group": True, "reservation": None}
    ],
}
"""Stack -> its queues."""
PLACEHOLDERS = {
    "PLACEHOLDER_CUSTOM_AMI_ID",
    "PLACEHOLDER_PUBLIC_SUBNET",
    "PLACEHOLDER_PRIVATE_SUBNET",
    "PLACEHOLDER_SSH_KEY",
    "PLACEHOLDER_CAPACITY_RESERVATION_ID",
}
"""The page's placeholders. Stack files also have one for the VPC, which Pulumi needs beside the subnets."""
OWN = ("aws-batch", "aws-p4de-containers")
"""Stacks with placeholders that are not from that page."""
PAGE = ROOT / "docs" / "architectures.md"


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {stack: make_plan(Stack(ROOT, stack), load_file(ROOT / f"Pulumi.{stack}.yaml")) for stack in SEED}


def inputs(plan: Plan, kind: str) -> dict[str, dict[str, Any]]:
    """Return the inputs of the resources of a type, by the resources' names without the stack's name."""
    return {
        r["name"].removeprefix(f"{plan['stack']}-"): r["inputs"]
        for r in plan["resources"]
        if r["type"].endswith(f":{kind}")
    }


def settings(plan: Plan) -> dict[str, Any]:
    """Return the settings that the cluster's machines read."""
    (found,) = [one for name, one in inputs(plan, "BucketObjectv2").items() if name == "bundle-settings"]
    return dict(json.loads(found["content"]))


@pytest.mark.parametrize("stack", SEED)
def test_the_head_is_the_published_one(plans: dict[str, Plan], stack: str) -> None:
    plan = plans[stack]
    (head,) = inputs(plan, "Instance").values()
    (seat,) = inputs(plan, "NetworkInterface").values()
    found = {
        "machine": head["instanceType"],
        "root_gib": head["rootBlockDevice"]["volumeSize"],
        "apps_gib": inputs(plan, "Volume")["storage-apps"]["size"],
        "subnet": seat["subnetId"],
    }
    assert found == HEAD
    assert head["keyName"] == "PLACEHOLDER_SSH_KEY"
    assert head["ami"] == f"<{stack}-images-controller.image>", "baked on PLACEHOLDER_CUSTOM_AMI_ID"
    (host,) = settings(plan)["design"]["hosts"]
    assert {"controller", "login", "nfs"} < set(host["tags"]), "login and controller, and the home of /home"


@pytest.mark.parametrize("stack", SEED)
def test_the_queues_are_the_published_ones(plans: dict[str, Plan], stack: str) -> None:
    plan = plans[stack]
    templates, design = inputs(plan, "LaunchTemplate"), settings(plan)["design"]
    subnets = settings(plan)["site"]["cloud"]["subnets"]
    found = []
    for partition in design["partitions"]:
        template = templates[f"launch-templates-{partition['name']}"]
        target = (template.get("capacityReservationSpecification") or {}).get("capacityReservationTarget", {})
        assert template["imageId"].startswith(f"<{stack}-images-compute-"), (
            "baked on PLACEHOLDER_CUSTOM_AMI_ID"
        )
        found.append(
            {
                "name": partition["name"],
                "machine": template["instanceType"],
                "min": partition["min"],
                "max": partition["max"],
                "root_gib": template["blockDeviceMappings"][0]["ebs"]["volumeSize"],
                "subnet": next(iter(subnets.values())),
                "exclusive": partition["exclusive"],
                "efa_cards": sum(
                    "efa" in network_interface.get("interfaceType", "")
                    for network_interface in template["networkInterfaces"]
                ),
                "placement_group": "placement" in template,
                "reservation": target.get("capacityReservationId"),
            }
        )
    assert found == SEED[stack]


@pytest.mark.parametrize("stack", SEED)
def test_the_storage_is_the_published_one(plans: dict[str, Plan], stack: str) -> None:
    plan = plans[stack]
    mounts = {m["path"]: m for m in settings(plan)["design"]["mounts"]}
    assert {path: (m["kind"], m.get("served_by")) for path, m in mounts.items()} == STORAGE
    assert mounts["/local_scratch"]["roles"] == ["compute"]
    (lustre,) = inputs(plan, "LustreFileSystem").values()
    assert lustre["storageCapacity"] == FSX["gib"]
    rate = lustre["storageCapacity"] / 1024 * lustre["perUnitStorageThroughput"] / 1000
    assert round(rate, 1) == FSX["gb_a_second"]


@pytest.mark.parametrize("stack", SEED)
def test_a_plan_says_what_it_costs_and_what_is_to_be_filled_in(plans: dict[str, Plan], stack: str) -> None:
    warnings = plans[stack]["warnings"]
    (static,) = [
        warning for warning in warnings if "4 static nodes run as long as the cluster is up" in warning
    ]
    assert "USD an hour" in static
    assert warnings[-1].startswith(f"{len(of_file(stack))} values are still to be filled in")
    assert all(path in warnings[-1] for path in of_file(stack))


@pytest.mark.parametrize("stack", SEED)
def test_the_prices_of_the_page_are_the_plans(plans: dict[str, Plan], stack: str) -> None:
    (row,) = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{stack}`")
    ]
    cost = plans[stack]["cost"]
    wanted = dict.fromkeys(f"{cost[key]:.2f}" for key in ("idle_usd_per_hour", "max_usd_per_hour"))
    assert re.findall(r"([\d.]+) USD", row) == list(wanted)


def of_file(stack: str) -> dict[str, str]:
    """Return the placeholders of a shipped stack file, as the program finds them: path -> value."""
    found = load_file(ROOT / f"Pulumi.{stack}.yaml").placeholders
    return {one.path: one.given.strip('"') for one in found}


@pytest.mark.parametrize("stack", SEED)
def test_the_placeholders_are_the_published_ones_and_all_are_found(stack: str) -> None:
    text = (ROOT / f"Pulumi.{stack}.yaml").read_text()
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    words = re.findall(r"PLACEHOLDER_[A-Z_]+", code)
    wanted = PLACEHOLDERS - ({"PLACEHOLDER_CAPACITY_RESERVATION_ID"} if stack == "aws-trn1" else set())
    assert set(words) == wanted | {"PLACEHOLDER_VPC"}
    found = of_file(stack)
    assert sorted(found.values()) == sorted([*words, "203.0.113.0/24"]), "and the example network"
    assert set(found.values()) <= set(FILLED_IN)


@pytest.mark.parametrize("stack", [*SEED, *OWN])
def test_a_file_that_is_filled_in_has_none_left(stack: str, tmp_path: Path) -> None:
    file = tmp_path / f"Pulumi.{stack}.yaml"
    file.write_text(filled_in((ROOT / file.name).read_text()))
    assert load_file(file).placeholders == ()


@pytest.mark.parametrize("stack", ["aws-p4de", "aws-p4de-inference"])
def test_without_the_id_an_image_is_baked_from_ubuntus_own(stack: str, tmp_path: Path) -> None:
    """The page says so of the published base template."""
    text = (ROOT / f"Pulumi.{stack}.yaml").read_text()
    without, times = re.subn(r"id: PLACEHOLDER_CUSTOM_AMI_ID, ", "", text)
    assert times == 1
    file = tmp_path / f"Pulumi.{stack}.yaml"
    file.write_text(filled_in(without))
    image = load_file(file).cluster.image
    assert (image.id, image.bake) == (None, True)


def test_a_mistake_beside_placeholders_is_counted_alone(tmp_path: Path) -> None:
    """A plan accepts the placeholders."""
    file = tmp_path / "Pulumi.aws-batch.yaml"
    file.write_text((ROOT / file.name).read_text().replace("provider: aws", "provider: aws\n    tags: 7"))
    with pytest.raises(ConfigError) as caught:
        load_file(file)
    assert str(caught.value).startswith(f"{file.name}: 1 mistake, and 2 values still to be filled in.")
    assert [mistake.path.rpartition(".")[2] for mistake in caught.value.mistakes] == [
        "tags",
        "s3_import",
        "s3_export",
    ]


@pytest.mark.parametrize("stack", [*SEED, *OWN])
def test_up_refuses_with_the_whole_list(stack: str) -> None:
    done = CliRunner(env={"SLURM_STACKS_PROJECT": str(ROOT)}).invoke(cli.app, ["up", "--stack", stack])
    assert done.exception is not None
    assert getattr(done.exception, "exit_code", None) == EXIT_USAGE
    said = str(done.exception)
    assert all(f"{path}: " in said and value in said for path, value in of_file(stack).items())


@pytest.mark.parametrize("stack", [*SEED, *OWN])
def test_the_doctor_names_them_in_one_finding(stack: str) -> None:
    finding, up, _ = doctor.stack_file(Stack(ROOT, stack))
    assert up is not None
    assert (finding.severity, up.design.provider) == (Severity.STOPS, "aws"), "the other checks go on"
    assert all(path in finding.found for path in of_file(stack))


def test_the_packages_of_containers_are_the_users() -> None:
    stack, packages = "aws-p4de-containers", "slurm-stacks:cluster.containers.packages"
    found = of_file(stack)
    assert found == {
        f"{packages}[0].sha256": "PLACEHOLDER_ENROOT_SHA256",
        f"{packages}[1].sha256": "PLACEHOLDER_ENROOT_CAPS_SHA256",
        f"{packages}[2].source": "PLACEHOLDER_PYXIS_PACKAGE",
        f"{packages}[2].sha256": "PLACEHOLDER_PYXIS_SHA256",
    }
    plan = make_plan(Stack(ROOT, stack), load_file(ROOT / f"Pulumi.{stack}.yaml"))
    assert all(path in plan["warnings"][-1] for path in found)
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{word}`" in page for word in found.values())


def test_a_message_about_mistakes_has_the_placeholders_too() -> None:
    changes = {
        "image.id": "PLACEHOLDER_CUSTOM_AMI_ID",
        "partitions[0].nodes.max": "PLACEHOLDER_MAX_INSTANCES",
    }
    with pytest.raises(ConfigError) as caught:
        parse(values("aws", changes), "test")
    number, image = caught.value.mistakes
    assert (number.given, number.allowed) == ('"PLACEHOLDER_MAX_INSTANCES"', "a whole number")
    assert image.path == "slurm-stacks:cluster.image.id"


@pytest.mark.parametrize(
    "path", ["partitions[0].instance_type", "storage.scratch.deployment", "partitions[0].zones"]
)
def test_a_word_at_another_key_is_a_mistake(path: str) -> None:
    with pytest.raises(ConfigError):
        parse(values("aws", {path: "PLACEHOLDER_SOMETHING"}), "test")


def test_the_page_names_every_file_and_every_key_that_may_have_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for stack in SEED:
        assert f"`{stack}`" in text
        assert f"Pulumi.{stack}.yaml" in (ROOT / "README.md").read_text(encoding="utf-8") + text
    rows = re.findall(r"^\| `(PLACEHOLDER_\w+)`[^|]*\| `([\w.]+)` \|", text, re.M)
    assert {word for word, _ in rows} >= PLACEHOLDERS | {"PLACEHOLDER_VPC"}
    assert {key for _, key in rows} <= set(placeholders.KEYS)
