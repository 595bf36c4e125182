"""`up` on a cloud: each change is said, and refused if it would end jobs or delete files unasked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from cli.findings import Check, Finding, fine, stops, warns
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from node.design.model import ClusterDesign
from operations.openssh import SshError
from tests.support import sentences
from tests.support.cloud_up import (
    CPU,
    GPU,
    HOME,
    JOBS,
    NOWHERE,
    cloud,
    head,
    made,
    outputs,
    provider,
    state,
)
from tests.support.fake_cloud import FakeCloud, FakeProvider, Head
from tests.support.job_lines import kind

__all__ = ["cloud", "head", "provider", "state"]


# --- before `up` ------------------------------------------------------------------------------------------


def kinds(head: Head) -> list[str]:
    return [kind(line) for line in head.lines]


def check_changes(provider: FakeProvider, new: ClusterDesign, *, replace: bool = False) -> list[str]:
    said: list[str] = []
    provider.check_changes(NOWHERE, new, outputs, said.append, replace=replace).end_jobs()
    return said


class Unreachable(FakeProvider):
    """A provider whose machines cannot be reached from here."""

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        def ways() -> list[Finding]:
            return [fine("ssh.client", "ssh is here"), stops("ssh.tunnel", "no tunnel", "Dig one.")]

        return [Check("key", lambda: [stops("key", "none", "Make one.")]), Check("ssh", ways)]


class Small(Unreachable):
    """An account with small quotas, and a stack file that names a disk that is not there."""

    def __init__(self, *quotas: Finding) -> None:
        super().__init__()
        self.quotas = [*quotas, stops("gpus", "a zone has none", "Take another.")]

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        disk = stops("storage", "there is no disk d", "Name one.")
        more = [Check("quotas", lambda: self.quotas)]
        return [
            *super().checks(design),
            *more,
            Check("storage", lambda: [disk] if design and design.trains else []),
        ]


def test_what_is_larger_than_a_quota_is_refused_with_all_else_that_the_account_lacks(head: Head) -> None:
    provider = Small(
        stops("quotas", "vCPUs: 5, 0 of them used", "Ask."), warns("quotas", "GPUs: 0", "They wait.")
    )
    said: list[str] = []
    with pytest.raises(UserError) as caught:
        provider.check_changes(
            NOWHERE, dataclasses.replace(made(), trains=True), outputs, said.append, replace=False
        )
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).splitlines() == [
        "nothing was changed: this storage cannot be used",
        "  there is no disk d. Name one.",
        "the account's quotas are too small for what is up all the time",
        "  vCPUs: 5, 0 of them used. Ask.",
        "the login machine could not be reached from here",
        "  no tunnel. Dig one.",
    ]
    assert said == ["quotas: GPUs: 0. They wait."]


def test_nodes_beyond_a_quota_wait_for_it_and_that_is_said(cloud: FakeCloud, head: Head) -> None:
    provider = Small(warns("quotas", "GPUs: 0", "They wait."))
    assert check_changes(provider, dataclasses.replace(made(), trains=False)) == [
        "quotas: GPUs: 0. They wait."
    ]


def test_a_training_that_nobody_could_submit_is_refused_before_anything_is_made(head: Head) -> None:
    with pytest.raises(UserError) as caught:
        check_changes(Unreachable(), dataclasses.replace(made(), trains=True))
    assert caught.value.exit_code == EXIT_REFUSED
    assert str(caught.value).splitlines() == [
        "nothing was changed: the login machine could not be reached from here",
        "  no tunnel. Dig one.",
    ]
    assert check_changes(Unreachable(), dataclasses.replace(made(), trains=False)) == []
    assert check_changes(FakeProvider(), dataclasses.replace(made(), trains=True)) == []


def fewer() -> ClusterDesign:
    return made(dataclasses.replace(CPU, max=2, time_limit="01:00:00"), GPU)


def test_what_is_new_or_the_same_is_not_asked_about(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    assert check_changes(provider, made()) == []
    assert head.lines == []
    cloud.up(made())
    assert check_changes(provider, made()) == []
    assert kinds(head) == ["look"], "only for what an interrupted command has left"


def test_each_change_is_said_before_it_is_refused_for_the_jobs_it_ends(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=cpu\n" + JOBS
    said: list[str] = []
    with pytest.raises(UserError) as caught:
        provider.check_changes(NOWHERE, fewer(), outputs, said.append, replace=False)
    assert caught.value.exit_code == EXIT_REFUSED
    assert [line.partition(" ")[2].split(" ")[1] for line in said] == ["time_limit", "nodes.max"]
    assert str(caught.value).splitlines() == [
        "nothing was changed: this would end jobs that run or wait. Let them end first, or use "
        "`./cluster up --stack test --replace`:",
        "  partition cpu: nodes.max 10 → 2: removes nodes, and ends the jobs that run on them",
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
    ]
    assert kinds(head) == ["look", "list"], "nothing is touched for a change that is refused"


def test_what_is_not_changed_in_the_end_is_released(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=cpu\n7|ann|cpu|cpu-[0-1]|RUNNING||on nodes that stay\n"
    checked = provider.check_changes(NOWHERE, fewer(), outputs, print, replace=False)
    assert kinds(head) == ["look", "list"]
    assert not checked.recreate, "a cloud's engine makes anew what has to be"
    checked.end_jobs()
    checked.release()
    assert kinds(head)[2:] == ["hold DOWN", "release"]
    checked.release()
    assert len(head.lines) == 4, "once"


def test_a_job_that_begins_while_the_change_is_prepared_is_seen_and_goes_on(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = ""
    checked = provider.check_changes(NOWHERE, fewer(), outputs, print, replace=False)
    head.answer = "held=cpu\n" + JOBS
    with sentences.raises("change.ends-jobs"):
        checked.begin(lambda: None)
    assert kinds(head) == ["look", "list", "hold DOWN", "release"]


def test_jobs_that_wait_in_a_partition_that_goes_are_not_lost_unasked(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=gpu\n9|bob|cpu,gpu||PENDING||later\n8|bob|cpu||PENDING||other\n"
    with pytest.raises(UserError) as caught:
        check_changes(provider, made(CPU))
    assert str(caught.value).splitlines()[2:] == ["  job 9 later (bob, PENDING on cpu,gpu)"]
    head.answer = ""
    check_changes(provider, made(CPU))
    assert kinds(head)[-1] == "hold INACTIVE", "nor is one taken meanwhile"


def test_it_is_done_without_jobs(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = "8|bob|gpu|gpu-0|RUNNING||x\n"
    check_changes(provider, fewer())


def test_where_asked_the_jobs_are_named_and_have_their_time_and_run_again_where_they_can(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=cpu\n" + JOBS + "6|eve|cpu|cpu-9|RUNNING|cpu-9|just there\n"
    said: list[str] = []
    checked = provider.check_changes(NOWHERE, fewer(), outputs, said.append, replace=True)
    assert kinds(head) == ["look"], "not before the machine is prepared"
    checked.end_jobs()
    assert kinds(head) == ["look", "hold DOWN", "end"], "none starts between the question and the change"
    end = head.lines[2]
    assert end.startswith(
        "sudo -n scancel --quiet 6; "
        "{ sudo -n scontrol requeue 7 2>/dev/null || sudo -n scancel --quiet 7; }; "
        "end=$(($(date +%s) + 45)); "
    )
    assert "grep -qwF -e 6 -e 7 " in end, "other jobs run on, and are not waited for"
    assert said[-4].endswith("unless they were submitted with --no-requeue: 7")
    assert said[-2].splitlines() == [
        "  job 6 just there (eve, RUNNING on cpu-9)",
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
    ]
    assert said[-1].startswith("these have not ended"), "they still run in what Slurm answered"
    checked.release()
    assert kinds(head)[3:] == ["release"], "whether the change is made or fails"


def test_where_a_partition_goes_as_asked_its_queue_is_cancelled(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=gpu\n9|bob|gpu||PENDING||later\n8|bob|cpu|cpu-1|RUNNING||other\n"
    said: list[str] = []
    provider.check_changes(NOWHERE, made(CPU), outputs, said.append, replace=True).end_jobs()
    assert said[0] == "partition gpu is removed: removes nodes, and ends the jobs that run on them"
    assert said[1].splitlines() == [
        "these jobs wait, and are cancelled:",
        "  job 9 later (bob, PENDING on gpu)",
    ]
    assert head.lines[2:] == ["sudo -n scancel --quiet 9"]


def test_a_head_that_does_not_answer_is_no_head_without_jobs(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = SshError("timed out", code="ssh.no-answer")
    with sentences.raises("change.jobs-unknown"):
        check_changes(provider, fewer())
    check_changes(provider, fewer(), replace=True)


def test_a_head_that_never_came_up_has_no_jobs(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.run("controller")
    cloud.publish(made())
    check_changes(provider, fewer())
    assert head.lines == []


def test_files_are_refused_without_jobs_and_what_is_not_possible_always(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    with sentences.raises("change.deletes-files"):
        check_changes(provider, made(mounts=()))
    check_changes(provider, made(mounts=()), replace=True)
    smaller = made(mounts=(dataclasses.replace(HOME, size_gib=10),))
    for replace in (False, True):
        with sentences.raises("change.impossible"):
            check_changes(provider, smaller, replace=replace)


def test_changes_that_cost_nothing_ask_nobody_for_jobs(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    """A cluster that does not answer before them is asked afterwards what is closed."""
    cloud.up(made())
    head.answer = SshError("timed out", code="ssh.no-answer")
    said: list[str] = []
    more = made(dataclasses.replace(CPU, max=20), GPU)
    checked = provider.check_changes(NOWHERE, more, outputs, said.append, replace=False)
    checked.end_jobs()
    assert (len(said), kinds(head)) == (1, ["look"])
    head.answer = ""
    checked.release()
    assert kinds(head) == ["look", "look"]


def test_credentials_are_missed_before_anything_changes(cloud: FakeCloud, provider: FakeProvider) -> None:
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED, code="aws.no-credentials")
    with sentences.raises("aws.no-credentials"):
        check_changes(provider, made())
    cloud.refuses = UserError("the cloud does not answer", code="cluster.no-answer")
    assert check_changes(provider, made()) == ["what this changes cannot be told: the cloud does not answer"]


# --- partitions that people have made ---------------------------------------------------------------------

OWN = "PartitionName={} Nodes={} State=UP\n"
WITHIN = "7|ann|urgent|cpu-8|RUNNING||a\n9|bob|gpu,urgent||PENDING||b\n8|eve|cpu|cpu-1|RUNNING||c\n"


@pytest.mark.parametrize(
    ("new", "nodes", "why"),
    [
        (made(CPU, GPU, dataclasses.replace(GPU, name="urgent")), "cpu-8", "gets the nodes and options of"),
        (fewer(), "cpu-[8-9]", "ends: it has only nodes that are removed (cpu-[8-9])"),
        (made(GPU), "cpu-8", "ends: it has only nodes that are removed (cpu-8)"),
    ],
)
def test_a_partition_of_peoples_is_not_taken_away_unasked(
    cloud: FakeCloud, provider: FakeProvider, head: Head, new: ClusterDesign, nodes: str, why: str
) -> None:
    cloud.up(made())
    head.answer = WITHIN
    head.partitions = OWN.format("cpu", "cpu-[0-9]") + OWN.format("urgent", nodes)
    with sentences.raises("change.own-partition", why) as caught:
        check_changes(provider, new)
    assert caught.value.exit_code == EXIT_REFUSED
    assert str(caught.value).splitlines()[-2:] == [
        "  job 7 a (ann, RUNNING on cpu-8)",
        "  job 9 b (bob, PENDING on gpu,urgent)",
    ]
    assert not [line for line in head.lines if "update" in line], "and nothing was touched"


def test_a_partition_of_peoples_with_nodes_that_stay_is_in_nobodys_way(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.partitions = OWN.format("cpu", "cpu-[0-9]") + OWN.format("urgent", "cpu-[0-8]")
    head.answer = "9|bob|urgent||PENDING||b\n"
    check_changes(provider, made(CPU, GPU, dataclasses.replace(GPU, name="new")))
    said: list[str] = []
    provider.check_changes(NOWHERE, fewer(), outputs, said.append, replace=False)
    assert "urgent" not in "".join(said)


def test_where_asked_the_jobs_of_a_partition_of_peoples_are_named_and_end(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.partitions = OWN.format("cpu", "cpu-[0-9]") + OWN.format("urgent", "cpu-[8-9]")
    head.answer = "held=cpu\nheld=urgent\n" + "9|bob|urgent||PENDING||b\n7|ann|urgent|cpu-8|RUNNING||a\n"
    said = check_changes(provider, fewer(), replace=True)
    text = "\n".join(said)
    assert "partition urgent ends: it has only nodes that are removed (cpu-[8-9])" in text
    assert "these jobs wait, and are cancelled:\n  job 9 b (bob, PENDING on urgent)" in text
    assert any("scancel --quiet 9" in line for line in head.lines)
    assert any("scontrol requeue 7" in line or "scancel --quiet 7" in line for line in head.lines)


def test_jobs_of_a_partition_of_peoples_on_the_nodes_of_one_that_goes_are_not_ended_unasked(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.partitions = OWN.format("urgent", "cpu-[0-9],gpu-0")
    head.answer = "7|ann|urgent|gpu-0|RUNNING||a\n9|bob|urgent||PENDING||b\n"
    with sentences.raises("change.ends-jobs", "job 7") as caught:
        check_changes(provider, made(CPU))
    assert "job 9" not in str(caught.value), "other nodes stay"
