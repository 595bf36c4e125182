"""What the Pulumi CLI is told about hosts whose machines are gone: exactly their resources are read anew.

The URNs are those of the real program's plans.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from cli.runner.automation import MACHINES, PulumiRunner, resources_of
from cli.runner.events import Event, Message
from tests.support.fake_pulumi import called, install
from tests.support.replacements import of_stack
from tests.support.stack_parts import UNMAINTAINED
from tests.support.tiny_project import make

KEPT: dict[str, Any] = {"slurm.accounting": True, "login.count": 1, **UNMAINTAINED}


@functools.cache
def state(stack: str) -> tuple[dict[str, Any], ...]:
    """The resources of a stack that is up, as the CLI exports them."""
    return tuple(of_stack(stack, KEPT).exported())


def ends(urns: list[str]) -> list[str]:
    return sorted(urn.rpartition("::")[2].partition("-")[2] for urn in urns)


@pytest.mark.parametrize(
    ("stack", "host", "expected"),
    [
        ("aws", "controller", ["disks-apps", "disks-home", "disks-state", "head-controller"]),
        ("aws", "login-0", ["head-login-0"]),
        ("gcp", "controller", ["head-controller", "head-controller-disk"]),
        ("gcp", "login-0", ["head-login-0", "head-login-0-disk"]),
    ],
)
def test_what_ends_with_a_machine_is_read_anew_and_no_disk_with_data(
    stack: str, host: str, expected: list[str]
) -> None:
    found = resources_of(state(stack), [host])
    assert ends(found) == expected
    types = {one["urn"]: one["type"] for one in state(stack)}
    assert [types[urn] for urn in found].count(MACHINES[0 if stack == "aws" else 1]) == 1


def test_a_name_that_ends_as_a_hosts_does_is_another_resource() -> None:
    assert resources_of(state("aws"), ["0", "0-disk", "disk", ""]) == []
    assert resources_of([], ["controller"]) == []


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "there after all"])
def test_the_engine_asks_the_cloud_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    tiny = make(tmp_path, monkeypatch).write("command('a')")
    targets = resources_of(state("aws"), ["controller"])
    calls = install(tmp_path, monkeypatch, resources=state("aws"), gone=targets if gone else ())
    said: list[Event] = []
    PulumiRunner(tiny.stack, local=False).up(said.append, lost=["controller"])
    (refresh, _), (up, _) = called(calls, "refresh", "up")
    assert (refresh[0], up[0]) == ("refresh", "up")
    assert sorted(refresh[at + 1] for at, word in enumerate(refresh) if word == "--target") == sorted(targets)
    assert "--target" not in up
    stays = [one.text for one in said if isinstance(one, Message) and "it stays" in one.text]
    assert len(stays) == (not gone), "the second witness says that it lives"


def test_without_lost_hosts_nothing_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = make(tmp_path, monkeypatch).write("command('a')")
    calls = install(tmp_path, monkeypatch, resources=state("aws"))
    PulumiRunner(tiny.stack, local=False).up()
    PulumiRunner(tiny.stack, local=False).up(lost=["login-7"])
    assert [words[0] for words, _ in called(calls, "refresh", "up")] == ["up", "up"]
