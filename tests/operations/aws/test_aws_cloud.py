"""The interface `Cloud` for AWS (machines, the bucket, texts for the user), with boto3 against moto."""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any

import pytest

from infra.aws.tags import CLUSTER, SLURM, store
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.errors import EXIT_REFUSED
from infra.program.launcher import anywhere
from node.design.model import Access
from operations.aws import account as access
from operations.aws import machines
from operations.aws.cloud import AwsCloud
from operations.clouds import commands
from operations.clouds.boots import Waiter
from operations.clouds.cloud import ALIVE, ENDING, Cloud, Machine
from tests.support import sentences
from tests.support.aws_account import BUCKET_NAME, KEY, REGION, Account, account, moto, nobody
from tests.support.operation_lines import words_anywhere

__all__ = ["account", "moto", "nobody"]

MACHINE = Machine("i-1", "controller", "controller", "running", 0.0, "10.0.0.4", "198.51.100.7", None)


def test_machines_are_listed_with_our_words_for_their_states(account: Account) -> None:
    head, stopped, gone = account.head(), account.head("login-0"), account.head("login-1")
    account.nodes("cpu-0", 1)
    account.head(cluster="another")
    account.ec2.stop_instances(InstanceIds=[stopped])
    account.ec2.terminate_instances(InstanceIds=[gone])
    cloud = account.cloud()
    assert {m.name: m.state for m in cloud.machines()} == {
        "controller": "running", "login-0": "stopped", "login-1": "gone", "cpu-0": "running",
    }  # fmt: skip
    assert {m.name for m in cloud.machines(*ALIVE, *ENDING)} == {"controller", "login-0", "cpu-0"}
    (machine,) = cloud.machines(*ALIVE, host="controller")
    assert (machine.id, machine.role, machine.bucket) == (head, "controller", BUCKET_NAME)
    assert abs(machine.launched - time.time()) < 60
    assert [m.bucket for m in cloud.machines(role="compute")] == [None]


def test_a_machine_that_ends_is_asked_for_by_ec2s_word(account: Account) -> None:
    asked: list[list[str]] = []
    event, events = "before-parameter-build.ec2.DescribeInstances", account.ec2.meta.events
    note: Any = lambda params, **_: asked.append(params["Filters"][-1]["Values"])  # noqa: E731
    events.register(event, note)
    try:
        machines.instances(account.ec2, "c", *ALIVE, *ENDING)
    finally:
        events.unregister(event, note)
    assert asked == [["pending", "running", "stopping", "stopped", "shutting-down"]]


def test_machines_start_and_end(account: Account) -> None:
    account.head()
    cloud = account.cloud()
    (machine,) = cloud.machines()
    account.ec2.stop_instances(InstanceIds=[machine.id])
    cloud.start([machine])
    assert account.states() == {machine.id: "running"}
    cloud.end([machine])
    assert account.states() == {machine.id: "terminated"}


def test_a_failed_check_of_ec2s_is_said_and_one_without_a_result_is_none(account: Account) -> None:
    account.head()
    cloud = account.cloud()
    (machine,) = cloud.machines()
    assert cloud.failure(machine) is None
    since = datetime.datetime(2026, 7, 1, 12, 30, tzinfo=datetime.UTC)
    details: dict[str, list[dict[str, Any]]] = {
        "SystemStatus": [{"Name": "reachability", "Status": "failed", "ImpairedSince": since}],
        "InstanceStatus": [{"Name": "reachability", "Status": "insufficient-data"}],
        "AttachedEbsStatus": [{"Name": "reachability", "Status": "failed"}],
    }

    def answer(parsed: dict[str, Any], **_: Any) -> None:
        (one,) = parsed["InstanceStatuses"]
        one |= {key: {"Status": "impaired", "Details": found} for key, found in details.items()}

    event, events = "after-call.ec2.DescribeInstanceStatus", account.ec2.meta.events
    events.register(event, answer)
    try:
        said = cloud.failure(machine)
    finally:
        events.unregister(event, answer)
    assert said == "its check of the system (since 2026-07-01 12:30 UTC), the disks fails"
    # EC2 has no status of a machine that does not run.
    account.ec2.stop_instances(InstanceIds=[machine.id])
    assert cloud.failure(machine) is None
    assert not cloud.keeps_root_disk("controller"), "it ends with its instance"


def test_the_release_of_slurm_is_in_an_images_tags(account: Account) -> None:
    cloud = account.cloud()
    source = account.head()
    made = account.ec2.create_image(InstanceId=source, Name="own")["ImageId"]
    assert cloud.image_slurm(made) is None
    account.ec2.create_tags(Resources=[made], Tags=[{"Key": SLURM, "Value": "23.11"}])
    assert cloud.image_slurm(made) == "23.11"
    assert cloud.image_slurm("ami-0123456789abcdef0") is None, "there is none"


def test_an_object_that_is_not_there_is_none(account: Account) -> None:
    cloud = account.cloud()
    assert cloud.read(BUCKET_NAME, "current.json") is None, "no bucket"
    account.bucket()
    assert cloud.read(BUCKET_NAME, "another.json") is None
    assert cloud.read(BUCKET_NAME, "current.json") == b"{}"
    assert abs(cloud.changed(BUCKET_NAME, "current.json") - time.time()) < 60


def test_a_head_that_is_ready_is_found_by_its_tags_and_its_report(account: Account) -> None:
    account.bucket()
    account.head()
    account.report("controller", "ready")
    wish = WaitRequest(
        ClusterRef("c", REGION), BUCKET_NAME, ["controller"], "controller", "ssm", user="ubuntu"
    )
    assert Waiter(wish, account.cloud(), print).facts() == {
        "host_keys": [KEY], "login_user": "ubuntu", "scheduler_version": "slurm 23.11.4",
    }  # fmt: skip


def test_a_user_gets_commands_that_name_the_region() -> None:
    cloud: Cloud = AwsCloud(ClusterRef("c", REGION))
    assert cloud.console_line(MACHINE) == (
        "aws ec2 get-console-output --latest --region eu-west-1 --instance-id i-1 --output text"
    )
    assert cloud.stop_line(MACHINE) == "aws ec2 stop-instances --force --region eu-west-1 --instance-ids i-1"


def test_ssh_access_follows_the_access_mode() -> None:
    cloud = AwsCloud(ClusterRef("c", REGION))
    assert (MACHINE.ssh_host(Access("ssh")), cloud.proxy(Access("ssh"), anywhere)) == ("198.51.100.7", None)
    assert MACHINE.ssh_host(Access("ssm")) == "i-1"
    with_key = str(cloud.proxy(Access("ssm", key="k"), anywhere))
    assert with_key.startswith("aws ssm start-session --region eu-west-1 --target %h ")
    assert words_anywhere(str(cloud.proxy(Access("ssm"), anywhere)))[:2] == ["operations.aws", "proxy"]


def test_nothing_is_looked_for_before_it_is_needed(nobody: None) -> None:
    cloud = AwsCloud(ClusterRef("c", REGION))
    assert cloud.user(Access("ssh", user="admin")) == "admin"
    with sentences.raises("aws.no-credentials") as caught:
        cloud.machines()
    assert caught.value.exit_code == EXIT_REFUSED


def test_who_asks_again_gets_the_same_clients(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait asks every second, so clients are made once."""
    account.head()
    place = ClusterRef("c", REGION)
    one, two = AwsCloud(place), AwsCloud(ClusterRef("c", REGION))
    assert [machine.name for machine in one.machines()] == ["controller"]
    assert two.machines() == one.machines()
    assert access.client(place, "ec2") is access.client(place, "ec2")
    before = access.client(place, "s3")
    assert access.client(ClusterRef("c", "eu-west-2"), "s3") is not before
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert access.client(place, "s3") is not before


def test_the_bucket_is_found_before_there_is_a_machine(account: Account) -> None:
    cloud = account.cloud()
    assert cloud.bucket() is None
    for name, cluster in ((f"{store('c')}-1", "c"), (f"{store('c')}-2", "c-bucket")):
        account.bucket(name)
        tags = [{"Key": CLUSTER, "Value": cluster}]
        account.s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})
    assert cloud.bucket() == f"{store('c')}-1"


def test_termination_is_told_all_that_it_needs() -> None:
    parser, _ = commands.parser()
    place = ClusterRef("c", REGION, "z", "p", '{"profile":"x y"}')
    options = parser.parse_args(["terminate-nodes", "--stack", "s", *place.arguments()])
    assert commands.place(options) == place
    assert ClusterRef("c", REGION).arguments() == ["--region", REGION, "--cluster", "c"]


def test_a_machine_says_of_which_stack_it_is(account: Account) -> None:
    account.run(1, role="controller", host="controller", stack="Mine.1")
    account.run(1, role="controller", host="old")
    cloud = account.cloud()
    assert {machine.name: machine.stack for machine in cloud.machines()} == {
        "controller": "Mine.1", "old": None,
    }  # fmt: skip
    assert cloud.label_of("Mine.1") == "Mine.1"


def test_without_the_library_its_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with sentences.raises("aws.no-client", "pyproject.toml") as caught:
        access.require()
    assert caught.value.exit_code == EXIT_REFUSED
