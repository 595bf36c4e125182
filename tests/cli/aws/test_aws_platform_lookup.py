"""Security groups and the boundary are looked up before anything is made: against moto's EC2 and IAM."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from cli.aws import diagnosis, platform
from cli.aws.provider import AwsProvider
from cli.doctor.finding import Severity
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.model import ClusterDesign, Network
from operations.aws import account as aws_account
from tests.support.aws_account import REGION, Account, account, moto
from tests.support.aws_mocks import CONTROLLER, CPU, aws_design

__all__ = ["account", "moto"]
KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}


class Lab:
    """An account with two VPCs."""

    def __init__(self, account: Account) -> None:
        self.url, self.ec2 = account.url, account.ec2
        self.vpc = self.ec2.describe_subnets(SubnetIds=[account.subnet])["Subnets"][0]["VpcId"]
        self.group = self.make_group(self.vpc)

    def client(self, service: str) -> Any:
        return boto3.client(service, REGION, endpoint_url=self.url, **KEYS)

    def make_group(self, vpc: str) -> str:
        made = self.ec2.create_security_group(GroupName="bastion", Description="d", VpcId=vpc)
        return str(made["GroupId"])

    def design(self, *groups: str, boundary: str | None = None) -> ClusterDesign:
        return aws_design(
            hosts=(dataclasses.replace(CONTROLLER, security_groups=groups),),
            partitions=(dataclasses.replace(CPU, security_groups=groups[:1]),),
            network=Network(vpc=self.vpc),
            permissions_boundary=boundary,
        )


@pytest.fixture
def lab(account: Account) -> Lab:
    return Lab(account)


def test_a_group_of_the_clusters_vpc_is_fine_and_named_once(lab: Lab) -> None:
    (only,) = platform.findings(lab.client, lab.design(lab.group))
    assert only.severity is Severity.FINE
    keys = "controller.security_groups, partitions[0].aws.security_groups"
    assert only.found == f"{keys}: {lab.group} is bastion of {lab.vpc}"


def test_a_group_that_is_not_there_or_of_another_vpc_stops(lab: Lab) -> None:
    elsewhere = lab.make_group(lab.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"])
    missing, other = platform.findings(lab.client, lab.design("sg-0123456789abcdef0", elsewhere))
    assert (missing.severity, other.severity) == (Severity.STOPS, Severity.STOPS)
    assert "there is no security group sg-0123456789abcdef0 in eu-west-1" in missing.found
    assert other.found.endswith(f", not of {lab.vpc}")


def test_a_boundary_must_exist(lab: Lab) -> None:
    allows = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    made = lab.client("iam").create_policy(PolicyName="boundary", PolicyDocument=json.dumps(allows))
    (there,) = platform.findings(lab.client, lab.design(boundary=made["Policy"]["Arn"]))
    assert there.severity is Severity.FINE
    (missing,) = platform.findings(lab.client, lab.design(boundary=f"{made['Policy']['Arn']}-2"))
    assert missing.severity is Severity.STOPS
    assert missing.found.startswith("aws.permissions_boundary: there is no policy arn:aws:iam::")


def test_doctor_asks_where_the_stack_file_names_some_and_only_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def clients(_region: str, service: str, **_: Any) -> tuple[Any]:
        asked.append(service)
        return (lab.client(service),)

    monkeypatch.setattr(aws_account, "clients", clients)
    monkeypatch.setattr(aws_account, "session", lambda: None)

    def check(design: ClusterDesign) -> list[Severity]:
        (made,) = (one for one in diagnosis.checks(design) if one.name == platform.CHECK)
        return [found.severity for found in made.look()]

    assert check(aws_design()) == []
    assert asked == []
    assert check(lab.design(lab.group)) == [Severity.FINE]
    assert asked == ["ec2"]


def test_up_says_it_before_anything_is_made(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", lab.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    design = dataclasses.replace(lab.design("sg-0123456789abcdef0"), mounts=(), trains=False)
    with pytest.raises(UserError, match="nothing was changed") as refused:
        AwsProvider().check_changes(Stack(tmp_path, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED
    assert "there is no security group sg-0123456789abcdef0 in eu-west-1" in str(refused.value)
