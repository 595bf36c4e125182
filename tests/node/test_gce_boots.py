"""Boot reports from the bucket: which are read, and when."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.cloud.objects import Entry
from node.elastic.drivers import boot_reports
from node.elastic.drivers.boot_reports import BootReports, BootStatus


@dataclass
class FakeBucket:
    """A bucket in this process."""

    objects: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def put(self, node: str, age: float = 60.0, **content: Any) -> None:
        content = {"started": 1000.0, "steps": [], **content}
        self.objects[f"boot/{node}.json"] = (time.time() - age, json.dumps(content).encode())

    def list(self, prefix: str) -> dict[str, Entry]:
        self.calls.append(f"list {prefix}")
        return {name: Entry(at, f"{hash(data)}") for name, (at, data) in self.objects.items()}

    def get(self, key: str, sha256: str | None = None) -> bytes:
        self.calls.append(f"get {key}")
        return self.objects[key][1]


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


@pytest.fixture
def boots(bucket: FakeBucket) -> BootReports:
    return BootReports(bucket)


FAILED: dict[str, Any] = {"state": "failed", "steps": [{"name": "mounts", "note": "no route"}]}


def test_failures_and_notices(bucket: FakeBucket, boots: BootReports) -> None:
    launched = time.time() - 600
    bucket.put("compute-0", **FAILED, started=launched)
    bucket.put("compute-2", state="ready", notice=7.0, started=launched)
    bucket.put("stranger-0", **FAILED)
    told = boots({"compute-0": launched, "compute-1": launched, "compute-2": launched})
    assert told == {"compute-0": BootStatus("step mounts: no route"), "compute-2": BootStatus(None, 7.0)}
    assert sorted(bucket.calls) == ["get boot/compute-0.json", "get boot/compute-2.json", "list boot/"]


def test_a_notice_is_read_from_the_report(bucket: FakeBucket, boots: BootReports) -> None:
    bucket.put("compute-0", state="ready", notice=4000.5)
    assert boots({"compute-0": 900.0}) == {"compute-0": BootStatus(None, 4000.5)}
    assert boots({"compute-0": 2000.0}) == {}, "of an earlier machine of the name"


def test_a_report_is_read_once_and_when_it_has_come_to_rest(
    bucket: FakeBucket, boots: BootReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_reports, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(boot_reports, "REST_SECONDS", 600.0)
    bucket.put("compute-0", age=0.0)
    boots({"compute-0": 900.0})
    assert bucket.calls == ["list boot/"]
    monkeypatch.setattr(boot_reports, "REST_SECONDS", 5.0)
    bucket.put("compute-0")
    for _ in range(3):
        boots({"compute-0": 900.0})
    assert bucket.calls.count("get boot/compute-0.json") == 1
    bucket.put("compute-0", notice=1.0)
    boots({"compute-0": 900.0})
    assert bucket.calls.count("get boot/compute-0.json") == 2


def test_it_looks_now_and_then(
    bucket: FakeBucket, boots: BootReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_reports, "ASK_SECONDS", 3600.0)
    for _ in range(3):
        boots({"compute-0": 900.0})
    assert bucket.calls == ["list boot/"]


def test_older_than_the_machine(bucket: FakeBucket, boots: BootReports) -> None:
    bucket.put("compute-0", age=500.0)
    assert boots({"compute-0": time.time() - 100}) == {}
    assert bucket.calls == ["list boot/"]


# --- a failing bucket ------------------------------------------------------------------------------------


class FailingBucket(FakeBucket):
    """A bucket that refuses what a test says, and answers when a test says."""

    refused: frozenset[str] = frozenset()
    answers = threading.Event()
    asked = threading.Event()

    def list(self, prefix: str) -> dict[str, Entry]:
        self.asked.set()
        assert self.answers.wait(60)
        if prefix in self.refused:
            raise OSError("no bucket")
        return super().list(prefix)

    def get(self, key: str, sha256: str | None = None) -> bytes:
        if key in self.refused:
            raise OSError(f"no word of {key}")
        return super().get(key)


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> FailingBucket:
    monkeypatch.setattr(boot_reports, "ASK_SECONDS", 0.0)
    made = FailingBucket()
    made.answers, made.asked = threading.Event(), threading.Event()
    made.answers.set()
    return made


def test_one_report_that_cannot_be_read_hides_no_other(
    troubled: FailingBucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are more than are read in parallel: those behind it have not begun when the error is known."""
    monkeypatch.setattr(boot_reports, "THREADS", 2)
    running = {f"compute-{number}": 900.0 for number in range(40)}
    for number, node in enumerate(running):
        troubled.put(node, age=600.0 - number, state="ready", notice=4000.5)
    troubled.refused = frozenset({"boot/compute-0.json"})
    boots = BootReports(troubled)
    assert set(boots(running)) == set(running) - {"compute-0"}
    assert set(boots(running)) == set(running) - {"compute-0"}
    assert capsys.readouterr().out.count("no word of boot/compute-0.json") == 1, "said once"
    troubled.refused = frozenset()
    assert set(boots(running)) == set(running), "it is asked for again"


def test_what_was_read_before_counts_while_the_bucket_refuses(troubled: FailingBucket) -> None:
    boots = BootReports(troubled)
    troubled.put("compute-0", state="ready", notice=4000.5)
    before = boots({"compute-0": 900.0})
    troubled.refused = frozenset({"boot/"})
    assert boots({"compute-0": 900.0}) == before == {"compute-0": BootStatus(notice=4000.5)}


def test_a_bucket_that_does_not_answer_holds_up_one_listing_only(troubled: FailingBucket) -> None:
    """Terminations and the status list machines too."""
    boots = BootReports(troubled)
    troubled.put("compute-0", state="ready", notice=4000.5)
    before = boots({"compute-0": 900.0})
    troubled.answers.clear()
    troubled.asked.clear()
    with ThreadPoolExecutor(2) as threads:
        looks = threads.submit(boots, {"compute-0": 900.0})
        assert troubled.asked.wait(60)
        try:
            assert threads.submit(boots, {"compute-0": 900.0}).result(60) == before
            assert not looks.done()
        finally:
            troubled.answers.set()
        assert looks.result(60) == before
