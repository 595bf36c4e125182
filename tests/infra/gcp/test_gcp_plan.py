"""`./cluster plan` of the Google Cloud stacks works offline, has exact resources, and is readable."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli import main as cli
from cli.commands.operate import make_plan
from cli.console.plan import show_plan
from cli.engine.plan import Plan
from infra.config import load_file
from infra.errors import EXIT_USAGE, UserError
from infra.gcp.instance_templates import BOOT_SCRIPT
from infra.program.stack import Stack
from tests.support import gcp_plans, offline_plan
from tests.support.checkout import ROOT
from tests.support.replacing_rules import undecided
from tests.support.stack_values import installing

STACKS = {"gcp-cpu": "slurm10", "gcp-gpu": "slurm8"}
# Permissions and the firewall have tests of their own.
GRANTS = re.compile(r"(IAMMember|IamMember|IAMCustomRole|Firewall)$")
COMMON = {
    "pulumi:pulumi:Stack": 1,
    "slurm-stacks:index:SlurmCluster": 1,
    "slurm-stacks:index:GcpCluster": 1,
    "slurm-stacks:index:GcpNetwork": 1,
    "slurm-stacks:index:GcpAccounts": 1,
    "slurm-stacks:index:GcpIdentity": 1,
    "slurm-stacks:index:GcpSecrets": 1,
    "slurm-stacks:index:GcpBucket": 1,
    "slurm-stacks:index:Bundle": 1,
    "slurm-stacks:index:GcpStorage": 1,
    "slurm-stacks:index:GcpAddresses": 1,
    "slurm-stacks:index:GcpInstanceTemplates": 1,
    "slurm-stacks:index:GcpHead": 1,
    "slurm-stacks:index:Benchmark": 1,
    "gcp:compute/network:Network": 1,
    "gcp:compute/subnetwork:Subnetwork": 1,
    "gcp:compute/router:Router": 1,
    "gcp:compute/routerNat:RouterNat": 1,
    "gcp:serviceaccount/account:Account": 3,
    "gcp:secretmanager/secret:Secret": 1,
    "gcp:storage/bucket:Bucket": 1,
    "gcp:storage/bucketObject:BucketObject": 4,
    # These are /home and /apps, and a root disk for each machine of the head.
    "gcp:compute/disk:Disk": 4,
    "gcp:compute/address:Address": 2,
    "gcp:compute/instance:Instance": 2,
    "gcp:compute/instanceTemplate:InstanceTemplate": 1,
    # These are the termination, the wait, and three commands of `ssh` through the Identity-Aware Proxy.
    "command:local:Command": 5,
}
GOLDEN = {
    "gcp-cpu": COMMON,
    "gcp-gpu": {
        **COMMON,
        # Its images are baked, for controller, login and nodes: each from the disk of a machine.
        "slurm-stacks:index:GcpImages": 1,
        "gcp:compute/image:Image": 3,
        "gcp:compute/disk:Disk": 7,
        "gcp:compute/instance:Instance": 5,
        "gcp:serviceaccount/account:Account": 4,
        "gcp:storage/bucketObject:BucketObject": 6,
        "command:local:Command": 8,
    },
}


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        stack: make_plan(
            Stack(ROOT, stack),
            load_file(ROOT / f"Pulumi.{stack}.yaml"),
        )
        for stack in STACKS
    }


def named(plan: Plan, name: str) -> dict[str, Any]:
    (found,) = [r for r in plan["resources"] if r["name"] == f"{STACKS[plan['stack']]}-{name}"]
    return dict(found)


def changed(tmp_path: Path, stack: str, **changes: Any) -> Plan:
    """The plan of a stack with these changes in its first partition."""
    for name in ("Pulumi.yaml", "__main__.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    file = tmp_path / f"Pulumi.{stack}.yaml"
    content = yaml.safe_load((ROOT / file.name).read_text())
    content["config"]["slurm-stacks:cluster"]["partitions"][0] |= changes
    file.write_text(yaml.safe_dump(content))
    return make_plan(Stack(tmp_path, stack), load_file(file))


@pytest.mark.parametrize("stack", STACKS)
def test_the_stack_that_ships_is_the_one_that_the_other_tests_know(stack: str) -> None:
    draft = load_file(ROOT / "tests" / "infra" / "stacks" / f"Pulumi.{stack}.yaml")
    shipped = load_file(ROOT / f"Pulumi.{stack}.yaml")
    own = {"project": draft.project, "placeholders": ()}
    assert installing(shipped).model_copy(update=own) == draft


@pytest.mark.parametrize("stack", STACKS)
def test_a_plan_is_exactly_these_resources(plans: dict[str, Plan], stack: str) -> None:
    found = Counter(r["type"] for r in plans[stack]["resources"] if not GRANTS.search(r["type"]))
    assert dict(found) == GOLDEN[stack]


# --- what the published clusters were ---------------------------------------------------------------------


def test_s2_is_the_published_cluster(plans: dict[str, Plan]) -> None:
    """The seed has n1-standard-2 for controller, login and compute in europe-west4-a, and at most 10 nodes of
    `debug`."""
    plan = plans["gcp-cpu"]
    output = plan["outputs"]["cluster"]
    assert (output["name"], output["zone"], output["provider"]) == ("slurm10", "europe-west4-a", "gcp")
    for host in ("controller", "login-0"):
        assert named(plan, f"head-{host}")["inputs"]["machineType"] == "n1-standard-2"
    (partition,) = output["partitions"]
    found = {key: partition[key] for key in ("name", "machine", "min", "max", "accelerator")}
    assert found == {"name": "debug", "machine": "n1-standard-2", "min": 0, "max": 10, "accelerator": None}
    assert "guestAccelerators" not in named(plan, "instance-templates-debug")["inputs"]
    assert output["benchmark"]["nodes"] == 4
    assert {m["path"] for m in output["mounts"]} == {"/home", "/apps"}


def test_s3_has_its_gpus_on_the_nodes_alone(plans: dict[str, Plan]) -> None:
    plan = plans["gcp-gpu"]
    template = named(plan, "instance-templates-debug")["inputs"]
    assert template["machineType"] == "n1-standard-2"
    assert template["guestAccelerators"] == [{"type": "nvidia-tesla-v100", "count": 1}]
    assert template["scheduling"]["onHostMaintenance"] == "TERMINATE"
    for host in ("controller", "login-0"):
        assert "guestAccelerators" not in named(plan, f"head-{host}")["inputs"]
    (partition,) = plan["outputs"]["cluster"]["partitions"]
    assert (partition["name"], partition["max"], partition["accelerator"]["count"]) == ("debug", 8, 1)
    assert plan["outputs"]["cluster"]["benchmark"]["nodes"] == 8


@pytest.mark.parametrize("count", [2, 4])
def test_two_and_four_gpus_a_node_are_one_number(tmp_path: Path, count: int) -> None:
    plan = changed(tmp_path, "gcp-gpu", accelerator={"type": "v100", "count": count})
    (gpu,) = named(plan, "instance-templates-debug")["inputs"]["guestAccelerators"]
    assert gpu == {"type": "nvidia-tesla-v100", "count": count}
    job = named(plan, "benchmark-job")["inputs"]
    assert f"--gres=gpu:{count}" in json.dumps(job) or f"gpu:{count}" in json.dumps(job)


def test_a_placement_that_the_machine_does_not_take_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        changed(tmp_path, "gcp-cpu", placement="cluster")
    assert caught.value.exit_code == 2
    assert "n1-standard-2 does not take a compact placement policy" in str(caught.value)
    plan = changed(tmp_path, "gcp-cpu", placement="cluster", instance_type="n2-standard-4")
    assert (
        named(plan, "instance-templates-debug-policy")["inputs"]["groupPlacementPolicy"]["collocation"]
        == "COLLOCATED"
    )


# --- reading it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", STACKS)
def test_the_startup_script_is_text_that_can_be_read_and_fits(plans: dict[str, Plan], stack: str) -> None:
    for name, words in (
        ("head-controller", "--role controller --host controller"),
        ("head-login-0", "--role login --host login-0"),
        ("instance-templates-debug", "--role compute"),
    ):
        metadata = named(plans[stack], name)["inputs"]["metadata"]
        text = metadata["startup-script"]
        # Debian's image has no cloud-init. Its handler (handlers/boot_hook.py) makes a program of the text
        # without the first line.
        assert ("user-data" in metadata) == (stack == "gcp-gpu")
        assert metadata.get("user-data", text).removeprefix("#cloud-boothook").lstrip() == text
        assert text.startswith("#!/bin/sh\n")
        (after,) = [line for line in text.splitlines() if line.startswith("After=")]
        # Neither multi-user.target, which it is wanted by, nor what waits for that or for snapd: on Ubuntu
        # cloud-final.service, google-startup-scripts.service, snapd.seeded.service.
        assert after == "After=network-online.target cloud-config.service google-guest-agent.service"
        assert len(text.encode()) < BOOT_SCRIPT.limit / 2
        assert f"<{STACKS[stack]}-bucket-store.name>" in text, "a placeholder, and not an unknown"
        assert words in text


@pytest.mark.parametrize("stack", STACKS)
def test_the_outputs_fit_the_contract(plans: dict[str, Plan], stack: str) -> None:
    from infra import outputs

    found = outputs.load(plans[stack]["outputs"]["cluster"])
    assert found.provider == "gcp"
    assert found.login is not None
    assert 0 < plans[stack]["cost"]["idle_usd_per_hour"] < plans[stack]["cost"]["max_usd_per_hour"]


def test_the_plan_reads_like_the_drawing(plans: dict[str, Plan], capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has lines for controller, login and compute, for what runs on which machine, and for the
    cost."""
    show_plan(plans["gcp-cpu"])
    text = capsys.readouterr().out
    for line in (
        r"slurm10: slurm on gcp europe-west4-a",
        r"controller +n1-standard-2 +0\.10 USD an hour",
        r"login-0 +n1-standard-2 +0\.10 USD an hour",
        r"partition debug +0–10 × n1-standard-2, each 2 CPUs, 7 GiB for jobs +0\.00 to ",
        r"/home +nfs 50 GiB",
        r"log in +\S*cluster ssh --stack gcp-cpu",
        r".*slurm10-head-controller gcp:compute/instance:Instance n1-standard-2",
        r".*slurm10-network-login-iap gcp:compute/firewall:Firewall SSH from 35\.235\.240\.0/20",
        r".*slurm10-storage-home gcp:compute/disk:Disk 50 GiB",
        r".*slurm10-network-subnetwork gcp:compute/subnetwork:Subnetwork 10\.0\.0\.0/16",
    ):
        assert re.search(f"^{line}", text, re.MULTILINE), line
    show_plan(plans["gcp-gpu"])
    text = capsys.readouterr().out
    assert "0–8 × n1-standard-2, each 2 CPUs, 7 GiB, 1 × v100 for jobs" in text
    assert "InstanceTemplate n1-standard-2, 1 × nvidia-tesla-v100" in text


@pytest.mark.parametrize("stack", STACKS)
def test_the_example_project_is_to_be_replaced(stack: str, plans: dict[str, Plan]) -> None:
    text = 'gcp:project: "my-project" → the id of your Google Cloud project'
    assert any(text in warning for warning in plans[stack]["warnings"])
    done = CliRunner(env={"SLURM_STACKS_PROJECT": str(ROOT)}).invoke(cli.app, ["up", "--stack", stack])
    assert getattr(done.exception, "exit_code", None) == EXIT_USAGE
    assert f"Pulumi.{stack}.yaml: 1 value is still to be filled in" in str(done.exception)
    assert text in str(done.exception)


def test_a_plan_needs_no_account(tmp_path: Path) -> None:
    offline_plan.check("gcp-gpu", tmp_path, ["google.cloud", "google.auth", "pulumi_aws"])


@pytest.mark.parametrize("subject", gcp_plans.SUBJECTS)
def test_of_every_resource_it_is_decided_whether_it_holds_data(subject: str, tmp_path: Path) -> None:
    """`up` refuses to replace what does; see tests/infra/data/replacing_properties.yaml."""
    made = gcp_plans.planned(subject, tmp_path)
    assert undecided(str(resource["type"]) for resource in made.resources) == set()
