"""The status: its keys are a contract, and it names the part that does not answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from node import cluster_status, command_line
from node.cluster_status import SilentError
from node.design.folders import Folders
from node.elastic import status as elastic_status
from node.elastic.daemon import Elastic
from node.elastic.driver import Machine, MachineState
from node.slurm import closing, in_force, packaged
from node.slurm.control import SlurmDown
from node.slurm.reservations import Reservation
from node.system import rpc
from node.system.codec import to_json
from tests.support.checkout import ROOT
from tests.support.doubles import FakeControl, FakeDriver, fast_design, job, node, settings

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())
NAMES = {f"debug-{n}" for n in range(10)}
KEYS: dict[str, Any] = {
    "partitions": {"name", "state", "machine", "min", "max", "up", "pools"},
    "nodes": {
        "name", "partition", "pool", "state", "usable", "machine_state", "reason", "next_state", "changes",
    },
    "reservations": {"name", "start", "end", "nodes", "flags", "users"},
    "machines": {"running", "pending"},
    "closed": {"command", "who", "process", "checkout", "at", "partitions", "opened_by"},
    "cloud": None,
    "jobs": {
        "id", "slurm_id", "name", "user", "partition", "state", "elapsed_seconds", "nodes", "cause", "advice",
        "pool", "pool_reason",
    },
    "cost": {
        "node_hours", "usd", "at_least_usd", "unknown", "by_partition", "by_pool", "damaged", "budget",
        "accounts",
    },
    "disks": {
        "holds", "path", "condition", "short_of", "size_mib", "free_mib", "free_inodes", "setting",
    },
    "unsaved": None,
    "settings": None,
    "steps": {"name", "does", "error"},
}  # fmt: skip


def valid(found: Any) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(found)


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    """The status of a cluster with some of everything."""
    control, driver = FakeControl(), FakeDriver()
    control.state = {
        n.name: n
        for n in (
            node("debug-0", "ALLOCATED", "CLOUD"),
            node("debug-1", "IDLE", "CLOUD", "POWERED_DOWN", reason="slurm-stacks quota: no more"),
            node("gone-7", "DOWN", "CLOUD", "NOT_RESPONDING"),
        )
    }
    waits = job(6, "PENDING", reason="Resources")
    control.queue = {j.id: j for j in (job(5, nodes=("debug-0",)), waits, job(4, "COMPLETED"))}
    control.reserved = [
        Reservation("fix", 1.0, time.time() + 9000, ("debug-0",), frozenset({"MAINT"}), "root")
    ]
    control.partitions = {"debug": "DRAIN"}
    driver.machines = [
        Machine("m-0", "debug-0", MachineState.RUNNING, 0.0),
        Machine("m-1", "debug-1", MachineState.STOPPING, 0.0),
        Machine("m-2", "debug-2", MachineState.PENDING, 0.0),
    ]
    (tmp_path / "log").mkdir()
    its = settings(tmp_path, fast_design())
    state = Path(str(Folders(its).state))
    state.mkdir(parents=True)
    holder = ("command=down", "who=ann@laptop", "process=boot/1 2 3", "checkout=c", "token=t")
    (state / closing.MARK).write_text("\n".join((*holder, "at=1764317627", "partitions=debug:DOWN:UP\n")))
    elastic = Elastic(its, control, driver, tmp_path)
    made: dict[str, Any] = json.loads(json.dumps(elastic.status()))
    return made


def test_the_keys_are_the_contracts(found: dict[str, Any]) -> None:
    assert set(found) == set(KEYS)
    for part, keys in KEYS.items():
        if keys is None:
            continue
        items = found[part] if isinstance(found[part], list) else [found[part]]
        assert items
        assert [set(item) for item in items] == [keys] * len(items), part
    jsonschema.validate(found, SCHEMA)
    assert [j["id"] for j in found["jobs"]] == [5, 6], "a job that is over is nobody's concern"
    assert [n["partition"] for n in found["nodes"]][:3] == ["debug", "debug", None]
    assert found["partitions"][0]["state"] == "DRAIN"
    assert found["closed"]["partitions"] == ["debug"]
    assert found["closed"]["opened_by"] == f"./cluster up --stack {fast_design().stack}"
    assert found["jobs"][1]["advice"].startswith("fix keeps its nodes for maintenance until 2")


def test_a_node_that_slurm_does_not_list_is_missed(found: dict[str, Any]) -> None:
    nodes = {n["name"]: n for n in found["nodes"]}
    assert nodes.keys() == {*NAMES, "gone-7"}
    missing = {name for name, n in nodes.items() if n["state"] == "MISSING"}
    assert missing == NAMES - {"debug-0", "debug-1"}
    assert {name for name, n in nodes.items() if n["usable"]} == {"debug-1"}, "another one is reserved"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_cloud_that_does_not_answer_hides_nothing_that_slurm_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    control, driver = FakeControl(), FakeDriver()
    control.state = {"debug-0": node("debug-0", "ALLOCATED", "CLOUD")}
    control.queue = {5: job(5, nodes=("debug-0",))}
    driver.machines = [Machine("m-0", "debug-0", MachineState.RUNNING, 0.0)]
    elastic = Elastic(settings(tmp_path, fast_design()), control, driver, tmp_path)
    elastic.reconciler.once()
    assert elastic.status()["cloud"] is None

    end = threading.Event()

    def refuse() -> list[Machine]:
        if hangs:
            end.wait(60)
        raise CodedError("RequestLimitExceeded", "too many calls")

    monkeypatch.setattr(driver, "list", refuse)
    if hangs:
        monkeypatch.setattr(elastic_status, "ANSWER_SECONDS", 0.2)
    found = elastic.status()
    end.set()
    assert found["cloud"] == ("no answer within 0.2 s" if hangs else "too many calls")
    assert [j["id"] for j in found["jobs"]] == [5]
    assert found["machines"] == {"running": 1, "pending": 0}, "as it was last seen"
    jsonschema.validate(found, SCHEMA)


def test_options_of_the_stack_file_that_are_not_in_force_are_named(
    tmp_path: Path, found: dict[str, Any]
) -> None:
    assert found["settings"] is None
    its = settings(tmp_path, fast_design())
    elastic = Elastic(its, FakeControl(), FakeDriver(), tmp_path)
    record = in_force.Record("slurm-wlm 22.05.8", refused="slurmctld refuses them")
    state = Path(Folders(its).state)
    state.mkdir(exist_ok=True, parents=True)
    (state / in_force.RECORD).write_text(json.dumps(to_json(record)))
    elastic.reconciler.once()
    assert elastic.status()["settings"] == "slurmctld refuses them"


def test_the_schema_can_fail(found: dict[str, Any]) -> None:
    assert valid(found)
    assert valid({**found, "closed": None})
    assert valid({**found, "closed": {**found["closed"], "works": True}}), "what the engineer's machine adds"
    assert not valid({**found, "more": 1})
    assert not valid({k: v for k, v in found.items() if k != "cost"})
    assert not valid({**found, "machines": {"running": "1", "pending": 0}})
    assert not valid({**found, "jobs": [{**found["jobs"][0], "id": "5"}]})
    assert not valid({**found, "nodes": [{**found["nodes"][0], "state": "idle~"}]})


# --- silence ---------------------------------------------------------------------------------------------

Serve = Callable[[Callable[[str, dict[str, Any]], Any]], None]


class CodedError(Exception):
    """The error of the daemon's partners, as its server passes it on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """The folders of a cluster whose slurmctld answers."""
    (tmp_path / "run").mkdir()
    (tmp_path / "lib" / "boot").mkdir(parents=True)
    monkeypatch.setattr(cluster_status, "Control", lambda *_: Pinged())
    return Folders(settings(tmp_path))


class Pinged:
    trouble: Exception | None = None

    def run(self, *_: str) -> str:
        if self.trouble is not None:
            raise self.trouble
        return "Slurmctld(primary) is UP"


@pytest.fixture
def serve(folders: Folders) -> Iterator[Serve]:
    """Answer as the elastic daemon does."""
    servers: list[rpc.Server] = []

    def start(handler: Callable[[str, dict[str, Any]], Any]) -> None:
        server = rpc.Server(str(folders.status_socket), handler)
        threading.Thread(target=server.serve, daemon=True).start()
        servers.append(server)

    yield start
    for server in servers:
        server.close()


def report(folders: Folders, **content: Any) -> None:
    file = Path(str(folders.lib)) / "boot" / "controller.json"
    file.write_text(json.dumps({"host": "controller", "steps": [], **content}))


def test_a_daemon_that_answers_is_passed_on_with_the_package_of_slurm(
    folders: Folders, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(lambda method, _: {"asked": method})
    monkeypatch.setattr(packaged, "version", lambda: "24.11.5-4+deb13u1")
    monkeypatch.setattr(packaged, "suite", lambda: "trixie")
    found = cluster_status.status(folders)
    package = {"version": "24.11.5-4+deb13u1", "suite": "trixie"}
    assert found == {"asked": "status", "slurm": package, "backup": None, "remarks": []}
    jsonschema.validate(found["slurm"], SCHEMA["properties"]["slurm"])


def test_a_daemon_that_is_not_there(folders: Folders) -> None:
    with pytest.raises(SilentError, match=r"elastic daemon does not answer(.|\n)*log/elastic\.log"):
        cluster_status.status(folders)


def test_a_slurmctld_that_everybody_waits_for(
    folders: Folders, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    serve(lambda *_: gate.wait(60))
    monkeypatch.setattr(cluster_status, "STATUS_SECONDS", 0.2)
    with pytest.raises(SilentError, match="the elastic daemon does not answer"):
        cluster_status.status(folders)
    down = SlurmDown(["scontrol", "ping"], None, "no answer within 5 s")
    monkeypatch.setattr(Pinged, "trouble", down)
    with pytest.raises(
        SilentError, match=r"slurmctld does not answer \(scontrol ping: no answer within 5 s\)"
    ):
        cluster_status.status(folders)
    gate.set()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SlurmDown", "slurmctld does not answer"),
        ("SlurmError", "slurmctld does not answer"),
        ("KeyError", "^what happened$"),
    ],
)
def test_what_the_daemon_itself_cannot_reach(folders: Folders, serve: Serve, code: str, words: str) -> None:
    def fail(*_: Any) -> Any:
        raise CodedError(code, "what happened")

    serve(fail)
    with pytest.raises(SilentError, match=words):
        cluster_status.status(folders)


def test_a_boot_that_failed_or_goes_on_is_the_cause(folders: Folders) -> None:
    step = {"name": "hooks", "note": "driver.sh ended with status 3"}
    report(folders, state="failed", steps=[step])
    with pytest.raises(
        SilentError, match=r"controller's boot failed at step hooks: driver\.sh ended with status 3"
    ):
        cluster_status.status(folders)
    report(folders, state="booting", steps=[step])
    with pytest.raises(SilentError, match="controller still boots: step hooks"):
        cluster_status.status(folders)
    report(folders, state="booting")
    with pytest.raises(SilentError, match="still boots: step first"):
        cluster_status.status(folders)
    report(folders, state="ready", steps=[step])
    with pytest.raises(SilentError, match="elastic daemon"):
        cluster_status.status(folders)
    (Path(str(folders.lib)) / "boot" / "controller.json").write_text("{")
    with pytest.raises(SilentError, match="elastic daemon"):
        cluster_status.status(folders)


def test_the_tool_says_it_in_one_line(
    tmp_path: Path, folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    from node.system.codec import to_json

    file = tmp_path / "settings.json"
    file.write_text(json.dumps(to_json(settings(tmp_path))))
    assert command_line.main(str(file), ["status"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("the elastic daemon does not answer")
    assert err.count("\n") == 1
