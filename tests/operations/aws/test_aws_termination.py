"""Termination and leftovers on AWS: by tag, without the controller, in limited time, no other cluster's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from cli.providers.aws.provider import AwsProvider
from infra.aws.tags import CLUSTER, ROLE
from infra.program.stack import Stack
from operations.access import StackUp
from operations.aws import machines
from operations.clouds import termination
from tests.support import sentences
from tests.support.aws_account import Account, account, moto, nobody
from tests.support.checkout import ROOT

__all__ = ["account", "moto", "nobody"]


def terminate(account: Account, **options: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    ended = termination.terminate_compute(
        account.cloud(), said.append, sleep=lambda _seconds: None, **options
    )
    return ended, said


def test_it_ends_every_node_and_nothing_else(account: Account) -> None:
    nodes = [*account.nodes("cpu-[0-2]", 3), *account.nodes("gpu-0", 1)]
    kept = [account.head(), *account.nodes("cpu-0", 1, cluster="another"), *account.run(1, "c", role="login")]
    account.ec2.stop_instances(InstanceIds=nodes[:1])
    ended, said = terminate(account)
    assert ended == 4
    assert said == ["ending 4 machines of cluster c"]
    states = account.states()
    assert {states[node] for node in nodes} == {"terminated"}
    assert {states[machine] for machine in kept} == {"running"}


def test_many_are_ended_in_few_calls(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "BATCH", 3)
    calls: list[int] = []
    account.ec2.meta.events.register(
        "before-parameter-build.ec2.TerminateInstances",
        lambda params, **_: calls.append(len(params["InstanceIds"])),
    )
    account.nodes("cpu-[0-6]", 7)
    assert terminate(account)[0] == 7
    assert calls == [3, 3, 1]


def test_what_aws_refuses_is_said_in_its_words(account: Account) -> None:
    (node,) = account.nodes("cpu-0", 1)
    account.ec2.modify_instance_attribute(InstanceId=node, DisableApiTermination={"Value": True})
    with sentences.raises("aws.refused", "TerminateInstances", "OperationNotPermitted", varies=[node]):
        terminate(account)


def test_one_that_aws_refuses_keeps_no_other_from_its_end(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others end: those of the same call, which EC2 refuses as a whole, and those of later calls."""
    monkeypatch.setattr(machines, "BATCH", 2)
    nodes = account.nodes("cpu-[0-4]", 5)
    account.ec2.modify_instance_attribute(InstanceId=nodes[0], DisableApiTermination={"Value": True})
    with sentences.raises("aws.refused", "TerminateInstances", varies=[nodes[0]]):
        terminate(account)
    states = account.states()
    assert [states[node] for node in nodes] == ["running", *["terminated"] * 4]


def test_what_is_loose_and_cannot_go_keeps_nothing_else_here(account: Account) -> None:
    labels = [{"Key": CLUSTER, "Value": "c"}, {"Key": ROLE, "Value": "compute"}]
    for _ in range(4):
        account.ec2.create_volume(
            AvailabilityZone="eu-west-1a",
            Size=8,
            TagSpecifications=[{"ResourceType": "volume", "Tags": labels}],
        )
    errors = iter([("InvalidVolume.NotFound", 400), ("VolumeInUse", 400)])

    def refuse(**_: Any) -> Any:
        code, status = next(errors, (None, 0))
        return code and (AWSResponse("", status, {}, None), {"Error": {"Code": code, "Message": "its words"}})

    account.ec2.meta.events.register("before-call.ec2.DeleteVolume", refuse)
    with sentences.raises("aws.refused", "DeleteVolume", "VolumeInUse"):
        terminate(account)
    assert len(account.ec2.describe_volumes()["Volumes"]) == 2
    account.ec2.meta.events.unregister("before-call.ec2.DeleteVolume", refuse)


def test_what_nodes_left_loose_is_removed_and_the_heads_is_not(account: Account) -> None:
    def interface(**tags: str) -> str:
        labels = [{"Key": key, "Value": value} for key, value in {CLUSTER: "c", **tags}.items()]
        made = account.ec2.create_network_interface(
            SubnetId=account.subnet, TagSpecifications=[{"ResourceType": "network-interface", "Tags": labels}]
        )
        return str(made["NetworkInterface"]["NetworkInterfaceId"])

    loose, kept = interface(**{ROLE: "compute"}), interface()
    labels = [{"Key": CLUSTER, "Value": "c"}, {"Key": ROLE, "Value": "compute"}]
    account.ec2.create_volume(
        AvailabilityZone="eu-west-1a", Size=8, TagSpecifications=[{"ResourceType": "volume", "Tags": labels}]
    )
    terminate(account)
    there = [i["NetworkInterfaceId"] for i in account.ec2.describe_network_interfaces()["NetworkInterfaces"]]
    assert kept in there
    assert loose not in there
    assert machines.leftovers(account.ec2, "c") == [f"network interface {kept} (available)"]


def test_the_report_of_leftovers_names_each_thing_once(account: Account) -> None:
    (node,) = account.nodes("gpu-[7]", 1)
    head = account.head()
    assert machines.leftovers(account.ec2, "another") == []
    assert machines.leftovers(account.ec2, "c") == [
        f"instance {node} (gpu-7, running)",
        f"instance {head} (controller, running)",
    ]
    account.ec2.terminate_instances(InstanceIds=[node, head])
    assert machines.leftovers(account.ec2, "c") == []


def test_the_provider_finds_and_removes_what_is_left_of_the_cluster_that_the_stack_file_names(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stack aws-gpu is in the region of this account."""
    monkeypatch.setattr(termination, "TERMINATION_POLL_SECONDS", 0.01)
    provider = AwsProvider()
    assert provider.leftovers(StackUp(Stack(ROOT, "aws-gpu"), "aws"), dict) == []
    (node,) = account.nodes("t4-[3]", 1, cluster="aws-gpu")
    head = account.head(cluster="aws-gpu")
    account.nodes("t4-0", 1, cluster="another")
    assert provider.leftovers(StackUp(Stack(ROOT, "aws-gpu"), "aws"), dict) == [
        f"instance {node} (t4-3, running)",
        f"instance {head} (controller, running)",
    ]
    provider.force_cleanup(StackUp(Stack(ROOT, "aws-gpu"), "aws"), dict)
    assert capsys.readouterr().err == "ending 1 machine of cluster aws-gpu\n"
    # The controller belongs to the engine; its removal without the engine would make the state wrong.
    assert provider.leftovers(StackUp(Stack(ROOT, "aws-gpu"), "aws"), dict) == [
        f"instance {head} (controller, running)"
    ]


def test_the_resources_own_command_terminates(account: Account) -> None:
    """Run a verb as the engine does: in the project's folder, as a separate process."""
    (node,) = account.nodes("cpu-0", 1)
    line = [
        sys.executable,
        "-m",
        "operations.aws",
        "terminate-nodes",
        "--stack",
        "s",
        "--region",
        "eu-west-1",
    ]
    quick = (
        "import operations.clouds.termination as m; m.TERMINATION_POLL_SECONDS = 0.01; import runpy, sys; "
    )
    quick += "sys.argv[0] = 'x'; runpy.run_module('operations.aws', run_name='__main__')"
    line[1:3] = ["-c", quick]
    done = subprocess.run(
        [*line, "--cluster", "c"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"terminated": 1}
    assert account.states()[node] == "terminated"


def test_without_credentials_the_command_says_so_once(nobody: None) -> None:
    line = [
        sys.executable,
        "-m",
        "operations.aws",
        "terminate-nodes",
        "--stack",
        "s",
        "--region",
        "eu-west-1",
    ]
    done = subprocess.run(
        [*line, "--cluster", "c"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr.startswith("there are no credentials for AWS here. Log in")
    assert len(done.stderr.splitlines()) == 1
