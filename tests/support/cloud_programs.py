"""AWS on a namespace machine: what a test runs there, with this project's own Python.

`aws PORT FOLDER`: S3, Secrets Manager and EC2 of moto's; what IAM is asked goes to FOLDER/asked, a line each.
`imds FILE`: the metadata service at its own address, with what the JSON file has.
`listen PORT`: a server that takes connections and says nothing.
`make`, `put KEY FILE`, `get KEY`, `instances`: as the engineer, at `AWS_ENDPOINT_URL`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BUCKET, SECRET, REGION = "t-bucket", "t-munge", "eu-west-1"


def client(service: str) -> Any:
    import boto3

    key = {"aws_access_key_id": "ENGINEER", "aws_secret_access_key": "b"}
    return boto3.client(service, REGION, **key)


def aws(port: str, folder: str) -> None:
    from tests.support.recorded_aws import recorded_aws

    with recorded_aws("0.0.0.0", int(port)) as made:
        made.log = Path(folder) / "asked"
        _forever()


def imds(file: str) -> None:
    from tests.support.fake_imds import fake_imds

    with fake_imds("169.254.169.254", 80) as made:
        made.content |= json.loads(Path(file).read_text())
        _forever()


def listen(port: str) -> None:
    with socket.create_server(("0.0.0.0", int(port))):
        _forever()


def _forever() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Event().wait()


def make() -> None:
    client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    secret = client("secretsmanager").create_secret(Name=SECRET)["ARN"]
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    template = ec2.create_launch_template(
        LaunchTemplateName="t-compute",
        LaunchTemplateData={
            "ImageId": "ami-12345678",
            "InstanceType": "m5.large",
            "NetworkInterfaces": [{"DeviceIndex": 0, "DeleteOnTermination": True}],
        },
    )["LaunchTemplate"]["LaunchTemplateId"]
    print(json.dumps({"secret": secret, "subnet": subnet, "template": template}))


def put(key: str, file: str) -> None:
    client("s3").put_object(Bucket=BUCKET, Key=key, Body=Path(file).read_bytes())


def get(key: str) -> None:
    s3 = client("s3")
    try:
        sys.stdout.write(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode())
    except s3.exceptions.NoSuchKey:
        print("null")


def instances() -> None:
    pages = client("ec2").get_paginator("describe_instances").paginate()
    found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
    print(
        json.dumps(
            {
                one["InstanceId"]: {
                    "state": one["State"]["Name"],
                    "index": one["AmiLaunchIndex"],
                    "tags": {tag["Key"]: tag["Value"] for tag in one.get("Tags", [])},
                }
                for one in found
            }
        )
    )


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    globals()[verb](*arguments)
