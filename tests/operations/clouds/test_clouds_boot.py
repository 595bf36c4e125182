"""The wait for the controller: progress, a failed step with its last lines, and newly published settings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from infra.clouds.commands import WaitRequest
from infra.errors import EXIT_REFUSED, UserError
from infra.program.launcher import anywhere
from node.design.model import Access, Host
from operations.clouds.boots import APPLY, LOOKS, Waiter
from tests.support import sentences
from tests.support.doubles import HEAD, design
from tests.support.fake_cloud import BUCKET, KEY, PLACE, FakeCloud, head
from tests.support.fake_cloud import Head as Ssh

__all__ = ["head"]

WISH = WaitRequest(PLACE, BUCKET, ["controller"], "controller", "iap")
FACTS = {"host_keys": [KEY], "login_user": "ann", "scheduler_version": "slurm 23.11.4"}
PASSED = {"name": "slurm", "state": "done"}


@pytest.fixture
def cloud() -> FakeCloud:
    fake_cloud = FakeCloud()
    fake_cloud.write("current.json", b"{}")
    return fake_cloud


class Boot:
    """The controller's life as scenes; each pause plays the next one."""

    def __init__(
        self, cloud: FakeCloud, *scenes: Callable[[], object], wish: WaitRequest = WISH, seconds: float = 60
    ) -> None:
        self.said: list[str] = []
        self.applied: list[str] = []
        self._scenes = list(scenes)
        self._waiter = Waiter(wish, cloud, self.said.append, self._apply, seconds, self._pause)

    def _apply(self, machine: Any, report: dict[str, Any]) -> None:
        assert report["host_keys"] == [KEY]
        self.applied.append(machine.name)

    def _pause(self, _seconds: float) -> None:
        assert self._scenes, "it waits for something that does not come"
        self._scenes.pop(0)()

    def facts(self) -> dict[str, Any]:
        return self._waiter.facts()


def steps(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "state": "running"} for name in names]


def test_a_head_that_is_ready_tells_its_facts(cloud: FakeCloud) -> None:
    cloud.run("controller")
    cloud.report("controller", "ready")
    boot = Boot(cloud)
    assert boot.facts() == FACTS
    assert (boot.said, boot.applied) == ([], [])


def test_what_waits_for_its_moment_is_said(cloud: FakeCloud) -> None:
    cloud.run("controller")
    cloud.report("controller", "ready", facts={"slurm": "slurm-wlm 23.11.4", "waits": "nodes read it later"})
    boot = Boot(cloud)
    assert boot.facts()["scheduler_version"] == "slurm-wlm 23.11.4"
    assert boot.said == ["controller: nodes read it later"]


def test_each_step_is_said_once(cloud: FakeCloud) -> None:
    cloud.run("controller")
    boot = Boot(
        cloud,
        lambda: cloud.report("controller", "booting", steps=steps("packages")),
        lambda: cloud.report("controller", "booting", steps=steps("packages")),
        lambda: cloud.report("controller", "rebooting", steps=steps("packages", "lustre")),
        lambda: cloud.report("controller", "ready"),
    )
    boot.facts()
    assert boot.said == ["controller: packages", "controller: lustre"]


def test_a_failed_step_is_shown_with_its_last_lines(cloud: FakeCloud) -> None:
    cloud.run("controller")
    failed = {"name": "mounts", "state": "failed", "note": "mount failed", "tail": ["a", "no route to host"]}
    boot = Boot(cloud, lambda: cloud.report("controller", "failed", steps=[PASSED, failed]))
    with pytest.raises(UserError) as caught:
        boot.facts()
    assert str(caught.value) == (
        "controller failed to boot at step mounts: mount failed\n  a\n  no route to host\n"
        "Fix the cause and run `up` again: the machine boots again, from that step on."
    )


def test_the_next_up_has_a_failed_head_boot_again(cloud: FakeCloud) -> None:
    cloud.run("controller")
    at = time.time() + 60
    cloud.report("controller", "failed", at, steps=[{"name": "mounts"}])
    boot = Boot(
        cloud,
        lambda: None,  # the old report is still there and counts as none
        lambda: cloud.report("controller", "booting", at + 9, steps=steps("mounts")),
        lambda: cloud.report("controller", "ready", at + 9),
    )
    boot.facts()
    assert boot.applied == ["controller"]


def test_new_settings_reach_a_head_that_is_up(cloud: FakeCloud) -> None:
    """A host that booted an older publication boots again, and only that boot counts."""
    cloud.run("controller")
    at = time.time() + 2
    cloud.report("controller", "ready", at)
    cloud.write("current.json", b"{}", at + 1)
    boot = Boot(cloud, lambda: None, lambda: cloud.report("controller", "ready"))
    boot.facts()
    assert boot.applied == ["controller"]
    assert boot.said == ["controller: booting again, with what is published now"]


def test_the_report_of_an_earlier_machine_is_not_this_ones(cloud: FakeCloud) -> None:
    cloud.report("controller", "ready", time.time() - 3600)
    cloud.run("controller")
    boot = Boot(cloud, lambda: None, lambda: cloud.report("controller", "ready"))
    boot.facts()
    assert boot.applied == []


def test_a_machine_that_never_reports_is_told_apart_from_one_that_is_slow(cloud: FakeCloud) -> None:
    cloud.run("controller")
    with sentences.raises("boot.late"):
        Boot(cloud, seconds=0).facts()
    cloud.report("controller", "booting", steps=steps("nvidia"))
    with sentences.raises("boot.late", "`up`"):
        Boot(cloud, seconds=0).facts()


def test_a_machine_that_was_ended_is_said_after_some_looks(cloud: FakeCloud) -> None:
    """A cloud's lists lag behind a creation."""
    with sentences.raises("boot.machine-gone"):
        Boot(cloud, *[lambda: None] * (LOOKS - 1)).facts()
    cloud.report("controller", "ready")
    Boot(cloud, lambda: cloud.run("controller")).facts()


def test_a_machine_that_was_stopped_is_started(cloud: FakeCloud) -> None:
    """A change of its disks leaves the host stopped; its earlier report does not count."""
    cloud.report("controller", "ready", time.time() - 5)
    cloud.run("controller", state="stopped")
    boot = Boot(cloud, lambda: cloud.report("controller", "ready"))
    boot.facts()
    assert boot.said == ["controller: starting it again"]
    assert cloud.did == ["start controller"]


def test_login_machines_are_waited_for_and_their_keys_are_the_ones(cloud: FakeCloud) -> None:
    for host in ("controller", "login-0"):
        cloud.run(host)
    cloud.report("controller", "ready", host_keys=["another"])
    cloud.report("login-0", "ready", facts={})
    wish = dataclasses.replace(WISH, hosts=["controller", "login-0"], login="login-0")
    assert Boot(cloud, wish=wish).facts() == FACTS


def test_what_the_cloud_refuses_ends_the_wait_at_once(cloud: FakeCloud) -> None:
    cloud.run("controller")
    cloud.refuses = UserError("no credentials", EXIT_REFUSED, code="aws.no-credentials")
    with sentences.raises("aws.no-credentials"):
        Boot(cloud).facts()


@pytest.mark.parametrize("mode", ["ssh", "iap"])
def test_a_head_boots_again_by_ssh_with_its_own_keys(cloud: FakeCloud, head: Ssh, mode: str) -> None:
    cloud.run("controller", public="198.51.100.7")
    cloud.report("controller", "failed", steps=[{"name": "mounts"}])
    wish = dataclasses.replace(WISH, mode=mode)
    later = lambda _: cloud.report("controller", "ready", time.time() + 99)  # noqa: E731
    Waiter(wish, cloud, lambda _: None, sleep=later).facts()
    assert head.lines == [APPLY] == ["sudo systemctl restart --no-block slurm-stacks-boot.service"]
    ((target, _),) = head.targets
    assert (target.user, target.host_keys) == ("ann", (KEY,))
    assert target.host == ("198.51.100.7" if mode == "ssh" else "id-controller")
    assert target.proxy_command == (None if mode == "ssh" else anywhere("tunnel %h %p"))


def test_a_wish_survives_its_text() -> None:
    made = WaitRequest.of(
        design(
            name="c", region="r", zone="z", project="p", access=Access("ssh", key="k"),
            hosts=(HEAD, Host("login-0", "login", ("login",), "m", 0)),
        ),
        "b",
    )  # fmt: skip
    assert WaitRequest.parse(made.text()) == made
    assert (made.place.zone, made.place.project, made.hosts) == ("z", "p", ["controller", "login-0"])
