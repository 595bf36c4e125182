"""Every record that is read back may have been damaged, or written by somebody else: none stops its reader.

The table has each record, its reader, and what a reader without a record returns. A record whose values are
checked further has a test of its own beside its module: backups and journals (test_backup_*), boot reports of
machines (test_boot_report.py), results of jobs (test_sweep_runs.py), outputs (tests/cli/test_outputs.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.commands.sweep.plan import Plan
from infra.instance_types import cache
from infra.program import clusters
from localcloud.records import MachineStore
from node.backup import record
from node.benchmark import LABEL_FILE, Run
from node.bootstrap import report
from node.bootstrap.vm import state_guard
from node.design.folders import Folders
from node.design.published import read_settings
from node.elastic import machine_record as machine_records
from node.elastic.daemon import Elastic
from node.elastic.ledger import Ledger
from node.elastic.machine_record import MachineRecord
from node.elastic.reconfiguration import CLOSED, Reconfiguration
from node.elastic.requeue_memory import RequeueMemory
from node.slurm import hardware, topology
from node.system import foreign
from tests.support.doubles import FakeControl, FakeDriver, fast_design, settings

DEEP = 60_000
NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1" * 400,
    "1" * 5000,
    "true",
    '"1"',
    "[]",
    "{}",
    "null",
)
WHOLE = [
    b"", b"{", b"\0" * 4096, b"\xff\xfe", b"7", b"null", b"true", b'"text"', b"[]", b"{}", b"[[]]", b"[7]",
    b"NaN", b"1e400", b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a": 1, "a": 2}',
    b'{"machines": 7}', b'{"machines": [7], "launches": {}}', b'{"closed": [], "open": [], "newest": []}',
]  # fmt: skip


def damaged(good: dict[str, Any]) -> list[bytes]:
    """Return texts that are no record, and a record with each of its values changed."""

    def changes(value: Any) -> list[str]:
        found = list(NUMBERS)
        if isinstance(value, dict):
            for key, inner in value.items():
                rest = {name: each for name, each in value.items() if name != key}
                found.append(json.dumps(rest))
                for changed in changes(inner):
                    text = json.dumps({**rest, key: "@@"})
                    found.append(text.replace('"@@"', changed))
        elif isinstance(value, list) and value:
            found += [f"[{changed}]" for changed in changes(value[0])]
        return found

    return WHOLE + [text.encode() for text in changes(good)]


BACKUP = {"at": 1.0, "name": "a", "place": "a file", "bytes": 1, "seconds": 1.0}
MACHINE = {
    "partition": "debug", "launched": 1.0, "price": 1.0, "listed": True, "node": "debug-0",
    "registered": True,
}  # fmt: skip
LIFE = {
    "id": "i", "node": "debug-0", "partition": "debug", "launched": 1.0, "ended": 2.0, "seconds": 1.0,
    "price": 1.0, "cpus": 1, "memory_mib": 1, "gres": "gpu", "devices": 1, "registered": True,
}  # fmt: skip
TOTAL = {"seconds": 1.0, "usd": 1.0, "unpriced": 0.0}
LABEL = {
    "partition": "debug", "began": "x", "repeat": 1,
    "run": {"number": 1, "nodes": 1, "repetition": 1, "folder": "a/b", "partition": "", "gpus": None},
}  # fmt: skip
REQUEST = {"restarts": 0, "submitted": 1.0, "node": "debug-0", "reason": "gone", "acknowledged": True}


def ledger(file: Path) -> None:
    read = Ledger(file, fast_design())
    spent = read.account(100.0)
    assert 0 <= spent.usd < 1e9
    assert json.loads(json.dumps(read.cost(100.0), allow_nan=False))


def machine_record(file: Path) -> None:
    place = file.parent / machine_records.FOLDER / "2026-11-28.jsonl"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(file.read_bytes())
    found = machine_records.read(file.parent)
    assert all(0 <= life.seconds < 1e12 for life in found.lives.values())
    MachineRecord(file.parent).add([], 1.0)


def requeues(file: Path) -> None:
    memory = RequeueMemory(file)
    memory.forgotten({})


def backup_record(file: Path) -> None:
    its = settings(file.parent)
    place = Path(str(Folders(its).lib)) / record.RECORD
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(file.read_bytes())
    found = record.status(its)
    assert json.dumps(found, allow_nan=False)
    record.note_failure(its, "it goes on")


def settings_of_a_cluster(file: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_settings(file)


def closed_partitions(file: Path) -> None:
    place = file.with_name(CLOSED)
    place.write_bytes(file.read_bytes())
    Reconfiguration(FakeControl(), file.parent).once()
    assert not place.exists()


def renewal(file: Path) -> None:
    file.with_name(hardware.RENEWAL).write_bytes(file.read_bytes())
    hardware._renewal(file.parent)


def named(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return a reader of a folder that has the record by this name."""

    def reader(file: Path) -> None:
        file.with_name(name).write_bytes(file.read_bytes())
        read(file.parent)

    return reader


def guard(file: Path) -> None:
    assert not state_guard.held(file)
    assert isinstance(state_guard.lost(file), bool)
    assert isinstance(state_guard.reason(file), str)


def machines(file: Path) -> None:
    assert isinstance(MachineStore(file).load(), bool)


def known_types(file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "path", lambda: file)
        assert cache.read().keys() == set(cache.PARTS)


CLUSTER = {
    "checkout": "/x", "stack": "lab", "provider": "aws", "since": 1.0, "places": [{"cluster": "lab"}],
}  # fmt: skip


def known_cluster(file: Path) -> None:
    found = clusters._read(file)
    assert found is None or datetime.fromtimestamp(found.since or 0, UTC)


def label_of_a_run(file: Path) -> None:
    run = Run(settings(file.parent), FakeControl(), "a/b")
    run.folder.mkdir(parents=True)
    file.rename(run.folder / LABEL_FILE)
    with contextlib.suppress(ValueError):
        plan = Plan.of("lab", [{"label": run.label, "job": None}])
        assert str(plan.request).startswith("--nodes ")


READERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "the ledger": (
        ledger,
        {
            "closed": {"debug": TOTAL},
            "open": {"i": MACHINE},
            "newest": {"debug-0": "i"},
            "unrecorded": [LIFE],
        },
    ),
    "the record of ended machines": (machine_record, LIFE),
    "requeues that Slurm may forget": (requeues, {"7": REQUEST}),
    "the last backups": (backup_record, {"last": BACKUP, "failure": {"at": 1.0, "message": "x"}}),
    "the published settings": (settings_of_a_cluster, {"api_version": "x"}),
    "partitions that are closed for a moment": (closed_partitions, {"names": ["debug"]}),
    "the nodes' hardware": (named(hardware.RECORD, hardware.read), {"release": "22.05", "values": []}),
    "a renewal of the hardware": (renewal, {"at": 1.0, "free": ["a"], "seen": ["b"]}),
    "the places of nodes": (named(topology.RECORD, topology.read), {"debug-0": ["a", "b"]}),
    "one's own boot report": (report.was_ready, {"state": "failed", "was_ready": True}),
    "the local cloud's machines": (machines, {"machines": [], "launches": {"t": {}}, "count": 1}),
    "the machines' instance types": (known_types, {"format": cache.FORMAT, "machines": {}}),
    "a stack's cluster": (known_cluster, CLUSTER),
    "what a run of a sweep is": (label_of_a_run, LABEL),
    "the guard of the disk": (guard, {"held": True, "at": 1.0, "why": "x"}),
}
"""Record -> its reader, which fails if its record stops it, and what the record is like."""


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_record_stops_nobody(tmp_path: Path, name: str) -> None:
    read, good = READERS[name]
    for number, text in enumerate(damaged(good)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "record.json"
        file.write_bytes(text)
        read(file)


def test_a_record_of_no_end_and_what_is_no_file_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "good").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    for path in (file, tmp_path, tmp_path / "link", tmp_path / "pipe"):
        with pytest.raises((ValueError, OSError)):
            foreign.record(path)
    assert foreign.record(tmp_path / "good") == {}


SPOOLED = damaged({"program": "suspend", "nodes": "debug-0", "time": 1.0, "id": "x"})


def test_requests_that_were_left_for_the_daemon_do_not_keep_it_from_starting(tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    requests.mkdir()
    for number, text in enumerate(SPOOLED):
        (requests / f"{number:04}.json").write_bytes(text)

    class EndError(BaseException):
        """The queue is empty."""

    elastic = Elastic(settings(tmp_path, fast_design()), FakeControl(), FakeDriver(), tmp_path)
    processed: list[Any] = []
    elastic.process = processed.append  # type: ignore[assignment,method-assign]

    class Queue:
        def __init__(self) -> None:
            self.items: list[Any] = []

        def put(self, item: Any) -> None:
            self.items.append(item)

        def get(self) -> Any:
            if not self.items:
                raise EndError
            return self.items.pop(0)

    elastic._queue = Queue()  # type: ignore[assignment]
    elastic._reconcile_loop = lambda: None  # type: ignore[method-assign]
    elastic.capacity_limiter.run = lambda: None  # type: ignore[method-assign]
    with pytest.raises(EndError):
        elastic.run()
    assert processed
    assert list(requests.iterdir()) == []
