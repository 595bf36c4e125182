"""The removal of baked images: this cluster's builds, AMIs and snapshots, and no other's."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from cli.providers.aws.provider import AwsProvider
from infra.aws.tags import CLUSTER, RECIPE, ROLE
from infra.program.stack import Stack
from operations.access import StackUp
from operations.aws import __main__, images, machines
from operations.aws import account as access
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto, nobody
from tests.support.checkout import ROOT

__all__ = ["account", "moto", "nobody"]

OWNER = "123456789012"


class Raw:
    """A response's body in the form that botocore reads."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_a: Any, **_k: Any) -> Iterator[bytes]:
        yield self._content


class ImageBuilder:
    """EC2 Image Builder behind boto3's real client, which checks what it is asked: moto has none.

    Attributes:
        builds: ARN -> the state, the cluster's tag and how many looks it takes to be cancelled.
        calls: operations and the ARNs that they name.
    """

    def __init__(self) -> None:
        self.builds: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.lag = 1
        self.client = boto3.client(
            "imagebuilder",
            REGION,
            aws_access_key_id="a",
            aws_secret_access_key="b",
            endpoint_url="http://127.0.0.1:9",
        )
        self.client.meta.events.register("before-send.imagebuilder", self._answer)

    def build(self, recipe: str, status: str = "AVAILABLE", cluster: str = "c", number: int = 1) -> str:
        arn = f"arn:aws:imagebuilder:{REGION}:{OWNER}:image/{recipe}/1.0.0/{number}"
        self.builds[arn] = {"name": recipe, "status": status, "cluster": cluster}
        return arn

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        place = urllib.parse.urlsplit(request.url)
        answer = json.loads(request.body or b"{}")
        answer |= dict(urllib.parse.parse_qsl(place.query))
        found = getattr(self, place.path.strip("/"))(answer)
        return AWSResponse(request.url, 200, {}, Raw(json.dumps(found).encode()))

    def ListImages(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - the service's names
        assert asked["owner"] == "Self"
        names = sorted({build["name"] for build in self.builds.values()})
        # Each page has one item.
        at = int(asked.get("nextToken", 0))
        page = [self._version(name) for name in names[at : at + 1]]
        more = {"nextToken": str(at + 1)} if at + 1 < len(names) else {}
        return {"imageVersionList": page, **more}

    def _version(self, name: str) -> dict[str, str]:
        return {"arn": f"arn:aws:imagebuilder:{REGION}:{OWNER}:image/{name}/1.0.0", "name": name}

    def ListImageBuildVersions(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        for build in self.builds.values():
            if build["status"] == "CANCELLING":
                build["looks"] -= 1
                build["status"] = "CANCELLED" if build["looks"] < 0 else "CANCELLING"
        found = [
            {
                "arn": arn,
                "name": build["name"],
                "state": {"status": "BUILDING" if build["status"] == "CANCELLING" else build["status"]},
                "tags": {CLUSTER: build["cluster"]},
            }
            for arn, build in self.builds.items()
            if arn.startswith(asked["imageVersionArn"] + "/")
        ]
        return {"imageSummaryList": found}

    def CancelImageCreation(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        arn = asked["imageBuildVersionArn"]
        self.calls.append(("cancel", arn))
        self.builds[arn] |= {"status": "CANCELLING", "looks": self.lag}
        return {}

    def DeleteImage(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        arn = asked["imageBuildVersionArn"]
        assert self.builds.pop(arn)["status"] in images.AT_REST, "Image Builder refuses that while it builds"
        self.calls.append(("delete", arn))
        return {}


@pytest.fixture
def builder() -> ImageBuilder:
    return ImageBuilder()


def quick(_seconds: float) -> None:
    """A pause that takes no time."""


def make(account: Account, recipe: str, cluster: str = "c") -> tuple[str, str]:
    """An AMI as Image Builder leaves it, with a tag but without one on its snapshot. Returns both ids."""
    (machine,) = account.run(1, "another", role="image")
    tags = [{"Key": CLUSTER, "Value": cluster}, {"Key": RECIPE, "Value": recipe}]
    made = account.ec2.create_image(
        InstanceId=machine,
        Name=recipe,
        TagSpecifications=[{"ResourceType": "image", "Tags": tags}],
    )
    account.ec2.terminate_instances(InstanceIds=[machine])
    (image,) = account.ec2.describe_images(ImageIds=[made["ImageId"]])["Images"]
    (part,) = image["BlockDeviceMappings"]
    return str(image["ImageId"]), str(part["Ebs"]["SnapshotId"])


def there(account: Account) -> set[str]:
    found = account.ec2.describe_images(Owners=["self"])["Images"]
    return {image["ImageId"] for image in found}


def snapshots(account: Account) -> set[str]:
    found = account.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    return {snapshot["SnapshotId"] for snapshot in found}


def remove_all(account: Account, builder: ImageBuilder) -> tuple[int, list[str]]:
    said: list[str] = []
    return images.remove_unused(account.ec2, lambda: builder.client, "c", said.append, quick), said


def test_images_go_with_their_snapshots_and_nobody_elses(account: Account, builder: ImageBuilder) -> None:
    mine = [make(account, f"c-compute-{n}") for n in range(2)]
    kept = make(account, "c-compute-3", cluster="another")
    assert remove_all(account, builder) == (2, ["removing 2 images of cluster c"])
    assert there(account) >= {kept[0]}
    assert not there(account) & {image for image, _ in mine}
    assert kept[1] in snapshots(account)
    assert not snapshots(account) & {snapshot for _, snapshot in mine}
    assert remove_all(account, builder) == (0, [])


def test_what_was_interrupted_between_the_two_is_found_again(account: Account, builder: ImageBuilder) -> None:
    """The snapshots get the tag before their image is deregistered."""
    image, snapshot = make(account, "c-compute-1")

    def stop(**_: Any) -> None:
        raise KeyboardInterrupt

    event = "before-parameter-build.ec2.DeleteSnapshot"
    account.ec2.meta.events.register(event, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            remove_all(account, builder)
    finally:
        account.ec2.meta.events.unregister(event, stop)
    assert image not in there(account)
    (line,) = images.leftovers(account.ec2, "c")
    assert line.startswith(f"snapshot {snapshot} (")
    remove_all(account, builder)
    assert images.leftovers(account.ec2, "c") == []


def test_a_recipes_own_image_goes_and_the_others_stay(account: Account, builder: ImageBuilder) -> None:
    old, new = make(account, "c-compute-1"), make(account, "c-compute-2")
    arn, other = builder.build("c-compute-1"), builder.build("c-compute-2")
    said: list[str] = []
    assert images.remove(account.ec2, builder.client, "c", "c-compute-1", said.append, quick) == [old[0]]
    assert there(account) >= {new[0]}
    assert old[1] not in snapshots(account)
    assert (builder.calls, list(builder.builds)) == ([("delete", arn)], [other])
    assert images.remove(account.ec2, builder.client, "c", "c-compute-1", said.append, quick) == []


def test_a_build_is_cancelled_awaited_and_forgotten(account: Account, builder: ImageBuilder) -> None:
    account.run(1, "c", role="image")
    busy = builder.build("c-compute-1", "BUILDING")
    failed, kept = (
        builder.build("c-compute-1", "FAILED", number=2),
        builder.build("c-compute-9", cluster="c-compute"),
    )
    others = builder.build("other-1", "BUILDING", cluster="other")
    builder.lag = 3
    ended, said = remove_all(account, builder)
    assert (ended, said) == (0, ["cancelling the build of image/c-compute-1/1.0.0/1"])
    assert builder.calls == [("cancel", busy), ("delete", busy), ("delete", failed)]
    assert set(builder.builds) == {kept, others}, "a name that begins alike is not this cluster"


def test_a_build_that_does_not_end_is_named(
    account: Account, builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SECONDS", 0.0)
    account.run(1, "c", role="image")
    busy = builder.build("c-compute-1", "TESTING")
    builder.lag = 10**6
    with sentences.raises("aws.builds-left", busy):
        remove_all(account, builder)


def test_who_bakes_nothing_needs_no_rights_at_image_builder(account: Account) -> None:
    def none() -> Any:
        raise AssertionError("there is no trace of an image")

    account.nodes("cpu-0", 1)
    assert images.remove_unused(account.ec2, none, "c", print, quick) == 0


def test_a_snapshot_is_asked_for_again_while_its_image_goes(account: Account, builder: ImageBuilder) -> None:
    _, snapshot = make(account, "c-compute-1")
    pauses: list[float] = []
    refused = [2]

    def refuse(**_: Any) -> AWSResponse | None:
        if not refused[0]:
            return None
        refused[0] -= 1
        error = b"<Error><Code>InvalidSnapshot.InUse</Code><Message>x</Message></Error>"
        body = b"<Response><Errors>" + error + b"</Errors></Response>"
        return AWSResponse("http://127.0.0.1", 400, {}, Raw(body))

    event = "before-send.ec2.DeleteSnapshot"
    account.ec2.meta.events.register(event, refuse)
    try:
        images.remove_unused(account.ec2, lambda: builder.client, "c", print, pauses.append)
    finally:
        account.ec2.meta.events.unregister(event, refuse)
    assert snapshot not in snapshots(account)
    assert len(pauses) == 2


def noted(order: list[str], name: str, really: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        order.append(name)
        return really(*arguments)

    return call


def stack(tmp_path: Path) -> Path:
    text = (ROOT / "Pulumi.aws-cpu.yaml").read_text().replace("eu-central-1", REGION)
    (tmp_path / "Pulumi.test.yaml").write_text(text)
    return tmp_path


def test_down_ends_machines_then_images_and_leftovers_lists_both(
    account: Account, builder: ImageBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for module, name in ((machines, "terminate"), (images, "_deregister")):
        monkeypatch.setattr(module, name, noted(order, name, getattr(module, name)))
    really: Callable[..., Any] = access.client
    monkeypatch.setattr(
        access,
        "client",
        lambda place, name: builder.client if name == "imagebuilder" else really(place, name),
    )
    monkeypatch.setattr("operations.clouds.termination.TERMINATION_POLL_SECONDS", 0.0)
    image, snapshot = make(account, "x-compute-1", cluster="x")
    (node,) = account.run(1, "x", **{ROLE.rpartition(":")[2]: "compute"})
    known = {"cluster": {"name": "x", "region": REGION}}
    provider, project = AwsProvider(), stack(tmp_path)
    found = provider.leftovers(StackUp(Stack(project, "test"), "aws"), lambda: known)
    assert [line.split(" (")[0] for line in found] == [f"instance {node}", f"image {image}"]
    provider.force_cleanup(StackUp(Stack(project, "test"), "aws"), lambda: known)
    assert provider.leftovers(StackUp(Stack(project, "test"), "aws"), lambda: known) == []
    assert order == ["terminate", "_deregister"], "images are what machines start from"
    assert snapshot not in snapshots(account)


def test_the_engines_command_prints_what_it_has_removed(
    account: Account, builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = make(account, "c-compute-1")
    monkeypatch.setattr(access, "clients", lambda *_a: [account.ec2, builder.client])
    line = ["unbake", "--stack", "s", "--region", REGION, "--cluster", "c", "--recipe", "c-compute-1"]
    assert __main__.unbake(__main__.parse(line)) == {"removed": [image]}
    assert __main__.unbake(__main__.parse(line)) == {"removed": []}


def test_every_state_is_one_that_image_builder_knows() -> None:
    model = boto3.client(
        "imagebuilder", REGION, aws_access_key_id="a", aws_secret_access_key="b"
    ).meta.service_model
    known = set(model.shape_for("ImageStatus").enum)
    assert known >= images.AT_REST
    assert known - images.AT_REST == {
        "PENDING",
        "CREATING",
        "BUILDING",
        "TESTING",
        "DISTRIBUTING",
        "INTEGRATING",
    }
