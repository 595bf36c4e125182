"""Boot reports in the bucket: which are read, and when, and of which machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from node.elastic.drivers import boot_reports
from node.elastic.drivers.boot_reports import BootReports, BootStatus
from node.elastic.drivers.ec2.driver import S3Bucket
from tests.support.fake_ec2 import FakeEc2, fake_ec2

HOUR = 3600.0


class Bucket:
    """Records what is read."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.read: list[str] = []

    def get_paginator(self, name: str) -> Any:
        return self.client.get_paginator(name)

    def get_object(self, **wish: str) -> Any:
        self.read.append(wish["Key"])
        return self.client.get_object(**wish)

    def report(self, node: str, state: str = "failed", note: str = "no route") -> None:
        step = {"name": "mounts", "note": note, "tail": ["x"]}
        content = {"state": state, "started": time.time(), "steps": [step]}
        self.client.put_object(Bucket="t-bucket", Key=f"boot/{node}.json", Body=json.dumps(content).encode())


@pytest.fixture
def fake() -> Iterator[FakeEc2]:
    with fake_ec2() as made:
        yield made


@pytest.fixture
def bucket(fake: FakeEc2) -> Iterator[Bucket]:
    client = fake.s3()
    client.create_bucket(Bucket="t-bucket", CreateBucketConfiguration={"LocationConstraint": fake.region})
    yield Bucket(client)
    for entry in client.list_objects_v2(Bucket="t-bucket").get("Contents", []):
        client.delete_object(Bucket="t-bucket", Key=entry["Key"])
    client.delete_bucket(Bucket="t-bucket")


class Clock:
    """A clock ahead of the objects' times, which are the server's. It advances when the test says."""

    def __init__(self) -> None:
        self.now = time.time() + 600.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self) -> None:
        self.now += boot_reports.ASK_SECONDS


def test_failed_boots_are_told_and_read_once(bucket: Bucket) -> None:
    clock = Clock()
    boots = BootReports(S3Bucket(lambda: bucket, "t-bucket"), clock)
    launched = time.time() - 60
    for node, state in (("c-0", "failed"), ("c-1", "ready"), ("c-2", "failed")):
        bucket.report(node, state)
    running = {"c-0": launched, "c-1": launched, "c-3": launched}
    for _ in range(3):
        assert boots(running) == {"c-0": BootStatus("step mounts: no route: x")}
        clock.pass_by()
    assert sorted(bucket.read) == ["boot/c-0.json", "boot/c-1.json"]
    bucket.report("c-0", note="another cause")
    assert boots(running) == {"c-0": BootStatus("step mounts: another cause: x")}


def test_the_last_machines_report_is_not_the_next_ones(bucket: Bucket) -> None:
    bucket.report("c-0")
    assert BootReports(S3Bucket(lambda: bucket, "t-bucket"), Clock())({"c-0": time.time() + HOUR}) == {}
    assert bucket.read == []


def test_a_report_read_for_one_machine_is_not_told_of_the_next(bucket: Bucket) -> None:
    boots = BootReports(S3Bucket(lambda: bucket, "t-bucket"), Clock())
    bucket.report("c-0")
    assert set(boots({"c-0": time.time() - 60})) == {"c-0"}
    assert boots({"c-0": time.time() + HOUR}) == {}


def test_a_report_that_changes_is_left_until_it_rests(bucket: Bucket) -> None:
    now = [time.time()]
    boots = BootReports(S3Bucket(lambda: bucket, "t-bucket"), lambda: now[0])
    bucket.report("c-0")
    assert boots({"c-0": time.time() - 60}) == {}
    assert bucket.read == []
    now[0] = time.time() + boot_reports.ASK_SECONDS
    assert set(boots({"c-0": time.time() - 60})) == {"c-0"}


def test_looks_are_rare_and_short(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_reports, "READS", 2)
    clock = Clock()
    boots = BootReports(S3Bucket(lambda: bucket, "t-bucket"), clock)
    running = {f"c-{n}": time.time() - 60 for n in range(5)}
    for node in running:
        bucket.report(node)
    assert len(boots(running)) == 2
    assert len(boots(running)) == 2, "not asked again so soon"
    clock.pass_by()
    assert len(boots(running)) == 4
    clock.pass_by()
    assert set(boots(running)) == set(running)


def test_the_driver_reads_the_clusters_bucket_by_default(
    fake: FakeEc2, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.elastic.driver import LaunchGroup
    from node.elastic.drivers.ec2.driver import Ec2Driver
    from node.model import Partition, Settings, Site
    from tests.support import doubles

    monkeypatch.setenv("AWS_ENDPOINT_URL", fake.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
    monkeypatch.setattr(boot_reports, "REST_SECONDS", 0.0)
    design = doubles.design(Partition("compute", "c4.2xlarge", 8, 100, 0, 5), provider="aws", isolation="vm")
    site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
    driver = Ec2Driver(Settings(design, site))
    driver.launch(LaunchGroup("compute", ("compute-0", "compute-1"), True, "token"))
    time.sleep(1.1)  # S3's times are in whole seconds
    bucket.report("compute-1")
    assert {m.node: m.failure for m in driver.list()} == {
        "compute-0": None, "compute-1": "step mounts: no route: x",
    }  # fmt: skip


def test_a_machine_that_says_nothing_for_long_has_failed(bucket: Bucket) -> None:
    """Otherwise Slurm would wait for the node until ResumeTimeout, which covers every step of a boot."""
    clock = Clock()
    boots = BootReports(S3Bucket(lambda: bucket, "t-bucket"), clock)
    bucket.report("c-1", "booting")
    late, early = clock.now - boot_reports.SILENT_SECONDS, clock.now - boot_reports.SILENT_SECONDS + 1
    running = {"c-0": late, "c-1": time.time() - 60, "c-3": early}
    assert boots(running) == {"c-0": BootStatus(boot_reports.SILENCE)}
    clock.pass_by()
    assert boots(running) == {node: BootStatus(boot_reports.SILENCE) for node in ("c-0", "c-3")}
    bucket.report("c-0", "booting")
    clock.pass_by()
    assert boots(running) == {"c-3": BootStatus(boot_reports.SILENCE)}


def test_while_the_bucket_does_not_answer_nobody_is_silent(bucket: Bucket) -> None:
    clock = Clock()

    def down() -> Any:
        raise OSError("no answer")

    boots = BootReports(S3Bucket(down, "t-bucket"), clock)
    assert boots({"c-0": clock.now - HOUR}) == {}
