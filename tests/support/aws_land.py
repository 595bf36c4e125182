"""AWS with container machines: moto behind AWS's own names, permissions by our policies, instance metadata.

EC2's calls go to `fake_ec2`, whose instances are the machines. S3 and Secrets Manager are moto's. Each call
of a machine is signed with its role's key, and refused if the role's policy does not allow it.
"""

from __future__ import annotations

import base64
import functools
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from botocore.exceptions import ClientError
from werkzeug.test import EnvironBuilder, run_wsgi_app

from infra.aws import policies
from infra.aws.launch_templates import BOOT_SCRIPT
from infra.aws.launch_templates import METADATA as OPTIONS
from infra.clouds.commands import ClusterRef
from node.design.model import STATE, ClusterDesign, Host
from node.design.sites import MountSource
from node.elastic.drivers.ec2 import names as ec2_names
from node.elastic.drivers.ec2.names import NODES, node_of
from operations.aws.cloud import AwsCloud
from operations.clouds.cloud import Cloud
from tests.support import fake_ec2_xml as xml
from tests.support.cloud_land import ADDRESSES, Instance, Land
from tests.support.cloud_server import Answer, Request
from tests.support.fake_ec2 import ACCOUNT, CREDENTIALS, Call, fake_ec2
from tests.support.fake_ec2_iam import ROLE_ARN, Question, questions
from tests.support.fake_imds import ROLE, FakeImds, key
from tests.support.iam import allowed
from tests.support.recorded_aws import SIGNED, RecordedAws

BUCKET = "t-bucket"
REGION = "eu-central-1"
EFS = f"fs-12345678.efs.{REGION}.amazonaws.com"
SHARES = {path: f"{EFS}:{path}" for path in ("/home", "/apps")}
HOST = "slurm-stacks:host"
DEVICE = "/dev/sdh"


class AwsLand(Land):
    """A simulated AWS.

    Attributes:
        hops: HttpPutResponseHopLimit of the machines.

    Args:
        design: the design of the cluster `t`.
    """

    def __init__(self, folder: Path, design: ClusterDesign) -> None:
        super().__init__(folder, SHARES, [f"{REGION}.amazonaws.com", f"s3.{REGION}.amazonaws.com"], "Ec2")
        self._design = design
        self.ec2 = self._ends.enter_context(fake_ec2((), "10.99.0.0/16"))
        self._aws = RecordedAws(permits=self.permits)
        s3 = self.ec2.s3()
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        self._s3 = s3
        import boto3

        manager = boto3.client("secretsmanager", REGION, endpoint_url=self.ec2.url, **CREDENTIALS)
        self.secret: str = manager.create_secret(Name=f"t-munge-{secrets.token_hex(4)}")["ARN"]
        self._imds: dict[str, FakeImds] = {}
        self.refused: list[tuple[str, str]] = []
        self._interfaces: dict[str, str] = {}
        self._volume: str | None = None
        self.hops = int(OPTIONS["http_put_response_hop_limit"])

    # --- what the stack makes ------------------------------------------------------------------------------

    def site(self) -> dict[str, Any]:
        """Return the `Site`'s fields about this cloud, once the partitions have their templates."""
        mounts = {path: MountSource(origin) for path, origin in SHARES.items()}
        if self._design.state() is not None:
            mounts[STATE] = MountSource(disk=self._state(), device=DEVICE)
        return {**self.ec2.site(), "bucket": BUCKET, "secret": self.secret, "mounts": mounts}

    def template(self, partition: str) -> None:
        text = BOOT_SCRIPT.render(self._design, BUCKET, "compute")
        options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "enabled"}
        self.ec2.template(
            partition, UserData=base64.b64encode(text.encode()).decode(), MetadataOptions=options
        )

    def make(self, host: Host) -> None:
        """Make a machine that lives as long as the cluster, at its address, with its volumes."""
        client = self.ec2.connect()
        (made,) = client.run_instances(
            ImageId="ami-12345678", InstanceType="m5.large", MinCount=1, MaxCount=1,
            UserData=BOOT_SCRIPT.render(self._design, BUCKET, host.role, host.name),
            NetworkInterfaces=[{"DeviceIndex": 0, "NetworkInterfaceId": self._interface_of(host)}],
            TagSpecifications=[{"ResourceType": "instance", "Tags": [
                {"Key": ec2_names.CLUSTER, "Value": "t"}, {"Key": ec2_names.ROLE, "Value": host.role},
                {"Key": HOST, "Value": host.name},
            ]}],
        )["Instances"]  # fmt: skip
        if host.role == "controller" and self._design.state() is not None:
            client.attach_volume(VolumeId=self._state(), InstanceId=made["InstanceId"], Device=DEVICE)

    def _interface_of(self, host: Host) -> str:
        """Return the host's network interface, which outlives its machines."""
        if host.name not in self._interfaces:
            made = self.ec2.connect().create_network_interface(
                SubnetId=self.ec2.subnets[self.ec2.zones[0]], PrivateIpAddress=ADDRESSES[host.name]
            )
            self._interfaces[host.name] = made["NetworkInterface"]["NetworkInterfaceId"]
        return self._interfaces[host.name]

    def _state(self) -> str:
        """Return the volume with Slurm's state, which outlives the controller."""
        if self._volume is None:
            made = self.ec2.connect().create_volume(AvailabilityZone=self.ec2.zones[0], Size=1)
            self._volume = made["VolumeId"]
        return self._volume

    def lose(self, host: str) -> None:
        """Let a machine's host fail for good: its power is cut, and then EC2 has ended it."""
        identity = self.hosts()[host].id
        self.lose_power(host)
        self.ec2.connect().terminate_instances(InstanceIds=[identity])

    def attached(self) -> dict[str, dict[str, str]]:
        if self._volume is None:
            return {}
        (volume,) = self.ec2.connect().describe_volumes(VolumeIds=[self._volume])["Volumes"]
        # Ubuntu's kernel names a device of a Xen instance so (`node.bootstrap.vm.clouds.aws.find`).
        device = DEVICE.replace("/sd", "/xvd")
        return {attachment["InstanceId"]: {device: self._volume} for attachment in volume["Attachments"]}

    def cloud(self) -> Cloud:
        """Return the cloud as the engineer's machine sees it."""
        return AwsCloud(ClusterRef("t", REGION), (self.ec2.connect(), self.ec2.s3()))

    def end_all(self) -> None:
        """End all machines, as a termination and a destroy do."""
        self.ec2.connect().terminate_instances(InstanceIds=[one.id for one in self.ec2.living()])

    def publish(self, objects: Mapping[str, bytes]) -> None:
        for name, content in objects.items():
            self.store(name, content)

    def store(self, key: str, content: bytes) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=content)

    def stored(self, key: str) -> bytes | None:
        for left in reversed(range(5)):
            try:
                content: bytes = self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            except self._s3.exceptions.NoSuchKey:
                return None
            except ClientError as error:
                # If a machine replaces an object while it is read, moto closes the object's content.
                if not left or error.response["ResponseMetadata"]["HTTPStatusCode"] != 500:
                    raise
            else:
                return content
        raise AssertionError("the last attempt returns or raises")

    # --- what AWS says -------------------------------------------------------------------------------------

    def running(self) -> list[Instance]:
        found = []
        for one in self.ec2.living():
            tags = _tags(one)
            host = tags.get(HOST) or node_of(tags[NODES], one.ami_launch_index)
            serial = f"ec2{one.id.removeprefix('i-')[:5]}-0000-4000-8000-{one.id.removeprefix('i-')[-12:]}"
            hardware = {
                "system-manufacturer": "Amazon EC2", "system-product-name": "m5.large",
                "system-uuid": serial, "system-serial-number": serial, "chassis-asset-tag": "Amazon EC2",
            }  # fmt: skip
            found.append(Instance(one.id, host, one.private_ip, hardware))
        return found

    def metadata(self, address: str, ask: Request) -> Answer:
        instance = self.at(address)
        if instance is None:
            return Answer(404)
        imds = self._imds.setdefault(instance.id, FakeImds())
        imds.content = self._content(instance)
        status, text = imds.answer(ask.method, ask.target, ask.headers.get)
        # The answer with a token makes only one network hop, so it reaches no container with its own network.
        hops = self.hops if ask.method == "PUT" else None
        return Answer(status, text.encode(), {"Server": "EC2ws", "Content-Type": "text/plain"}, hops)

    def _content(self, instance: Instance) -> dict[str, str]:
        (one,) = [i for i in self.ec2.instances() if i.id == instance.id]
        role = _tags(one)[ec2_names.ROLE]
        local = f"ip-{instance.address.replace('.', '-')}.{REGION}.compute.internal"
        document = {
            "instanceId": one.id, "region": REGION, "availabilityZone": one.placement.zone,
            "instanceType": "m5.large", "accountId": ACCOUNT, "imageId": one.image_id,
            "privateIp": instance.address, "architecture": "x86_64",
        }  # fmt: skip
        tags = {f"meta-data/tags/instance/{name}": value for name, value in _tags(one).items()}
        return {
            "dynamic/instance-identity/document": json.dumps(document),
            "meta-data/ami-id": one.image_id,
            "meta-data/ami-launch-index": str(one.ami_launch_index),
            "meta-data/hostname": local,
            "meta-data/local-hostname": local,
            "meta-data/local-ipv4": instance.address,
            "meta-data/instance-id": one.id,
            "meta-data/instance-type": "m5.large",
            "meta-data/placement/availability-zone": str(one.placement.zone),
            "meta-data/placement/region": REGION,
            ROLE: role,
            f"{ROLE}{role}": json.dumps(key(role.upper())),
            "user-data": _text(one.user_data),
            **self._interface(instance, str(one.subnet_id), str(one.vpc_id)),
            **(tags if OPTIONS["instance_metadata_tags"] == "enabled" else {}),
        }

    def _interface(self, instance: Instance, subnet: str, vpc: str) -> dict[str, str]:
        card = self.cards.get(instance.id)
        if card is None:
            return {}
        place = f"meta-data/network/interfaces/macs/{card}/"
        said = {
            "device-number": "0", "mac": card, "local-ipv4s": instance.address, "owner-id": ACCOUNT,
            "subnet-id": subnet, "subnet-ipv4-cidr-block": "10.99.0.0/18", "vpc-id": vpc,
            "vpc-ipv4-cidr-block": "10.99.0.0/16", "vpc-ipv4-cidr-blocks": "10.99.0.0/16",
        }  # fmt: skip
        return {"meta-data/mac": card, **{place + name: value for name, value in said.items()}}

    def files(self) -> dict[str, str | tuple[str, int]]:
        """Return files that mask Google's units, which Ubuntu's image for EC2 does not have."""
        off = "[Unit]\nConditionPathExists=/none\n"
        units = ("google-guest-agent", "google-startup-scripts", "google-shutdown-scripts")
        return {f"etc/systemd/system/{unit}.service.d/off.conf": off for unit in units}

    def api(self, ask: Request) -> Answer:
        builder = EnvironBuilder(ask.target, f"https://{ask.host}", method=ask.method, data=ask.body)
        builder.headers.extend({k: v for k, v in ask.headers.items() if k not in ("host", "content-length")})
        app: Callable[..., Any] = self._aws
        if ask.host.startswith("ec2."):
            if refused := self._refusal(ask):
                return refused
            app = self.ec2
        content, status, headers = run_wsgi_app(app, builder.get_environ(), buffered=True)
        kept = {k: v for k, v in headers.items() if k.lower() not in ("content-length", "connection")}
        return Answer(int(status.split()[0]), b"".join(content), kept)

    # --- IAM -----------------------------------------------------------------------------------------------

    def permits(self, who: str, question: Question) -> bool:
        """Return whether the policy of a key's role allows a call."""
        document = self.policies.get(who.removeprefix("AKID").lower())
        if document and allowed(document, question.action, question.resource, question.context):
            return True
        self.refused.append((who, f"{question.action} {question.resource}"))
        return False

    @functools.cached_property
    def policies(self) -> dict[str, policies.Document]:
        """Return role -> policy."""
        scope = policies.Scope(
            "aws", REGION, ACCOUNT, f"arn:aws:s3:::{BUCKET}", self.secret,
            f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/slurm-stacks/t", ROLE_ARN,
            list(self.ec2.subnets.values()), ["sg-12345678"],
        )  # fmt: skip
        return {
            role: getattr(policies, role)(scope, self._design) for role in ("controller", "login", "compute")
        }

    def _refusal(self, ask: Request) -> Answer | None:
        params = dict(parse_qsl(ask.body.decode(), keep_blank_values=True))
        call = Call(params.pop("Action"), params)
        signed = SIGNED.search(ask.headers.get("authorization", ""))
        for question in questions(self.ec2, call):
            if signed is None or not self.permits(signed[1], question):
                text = f"You are not authorized to perform this operation: {question.action}"
                status, content = xml.error("UnauthorizedOperation", text, 403)
                return Answer(status, content, {"Content-Type": "text/xml"})
        return None


def _text(user_data: Any) -> str:
    """Return user data as text: moto has a type for a launch's, and keeps a template's as it was sent."""
    return base64.b64decode(str(user_data)).decode()


def _tags(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}
