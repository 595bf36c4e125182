"""One EC2 and one Compute Engine in a process of their own, for programs whose CPU time is compared.

    .venv/bin/python -m tests.support.peer_clouds aws

They answer at once, also for a thousand machines, so that a program that asks often is not charged for a slow
stand-in. EC2 is moto behind `fake_ec2`: each launch is moto's launch of one instance, and the others are
copies of moto's own text with their own ids and addresses. So are DynamoDB and Route 53, which a peer needs.
Compute Engine is `fake_gce`, whose messages are those of Google's client library. A peer that reads the API's
discovery document gets the one that google-api-python-client has in its package, with this server's address.

The process prints one line of JSON with its address and what a cluster's site needs. `/-/state` says which
calls there were since the last `/-/reset` and how many machines live, and `/-/clear` ends all of them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from google.cloud import compute_v1 as gce

from node.system.codec import to_json
from tests.support import fake_ec2_xml as xml
from tests.support import fake_gce
from tests.support.fake_ec2 import FakeEc2, boto_client, fake_ec2
from tests.support.fake_gce_wire import as_json
from tests.support.fake_metadata import V1, FakeMetadata

CLUSTER = "t"
TABLE, ZONE, DOMAIN = "parallelcluster-slurm-t", "t.pcluster.", "t.pcluster"
"""ParallelCluster's table of nodes and its zone of names."""
_PREFIX = re.compile(r" AND name:([\w-]+)\*")
_ITEM = re.compile(r"(?<=<instancesSet>).*(?=</instancesSet>)", re.S)
"""The text of the one instance of moto's answer."""


# --- EC2 ---------------------------------------------------------------------------------------------------


def copies(item: str, count: int, first: int) -> dict[str, str]:
    """Return id -> text for `count` instances like moto's one, which is the first of them.

    Args:
        item: Moto's text of one instance.
        first: The number of the first copy, for ids and addresses that no other has.
    """
    own, address = (
        re.findall(rf"<{name}>(.*?)</{name}>", item)[-1] for name in ("instanceId", "privateIpAddress")
    )
    made = {}
    for number in range(first, first + count):
        identity = f"i-{number:017x}"
        ip = f"10.0.{number // 250}.{1 + number % 250}"
        text = item.replace(own, identity).replace(address, ip)
        text = text.replace(address.replace(".", "-"), ip.replace(".", "-"))
        made[identity] = re.sub(
            r"<amiLaunchIndex>\d*</amiLaunchIndex>",
            f"<amiLaunchIndex>{number - first}</amiLaunchIndex>",
            text,
        )
    return made


@dataclass
class ManyEc2(FakeEc2):
    """`FakeEc2` with launches and lists of thousands that take no time.

    Attributes:
        launched: Moto's instance -> its copies as DescribeInstances shows them.
        others: Calls of other services since the last `forget`.
    """

    launched: dict[str, dict[str, str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    _made: int = 1

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/-/"):
            status, content = 200, json.dumps(self.told(path.removeprefix("/-/"))).encode()
            start(f"{status} X", [("Content-Type", "text/json"), ("Content-Length", str(len(content)))])
            return [content]
        if target := environ.get("HTTP_X_AMZ_TARGET"):
            self.others.append(target.replace("_20120810", ""))
        elif "hostedzone" in path:
            self.others.append("Route53.ChangeResourceRecordSets")
        return super().__call__(environ, start)

    def told(self, word: str) -> dict[str, Any]:
        if word == "reset":
            self.forget()
            self.others.clear()
        elif word == "clear":
            with self._lock:
                self.launched.clear()
        calls = Counter([*(f"EC2.{call.action}" for call in self.calls), *self.others])
        return {"calls": calls, "living": sum(map(len, self.launched.values()))}

    def _answer(self, environ: dict[str, Any], call: Any) -> xml.Answer:
        if call.action == "RunInstances":
            return self._many(environ, call)
        if call.action == "DescribeInstances":
            return self._listed(environ, call)
        if call.action == "TerminateInstances":
            wanted = set(call.listed("InstanceId"))
            for seed, known in self.launched.items():
                self.launched[seed] = {i: text for i, text in known.items() if i not in wanted}
            return xml.listing("TerminateInstancesResponse", "instancesSet", [])
        return super()._answer(environ, call)

    def _many(self, environ: dict[str, Any], call: Any) -> xml.Answer:
        """Have moto launch one instance with the request's parameters, and copy it."""
        params = {**call.params, "MinCount": "1", "MaxCount": "1"}
        status, content = self._forward(environ, urlencode({"Action": "RunInstances", **params}).encode())
        if status != 200:
            return status, content
        count, text = int(call.params["MaxCount"]), content.decode()
        found = _ITEM.search(text)
        assert found is not None, text
        seed = xml.ids(content)[0]
        told = copies(found[0], count, self._made)
        shown = {"Action": "DescribeInstances", "InstanceId.1": seed}
        whole = self._forward(environ, urlencode(shown).encode())[1].decode()
        listed = _ITEM.search(whole)
        assert listed is not None, whole
        self.launched[seed] = copies(listed[0], count, self._made)
        self._made += count
        return 200, (text[: found.start()] + "".join(told.values()) + text[found.end() :]).encode()

    def _listed(self, environ: dict[str, Any], call: Any) -> xml.Answer:
        """Have moto choose by the request's filters, and show the copies of what it has chosen."""
        params = {k: v for k, v in call.params.items() if k not in ("MaxResults", "NextToken")}
        wanted = set(call.listed("InstanceId"))
        params = {k: v for k, v in params.items() if not k.startswith("InstanceId.")}
        status, content = self._forward(environ, urlencode({"Action": call.action, **params}).encode())
        if status != 200:
            return status, content
        chosen = [seed for seed in dict.fromkeys(xml.ids(content)) if seed in self.launched]
        items = [
            text for seed in chosen for i, text in self.launched[seed].items() if not wanted or i in wanted
        ]
        size = min(self.page, int(call.params.get("MaxResults", self.page)))
        first = int(call.params.get("NextToken", "token-0").removeprefix("token-"))
        token = f"token-{first + size}" if first + size < len(items) else None
        head = "<item><reservationId>r-00000001</reservationId><ownerId>123456789012</ownerId><groupSet/>"
        some = "".join(items[first : first + size])
        sets = [f"{head}<instancesSet>{some}</instancesSet></item>"] if some else []
        return xml.listing("DescribeInstancesResponse", "reservationSet", sets, token)


def aws_site(fake: ManyEc2, partitions: Iterable[str]) -> dict[str, Any]:
    """Make what ParallelCluster's cluster has: launch templates, a table of nodes, a zone of names."""
    ec2 = fake.connect()
    tags = [
        {"Key": "parallelcluster:cluster-name", "Value": CLUSTER},
        {"Key": "parallelcluster:node-type", "Value": "Compute"},
    ]
    for partition in partitions:
        queue, _, resource = partition.split("-")
        content = {
            "ImageId": "ami-12345678",
            "InstanceType": "c4.2xlarge",
            "NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": next(iter(fake.subnets.values()))}],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
        }
        ec2.create_launch_template(
            LaunchTemplateName=f"{CLUSTER}-{queue}-{resource}", LaunchTemplateData=content
        )
    key = {"AttributeName": "Id"}
    boto_client("dynamodb", fake.region, fake.url).create_table(
        TableName=TABLE,
        KeySchema=[key | {"KeyType": "HASH"}],
        AttributeDefinitions=[key | {"AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    names = boto_client("route53", fake.region, fake.url)
    zone = names.create_hosted_zone(Name=ZONE, CallerReference="bench")["HostedZone"]["Id"]
    fake.told("reset")
    return {"url": fake.url, **fake.site(), "region": fake.region, "zone": zone.rpartition("/")[2]}


# --- Compute Engine ----------------------------------------------------------------------------------------


def partial(content: dict[str, Any], fields: str) -> dict[str, Any]:
    """Return a list's answer with the fields of its instances that the request names.

    Google's documentation calls this a partial response: `items.zones.instances(name,zone),nextPageToken`.
    """
    named = re.search(r"\.(\w+)\(([^)]*)\)", fields)
    if named is None:
        return content
    collection, wanted = named[1], {one.partition(".")[0] for one in named[2].split(",")}
    items = {
        scope: {collection: [{k: v for k, v in one.items() if k in wanted} for one in found[collection]]}
        for scope, found in content.get("items", {}).items()
        if collection in found
    }
    return {"items": items} | {k: v for k, v in content.items() if k == "nextPageToken"}


def named(content: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return an aggregated list's answer with the things whose names begin so."""
    items = {
        scope: {k: [one for one in v if one["name"].startswith(prefix)] if isinstance(v, list) else v
                for k, v in found.items()}
        for scope, found in content["items"].items()
    }  # fmt: skip
    return {**content, "items": items}


def discovery(document: str, url: str) -> bytes:
    """Return an API's discovery document with another address.

    Args:
        document: The text of the document in google-api-python-client.
    """
    told = json.loads(document)
    told |= {"rootUrl": f"{url}/", "baseUrl": f"{url}/{told['servicePath']}"}
    told.pop("mtlsRootUrl", None)
    return json.dumps(told).encode()


def _without_empty(thing: Any, kept: Sequence[str]) -> Any:
    """Return JSON without the fields that are an empty object, apart from those below some names."""
    if not isinstance(thing, dict):
        return thing
    inner = {k: v if k in kept else _without_empty(v, kept) for k, v in thing.items()}
    return {k: v for k, v in inner.items() if v != {}}


class ManyGce(fake_gce.FakeGce):
    """`FakeGce` with lists of thousands that take no time, and what the beta API and its client have."""

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        parts = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(parts.query))
        # slurm-gcp's fields name the scopes of an aggregated list as one, which Google takes.
        fields = query.pop("fields") if "items.zones." in query.get("fields", "") else ""
        for one in ("alt", "key"):
            query.pop(one, None)
        # slurm-gcp's filter has a wildcard, which `fake_gce_filter` refuses.
        prefix = _PREFIX.search(query.get("filter", ""))
        if prefix is not None:
            query["filter"] = _PREFIX.sub("", query["filter"])
        path = parts.path.replace("/compute/beta/", "/compute/v1/")
        text = "&".join(f"{k}={urllib.parse.quote(v)}" for k, v in query.items())
        if "/compute/beta/" in parts.path and body:
            # slurm-gcp sends an empty object for a list of which it has read the length.
            body = json.dumps(_without_empty(json.loads(body), ("perInstanceProperties",))).encode()
        status, content = super().answer(verb, f"{path}?{text}", body)
        if status == 200 and prefix is not None:
            content = named(content, prefix[1])
        return status, partial(content, fields) if fields and status == 200 else content


class _Handler(BaseHTTPRequestHandler):
    """Compute Engine, a metadata server, a bucket, the API's discovery document, the stand-in's own words."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gce: ManyGce
    metadata: FakeMetadata
    document: str = ""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content, headers = self._answer(body)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        place = urllib.parse.urlsplit(self.path)
        path, query = place.path.lstrip("/"), dict(urllib.parse.parse_qsl(place.query))
        plain = {"Content-Type": "application/json"}
        if path.startswith("-/"):
            return 200, json.dumps(gce_told(self.gce, path.removeprefix("-/"))).encode(), plain
        if path.startswith(V1):
            self.gce.calls.append(_Called("metadata"))  # type: ignore[arg-type]
            return self.metadata.metadata(path.removeprefix(V1), query, self.headers.get)
        if path.startswith("discovery/"):
            self.gce.calls.append(_Called("discovery"))  # type: ignore[arg-type]
            return 200, discovery(self.document, self.gce.url), plain
        if path.startswith("storage/"):
            self.gce.calls.append(_Called("storage.list"))  # type: ignore[arg-type]
            return *self.metadata.serve(self.command, path, query, body), plain
        if not path:  # google-auth asks whether there is a metadata server
            return 200, b"", {"Metadata-Flavor": "Google"}
        status, content = self.gce.answer(self.command, self.path, body)
        return status, json.dumps(content).encode(), plain

    do_GET = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class _Called:
    name: str


def gce_told(fake: ManyGce, word: str) -> dict[str, Any]:
    if word == "reset":
        fake.forget()
    elif word == "clear":
        with fake.lock:
            for (_, kind), things in fake.cloud.store.items():
                if kind in ("instances", "operations"):
                    things.clear()
    return {"calls": Counter(fake.names()), "living": len(fake.living())}


def gcp_site(fake: ManyGce, metadata: FakeMetadata) -> dict[str, Any]:
    cloud = fake.cloud
    metadata.instance |= {
        "id": 1,
        "attributes": {
            "slurm_instance_role": "controller",
            "universe_domain": "googleapis.com",
            "slurm_bucket_path": "gs://t-bucket/t",
        },
        "serviceAccounts": {"default": {"email": "t@p-1.iam", "aliases": ["default"], "scopes": []}},
    }
    fake.forget()
    site = fake.site([cloud.zones[0]])
    return {"url": fake.url, **site, "project": cloud.project, "region": cloud.region, "zone": cloud.zones[0]}


def remembered(plain: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """Return `as_json` that writes an instance once in each of its states."""
    known: dict[tuple[int, str], dict[str, Any]] = {}

    def told(message: Any) -> dict[str, Any]:
        if not isinstance(message, gce.Instance):
            return plain(message)
        key = (int(message.id), str(message.status))
        if key not in known:
            known[key] = plain(message)
        return known[key]

    return told


@contextmanager
def serve_gcp(partitions: Sequence[str], document: str) -> Iterator[dict[str, Any]]:
    fake_gce.as_json = remembered(as_json)  # type: ignore[assignment,attr-defined]
    fake, metadata = ManyGce(), FakeMetadata()
    labels = {"slurm_cluster_name": CLUSTER, "slurm_instance_role": "compute"}
    for partition in partitions:
        fake.template(partition, labels=labels)
    handler = type("Handler", (_Handler,), {"gce": fake, "metadata": metadata, "document": document})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield gcp_site(fake, metadata)
    server.shutdown()


@contextmanager
def serve_aws(partitions: Sequence[str]) -> Iterator[dict[str, Any]]:
    with fake_ec2(partitions, kind=ManyEc2) as fake:
        yield aws_site(fake, partitions)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("cloud", choices=("aws", "gcp"))
    arguments.add_argument("partitions", nargs="+")
    arguments.add_argument("--document", type=Path, help="the discovery document of the compute API")
    chosen = arguments.parse_args()
    text = chosen.document.read_text() if chosen.document else "{}"
    with (
        serve_aws(chosen.partitions) if chosen.cloud == "aws" else serve_gcp(chosen.partitions, text) as site
    ):
        told = {**site, "cloud": to_json(site["cloud"])}
        print(json.dumps(told), flush=True)
        sys.stdin.read()  # until the parent closes it, or ends
    return 0


if __name__ == "__main__":
    sys.exit(main())
