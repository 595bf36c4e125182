"""The parts of a stack of AWS Batch in moto's account, and the fixtures of the tests that use them."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import boto3
import pytest

from infra.aws.batch.definition import node_properties
from infra.aws.tags import CLUSTER, log_group
from infra.clouds.commands import ClusterRef
from infra.program.stack import Stack
from operations.aws.batch.service import BatchService
from tests.support.aws_account import Account, account, moto
from tests.support.batch_stack import batch_design
from tests.support.checkout import ROOT

__all__ = ["account", "moto"]
REGION = "us-east-1"
DESIGN = batch_design()
STACK = Stack(ROOT, "aws-batch")
RESULT = {"images_per_second": 98000.5, "loss": 6.9, "nodes": 20}
PLACE = ClusterRef("aws-batch", REGION)
TAGS = {CLUSTER: "aws-batch"}


class BatchAccount:
    """The stack's parts of Batch in moto's account, as the engine would have made them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: dict[str, Any] = {}
        batch = self("batch")
        subnet = self("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        group = self("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
        iam = self("iam")
        iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="p")
        profile = iam.get_instance_profile(InstanceProfileName="p")["InstanceProfile"]["Arn"]
        role = iam.get_role(RoleName="r")["Role"]["Arn"]
        own = DESIGN.batch
        assert own is not None
        batch.create_compute_environment(
            computeEnvironmentName=own.compute_environment, type="MANAGED", state="ENABLED",
            serviceRole=role, tags=TAGS,
            computeResources={
                "type": "EC2", "minvCpus": 0, "maxvCpus": 4096, "desiredvCpus": 0, "instanceRole": profile,
                "instanceTypes": ["m5.large"], "subnets": [subnet], "securityGroupIds": [group],
                "placementGroup": str(own.placement_group),
            },
        )  # fmt: skip
        environment = {"order": 1, "computeEnvironment": own.compute_environment}
        batch.create_job_queue(
            jobQueueName=own.queue,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=[environment],
            tags=TAGS,
        )
        self.register()
        self("logs").create_log_group(logGroupName=log_group("aws-batch"))

    def __call__(self, service: str) -> Any:
        if service not in self._made:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": self.url}
            self._made[service] = boto3.client(service, REGION, **keys)
        return self._made[service]

    def register(self) -> None:
        own = DESIGN.batch
        assert own is not None
        self("batch").register_job_definition(
            jobDefinitionName=own.job_definition,
            type="multinode",
            nodeProperties=node_properties(
                DESIGN, "train@sha256:1", "arn:aws:iam::1:role/x", log_group("aws-batch")
            ),
            tags=TAGS,
        )

    def write_log(self, stream: str, *lines: str) -> None:
        now = int(time.time() * 1000)
        events = [{"timestamp": now + number, "message": line} for number, line in enumerate(lines)]
        self("logs").create_log_stream(logGroupName=log_group("aws-batch"), logStreamName=stream)
        self("logs").put_log_events(
            logGroupName=log_group("aws-batch"), logStreamName=stream, logEvents=events
        )


@pytest.fixture
def batch_account(account: Account) -> BatchAccount:
    """moto's Batch without containers: each job succeeds as soon as it is submitted."""
    settings = json.dumps({"batch": {"use_docker": False}}).encode()
    request = urllib.request.Request(f"{account.url}/moto-api/config", data=settings, method="POST")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=60).close()
    return BatchAccount(account.url)


@pytest.fixture
def service(batch_account: BatchAccount) -> BatchService:
    return BatchService(DESIGN, batch_account)
