"""A controller or a login machine that is gone, off, ending or faulty: what `up`, status and doctor do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from cli.changes.decision import CheckedChanges
from cli.findings import Severity
from cli.providers.clouds import heads, known_clusters, running
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from node.design.model import Access, ClusterDesign, Host, Image, SlurmSettings
from node.design.storage import Mount
from operations.access import StackUp
from tests.support import sentences
from tests.support.cloud_up import HOME, NOWHERE, cloud, head, made, outputs, provider, stack, state
from tests.support.fake_cloud import PLACE, FakeCloud, FakeProvider, Head, Pauses

__all__ = ["cloud", "head", "provider", "stack", "state"]

STATE = Mount("/state", "disk", served_by="controller", name="state")
LOGIN = Host("login-0", "login", ("login",), "m", 50)


def kept(**changes: Any) -> ClusterDesign:
    """The design of a cluster whose queue is on a disk of its own."""
    return made(mounts=(HOME, STATE), slurm=SlurmSettings(accounting=True), **changes)


def with_login(plan: ClusterDesign) -> ClusterDesign:
    return dataclasses.replace(plan, hosts=(*plan.hosts, LOGIN))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause takes no time."""
    monkeypatch.setattr(heads, "POLL_SECONDS", 0.0)


def lose(cloud: FakeCloud, host: str = "controller", state: str = "gone") -> None:
    cloud.set_state(host, state)


def up(
    provider: FakeProvider, design: ClusterDesign, *, replace: bool = False
) -> tuple[CheckedChanges, list[str]]:
    said: list[str] = []
    return provider.check_changes(NOWHERE, design, outputs, said.append, replace=replace), said


# --- up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [True, False], ids=["listed as ended", "not listed any more"])
def test_a_controller_that_is_gone_is_made_again_with_its_queue(
    cloud: FakeCloud, provider: FakeProvider, head: Head, listed: bool
) -> None:
    cloud.up(kept())
    if listed:
        lose(cloud)
    else:
        cloud.there.clear()
    checked, said = up(provider, kept())
    assert checked.lost == ("controller",)
    (line,) = said
    sentences.sentence(line, "the controller is gone", "the disk that has its queue", "Jobs go on")
    assert ("id-controller" in line) == listed
    assert cloud.did == [], "the engine makes it"
    assert head.lines == [], "nobody there could answer"


def test_one_that_lives_is_never_replaced(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    """Whether it answers or not: it may be cut off."""
    cloud.up(kept())
    for alive in ("running", "pending", "stopped"):
        lose(cloud, state=alive)
        assert up(provider, kept()) == (CheckedChanges(), []), alive
    assert cloud.did == []


def test_what_the_cloud_finds_wrong_with_it_is_said_and_it_stays(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(kept())
    cloud.failures["controller"] = "its check of the system fails"
    checked, (line,) = up(provider, kept())
    assert checked.lost == ()
    sentences.sentence(line, "its check of the system fails", "cloud stop id-controller", "`./cluster up")


def test_who_may_not_ask_for_failed_checks_may_bring_the_cluster_up(
    cloud: FakeCloud, provider: FakeProvider, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_machine: object) -> str:
        raise UserError("not authorized", EXIT_REFUSED, code="aws.refused")

    cloud.up(kept())
    monkeypatch.setattr(cloud, "failure", refuse)
    assert up(provider, kept()) == (CheckedChanges(), [])


def test_one_that_still_ends_is_waited_for(cloud: FakeCloud) -> None:
    cloud.up(kept())
    lose(cloud, state="ending")
    said: list[str] = []
    pauses = Pauses(lambda: None, lambda: lose(cloud))
    lost = heads.lost(cloud, kept(), kept(), "test", said.append, replace=False, sleep=pauses)
    assert lost == ("controller",)
    assert pauses.pauses == 2
    sentences.sentence(said[0], "id-controller", "ending")
    assert len(said) == 2, "it is said once that it is waited for"


def test_one_that_is_switched_off_meanwhile_is_not_gone(cloud: FakeCloud) -> None:
    """Compute Engine calls a machine STOPPING that is deleted, and one that stops."""
    cloud.up(kept())
    lose(cloud, state="stopping")
    pauses = Pauses(lambda: lose(cloud, state="stopped"))
    assert heads.lost(cloud, kept(), kept(), "test", print, replace=False, sleep=pauses) == ()


def test_a_list_that_lacks_a_machine_once_is_no_proof(cloud: FakeCloud) -> None:
    cloud.up(kept())
    there = list(cloud.there)
    cloud.there.clear()
    pauses = Pauses(lambda: None, lambda: cloud.there.extend(there))
    assert heads.lost(cloud, kept(), kept(), "test", print, replace=False, sleep=pauses) == ()


def test_one_that_does_not_end_has_no_successor(
    cloud: FakeCloud, provider: FakeProvider, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "END_SECONDS", 0.0)
    cloud.up(kept())
    lose(cloud, state="ending")
    with sentences.raises("controller.still-ending", "id-controller", "ending"):
        up(provider, kept())


def test_a_queue_on_the_root_disk_is_lost_and_that_needs_a_word(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    plan = made(slurm=SlurmSettings(accounting=True))
    cloud.up(plan)
    cloud.run("cpu-0", "compute")
    lose(cloud)
    with sentences.raises(
        "controller.queue-lost", "its queue and the accounting", "1 node is", "--replace"
    ) as e:
        up(provider, plan)
    assert e.value.exit_code == EXIT_REFUSED
    checked, said = up(provider, plan, replace=True)
    assert checked.lost == ("controller",)
    sentences.sentence(said[0], "its queue and the accounting are lost", "1 node is up", "empty queue")


def test_a_root_disk_that_outlives_its_machine_has_the_queue(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    """As on Compute Engine."""
    cloud.up(made())
    cloud.there.clear()
    cloud.root_disks.add("controller")
    checked, (line,) = up(provider, made())
    assert checked.lost == ("controller",)
    sentences.sentence(line, "its root disk, which has its queue")


def test_a_login_machine_that_is_gone_is_made_again(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    plan = with_login(made())
    cloud.up(plan)
    cloud.report("login-0", "ready")
    checked, (line,) = up(provider, plan)
    assert checked.lost == ("login-0",)
    sentences.sentence(line, "login-0 is gone")
    assert up(provider, made())[0].lost == (), "nobody wants it any more"


def test_one_that_has_never_booted_has_nothing_to_lose(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    """The first `up` has published, and was interrupted then."""
    cloud.publish(made())
    assert up(provider, made()) == (CheckedChanges(lost=("controller",)), [])


def test_who_may_not_list_buckets_learns_it_while_the_machine_is_listed(
    cloud: FakeCloud, provider: FakeProvider, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise UserError("not authorized", EXIT_REFUSED, code="aws.refused")

    monkeypatch.setattr(cloud, "bucket", refuse)
    assert up(provider, kept()) == (CheckedChanges(), []), "a first `up` is not refused"
    cloud.up(kept())
    lose(cloud)
    assert up(provider, kept())[0].lost == ("controller",)


def test_what_changes_is_said_of_a_cluster_without_its_controller(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    """The bucket is found without it, so a change that ends jobs is still refused."""
    cloud.up(kept())
    cloud.there.clear()
    head.answer = UserError("no answer", code="ssh.no-answer")
    fewer = tuple(dataclasses.replace(partition, max=2) for partition in kept().partitions)
    with sentences.raises("change.jobs-unknown", "nodes.max 10 → 2"):
        up(provider, dataclasses.replace(kept(), partitions=fewer))


# --- an older Slurm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["controller", "cluster"])
@pytest.mark.parametrize(
    ("now", "refused"),
    [("22.05", True), ("23.11", False), ("24.11", False), ("99.05", False), (None, False)],
)
def test_an_image_with_an_older_slurm_is_refused_before_anything_ends(
    cloud: FakeCloud, provider: FakeProvider, head: Head, where: str, now: str | None, refused: bool
) -> None:
    cloud.up(kept())  # its boot report says Slurm 23.11.4
    lose(cloud)
    plan = kept(image=Image(id="ami-1")) if where == "cluster" else kept()
    if where == "controller":
        plan = dataclasses.replace(
            plan, hosts=tuple(dataclasses.replace(host, image="ami-1") for host in plan.hosts)
        )
    if now is not None:
        cloud.images["ami-1"] = now
    if refused:
        with sentences.raises("controller.older-slurm", "ami-1", "22.05", "23.11") as caught:
            up(provider, plan)
        assert caught.value.exit_code == EXIT_REFUSED
        return
    checked, said = up(provider, plan)
    assert checked.lost == ("controller",)
    unknown = [line for line in said if "ami-1" in line]
    assert len(unknown) == (now is None)
    if now is None:
        sentences.sentence(unknown[0], "ami-1", "the boot fails, and the queue is not changed", "23.11")


def test_it_is_refused_too_where_a_change_makes_another_controller(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(kept())
    cloud.images["ami-1"] = "22.05"
    other = kept(image=Image(id="ami-1"), access=Access("ssh", key="another"))
    with sentences.raises("controller.older-slurm", "ami-1"):
        up(provider, other)
    assert cloud.did == []
    cloud.images["ami-1"] = "23.11"
    checked, said = up(provider, other)
    assert checked.lost == ()
    assert any("jobs go on" in line for line in said), "it takes over"


def test_a_controller_that_keeps_its_machine_is_not_asked_for_its_image(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(kept())
    cloud.images["ami-1"] = "22.05"
    assert up(provider, kept(image=Image(id="ami-1")))[0].lost == ()
    # A root disk that is there has an image already.
    lose(cloud)
    cloud.root_disks.add("controller")
    assert up(provider, kept(image=Image(id="ami-1")))[0].lost == ("controller",)


# --- after the engine -------------------------------------------------------------------------------------


def test_one_that_is_off_is_started_and_its_boot_waited_for(cloud: FakeCloud) -> None:
    cloud.up(kept())
    lose(cloud, state="stopping")
    said: list[str] = []

    def booted() -> None:
        cloud.report("controller", "ready")

    pauses = Pauses(lambda: lose(cloud, state="stopped"), booted)
    heads.start_stopped(cloud, kept(), "test", said.append, pauses)
    assert cloud.did == ["start controller"]
    assert said[1:] == ["controller was stopped: it is started again, with its queue"]


# --- status, doctor, and every command that logs in -------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "code", "values"),
    [
        ("gone", "controller.gone", ["takes over with the disk", "`./cluster up --stack test`"]),
        ("ending", "controller.gone", ["takes over with the disk", "`./cluster up --stack test`"]),
        ("stopped", "controller.off", ["`./cluster up --stack test`"]),
        ("stopping", "controller.off", ["`./cluster up --stack test`"]),
        ("running", None, []),
        ("pending", None, []),
    ],
)
def test_what_status_says_of_a_controller_that_does_not_answer(
    cloud: FakeCloud, state: str, code: str | None, values: list[str]
) -> None:
    cloud.up(kept())
    lose(cloud, state=state)
    found = heads.silence(cloud, kept(), "test")
    if code is None:
        assert found is None
    else:
        assert found is not None
        sentences.error(found, code, *values)


def test_what_status_says_of_a_queue_that_is_lost_of_a_login_machine_and_of_failure(cloud: FakeCloud) -> None:
    plan = with_login(made())
    cloud.up(plan)
    assert heads.silence(cloud, plan, "test") is None, "it has never been up"
    cloud.report("login-0", "ready")
    found = heads.silence(cloud, plan, "test")
    assert found is not None
    sentences.error(found, "controller.gone", "login-0")
    cloud.failures["controller"] = "it is REPAIRING"
    found = heads.silence(cloud, plan, "test")
    assert found is not None
    sentences.error(found, "controller.failing", "it is REPAIRING", "cloud stop id-controller")
    cloud.there.clear()
    found = heads.silence(cloud, plan, "test")
    assert found is not None
    sentences.error(found, "controller.gone", "its queue is lost", "--replace")


def place(stack: Stack, cloud: FakeCloud, provider: FakeProvider) -> None:
    """Let the cluster of the stack's file be this one."""
    provider.cloud = lambda _place: cloud  # type: ignore[method-assign, assignment]
    known_clusters.note_cluster(stack, PLACE)


def test_without_its_login_machine_a_cluster_is_told_from_one_that_was_never_up(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    place(stack, cloud, provider)
    with pytest.raises(NotUpError):
        provider.ssh(StackUp(stack, "aws"))
    cloud.up(kept())
    lose(cloud)
    with sentences.raises("controller.gone", "`./cluster up --stack test`"):
        provider.ssh(StackUp(stack, "aws"))
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED, code="aws.no-credentials")
    assert provider.silence(StackUp(stack, "aws")) is None
    with pytest.raises(UserError, match="there are no credentials"):
        provider.ssh(StackUp(stack, "aws"))


def test_doctor_says_it_too(cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack) -> None:
    place(stack, cloud, provider)
    plan = with_login(kept())
    cloud.up(plan)
    cloud.run("login-0")
    cloud.report("login-0", "ready")
    lose(cloud)
    # The login machine answers, and Slurm does not.
    head.answer = UserError("slurmctld does not answer", code="ssh.command-failed")
    checks = [one for one in provider.diagnose(stack, plan, None) if one.name == "condition"]
    (found,) = checks[0].look()
    sentences.finding(found, "cluster.controller", Severity.WARNS, "the controller is gone", "`./cluster up")
    # Without a login machine there is nobody to ask.
    cloud.there.clear()
    (found,) = checks[0].look()
    sentences.finding(found, "cluster.controller", Severity.WARNS, "is gone")
    lone = running.published(cloud)
    assert lone == plan
    assert json.loads(cloud.objects["bucket-1", "current.json"][0])["settings"]


# --- down -------------------------------------------------------------------------------------------------


def test_down_looks_for_the_hosts_that_the_engine_knows(cloud: FakeCloud, provider: FakeProvider) -> None:
    cloud.up(with_login(kept()))
    cloud.run("login-0")
    said: list[str] = []
    hosts = ["controller", "login-0"]
    assert provider.lost(StackUp(NOWHERE, "aws"), outputs, said.append, hosts) == ()
    lose(cloud, state="stopped")
    assert provider.lost(StackUp(NOWHERE, "aws"), outputs, said.append, hosts) == (), "it is not lost"
    assert said == []
    lose(cloud)
    assert provider.lost(StackUp(NOWHERE, "aws"), outputs, said.append, hosts) == ("controller",)
    cloud.there.clear()
    assert provider.lost(StackUp(NOWHERE, "aws"), outputs, said.append, hosts) == ("controller", "login-0")
    assert all("the engine forgets what ended with it" in line for line in said)


def test_down_goes_on_where_the_cloud_does_not_tell(cloud: FakeCloud, provider: FakeProvider) -> None:
    cloud.up(kept())
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED, code="test.cause")
    said: list[str] = []
    assert provider.lost(StackUp(NOWHERE, "aws"), outputs, said.append, ["controller"]) is None
    assert said == [
        "the engine itself asks for the machines of controller, because: there are no credentials"
    ]
