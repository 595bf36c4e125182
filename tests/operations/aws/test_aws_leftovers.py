"""The report of leftovers names everything of the cluster that costs money, and nothing of another one."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from cli.providers.aws.provider import AwsProvider
from infra.aws.tags import CLUSTER, log_group, store
from infra.errors import EXIT_REFUSED
from infra.program.stack import Stack
from operations.access import StackUp
from operations.aws import leftovers
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto
from tests.support.checkout import ROOT

__all__ = ["account", "moto"]


class Services:
    """Clients of moto's account, which can make one resource of each kind for a cluster."""

    def __init__(self, account: Account) -> None:
        self._secrets = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": account.url}
        self._made: dict[str, Any] = {"ec2": account.ec2, "s3": account.s3}
        self._subnet = account.subnet

    def __call__(self, service: str) -> Any:
        if service not in self._made:
            self._made[service] = boto3.client(service, REGION, **self._secrets)
        return self._made[service]

    def fill(self, cluster: str) -> list[str]:
        """Make the resources, and return the lines that the report must have."""
        tags = [{"Key": CLUSTER, "Value": cluster}]
        lustre = self("fsx").create_file_system(
            FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[self._subnet], Tags=tags
        )["FileSystem"]
        efs = self("efs").create_file_system(CreationToken=cluster, Tags=tags)
        bucket = f"{store(cluster)}-0a1b2c3"
        where = {"LocationConstraint": REGION}
        self("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=where)
        self("s3").put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
        self("secretsmanager").create_secret(Name=f"{cluster}-munge", SecretString="x", Tags=tags)
        self("logs").create_log_group(logGroupName=log_group(cluster))
        return [
            f"Lustre file system {lustre['FileSystemId']} (1200 GiB)",
            f"EFS file system {efs['FileSystemId']} (available)",
            f"bucket {bucket}",
            f"secret {cluster}-munge",
            f"log group {log_group(cluster)}",
        ]


@pytest.fixture
def services(account: Account) -> Services:
    return Services(account)


def test_each_service_names_what_it_has_of_this_cluster_alone(services: Services) -> None:
    assert leftovers.leftovers(services, "c", silent) == []
    wanted = services.fill("c")
    services.fill("c-2")  # whose name begins with the same characters
    services.fill("another")
    assert leftovers.leftovers(services, "c", silent) == wanted


def test_a_bucket_is_known_by_its_tag_and_not_by_its_name(services: Services, account: Account) -> None:
    for number, tags in enumerate(([], [{"Key": CLUSTER, "Value": "c-bucket"}])):
        name = f"{store('c')}-{number}"
        account.s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        if tags:
            account.s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})
    assert leftovers.leftovers(services, "c", silent) == []


def test_nat_gateways_that_are_gone_are_not_there(account: Account) -> None:
    made = account.ec2.create_nat_gateway(
        SubnetId=account.subnet,
        ConnectivityType="private",
        TagSpecifications=[{"ResourceType": "natgateway", "Tags": [{"Key": CLUSTER, "Value": "c"}]}],
    )["NatGateway"]["NatGatewayId"]
    cloud = account.cloud()
    assert [line for line in cloud.leftovers() if line.startswith("NAT")] == [
        f"NAT gateway {made} (available)"
    ]
    account.ec2.delete_nat_gateway(NatGatewayId=made)
    assert [line for line in cloud.leftovers() if line.startswith("NAT")] == []


def test_the_provider_reports_all_of_it(services: Services) -> None:
    lines = services.fill("aws-gpu")
    assert AwsProvider().leftovers(StackUp(Stack(ROOT, "aws-gpu"), "aws"), dict) == lines


def silent(line: str) -> None:
    raise AssertionError(f"nobody was refused anything: {line}")


class Refusing:
    """Makes every service refuse with an error code."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.asked: list[str] = []

    def __call__(self, service: str) -> Any:
        self.asked.append(service)
        return self

    def __getattr__(self, _name: str) -> Any:
        from botocore.exceptions import ClientError

        raise ClientError({"Error": {"Code": self.code, "Message": "no"}}, "Describe")


def test_a_service_that_may_not_be_asked_is_said_in_one_line_and_another_failure_ends_it() -> None:
    denied, said = Refusing("AccessDeniedException"), list[str]()
    assert leftovers.leftovers(denied, "c", said.append) == []
    assert denied.asked == ["fsx", "efs", "s3", "secretsmanager", "logs"]
    assert said == [
        "not looked for, because your user or role on AWS may not: Lustre file systems (Describe), EFS file "
        "systems (Describe), buckets (Describe), secrets (Describe), log groups (Describe)"
    ]
    with sentences.raises("aws.credentials-expired") as caught:
        leftovers.leftovers(Refusing("ExpiredTokenException"), "c", silent)
    assert caught.value.exit_code == EXIT_REFUSED


def test_the_rights_that_the_report_of_leftovers_needs_are_in_the_documentation(
    services: Services, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls need exactly the documented permissions, apart from those of EC2 and Image Builder."""
    calls: set[str] = set()
    prefixes = {"efs": "elasticfilesystem"}
    signed = {"ListBuckets": "ListAllMyBuckets"}

    def note(model: Any, **_: Any) -> None:
        service = str(model.service_model.service_name)
        calls.add(f"{prefixes.get(service, service)}:{signed.get(model.name, model.name)}")

    services.fill("c")
    for service in ("fsx", "efs", "s3", "secretsmanager", "logs"):
        services(service).meta.events.register("before-call", note)
    try:
        leftovers.leftovers(services, "c", silent)
    finally:
        account.s3.meta.events.unregister("before-call", note)
    text = (ROOT / "docs" / "reference" / "permissions.md").read_text()
    assert len(calls) == 6
    assert {call for call in calls if f"`{call}`" not in text} == set()
