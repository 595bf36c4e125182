"""A controller that is lost on a cloud: the calls of its takeover, in order, against simulated APIs.

The resources and their order are those of the real program's plan (`stand_in_engine`). What `up` finds, and
what it has the engine read anew, is the product's own code, and so is the search for leftovers. Machines that
boot do the same in `tests/cluster/test_cloud_takeover.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pulumi.automation.errors import CommandError

from cli.engine.automation import PulumiRunner, resources_of
from cli.engine.engine_events import Translator
from cli.engine.runner import Look
from cli.providers.clouds import heads
from infra.clouds.commands import ClusterRef
from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from operations.aws import machines
from operations.clouds.cloud import Cloud
from operations.gcp.cloud import GcpCloud
from tests.support.aws_account import IMAGE, Account, account, moto, nobody
from tests.support.fake_google import BUCKET, Project, project
from tests.support.replacements import Run, of_stack
from tests.support.stack_parts import UNMAINTAINED
from tests.support.stack_values import values
from tests.support.stand_in_engine import (
    INSTANCE,
    AutomationStack,
    AwsCalls,
    GoogleCalls,
    RefusedError,
    StandInEngine,
)

__all__ = ["account", "moto", "nobody"]
KEPT: dict[str, Any] = {"slurm.accounting": True, "login.count": 1, **UNMAINTAINED}
REPORT = {
    "host": "controller", "state": "ready", "started": 1, "host_keys": [], "facts": {}, "steps": [],
}  # fmt: skip
PLACES = ("home", "apps", "state")


@functools.cache
def planned(stack: str) -> tuple[Run, ClusterDesign]:
    return of_stack(stack, KEPT), design(parse(values(stack, KEPT), "test"), catalog())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "POLL_SECONDS", 0.0)


def lost(cloud: Cloud, plan: ClusterDesign) -> tuple[str, ...]:
    said: list[str] = []
    found = heads.lost(cloud, plan, plan, "test", said.append, replace=False)
    assert len(said) == len(found)
    return found


def take_over(engine: StandInEngine, cloud: Cloud, plan: ClusterDesign) -> None:
    """Do what `up` does about a controller that is gone."""
    engine.refresh(resources_of(engine.exported(), lost(cloud, plan)))
    engine.up()


# --- AWS --------------------------------------------------------------------------------------------------


class Aws:
    """A cluster on a simulated EC2.

    Attributes:
        calls: The actions of EC2 that change something or read an instance or a volume.
    """

    def __init__(self, account: Account) -> None:
        self.account, self.ec2 = account, account.ec2
        self.run, self.design = planned("aws")
        zone = self.ec2.describe_subnets(SubnetIds=[account.subnet])["Subnets"][0]["AvailabilityZone"]
        self.engine = StandInEngine(self.run, AwsCalls(self.ec2, account.subnet, zone, IMAGE))
        self.cloud = account.cloud(self.design.name)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.ec2.meta.events.register("before-parameter-build.ec2", self._note)

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, params))

    def forget(self) -> None:
        self.calls.clear()

    def close(self) -> None:
        self.ec2.meta.events.unregister("before-parameter-build.ec2", self._note)

    @property
    def changes(self) -> list[str]:
        """The calls that change something, in order."""
        return [name for name, _ in self.calls if not name.startswith("Describe")]

    def holders(self) -> dict[str, list[str]]:
        """Return the instances that have each volume: /home, /apps, /state."""
        found = {}
        for name in PLACES:
            (volume,) = self.ec2.describe_volumes(VolumeIds=[self.engine.of(f"-storage-{name}")["id"]])[
                "Volumes"
            ]
            found[name] = [attachment["InstanceId"] for attachment in volume["Attachments"]]
        return found

    def address(self, instance: str) -> str:
        ((found,),) = (
            reservation["Instances"]
            for reservation in self.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        )
        return str(found["PrivateIpAddress"])


@pytest.fixture
def amazon(account: Account) -> Iterator[Aws]:
    made = Aws(account)
    account.bucket(f"{made.design.name}-bucket-store-1")
    account.s3.put_bucket_tagging(
        Bucket=f"{made.design.name}-bucket-store-1",
        Tagging={"TagSet": [{"Key": "slurm-stacks:cluster", "Value": made.design.name}]},
    )
    account.s3.put_object(
        Bucket=f"{made.design.name}-bucket-store-1",
        Key="boot/controller.json",
        Body=json.dumps(REPORT).encode(),
    )
    made.engine.up()
    yield made
    made.close()


def test_on_aws_the_volume_goes_to_the_next_machine_when_the_former_one_has_ended(amazon: Aws) -> None:
    first = amazon.engine.of("-head-controller")["id"]
    before = amazon.address(first)
    volumes = {name: amazon.engine.of(f"-storage-{name}")["id"] for name in PLACES}
    assert amazon.holders() == {name: [first] for name in PLACES}
    assert lost(amazon.cloud, amazon.design) == (), "it lives"
    amazon.ec2.terminate_instances(InstanceIds=[first])
    amazon.forget()
    take_over(amazon.engine, amazon.cloud, amazon.design)
    second = amazon.engine.of("-head-controller")["id"]
    assert second != first
    assert amazon.changes == ["RunInstances", *["AttachVolume"] * 3], "nothing is made anew that holds data"
    names = [name for name, _ in amazon.calls]
    asked = names[: names.index("RunInstances")]
    assert asked.count("DescribeInstances") >= 2, "the list by tag, and the engine's own question"
    assert asked.count("DescribeVolumes") == 3, "where each volume is"
    (run,) = (params for name, params in amazon.calls if name == "RunInstances")
    (card,) = run["NetworkInterfaces"]
    assert card["NetworkInterfaceId"] == amazon.engine.of("-addresses-controller")["id"]
    attached = [params for name, params in amazon.calls if name == "AttachVolume"]
    assert {one["VolumeId"] for one in attached} == set(volumes.values())
    assert {one["InstanceId"] for one in attached} == {second}
    assert {volumes[n]: [second] for n in PLACES} == {volumes[n]: h for n, h in amazon.holders().items()}
    assert amazon.address(second) == before
    assert lost(amazon.cloud, amazon.design) == ()


def test_on_aws_a_machine_that_still_shuts_down_has_no_successor(
    amazon: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the list nor by the engine, whose provider finds it still."""
    from moto.ec2.models import ec2_backends

    first = amazon.engine.of("-head-controller")["id"]
    instances = [one for region in ec2_backends["123456789012"].values() for one in region.all_instances()]
    (record,) = [one for one in instances if one.id == first]
    record._state.name = "shutting-down"
    monkeypatch.setattr(heads, "END_SECONDS", 0.0)
    amazon.forget()
    with pytest.raises(Exception, match="is still ending"):
        lost(amazon.cloud, amazon.design)
    amazon.engine.refresh(resources_of(amazon.engine.exported(), ["controller"]))
    amazon.engine.up()
    assert amazon.changes == []


def test_on_aws_a_takeover_that_dies_in_the_middle_is_continued(amazon: Aws) -> None:
    first = amazon.engine.of("-head-controller")["id"]
    amazon.ec2.terminate_instances(InstanceIds=[first])
    amazon.engine.refresh(resources_of(amazon.engine.exported(), lost(amazon.cloud, amazon.design)))
    amazon.engine.up(until=lambda urn: urn.endswith("-disks-state"))
    second = amazon.engine.of("-head-controller")["id"]
    amazon.forget()
    assert lost(amazon.cloud, amazon.design) == ()
    amazon.engine.up()
    assert amazon.changes == ["AttachVolume"]
    assert amazon.holders() == {name: [second] for name in PLACES}


def test_on_aws_a_controller_that_lives_stops_before_its_volumes_go(amazon: Aws) -> None:
    """This is `pulumi up --replace`."""
    first = amazon.engine.of("-head-controller")["id"]
    amazon.forget()
    amazon.engine.replace(amazon.run.named("-head-controller").urn)
    stops = ["StopInstances", "DetachVolume"] * 3
    assert amazon.changes == [*stops, "TerminateInstances", "RunInstances", *["AttachVolume"] * 3]
    second = amazon.engine.of("-head-controller")["id"]
    assert second != first
    assert amazon.holders() == {name: [second] for name in PLACES}


def test_on_aws_nothing_is_left_of_a_cluster_that_had_two_controllers(amazon: Aws) -> None:
    amazon.ec2.terminate_instances(InstanceIds=[amazon.engine.of("-head-controller")["id"]])
    take_over(amazon.engine, amazon.cloud, amazon.design)
    amazon.engine.destroy()
    assert machines.leftovers(amazon.ec2, amazon.design.name) == []


# --- Google Cloud -----------------------------------------------------------------------------------------


class Google:
    """A cluster on a simulated Compute Engine."""

    def __init__(self, project: Project) -> None:
        self.there, self.gce = project, project.gce
        self.run, plan = planned("gcp")
        self.design = dataclasses.replace(plan, project=project.account.project)
        self.engine = StandInEngine(self.run, GoogleCalls(self.gce))
        self.cloud = GcpCloud(ClusterRef.of(self.design), open=lambda _project: project.account)

    @property
    def changes(self) -> list[str]:
        """The calls that change something, in order."""
        reads = ("get", "list", "aggregated_list", "wait")
        return [name for name in self.gce.names() if name.rpartition(".")[2] not in reads]

    def end(self) -> None:
        """Delete the controller's machine, as somebody's hand in the console does."""
        self.engine.calls.delete("gcp:compute/instance:Instance", self.engine.of("-head-controller"))

    def machine(self) -> Any:
        (found,) = (one for one in self.gce.cloud.instances() if one.name == "lab-controller")
        return found

    def holders(self) -> dict[str, list[str]]:
        """Return the machines that have each disk of the controller: /home, /apps, /state, its root disk."""
        zone = f"zones/{self.design.zone}"
        return {
            name: [user.rpartition("/")[2] for user in disk.users]
            for name, disk in self.gce.cloud.at(zone, "disks").items()
            if name != "lab-login-0"
        }


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with project() as there:
        made = Google(there)
        there.bucket(made.design.name)
        there.report("controller", "ready")
        made.engine.up()
        yield made


def test_on_google_cloud_the_disks_go_to_the_next_machine_with_the_address(google: Google) -> None:
    assert google.cloud.bucket() == BUCKET
    disks = {"lab-controller", *(f"lab-{name}" for name in PLACES)}
    assert google.holders() == {name: ["lab-controller"] for name in disks}
    first = google.machine()
    before = (first.id, first.name, first.network_interfaces[0].network_i_p)
    assert lost(google.cloud, google.design) == (), "it lives"
    google.end()
    assert google.holders() == {name: [] for name in disks}
    google.gce.forget()
    take_over(google.engine, google.cloud, google.design)
    assert google.changes == ["instances.insert"], "nothing is made anew that holds data"
    names = google.gce.names()
    asked = names[: names.index("instances.insert")]
    assert asked.count("instances.aggregated_list") >= heads.LOOKS, "a list alone is no proof"
    # Whether the login machine, which lives, is faulty; and the engine's own question for the controller.
    assert asked.count("instances.get") == 2
    second = google.machine()
    assert (second.name, second.network_interfaces[0].network_i_p) == before[1:]
    assert second.id != before[0]
    assert google.holders() == {name: ["lab-controller"] for name in disks}


def test_on_google_cloud_a_lost_root_disk_is_made_again_and_no_other(google: Google) -> None:
    google.end()
    google.engine.calls.delete("gcp:compute/disk:Disk", google.engine.of("-head-controller-disk"))
    google.gce.forget()
    take_over(google.engine, google.cloud, google.design)
    assert google.changes == ["disks.insert", "instances.insert"]
    assert google.holders()["lab-state"] == ["lab-controller"]


@pytest.mark.parametrize("status", ["TERMINATED", "SUSPENDED", "REPAIRING", "STAGING", "RUNNING"])
def test_on_google_cloud_a_machine_that_is_listed_is_never_made_again(google: Google, status: str) -> None:
    google.gce.status("lab-controller", status)
    said: list[str] = []
    assert heads.lost(google.cloud, google.design, google.design, "t", said.append, replace=False) == ()
    assert len(said) == (status == "REPAIRING")
    google.engine.refresh(resources_of(google.engine.exported(), ["controller"]))
    google.gce.forget()
    google.engine.up()
    assert google.changes == []


def test_on_google_cloud_nothing_is_left_of_a_cluster_that_had_two_controllers(google: Google) -> None:
    google.end()
    take_over(google.engine, google.cloud, google.design)
    google.engine.destroy()
    assert google.cloud.leftovers() == [f"bucket {BUCKET}"], "the engine has it"


# --- down: nothing of a cluster whose machines are gone keeps costing -------------------------------------


def take_down(
    there: Aws | Google,
    *,
    meanwhile: Callable[[], None] | None = None,
    look: Look | None = None,
    folder: Path,
) -> AutomationStack:
    """Do what `down` does once it has drained, with the product's own runner and look."""
    stack = AutomationStack(there.engine)
    stack.meanwhile = meanwhile
    said: list[str] = []
    look = look or (lambda hosts: heads.gone(there.cloud, hosts, "test", said.append))
    runner = PulumiRunner(Stack(folder, "test"), local=False)
    runner._delete(stack, Translator(lambda _event: None), None, look)
    assert there.engine.state == {}
    return stack


def silent(_hosts: Sequence[str]) -> None:
    """The cloud does not tell."""


class Losses:
    """What happens to machines and disks of a cluster on AWS, by somebody's hand or by AWS."""

    def __init__(self, amazon: Aws) -> None:
        self.ec2, self.engine = amazon.ec2, amazon.engine

    def nothing(self) -> None: ...

    def terminated(self, host: str = "controller") -> None:
        self.ec2.terminate_instances(InstanceIds=[self.engine.of(f"-head-{host}")["id"]])

    def forgotten(self) -> None:
        """EC2 lists a terminated machine for about an hour."""
        from moto.ec2.models import ec2_backends

        self.terminated()
        gone = self.engine.of("-head-controller")["id"]
        for region in ec2_backends["123456789012"].values():
            for reservation in region.reservations.values():
                reservation.instances = [one for one in reservation.instances if one.id != gone]

    def stopped(self) -> None:
        self.ec2.stop_instances(InstanceIds=[self.engine.of("-head-controller")["id"]])

    def login_terminated(self) -> None:
        self.terminated("login-0")

    def all_terminated(self) -> None:
        self.terminated()
        self.login_terminated()

    def volume_detached(self) -> None:
        attachment = self.engine.of("-disks-home")
        self.ec2.detach_volume(VolumeId=attachment["volumeId"], InstanceId=attachment["instanceId"])

    def volume_deleted(self) -> None:
        self.volume_detached()
        self.ec2.delete_volume(VolumeId=self.engine.of("-storage-home")["id"])


LOSSES = [name for name in vars(Losses) if not name.startswith("_")]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("when", ["before", "meanwhile", "before, and the cloud does not tell"])
def test_on_aws_down_deletes_all_whatever_was_lost(amazon: Aws, tmp_path: Path, loss: str, when: str) -> None:
    happens = getattr(Losses(amazon), loss)
    if when != "meanwhile":
        happens()
    look = silent if "not tell" in when else None
    stack = take_down(amazon, look=look, meanwhile=happens if when == "meanwhile" else None, folder=tmp_path)
    assert machines.leftovers(amazon.ec2, amazon.design.name) == []
    mine = [{"Name": "tag:slurm-stacks:cluster", "Values": [amazon.design.name]}]
    assert amazon.ec2.describe_volumes(Filters=mine)["Volumes"] == []
    # What lives is not read anew where the cloud has told so.
    if when == "before" and loss in ("nothing", "stopped", "volume_detached"):
        assert stack.refreshed == []


def test_on_aws_without_the_look_the_volumes_would_stay(amazon: Aws) -> None:
    """The stand-in fails as the provider does, so the tests above can fail."""
    Losses(amazon).terminated()
    with pytest.raises(RefusedError, match="issue 20165"):
        amazon.engine.destroy()


@pytest.mark.parametrize("loss", ["terminated", "volume_deleted", "forgotten"])
def test_on_aws_a_down_that_died_half_way_is_continued(amazon: Aws, tmp_path: Path, loss: str) -> None:
    getattr(Losses(amazon), loss)()
    targets = resources_of(amazon.engine.exported(), ["controller"])
    for urn in targets:  # the machine is forgotten, and the attachments are not
        if amazon.run.declared[urn].type == INSTANCE and loss != "volume_deleted":
            amazon.engine.refresh([urn])
    take_down(amazon, folder=tmp_path)
    take_down(amazon, folder=tmp_path)
    assert machines.leftovers(amazon.ec2, amazon.design.name) == []


def test_a_failure_that_has_another_cause_is_told_at_once(
    amazon: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: str, known: Any) -> None:
        raise RefusedError("UnauthorizedOperation")

    monkeypatch.setattr(amazon.engine.calls, "delete", refuse)
    with pytest.raises(CommandError, match="UnauthorizedOperation"):
        take_down(amazon, folder=tmp_path)


@pytest.mark.parametrize("when", ["before", "meanwhile", "before, and the cloud does not tell"])
@pytest.mark.parametrize("loss", ["nothing", "controller", "controller and its disk", "login", "stopped"])
def test_on_google_cloud_down_deletes_all_whatever_was_lost(
    google: Google, tmp_path: Path, loss: str, when: str
) -> None:
    def happens() -> None:
        calls, of = google.engine.calls, google.engine.of
        if loss.startswith("controller"):
            google.end()
        if loss == "login":
            calls.delete("gcp:compute/instance:Instance", of("-head-login-0"))
        if loss == "controller and its disk":
            calls.delete("gcp:compute/disk:Disk", of("-head-controller-disk"))
        if loss == "stopped":
            google.gce.status("lab-controller", "TERMINATED")

    if when != "meanwhile":
        happens()
    look = silent if "not tell" in when else None
    take_down(google, look=look, meanwhile=happens if when == "meanwhile" else None, folder=tmp_path)
    assert google.cloud.leftovers() == [f"bucket {BUCKET}"], "the engine has it"
