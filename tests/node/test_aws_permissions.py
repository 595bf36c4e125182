"""Tests that the machines' policies allow exactly the calls to AWS that their code makes.

The calls of the driver to EC2 are tested in `test_ec2_permissions`.
"""

from __future__ import annotations

import fnmatch
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra import bundle
from infra.aws import policies
from infra.aws.policies import SSM_SESSION
from node.aws import run_loader
from node.bootstrap import key_server, steps
from node.bootstrap.report import BootReport
from node.bootstrap.vm import clouds, machine
from node.bootstrap.vm.clouds import cloudwatch
from node.design.model import Hook
from node.system import http_client
from tests.support.doubles import HEAD
from tests.support.fake_ec2_iam import Question
from tests.support.fake_imds import FakeImds, fake_imds
from tests.support.iam import allowed
from tests.support.recorded import machine as recorded_machine
from tests.support.recorded_aws import ENGINEER, RecordedAws, recorded_aws

HOSTS = {"controller": "controller", "login": "login-0", "compute": "compute-3"}
MACHINE = "AKIDONE"
"""The access key of the fake metadata service."""
GROUP = "arn:aws:logs:eu-west-1:123456789012:log-group:/slurm-stacks/t"
HOOK = b"#!/bin/sh\n"
BOOT = "def bootstrap(*arguments, **options):\n    print('booted')\n"


@dataclass
class Cloud:
    aws: RecordedAws
    imds: FakeImds
    s3: Any
    secret: str


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with recorded_aws() as aws, fake_imds() as imds:
        for name, value in {
            "AWS_ENDPOINT_URL": aws.url,
            "AWS_ENDPOINT_URL_S3": aws.url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url,
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
        key = {"aws_access_key_id": ENGINEER, "aws_secret_access_key": "b", "region_name": "eu-west-1"}
        s3 = boto3.client("s3", endpoint_url=aws.url, **key)
        for bucket in ("t-bucket", "scripts"):
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="scripts", Key="a/post.sh", Body=HOOK)
        secrets = boto3.client("secretsmanager", endpoint_url=aws.url, **key)
        made = Cloud(aws, imds, s3, secrets.create_secret(Name="t-munge")["ARN"])
        publish(s3)
        yield made


def publish(s3: Any) -> None:
    """The bucket with the content that a stack writes. Only the bootstrap is a fake."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder in ("node", "node/bootstrap"):
            archive.writestr(f"{folder}/__init__.py", "")
        archive.writestr("node/bootstrap/main.py", BOOT)
    code, settings = buffer.getvalue(), b"{}"
    pointer = bundle.current(code, settings)
    for key, content in {
        "loader.py": bundle.loader_archive("aws"),
        "current.json": json.dumps(pointer).encode(),
        pointer["code"]["key"]: code,
        pointer["settings"]["key"]: settings,
    }.items():
        s3.put_object(Bucket="t-bucket", Key=key, Body=content)


def boot(cloud: Cloud, folder: Path, role: str) -> Any:
    """Makes all calls to AWS of a machine's code, from its first line on. Returns the machine's design."""
    host = HOSTS[role]
    first = folder / "run_loader.py"
    shutil.copy(run_loader.__file__, first)
    line = [sys.executable, "-I", "-S", str(first), "--bucket", "t-bucket", "--region", "eu-west-1"]
    done = subprocess.run(
        [*line, "--cluster", "t", "--role", role, "--host", host],
        env={"AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.imds.url, "AWS_ENDPOINT_URL_S3": cloud.aws.url},
        cwd="/", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "booted\n", done.stderr
    driver = {"region": "eu-west-1", "secret": cloud.secret, "log_group": "/slurm-stacks/t"}
    context, _ = recorded_machine(
        folder, role, host, driver=driver, hooks=(Hook("all", "s3://scripts/a/post.sh"),)
    )
    _, sink, _ = machine.begin(context.settings, host, "s3://t-bucket")
    context.report = BootReport(host, role, [sink])
    context.report.begin("secrets", 1)
    if role == "controller":
        secret = clouds.of(context.settings).secret(cloud.secret)
        assert secret.get() is None
        secret.put(b"k" * key_server.KEY_BYTES)
    assert str(steps.hooks(context)).splitlines()[0] == "ran 1"
    return context


def of_the_agents(context: Any) -> list[Question]:
    """The calls of Amazon's programs: CloudWatch's agent by our configuration, Session Manager's agent by its
    documentation."""
    known = json.loads(json.dumps(cloudwatch.wanted(context, "/slurm-stacks/t", "eu-west-1")))
    streams = [one["log_stream_name"] for one in known["logs"]["logs_collected"]["files"]["collect_list"]]
    return [
        *(
            Question(f"logs:{action}", f"{GROUP}:log-stream:{stream}")
            for stream in streams
            for action in ("CreateLogStream", "PutLogEvents")
        ),
        Question("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": known["metrics"]["namespace"]}),
        # `up` reaches the controller and login machines, and people go on to nodes from there.
        *(Question(action, "*") for action in SSM_SESSION if context.role != "compute"),
    ]


def document(cloud: Cloud, context: Any, role: str) -> Any:
    design = replace(
        context.settings.design,
        hosts=(HEAD, replace(HEAD, name="login-0", role="login")),
        access=replace(context.settings.design.access, mode="ssm"),
    )
    scope = policies.Scope(
        "aws", "eu-west-1", "123456789012", "arn:aws:s3:::t-bucket", cloud.secret, GROUP,
        "arn:aws:iam::123456789012:role/t-compute", ["subnet-1"], ["sg-1"],
    )  # fmt: skip
    return getattr(policies, role)(scope, design)


@pytest.mark.parametrize("role", HOSTS)
def test_every_call_is_allowed_and_nothing_else_is(cloud: Cloud, tmp_path: Path, role: str) -> None:
    context = boot(cloud, tmp_path, role)
    made = cloud.aws.of(MACHINE)
    expected = {"s3:GetObject", "s3:PutObject"}
    if role == "controller":
        expected |= {"secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"}
    assert {question.action for question in made} == expected
    asked = [*made, *of_the_agents(context)]
    policy = document(cloud, context, role)
    assert [q for q in asked if not allowed(policy, q.action, q.resource, q.context)] == []
    assert unused(policy, asked) == []


def unused(policy: Any, asked: list[Question]) -> list[str]:
    """The permissions that no call needs. A boot report belongs to one machine; other kinds have theirs."""
    found = []
    for statement in policy["Statement"]:
        resources = statement["Resource"]
        for action in statement["Action"]:
            # S3 itself asks KMS, in the name of whoever reads an object.
            if action.startswith(("ec2:", "iam:", "kms:")):
                continue
            for resource in [resources] if isinstance(resources, str) else resources:
                if resource.endswith(("boot/v100-*.json", "boot/t4-*.json", ":v100-*/*", ":t4-*/*")):
                    continue
                if not any(q.action == action and fnmatch.fnmatchcase(q.resource, resource) for q in asked):
                    found.append(f"{statement['Sid']}: {action} on {resource}")
    return found


def test_what_is_allowed_for_nothing_is_found(cloud: Cloud, tmp_path: Path) -> None:
    """The test above can fail in both directions."""
    context = boot(cloud, tmp_path, "compute")
    asked = [*cloud.aws.of(MACHINE), *of_the_agents(context)]
    policy = document(cloud, context, "compute")
    policy["Statement"].append(
        {"Sid": "More", "Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": "arn:aws:s3:::t-bucket"}
    )
    assert unused(policy, asked) == ["More: s3:ListBucket on arn:aws:s3:::t-bucket"]
    policy["Statement"] = [s for s in policy["Statement"] if s["Sid"] != "Hooks"]
    refused = [q for q in asked if not allowed(policy, q.action, q.resource, q.context)]
    assert [(q.action, q.resource) for q in refused] == [("s3:GetObject", "arn:aws:s3:::scripts/a/post.sh")]
