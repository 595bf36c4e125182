"""An engine with the clouds' providers, as far as a head's machines, disks and addresses need it.

It takes the resources from a plan of the real program (`replacements.Run`), in the order in which they were
registered, and makes, reads and deletes them by the clouds' own APIs. What it replaces and deletes first is
what `replacements.deletions` says. `refresh` forgets what the provider does not find, as the engine does
(pkg/resource/deploy/step.go, `RefreshStep`). The providers' calls are those of their sources:

- terraform-provider-aws at 0620f2a6, internal/service/ec2: `ec2_instance.go` (a terminated instance is not
  found), `ebs_volume_attachment.go` (stops the instance before it detaches, and that fails for one that has
  ended), `ebs_volume.go`, `vpc_network_interface.go`
- terraform-provider-google at 0047466c, google/services/compute: `resource_compute_instance.go` (the disks
  come with the machine, and its deletion is waited for), `resource_compute_disk.go`,
  `resource_compute_address.go`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from botocore.exceptions import ClientError
from google.api_core.exceptions import NotFound
from google.cloud import compute_v1 as gce
from pulumi.automation import CommandResult
from pulumi.automation.errors import CommandError

from tests.support import replacements
from tests.support.fake_gce import FakeGce
from tests.support.replacements import Declared, Run

Inputs = Mapping[str, Any]


class Calls(Protocol):
    """A cloud's provider."""

    def kinds(self) -> Iterable[str]:
        """Return the types of resources that it has."""
        ...

    def create(self, kind: str, inputs: Inputs) -> dict[str, Any]:
        """Make a resource, and return its outputs, with `id`."""
        ...

    def there(self, kind: str, known: Inputs) -> bool:
        """Return whether a resource is there, by its inputs and outputs."""
        ...

    def delete(self, kind: str, known: Inputs) -> None: ...


@dataclass
class StandInEngine:
    """The engine of one stack.

    Attributes:
        state: URN -> the inputs and outputs of a resource that it has made.
    """

    run: Run
    calls: Calls
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    def up(self, until: Callable[[str], bool] = lambda urn: False) -> None:
        """Make what is missing.

        Args:
            until: Says of a resource that this engine is killed before it is made.
        """
        for urn, one in self.run.declared.items():
            if one.type not in self.calls.kinds() or urn in self.state:
                continue
            if until(urn):
                return
            inputs = self._resolved(one)
            self.state[urn] = {**inputs, **self.calls.create(one.type, inputs)}

    def exported(self) -> list[dict[str, Any]]:
        """Return what the CLI exports: what was made, and the components."""
        return [one for one in self.run.exported() if one["urn"] in self.state or not one["custom"]]

    def refresh(self, urns: Iterable[str]) -> None:
        for urn in urns:
            if not self.calls.there(self.run.declared[urn].type, self.state[urn]):
                del self.state[urn]

    def replace(self, urn: str) -> None:
        """Make a resource anew although nothing has changed (`pulumi up --replace`)."""
        for each in replacements.deletions(self.run, urn):
            self.calls.delete(self.run.declared[each].type, self.state.pop(each))
        self.up()

    def destroy(self) -> None:
        for urn in reversed(list(self.run.declared)):
            if urn in self.state:
                self.calls.delete(self.run.declared[urn].type, self.state[urn])
                del self.state[urn]

    def of(self, end: str) -> dict[str, Any]:
        """Return the inputs and outputs of the resource whose name ends so."""
        return self.state[self.run.named(end).urn]

    def _resolved(self, one: Declared) -> dict[str, Any]:
        """Return a resource's inputs with the outputs of others in place of the plan's placeholders."""
        names = {self.run.declared[urn].name: known for urn, known in self.state.items()}

        def value(given: Any) -> Any:
            if isinstance(given, Mapping):
                return {key: value(item) for key, item in given.items()}
            if isinstance(given, list | tuple):
                return [value(item) for item in given]
            if isinstance(given, str) and given.startswith("<") and given.endswith(">"):
                name, _, output = given[1:-1].rpartition(".")
                return names.get(name, {}).get(output, given)
            return given

        resolved: dict[str, Any] = value(one.inputs)
        return resolved


class AutomationStack:
    """The engine as the Automation API has it, as far as the runner destroys with it.

    Attributes:
        meanwhile: Is called once, as a destroy begins.
    """

    def __init__(self, engine: StandInEngine) -> None:
        self.engine = engine
        self.refreshed: list[list[str]] = []
        self.meanwhile: Callable[[], None] | None = None

    def export_stack(self) -> Any:
        return SimpleNamespace(deployment={"resources": self.engine.exported()})

    def refresh(self, *, target: list[str], **_: Any) -> None:
        self.refreshed.append(target)
        self.engine.refresh(target)

    def destroy(self, **_: Any) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        try:
            self.engine.destroy()
        except (ClientError, NotFound, RefusedError) as error:
            raise CommandError(CommandResult("", f"error: {error}", 255)) from error


class RefusedError(Exception):
    """A provider cannot delete a resource."""


# --- AWS --------------------------------------------------------------------------------------------------

VOLUME, CARD = "aws:ebs/volume:Volume", "aws:ec2/networkInterface:NetworkInterface"
INSTANCE, ATTACHMENT = "aws:ec2/instance:Instance", "aws:ec2/volumeAttachment:VolumeAttachment"


@dataclass
class AwsCalls:
    """The AWS provider, with an EC2 whose machines need neither a role nor an image of the stack's.

    Attributes:
        ec2: A boto3 client.
    """

    ec2: Any
    subnet: str
    zone: str
    image: str

    def kinds(self) -> Iterable[str]:
        return (VOLUME, CARD, INSTANCE, ATTACHMENT)

    def create(self, kind: str, inputs: Inputs) -> dict[str, Any]:
        if kind == VOLUME:
            made = self.ec2.create_volume(
                AvailabilityZone=self.zone, Size=inputs["size"], VolumeType=inputs["type"],
                Encrypted=inputs["encrypted"], TagSpecifications=_tagged("volume", inputs),
            )  # fmt: skip
            return {"id": made["VolumeId"]}
        if kind == CARD:
            made = self.ec2.create_network_interface(
                SubnetId=self.subnet, TagSpecifications=_tagged("network-interface", inputs)
            )["NetworkInterface"]
            return {"id": made["NetworkInterfaceId"], "privateIp": made["PrivateIpAddress"]}
        if kind == INSTANCE:
            card = inputs["primaryNetworkInterface"]["networkInterfaceId"]
            (made,) = self.ec2.run_instances(
                ImageId=self.image, InstanceType=inputs["instanceType"], MinCount=1, MaxCount=1,
                NetworkInterfaces=[{"DeviceIndex": 0, "NetworkInterfaceId": card}],
                MaintenanceOptions={"AutoRecovery": inputs["maintenanceOptions"]["autoRecovery"]},
                TagSpecifications=_tagged("instance", inputs),
            )["Instances"]  # fmt: skip
            return {"id": made["InstanceId"]}
        self.ec2.attach_volume(
            Device=inputs["deviceName"], InstanceId=inputs["instanceId"], VolumeId=inputs["volumeId"]
        )
        return {"id": f"vai-{inputs['volumeId']}"}

    def there(self, kind: str, known: Inputs) -> bool:
        if kind == INSTANCE:
            return self._state(known["id"]) not in ("terminated", None)
        assert kind == ATTACHMENT, f"{kind} is not read"
        wanted = {"attachment.device": known["deviceName"], "attachment.instance-id": known["instanceId"]}
        try:
            found = self.ec2.describe_volumes(
                VolumeIds=[known["volumeId"]],
                Filters=[{"Name": name, "Values": [value]} for name, value in wanted.items()],
            )
        except ClientError:  # InvalidVolume.NotFound
            return False
        return bool(found["Volumes"])

    def delete(self, kind: str, known: Inputs) -> None:
        if kind == VOLUME:
            try:
                self.ec2.delete_volume(VolumeId=known["id"])
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidVolume.NotFound":
                    raise
        elif kind == CARD:
            self.ec2.delete_network_interface(NetworkInterfaceId=known["id"])
        elif kind == INSTANCE:
            self.ec2.terminate_instances(InstanceIds=[known["id"]])
        else:
            if self._state(known["instanceId"]) in ("terminated", None):
                raise RefusedError("IncorrectInstanceState: the instance cannot be stopped (issue 20165)")
            self.ec2.stop_instances(InstanceIds=[known["instanceId"]])
            # "IncorrectState … available" is no error, a volume that is not there is one.
            if self._is_available(known["volumeId"]):
                return
            self.ec2.detach_volume(
                Device=known["deviceName"], InstanceId=known["instanceId"], VolumeId=known["volumeId"]
            )

    def _is_available(self, volume: str) -> bool:
        listed = self.ec2.describe_volumes()["Volumes"]
        return any(one["VolumeId"] == volume and one["State"] == "available" for one in listed)

    def _state(self, instance: str) -> str | None:
        try:
            listed = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        except ClientError:
            return None
        ((found,),) = (one["Instances"] for one in listed)
        return str(found["State"]["Name"])


def _tagged(kind: str, inputs: Inputs) -> list[dict[str, Any]]:
    return [
        {
            "ResourceType": kind,
            "Tags": [{"Key": key, "Value": value} for key, value in inputs["tags"].items()],
        }
    ]


# --- Google Cloud -----------------------------------------------------------------------------------------

DISK, ADDRESS = "gcp:compute/disk:Disk", "gcp:compute/address:Address"
MACHINE = "gcp:compute/instance:Instance"


@dataclass
class GoogleCalls:
    """The Google Cloud provider, with the fake Compute Engine."""

    fake: FakeGce

    def kinds(self) -> Iterable[str]:
        return (DISK, ADDRESS, MACHINE)

    def create(self, kind: str, inputs: Inputs) -> dict[str, Any]:
        project, name, labels = self.fake.cloud.project, inputs["name"], inputs["labels"]
        if kind == DISK:
            disk = gce.Disk(name=name, labels=labels, size_gb=inputs["size"])
            self._finish(self._disks().insert(project=project, zone=inputs["zone"], disk_resource=disk))
            link = self.fake.cloud.link(f"zones/{inputs['zone']}", "disks", name)
            return {"id": link, "selfLink": link, "diskId": name}
        if kind == ADDRESS:
            number = len(self.fake.cloud.at(f"regions/{inputs['region']}", "addresses")) + 10
            address = gce.Address(name=name, labels=labels, address=f"10.0.0.{number}")
            where = {"project": project, "region": inputs["region"]}
            self._finish(self._addresses().insert(address_resource=address, **where))
            return {"id": name, "address": address.address}
        (card,) = inputs["networkInterfaces"]
        disks = [gce.AttachedDisk(boot=True, auto_delete=False, source=inputs["bootDisk"]["source"])]
        disks += [
            gce.AttachedDisk(
                source=attached_disk["source"],
                device_name=attached_disk["deviceName"],
                mode=attached_disk["mode"],
            )
            for attached_disk in inputs.get("attachedDisks", [])
        ]
        machine = gce.Instance(
            name=name, labels=labels, machine_type=f"zones/{inputs['zone']}/machineTypes/n1-standard-2",
            disks=disks, network_interfaces=[gce.NetworkInterface(network_i_p=card["networkIp"])],
        )  # fmt: skip
        self._finish(
            self._instances().insert(project=project, zone=inputs["zone"], instance_resource=machine)
        )
        return {"id": name}

    def there(self, kind: str, known: Inputs) -> bool:
        where = {"project": self.fake.cloud.project, "zone": known["zone"]}
        try:
            if kind == MACHINE:
                self._instances().get(instance=known["name"], **where)
            else:
                assert kind == DISK, f"{kind} is not read"
                self._disks().get(disk=known["name"], **where)
        except NotFound:
            return False
        return True

    def delete(self, kind: str, known: Inputs) -> None:
        project, name = self.fake.cloud.project, known["name"]
        if kind == ADDRESS:
            self._finish(self._addresses().delete(project=project, region=known["region"], address=name))
        elif kind == DISK:
            self._finish(self._disks().delete(project=project, zone=known["zone"], disk=name))
        else:
            self._finish(self._instances().delete(project=project, zone=known["zone"], instance=name))

    def _finish(self, operation: Any) -> None:
        """Wait for an operation. The client's own wait would ask Google itself."""
        project, fields = self.fake.cloud.project, {"operation": operation.name}
        if "/regions/" in operation._extended_operation.self_link:
            regional = gce.RegionOperationsClient(**self.fake.options())
            done = regional.wait(project=project, region=self.fake.cloud.region, **fields)
        else:
            zone = operation._extended_operation.self_link.partition("/zones/")[2].partition("/")[0]
            done = gce.ZoneOperationsClient(**self.fake.options()).wait(project=project, zone=zone, **fields)
        errors = [f"{error.code}: {error.message}" for error in done.error.errors]
        assert not errors, errors

    def _instances(self) -> gce.InstancesClient:
        return gce.InstancesClient(**self.fake.options())

    def _disks(self) -> gce.DisksClient:
        return gce.DisksClient(**self.fake.options())

    def _addresses(self) -> gce.AddressesClient:
        return gce.AddressesClient(**self.fake.options())
