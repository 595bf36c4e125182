"""The agent's calls over its real socket: which calls the limits delay or refuse, and what it saves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud import isolation
from localcloud.behaviour import ERRORS, OF_EVERY_CALL
from node.design.local_cloud import CloudBehaviour
from node.system.codec import to_json
from tests.support.sleepers import TAGS, ServedCloud, Sleepers, names, until

HEAD = {"cluster": "t", "role": "controller"}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedCloud]:
    maker = Sleepers()
    monkeypatch.setattr(isolation, "runtime", lambda _run: maker)
    served_cloud = ServedCloud(tmp_path, maker)
    yield served_cloud
    served_cloud.server.close()
    maker.close()


SETTINGS = {
    "boot_delay": 1.5, "boot_spread": 2.0, "quota_nodes": 3, "quota_gpus": 8, "capacity": {"debug/a": 1},
    "never_register": 0.5, "api_error": "quota", "api_latency": 0.0, "list_lag": 2.0,
}  # fmt: skip


def test_every_setting_is_set_and_kept(served: ServedCloud) -> None:
    assert SETTINGS.keys() == to_json(CloudBehaviour()).keys()
    for key, value in SETTINGS.items():
        assert served.call("limits", **{key: value})[key] == value
    served.restart()
    assert served.call("limits") == SETTINGS
    for key in SETTINGS:
        served.call("limits", **{key: None})
    served.restart()
    assert served.call("limits") == to_json(CloudBehaviour())


def test_settings_set_at_once_by_many_are_all_there(served: ServedCloud) -> None:
    changes = [{f"capacity.p{n}": n} for n in range(20)]
    threads = [threading.Thread(target=lambda c=c: served.call("limits", **c)) for c in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served.call("limits")["capacity"] == {f"p{n}": n for n in range(20)}
    assert json.loads((served.run / "cloud" / "limits.json").read_text())["capacity"]["p19"] == 19


def test_one_wrong_setting_changes_none(served: ServedCloud) -> None:
    assert served.code("limits", quota_nodes=2, boot_delay="soon") == "InvalidRequest"
    assert served.code("limits", quota=1) == served.code("reboot") == "InvalidRequest"
    assert served.call("limits") == to_json(CloudBehaviour())
    assert not (served.run / "cloud" / "limits.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"quota": 1}', '{"boot_delay": "x"}', "7"])
def test_settings_that_are_damaged_are_none(served: ServedCloud, text: str) -> None:
    (served.run / "cloud" / "limits.json").write_text(text)
    served.restart()
    assert served.call("limits") == to_json(CloudBehaviour())


@pytest.mark.parametrize("error", ERRORS)
def test_errors_hit_their_calls_and_nothing_else(served: ServedCloud, error: str) -> None:
    (node,) = served.launch()
    served.call("limits", api_error=error)
    code, every = ERRORS[error][0], error in OF_EVERY_CALL
    wish = {"token": "x", "names": names(1, 5), "min_count": 1, "machine": "local.small", "tags": TAGS}
    asked = {"partition": "debug", "zone": None, "machine": "local.small", "gpus": 0, "count": 2}
    assert served.code("launch", **wish) == code
    assert served.code("available_capacity", **asked) == code
    assert served.code("list", tags=TAGS) == (code if every else None)
    assert served.code("terminate", ids=[node]) == (code if every else None)
    # Calls for the head and calls that set faults are neither delayed nor refused.
    head = {**wish, "names": {"controller": "t-controller"}, "tags": HEAD}
    (controller,) = [m["id"] for m in served.call("launch", **head)["machines"]]
    assert served.call("list", tags={"role": "controller"})["machines"][0]["id"] == controller
    until(lambda: [m["state"] for m in served.call("inspect")["machines"]][-1] == "running")
    served.call("fault", action="freeze", node="controller")
    served.call("fault", action="thaw", node="controller")
    served.call("terminate", ids=[controller])
    served.call("limits", api_error=None)
    served.call("terminate", ids=[node])
    served.launch(1, 5)


def test_latency_holds_up_every_call_about_nodes_and_only_those(served: ServedCloud) -> None:
    (node,) = served.launch()
    served.call("limits", api_latency=0.3)
    slow: list[tuple[str, dict[str, Any]]] = [
        ("list", {"tags": TAGS}),
        ("list", {"tags": {}}),
        ("terminate", {"ids": [node]}),
    ]
    for method, params in slow:
        began = time.monotonic()
        served.call(method, **params)
        assert time.monotonic() - began >= 0.3, method
    served.call("limits", api_latency=300)  # nobody waits so long for an answer
    served.call("list", tags={"role": "controller"})
    served.call("limits")
    served.call("inspect")
    served.call("limits", api_latency=0.3)
    began = time.monotonic()
    served.available_capacity()
    served.launch(1, 5)
    assert time.monotonic() - began >= 0.6
    served.call("limits", api_error="throttled")
    began = time.monotonic()
    assert served.code("list", tags=TAGS) == "RequestLimitExceeded"
    assert time.monotonic() - began >= 0.3, "refused late, too"


def test_a_call_that_waits_goes_on_when_the_latency_is_taken_away(served: ServedCloud) -> None:
    served.call("limits", api_latency=300)
    answered = threading.Event()

    def ask() -> None:
        served.call("list", tags=TAGS)
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    assert not answered.wait(0.3)
    served.call("limits", api_latency=None)
    assert answered.wait(60)


def test_faults_go_through_the_socket_and_outlive_the_agent(served: ServedCloud) -> None:
    served.launch(2)
    until(lambda: {m["state"] for m in served.call("inspect")["machines"]} == {"running"})
    assert served.call("fault", action="freeze", node="debug-0")["frozen"]
    notice = served.call("fault", action="preempt", node="debug-1", notice=900)["notice"]
    served.restart()
    told = {m["node"]: (m["frozen"], m["notice"]) for m in served.call("list", tags=TAGS)["machines"]}
    assert told == {"debug-0": (True, None), "debug-1": (False, notice)}
    assert served.code("fault", action="kill", node="debug-9") == "NotFound"
    assert served.code("fault", action="kill") == "TypeError"


def test_quota_and_room_agree_over_the_socket(served: ServedCloud) -> None:
    served.call("limits", **{"boot_delay": 60, "capacity.debug": 1})
    assert served.available_capacity()["count"] == 1
    served.launch()
    found = served.available_capacity()
    assert (found["count"], found["code"]) == (0, "InsufficientCapacity")
    served.restart()
    assert served.available_capacity() == found, "the next agent knows the limit and who counts for it"


def test_an_agent_that_shuts_down_takes_no_more_faults(served: ServedCloud) -> None:
    served.launch()
    served.agent._closing = True
    assert served.code("fault", action="kill", node="debug-0") == "Unavailable"
    assert served.code("limits", quota_nodes=1) == "Unavailable"
