"""What the Pulumi CLI is told about hosts whose machines are gone: exactly their resources are read anew.

The URNs are those of the real program's plans.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.console.events import Event, Message
from cli.engine.automation import MACHINES, PulumiRunner, resources_of
from infra.errors import UserError
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


# --- down -------------------------------------------------------------------------------------------------


def ended(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Sequence[str]], Collection[str] | None],
    *,
    stack: str = "aws",
    resources: Sequence[dict[str, Any]] | None = None,
    **changes: Any,
) -> list[list[str]]:
    """Destroy a stack, and return the calls that the CLI got, `refresh` with the ends of its targets."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    tiny = make(folder, monkeypatch).write("command('a')")
    known = state(stack) if resources is None else resources
    calls = install(folder, monkeypatch, resources=known, **changes)
    with contextlib.suppress(UserError):
        PulumiRunner(tiny.stack, local=False).destroy(look=look)
    return [
        [words[0], *ends([words[at + 1] for at, word in enumerate(words) if word == "--target"])]
        for words, _ in called(calls, "refresh", "destroy")
    ]


ATTACHMENTS = ["disks-apps", "disks-home", "disks-state"]
EVERYTHING = {
    "aws": [*ATTACHMENTS, "head-controller", "head-login-0"],
    "gcp": ["head-controller", "head-controller-disk", "head-login-0", "head-login-0-disk"],
}


@pytest.mark.parametrize("stack", ["aws", "gcp"])
def test_a_destroy_forgets_first_what_ended_with_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    asked: list[Sequence[str]] = []

    def look(hosts: Sequence[str]) -> Collection[str]:
        asked.append(hosts)
        return ["controller"]

    expected = ends(resources_of(state(stack), ["controller"]))
    assert ended(tmp_path, monkeypatch, look, stack=stack) == [["refresh", *expected], ["destroy"]]
    assert [sorted(hosts) for hosts in asked] == [["controller", "login-0"]]


@pytest.mark.parametrize("stack", ["aws", "gcp"])
def test_a_cloud_that_does_not_tell_has_the_engine_ask_for_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    calls = ended(tmp_path, monkeypatch, lambda _hosts: None, stack=stack)
    assert calls == [["refresh", *EVERYTHING[stack]], ["destroy"]]


def test_a_destroy_of_hosts_that_live_reads_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(tmp_path, monkeypatch, lambda _hosts: ()) == [["destroy"]]


def test_what_is_lost_during_a_destroy_is_forgotten_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that ends, or a data volume that somebody has deleted."""
    lost = resources_of(state("aws"), ["controller"])
    volume = [urn for urn in lost if urn.endswith("-disks-home")]
    for gone in (lost, volume):
        calls = ended(tmp_path, monkeypatch, lambda _hosts: (), gone=gone, stuck=gone)
        assert calls == [["destroy"], ["refresh", *EVERYTHING["aws"]], ["destroy"]]
    # What fails for another cause fails once.
    calls = ended(tmp_path, monkeypatch, lambda _hosts: (), stuck=volume)
    assert calls == [["destroy"], ["refresh", *EVERYTHING["aws"]]]


def test_a_destroy_that_was_killed_after_it_had_forgotten_the_machine_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [one for one in state("aws") if not one["urn"].rpartition("::")[2].endswith(("-controller", "-0"))]
    attachments = [urn for urn in resources_of(left, ["controller"]) if "-disks-" in urn]
    assert ends(attachments) == ATTACHMENTS
    calls = ended(
        tmp_path, monkeypatch, lambda hosts: hosts, resources=left, gone=attachments, stuck=attachments
    )
    assert calls == [["refresh", *ATTACHMENTS], ["destroy"]]


def test_a_stack_without_hosts_is_destroyed_without_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(hosts: Sequence[str]) -> Collection[str]:
        raise AssertionError(hosts)

    assert ended(tmp_path, monkeypatch, look, resources=()) == [["destroy"]]
