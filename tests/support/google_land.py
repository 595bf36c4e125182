"""Google Cloud with container machines: a fake of its APIs behind their own names, and its metadata server.

Compute Engine is `fake_gce`, whose instances are the machines; Cloud Storage, Secret Manager and each
machine's metadata are `fake_metadata`'s. A call has the token of its machine, and is refused if the grants of
`infra.gcp.identity` do not allow it to the machine's service account.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.cloud import compute_v1 as gce

from infra.clouds.commands import ClusterRef
from infra.clouds.userdata import HOOK
from infra.gcp import policies, storage
from infra.gcp.instance_templates import ALWAYS, BOOT_SCRIPT, USER_DATA
from node.design.model import STATE, ClusterDesign, Host
from node.design.sites import MountSource
from node.elastic.drivers.gce.names import CLUSTER, HOST, ROLE, instance_of, node_of
from operations.clouds.cloud import Cloud
from operations.gcp.account import Account
from operations.gcp.cloud import GcpCloud
from tests.support import cel
from tests.support.cloud_land import ADDRESSES, SERVICES, Instance, Land
from tests.support.cloud_server import Answer, Request
from tests.support.fake_gce import fake_gce
from tests.support.fake_google import Anybody
from tests.support.fake_metadata import SECRET, V1, FakeMetadata, refusal

BUCKET = "t-bucket"
SHARES = {path: f"{SERVICES}:{path}" for path in ("/home", "/apps")}
OBJECT = "storage.googleapis.com/Object"
DISK = "t-state"
DEVICE = f"{storage.BY_ID}{storage.device(STATE)}"
PEOPLE = {"ada": 2001, "bob": 2002}


class _Machines(GcpCloud):
    """A cluster's cloud as far as machines go: only they reach the fake Cloud Storage of a `GoogleLand`."""

    def bucket(self) -> str | None:
        return None


class GoogleLand(Land):
    """A simulated Google Cloud.

    Attributes:
        refused: role and call of each request that a machine's account may not make.

    Args:
        design: the design of the cluster `t`.
    """

    def __init__(self, folder: Path, design: ClusterDesign) -> None:
        super().__init__(folder, SHARES, ["googleapis.com"], "GCE")
        self._design = design
        self.gce = self._ends.enter_context(fake_gce(()))
        self._bank = FakeMetadata()
        self._metadata: dict[str, FakeMetadata] = {}
        self.refused: list[tuple[str, str]] = []

    # --- what the stack makes ------------------------------------------------------------------------------

    def site(self) -> dict[str, Any]:
        """Return the `Site`'s fields about this cloud, once the partitions have their templates."""
        mounts = {path: MountSource(origin) for path, origin in SHARES.items()}
        if self._design.state() is not None:
            mounts[STATE] = MountSource(disk=DISK, device=DEVICE)
        return {**self.gce.site(), "bucket": BUCKET, "secret": SECRET, "mounts": mounts}

    def template(self, partition: str) -> None:
        self.gce.template(partition, metadata=self._told("compute"))

    def _told(self, role: str, host: str | None = None) -> Any:
        text = HOOK + BOOT_SCRIPT.render(self._design, BUCKET, role, host)
        items = {**ALWAYS, USER_DATA: text}
        return gce.Metadata(items=[gce.Items(key=key, value=value) for key, value in items.items()])

    def make(self, host: Host) -> None:
        """Make a machine that lives as long as the cluster, at its address, with its disks."""
        template = self.gce.template(host.name, metadata=self._told(host.role, host.name))
        made = gce.Instance(
            name=instance_of("t", host.name),
            labels={CLUSTER: "t", ROLE: host.role, HOST: host.name},
            machine_type="zones/z/n1-standard-8",
            network_interfaces=[gce.NetworkInterface(network_i_p=ADDRESSES[host.name])],
            disks=self._disks() if host.role == "controller" else [],
        )
        with gce.InstancesClient(**self.gce.options()) as client:
            client.insert(
                request=gce.InsertInstanceRequest(
                    project=self.gce.cloud.project, zone=self.gce.cloud.zones[0], instance_resource=made,
                    source_instance_template=template,
                )
            )  # fmt: skip

    def _disks(self) -> list[Any]:
        """Return the disks that outlive the controller."""
        if self._design.state() is None:
            return []
        scope = f"zones/{self.gce.cloud.zones[0]}"
        if DISK not in self.gce.cloud.at(scope, "disks"):
            self.gce.cloud.put(scope, "disks", gce.Disk(name=DISK))
        link = self.gce.cloud.link(scope, "disks", DISK)
        return [gce.AttachedDisk(source=link, device_name=storage.device(STATE))]

    def lose(self, host: str) -> None:
        """Let a machine end for good, as somebody's deletion does after its power was cut."""
        name = instance_of("t", host)
        self.lose_power(host)
        with self.gce.lock:
            self.gce.cloud.delete(f"zones/{self.gce.cloud.zones[0]}", name)

    def attached(self) -> dict[str, dict[str, str]]:
        with self.gce.lock:
            return {
                str(instance.id): {DEVICE: disk.source.rpartition("/")[2]}
                for instance in self.gce.cloud.instances()
                for disk in instance.disks
            }

    def cloud(self) -> Cloud:
        """Return the cloud as the engineer's machine sees it."""
        found = self.gce.cloud
        services = {"compute": f"{self.gce.url}/compute/v1"}
        account = Account(found.project, Anybody(), services, sleep=lambda _: None)
        place = ClusterRef("t", found.region, found.zones[0], found.project)
        return _Machines(place, lambda _project: account)

    def end_all(self) -> None:
        """End all machines, as a termination and a destroy do."""
        with self.gce.lock:
            for one in self.gce.living():
                self.gce.cloud.delete(f"zones/{one.zone.rpartition('/')[2]}", one.name)

    def publish(self, objects: Mapping[str, bytes]) -> None:
        self._bank.objects |= objects

    def store(self, key: str, content: bytes) -> None:
        self._bank.objects[key] = content

    def stored(self, key: str) -> bytes | None:
        return self._bank.objects.get(key)

    # --- what Google says ----------------------------------------------------------------------------------

    def running(self) -> list[Instance]:
        found = []
        for one in self.gce.living():
            if one.status != "RUNNING":
                continue
            identity = str(one.id)
            host = node_of("t", one.name)
            address = ADDRESSES.get(host) or one.network_interfaces[0].network_i_p
            hardware = {
                "system-manufacturer": "Google", "system-product-name": "Google Compute Engine",
                "system-serial-number": f"GoogleCloud-{identity}",
            }  # fmt: skip
            found.append(Instance(identity, host, address, hardware))
        return found

    def metadata(self, address: str, ask: Request) -> Answer:
        instance = self.at(address)
        if instance is None:
            return Answer(404)
        place = urllib.parse.urlsplit(ask.target)
        query = dict(urllib.parse.parse_qsl(place.query))
        if not place.path.startswith(f"/{V1}"):
            found = place.path in ("/", "/computeMetadata", "/computeMetadata/")
            return Answer(200 if found else 404, b"computeMetadata/\n", {"Metadata-Flavor": "Google"})
        own = self._of(instance)
        path = urllib.parse.unquote(place.path.removeprefix(f"/{V1}"))
        status, body, headers = own.metadata(path, query, ask.headers.get)
        return Answer(status, body, headers)

    def _of(self, instance: Instance) -> FakeMetadata:
        if instance.id in self._metadata:
            return self._metadata[instance.id]
        (one,) = [i for i in self.gce.cloud.instances() if str(i.id) == instance.id]
        role = one.labels[ROLE]
        fake_metadata = self._metadata[instance.id] = FakeMetadata()
        fake_metadata.named = f"{role}-{instance.id}"
        fake_metadata.login = [
            {"primary": True, "username": name, "uid": number, "gid": number, "shell": "/bin/bash",
             "homeDirectory": f"/home/{name}"}
            for name, number in PEOPLE.items()
        ]  # fmt: skip
        zone = one.zone.rpartition("/")[2]
        account = {"email": f"t-{role}@p-1.iam.gserviceaccount.com", "aliases": ["default"], "scopes": []}
        fake_metadata.instance |= {
            "id": int(instance.id), "name": one.name, "zone": f"projects/1/zones/{zone}",
            "hostname": f"{one.name}.{zone}.c.p-1.internal", "machineType": "projects/1/machineTypes/n1",
            "attributes": {item.key: item.value for item in one.metadata.items},
            "serviceAccounts": {"default": account},
            "networkInterfaces": [
                {"ip": instance.address, "mac": self.cards.get(instance.id, ""),
                 "network": "projects/1/networks/t",
                 "forwardedIps": [], "accessConfigs": []}
            ],
        }  # fmt: skip
        return fake_metadata

    def api(self, ask: Request) -> Answer:
        given = ask.headers.get("authorization", "").removeprefix("Bearer ")
        role = next((m.named.partition("-")[0] for m in self._metadata.values() if given in m.tokens), None)
        place = urllib.parse.urlsplit(ask.target)
        path, query = place.path.lstrip("/"), dict(urllib.parse.parse_qsl(place.query))
        service = ask.host.partition(".")[0]
        if role is None:
            said = refusal(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        elif not self.permits(role, service, ask.method, path, query):
            self.refused.append((role, f"{ask.method} {service}/{path}"))
            said = refusal(403, "PERMISSION_DENIED", f"{role} may not {ask.method} {path}")
        elif service == "compute":
            status, content = self.gce.answer(ask.method, ask.target, ask.body)
            said = (status, json.dumps(content).encode())
        else:
            said = self._bank.serve(ask.method, path, query, ask.body)
        return Answer(said[0], said[1], {"Content-Type": "application/json"})

    def permits(self, role: str, service: str, method: str, path: str, query: Mapping[str, str]) -> bool:
        """Return whether the account of a role may make a call."""
        if service == "storage":
            if method == "GET":  # READ_OBJECTS, of the whole bucket
                return True
            condition = policies.own_reports(BUCKET, role).expression
            name = f"projects/_/buckets/{BUCKET}/objects/{query['name']}"
            return cel.holds(condition, OBJECT, name)
        # READ_SECRET, WRITE_SECRET and the launcher's own role.
        return role == "controller"

    def close(self) -> None:
        for metadata in self._metadata.values():
            metadata.change()  # nobody waits any more
        super().close()
