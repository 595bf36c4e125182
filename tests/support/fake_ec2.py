"""EC2 on loopback: moto's wire format, behind a layer with the rules that moto lacks.

moto ignores client tokens, launches whatever is asked for, lists at once, and terminates half of a list with
an unknown id. The layer keeps the tokens, MinCount and MaxCount, capacity by zone and a quota, a list that
lags, and the names of unknown instances, and answers with any error when told to. Every call is recorded.
"""

from __future__ import annotations

import functools
import io
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import boto3
from botocore.config import Config
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import run_wsgi_app

from node.aws.signatures import Credentials
from node.design.model import Settings
from node.design.sites import AwsSite
from node.elastic.drivers.boot_reports import BootStatusReader
from node.elastic.drivers.ec2.client import Ec2Client
from node.elastic.drivers.ec2.driver import Ec2Driver
from tests.support import fake_ec2_limits
from tests.support import fake_ec2_xml as xml
from tests.support.cloud_faults import Fault, due

ACCOUNT = "123456789012"
PATIENCE_SECONDS = 600.0
"""The clients' time limit with moto, which takes long for hundreds of machines, in place of the driver's own.
"""
CREDENTIALS = {"aws_access_key_id": "dummy", "aws_secret_access_key": "dummy"}
EFA = [
    {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface", "DeleteOnTermination": True},
    {"DeviceIndex": 1, "NetworkCardIndex": 0, "InterfaceType": "efa-only", "DeleteOnTermination": True},
]


@dataclass
class Call:
    """A request of the client: EC2's action, its parameters as sent, and the code of a refusal."""

    action: str
    params: dict[str, str]
    code: str | None = None

    def tags(self, kind: str = "instance") -> dict[str, str]:
        """Return the tags that the call sets on resources of a kind."""
        for number in range(1, 10):
            head = f"TagSpecification.{number}"
            if self.params.get(f"{head}.ResourceType") == kind:
                keys = [k for k in self.params if k.startswith(f"{head}.Tag.") and k.endswith(".Key")]
                return {self.params[k]: self.params[k.removesuffix("Key") + "Value"] for k in keys}
        return {}

    def listed(self, name: str) -> list[str]:
        """Return the values of `name.1`, `name.2`, …"""
        return [value for key, value in self.params.items() if key.rpartition(".")[0] == name]


@dataclass
class FakeEc2:
    """An EC2 for tests.

    Attributes:
        calls: The calls since the last `forget`.
        capacity: Zone -> instances that may live in it at once; a zone that is not named has no limit.
        quota: Instances that may live in all zones.
        lag: Seconds for which a new instance is in no list and unknown to every call.
        page: The largest number of results of one page of any list.
        stillborn: How many of the next launch's instances have ended when it is answered.
        events: Instance -> (event's code, when, description).
        interrupted: Instance -> when its interruption was announced.
        groups: Placement group -> its tags.
        network: Returns the network nodes of moto's record of an instance, the widest first.
        pools: ARN of a group of capacity reservations -> the ARNs of its members.
    """

    region: str = "eu-central-1"
    zones: tuple[str, ...] = ("eu-central-1a", "eu-central-1b")
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    capacity: dict[str, int] = field(default_factory=dict)
    quota: int | None = None
    lag: float = 0.0
    page: int = 1000
    stillborn: int = 0
    events: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    interrupted: dict[str, float] = field(default_factory=dict)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    network: Callable[[Any], tuple[str, ...]] = lambda instance: ()
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, tuple[dict[str, str], bytes, list[str]]] = field(default_factory=dict)
    _shown_at: dict[str, float] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _moto: Any = None

    # --- for tests -----------------------------------------------------------------------------------------

    def site(self) -> dict[str, Any]:
        """Return the fields of the cloud's part of the `Site` of a cluster `t`."""
        cloud = AwsSite(self.region, "t", dict(self.subnets), dict(self.templates))
        return {"bucket": "t-bucket", "secret": "t-munge", "cloud": cloud}

    def connect(self) -> Any:
        """Return boto3's client, with which a test makes and changes what the account has."""
        return boto_client("ec2", self.region, self.url)

    def s3(self) -> Any:
        """Return boto3's client of the bucket, for boot reports."""
        return boto_client("s3", self.region, self.url)

    def client(self, read_seconds: float = PATIENCE_SECONDS) -> Ec2Client:
        """Return the driver's own client."""
        credentials = Credentials("dummy", "dummy")
        return Ec2Client(self.region, self.url, lambda: credentials, read_seconds)

    def driver(
        self,
        settings: Settings,
        boots: BootStatusReader = lambda running: {},
        read_seconds: float = PATIENCE_SECONDS,
    ) -> Ec2Driver:
        return Ec2Driver(settings, lambda: self.client(read_seconds), boots)

    def template(self, partition: str, interfaces: list[dict[str, Any]] | None = None, **data: Any) -> str:
        """Make a partition's launch template, by default with one interface and no subnet, as ours are."""
        plain = [{"DeviceIndex": 0, "Groups": ["sg-12345678"], "DeleteOnTermination": True}]
        content = {"ImageId": "ami-12345678", "InstanceType": "c4.2xlarge", **data}
        content["NetworkInterfaces"] = plain if interfaces is None else interfaces
        made = self.connect().create_launch_template(
            LaunchTemplateName=f"t-{partition}", LaunchTemplateData=content
        )
        self.templates[partition] = made["LaunchTemplate"]["LaunchTemplateId"]
        self.forget()
        return self.templates[partition]

    def forget(self) -> None:
        self.calls.clear()

    def actions(self) -> list[str]:
        return [call.action for call in self.calls]

    def instances(self) -> list[Any]:
        """Return moto's own records, including ended instances."""
        return list(ec2_backends[ACCOUNT][self.region].all_instances())

    def living(self) -> list[Any]:
        return [i for i in self.instances() if i._state.name in ("pending", "running")]

    def set_state(self, identity: str, name: str, reason: tuple[str, str] | None = None) -> None:
        (instance,) = [i for i in self.instances() if i.id == identity]
        instance._state.name = name
        if reason is not None:
            instance.state_reason.code, instance.state_reason.message = reason

    # --- the server ----------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        params = dict(parse_qsl(body.decode(), keep_blank_values=True)) if b"Action=" in body else {}
        if not params:
            answer = self._forward(environ, body)
        else:
            call = Call(params.pop("Action"), params)
            fault = self._fault(call)
            if fault is None or fault.done:
                with self._lock:
                    answer = self._answer(environ, call)
            if fault is not None:
                time.sleep(fault.hang)
                answer = xml.error(fault.code, fault.message, fault.status)
            call.code = xml.code(answer)
        status, content = answer
        start(f"{status} X", [("Content-Type", "text/xml"), ("Content-Length", str(len(content)))])
        return [content]

    def _fault(self, call: Call) -> Fault | None:
        with self._lock:
            self.calls.append(call)
            return due(self.faults, call.action)

    def _answer(self, environ: dict[str, Any], call: Call) -> xml.Answer:
        params = call.params

        def moto(changes: dict[str, str]) -> xml.Answer:
            fields = {"Action": call.action, **params, **changes}
            return self._forward(environ, urlencode(fields).encode())

        if (refusal := fake_ec2_limits.refusal(call.action, params)) is not None:
            return refusal
        size = min(self.page, int(params.get("MaxResults", self.page)))
        page = {"MaxResults": str(size)} if "MaxResults" in params else {}
        if call.action == "RunInstances":
            return self._run(params, moto)
        if call.action == "TerminateInstances":
            return self._terminate(call.listed("InstanceId"), environ)
        if call.action == "DescribeInstances":
            status, content = moto(page)
            return status, xml.without(content, self._hidden())
        if call.action == "DescribeInstanceStatus":
            events = xml.events(self.events, set(xml.filters(params).get("event.code", [])))
            response = ("DescribeInstanceStatusResponse", "instanceStatusSet")
            return xml.page(*response, events, size, params.get("NextToken"))
        if call.action == "DescribeSpotInstanceRequests":
            told = xml.interruptions(self.interrupted, set(xml.filters(params).get("status-code", [])))
            response = ("DescribeSpotInstanceRequestsResponse", "spotInstanceRequestSet")
            return xml.page(*response, told, size, params.get("NextToken"))
        if call.action == "DescribeInstanceTopology":
            return self._topology(call.listed("InstanceId"), params.get("NextToken"))
        return moto(page)

    def _topology(self, wanted: list[str], token: str | None) -> xml.Answer:
        """Return a page of EC2's own size, 20. Only what runs has network nodes (botocore's model)."""
        known = {i.id: i for i in self.instances() if i.id not in self._hidden()}
        if unknown := [identity for identity in wanted if identity not in known]:
            return xml.error(
                "InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist"
            )
        found = [known[identity] for identity in wanted] or list(known.values())
        items = [xml.network(i.id, self.network(i) if i._state.name == "running" else ()) for i in found]
        size = min(self.page, 20)
        return xml.page("DescribeInstanceTopologyResponse", "instanceSet", items, size, token)

    def _run(self, params: dict[str, str], moto: Callable[[dict[str, str]], xml.Answer]) -> xml.Answer:
        wish = {key: value for key, value in params.items() if key != "ClientToken"}
        token = params.get("ClientToken", "")
        if token in self.tokens:
            before, content, ids = self.tokens[token]
            if before != wish:
                return xml.error("IdempotentParameterMismatch", "the token was used with other parameters")
            if any(i.id in ids and i._state.name == "terminated" for i in self.instances()):
                return xml.error("IdempotentInstanceTerminated", "the token's instance has ended")
            return 200, content
        interfaces = {key.split(".")[1] for key in params if key.startswith("NetworkInterface.")}
        if "SubnetId" in params and (interfaces or self._template_has_interfaces(params)):
            return xml.error(
                "InvalidParameterCombination",
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
            )
        subnets = {params.get(f"NetworkInterface.{number}.SubnetId") for number in interfaces}
        cards = [params[key] for key in params if key.endswith(".NetworkInterfaceId")]
        if cards:
            # A machine with an interface that exists is in the subnet of that.
            subnets = {ec2_backends[ACCOUNT][self.region].enis[card].subnet.id for card in cards}
        subnet = params.get("SubnetId") or (subnets.pop() if len(subnets) == 1 else None)
        zone = next((zone for zone, known in self.subnets.items() if known == subnet), None)
        if zone is None:
            return xml.error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
        least, most = int(params["MinCount"]), int(params["MaxCount"])
        room, refusal = self._room(zone, most)
        if room < least:
            return refusal
        status, content = moto({"MinCount": str(min(most, room)), "MaxCount": str(min(most, room))})
        if status != 200:
            return status, content
        ids = xml.ids(content)
        self._shown_at |= dict.fromkeys(ids, time.monotonic() + self.lag)
        dead, self.stillborn = ids[: self.stillborn], 0
        for identity in dead:
            self.set_state(identity, "terminated", ("Client.VolumeLimitExceeded", "Volume limit exceeded"))
        content = xml.ended(content, dead)
        if token:
            self.tokens[token] = (wish, content, ids)
        return 200, content

    def _room(self, zone: str, most: int) -> tuple[int, xml.Answer]:
        living = self.living()
        in_zone = sum(1 for i in living if i.placement.zone == zone)
        room = min(most, self.capacity.get(zone, most + in_zone) - in_zone)
        refusal = xml.error(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient c4.2xlarge capacity in the Availability Zone ({zone}).",
            500,
        )
        if self.quota is not None and self.quota - len(living) < room:
            room = self.quota - len(living)
            refusal = xml.error("VcpuLimitExceeded", "You have requested more vCPU capacity than your limit")
        return max(0, room), refusal

    def template_data(self, identity: str) -> dict[str, Any]:
        """Return the content of a launch template's newest version; it is empty if there is none."""
        template = ec2_backends[ACCOUNT][self.region].launch_templates.get(identity)
        return dict(template.versions[-1].data) if template else {}

    def _template_has_interfaces(self, params: dict[str, str]) -> bool:
        data = self.template_data(params.get("LaunchTemplate.LaunchTemplateId", ""))
        return bool(data.get("NetworkInterfaces"))

    def catch_up(self) -> None:
        """End the lag: list everything that has been launched so far."""
        self._shown_at.clear()

    def _hidden(self) -> set[str]:
        return {identity for identity, at in self._shown_at.items() if time.monotonic() < at}

    def _terminate(self, wanted: list[str], environ: dict[str, Any]) -> xml.Answer:
        """Terminate all of the instances, also ended ones, or none if one is unknown."""
        known = {i.id for i in self.instances()} - self._hidden()
        unknown = [identity for identity in wanted if identity not in known]
        if unknown:
            text = ", ".join(unknown)
            subject = f"instance ID '{text}' does" if len(unknown) == 1 else f"instance IDs '{text}' do"
            return xml.error("InvalidInstanceID.NotFound", f"The {subject} not exist")
        ended = {i.id for i in self.instances() if i._state.name == "terminated"}
        left = [identity for identity in wanted if identity not in ended]
        if not left:
            return xml.listing("TerminateInstancesResponse", "instancesSet", [])
        fields = {f"InstanceId.{number}": identity for number, identity in enumerate(left, 1)}
        return self._forward(environ, urlencode({"Action": "TerminateInstances", **fields}).encode())

    def _forward(self, environ: dict[str, Any], body: bytes) -> xml.Answer:
        copy = {k: v for k, v in environ.items() if not k.startswith("werkzeug.")}
        copy |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        content, status, _ = run_wsgi_app(self._moto, copy)
        return int(status.split()[0]), b"".join(content)


class _Silent(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Write no line for each request."""


@functools.cache
def boto_client(service: str, region: str, url: str) -> Any:
    """Make a client once: that reads the description of all of EC2's calls and takes a second."""
    config = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=PATIENCE_SECONDS)
    session = boto3.session.Session()
    return session.client(service, region_name=region, endpoint_url=url, config=config, **CREDENTIALS)


class _Server:
    """The process's only server. The fake that answers changes from test to test."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.fake: FakeEc2 | None = None
        server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        assert self.fake is not None
        return self.fake(environ, start)


_server = functools.cache(_Server)


@contextmanager
def fake_ec2(
    partitions: Iterable[str] = ("compute",), network: str = "10.0.0.0/16", kind: type[FakeEc2] = FakeEc2
) -> Iterator[Any]:
    """Yield an empty EC2, with a subnet in each zone and a launch template for each partition."""
    server = _server()
    server.fake = fake = kind(url=server.url, _moto=server.moto)
    # All servers of a process share one state.
    ec2_backends[ACCOUNT][fake.region].reset()
    s3_backends[ACCOUNT]["aws"].reset()
    client = fake.connect()
    vpc = client.create_vpc(CidrBlock=network)["Vpc"]["VpcId"]
    parts = ipaddress.ip_network(network).subnets(new_prefix=18)
    for zone, part in zip(fake.zones, parts, strict=False):
        made = client.create_subnet(VpcId=vpc, CidrBlock=str(part), AvailabilityZone=zone)
        fake.subnets[zone] = made["Subnet"]["SubnetId"]
    for partition in partitions:
        fake.template(partition)
    fake.forget()
    yield fake
