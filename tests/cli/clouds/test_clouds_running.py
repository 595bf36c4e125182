"""A cluster's design and jobs before a change or a destroy, also with a dead controller."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.changes import check
from cli.changes.jobs import Job, hold_line, release_line
from cli.clouds import known_clusters, running, termination
from cli.clouds.kept_storage import KeptStorage
from cli.doctor.finding import Check, Finding, fine, stops
from cli.ssh.openssh import SshError
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import locations
from infra.program.stack import Stack
from node.model import Access, ClusterDesign, Mount, Partition
from tests.support.doubles import design
from tests.support.fake_cloud import PLACE, FakeCloud, FakeProvider, Head, head

ANSWERS = "scontrol ping | grep -q ' UP' || { echo 'slurmctld does not answer' >&2; exit 1; }; "
RELEASE = (
    ANSWERS.replace("{", "{{").replace("}", "}}")
    + "for name in {}; do scontrol -o show partition $name >/dev/null 2>&1 || continue; "
    "sudo -n scontrol update PartitionName=$name State=UP || exit 1; done"
)

__all__ = ["head"]

JOBS = "7|ann|cpu|cpu-[1-2]|RUNNING||train|v2\n8_1|bob|gpu||CONFIGURING||x\n"
HELD = "held=cpu\nheld=gpu\n"
CPU = Partition("cpu", "m", 4, 8000, 0, 10, default=True)
GPU = dataclasses.replace(CPU, name="gpu", default=False)
HOME = Mount("/home", "nfs", size_gib=50)
NOWHERE = Stack(Path("/nowhere"), "test")
FILE = """\
config:
  aws:region: eu-west-1
  slurm-stacks:cluster:
    name: renamed
    provider: aws
    partitions: [{name: cpu, instance_type: m5.large, nodes: {max: 2}}]
"""


def made(*partitions: Partition, **changes: Any) -> ClusterDesign:
    """The design of a cluster `c` on a cloud."""
    values: dict[str, Any] = {"name": "c", "region": "region-1", "access": Access("ssh"), "mounts": (HOME,)}
    return design(*(partitions or (CPU, GPU)), **(values | changes))


def outputs(**changes: Any) -> dict[str, Any]:
    return {"cluster": {"name": "c", "region": "region-1", "zone": None, **changes}}


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud()


@pytest.fixture
def provider(cloud: FakeCloud) -> FakeProvider:
    made = FakeProvider()
    made.clouds[PLACE] = cloud
    return made


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """A stack whose file gives the cluster another name by now."""
    (tmp_path / "Pulumi.test.yaml").write_text(FILE)
    return Stack(tmp_path, "test")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the user's own state folder unchanged, and makes every pause take no time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(termination, "POLL_SECONDS", 0.0)


# --- what is up -------------------------------------------------------------------------------------------


def test_the_published_design_is_read_where_the_controller_says(cloud: FakeCloud) -> None:
    assert running.published(cloud) is None, "nothing is up"
    cloud.run("controller")
    assert running.published(cloud) is None, "nothing is published"
    cloud.publish(made())
    assert running.published(cloud) == made()
    cloud.write("current.json", b"{}")
    assert running.published(cloud) is None


def test_another_releases_settings_are_said_to_be_unreadable(
    cloud: FakeCloud, provider: FakeProvider
) -> None:
    cloud.run("controller")
    cloud.write("settings/x", b'{"strange": 1}')
    cloud.write("current.json", json.dumps({"settings": {"key": "settings/x"}}).encode())
    with pytest.raises(UserError, match=r"of cluster c cannot be read: .*strange"):
        running.published(cloud)
    said: list[str] = []
    provider.check_changes(NOWHERE, made(), outputs, said.append, replace=False)
    assert [line.partition(":")[0] for line in said] == ["what this changes cannot be told"]


def test_the_cluster_that_is_up_counts_and_not_what_the_file_says_by_now() -> None:
    assert ClusterRef.known(outputs()) == ClusterRef("c", "region-1")
    assert ClusterRef.known(outputs(zone="z", project="p")) == ClusterRef("c", "region-1", "z", "p")
    assert ClusterRef.known({}) is None
    assert ClusterRef.known({"cluster": "[secret]"}) is None
    assert ClusterRef.of(made(name="d")) == ClusterRef("d", "region-1")


# --- before a destroy -------------------------------------------------------------------------------------


def drain(
    provider: FakeProvider,
    stack: Stack = NOWHERE,
    known: Any = outputs,
    agree: Callable[[Sequence[Job]], None] = lambda jobs: None,
) -> list[str]:
    said: list[str] = []
    provider.drain(stack, known, said.append, agree)
    return said


def test_jobs_are_held_off_first_and_then_asked_to_end(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = HELD + JOBS + "9|bob|gpu||PENDING||later\n"
    asked: list[str] = []
    said = drain(provider, agree=lambda jobs: asked.extend(job.id for job in jobs))
    hold, end = head.lines
    held, listing = hold.split("; squeue", 1)
    assert held == (
        f"{ANSWERS}taken=; "
        "for name in cpu gpu; do scontrol -o show partition $name | grep -q ' State=UP' || continue; "
        "sudo -n scontrol update PartitionName=$name State=DOWN || "
        "{ for name in $taken; do sudo -n scontrol update PartitionName=$name State=UP; done; exit 1; }; "
        'taken="$taken $name"; echo held=$name; done'
    )
    assert listing.startswith(" --noheader --all --states=PENDING,RUNNING,")
    assert asked == ["7", "8_1", "9"], "those that wait are lost, too"
    assert end.startswith("sudo -n scancel --quiet 7 8_1; n=0; while [ $n -lt 45 ] && [ -n "), "and bounded"
    assert [target.patience for target, _ in head.targets] == [0, 0], "one attempt"
    assert [seconds for _, seconds in head.targets] == [check.SECONDS, check.SECONDS + check.END_SECONDS]
    assert said[0].startswith("no further job starts (")
    assert said[2].splitlines() == [
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
        "  job 8_1 x (bob, CONFIGURING on gpu)",
    ]
    assert said[3].startswith("these have not ended"), "they still run in what Slurm answered"


def test_who_wants_to_keep_the_jobs_has_a_cluster_in_which_jobs_start(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    def no(jobs: Sequence[Job]) -> None:
        raise UserError("nothing was changed", EXIT_REFUSED)

    cloud.up(made())
    head.answer = "held=gpu\n" + JOBS
    with pytest.raises(UserError, match="nothing was changed"):
        drain(provider, agree=no)
    # The partition cpu was out of service before and stays so.
    assert head.lines[1:] == [RELEASE.format("gpu")]


SCONTROL = """#!/bin/sh
# What scontrol prints for a cluster with two partitions, one of which accepts no change.
case "$*" in
    ping) echo "Slurmctld(primary) at head is $(cat "$(dirname "$0")/answers")" ;;
    *show*gone) exit 1 ;;
    *show*) echo "PartitionName=x State=UP TotalCPUs=1" ;;
    update*stiff*DOWN) exit 1 ;;
    update*) echo "$*" >>"$(dirname "$0")/updates" ;;
esac
"""


@pytest.mark.parametrize(
    ("line", "answers", "status", "updates"),
    [
        (hold_line(["a", "stiff"], "DOWN"), "UP", 1, ["a DOWN", "a UP"]),
        (hold_line(["a", "b"], "DOWN"), "UP", 0, ["a DOWN", "b DOWN"]),
        (hold_line(["a"], "DOWN"), "DOWN", 1, []),
        (release_line(["a", "gone", "b"]), "UP", 0, ["a UP", "b UP"]),
        (release_line(["a"]), "DOWN", 1, []),
    ],
)
def test_partitions_are_held_all_or_none_and_a_silent_slurm_is_no_success(
    tmp_path: Path, line: str, answers: str, status: int, updates: list[str]
) -> None:
    for name, text in (("scontrol", SCONTROL), ("squeue", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "answers").write_text(answers)
    done = subprocess.run(
        ["sh", "-c", line], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert done.returncode == status
    log = tmp_path / "updates"
    said = log.read_text().splitlines() if log.exists() else []
    assert [line.removeprefix("update PartitionName=").replace("State=", "") for line in said] == updates


@pytest.mark.parametrize(("failures", "released"), [(2, True), (99, False)])
def test_a_controller_that_is_restarted_is_asked_again_to_let_jobs_start(
    monkeypatch: pytest.MonkeyPatch, failures: int, released: bool
) -> None:
    monkeypatch.setattr(check, "RELEASE_PAUSE_SECONDS", 0.0)
    asked: list[str] = []

    def run(line: str, _seconds: float) -> str:
        asked.append(line)
        if len(asked) <= failures:
            raise UserError("slurmctld does not answer")
        return ""

    assert check.ClusterControl(run).release(["a"]) == released
    assert len(asked) == (3 if released else check.RELEASE_TRIES)
    assert check.ClusterControl(run).release([])


def test_many_jobs_are_not_all_listed(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = "".join(f"{n}|a|cpu|cpu-0|RUNNING||x\n" for n in range(25))
    listed = drain(provider)[2]
    assert len(listed.splitlines()) == 21
    assert listed.endswith("\n  and 5 more")


def test_a_head_that_is_dead_is_a_sentence(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = SshError("cannot reach ann@x port 22: timed out", passing=True)
    assert drain(provider) == [
        "the cluster does not answer, so nobody knows which jobs run (cannot reach ann@x port 22: timed "
        "out); it is ended all the same"
    ]


def test_a_cluster_that_is_not_up_is_drained_without_a_word(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    assert (drain(provider), head.lines) == ([], [])
    cloud.up(made())
    cloud.objects.pop(("bucket-1", "boot/controller.json"))  # no login was possible yet
    assert (drain(provider), head.lines) == ([], [])


def test_down_goes_on_without_credentials(cloud: FakeCloud, provider: FakeProvider) -> None:
    """The engine reports the problem better, and the destroy is its task."""
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED)
    (said,) = drain(provider)
    assert "(there are no credentials)" in said
    assert said.endswith("it is ended all the same")


def test_what_another_release_published_is_drained_by_the_stack_file(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.up(made())
    cloud.write("current.json", b'{"settings": {}}')
    head.answer = ""
    drain(provider, stack)
    assert head.lines[0].startswith(f"{ANSWERS}taken=; for name in cpu; do")


# --- which cluster goes -----------------------------------------------------------------------------------


def test_after_a_rename_the_cluster_that_is_up_is_drained_reported_and_cleaned_up(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.up(made())
    cloud.run("cpu-0", role="compute")
    assert len(drain(provider, stack)) == 1
    assert head.lines[0].startswith(f"{ANSWERS}taken=; for name in cpu gpu; do")
    assert provider.leftovers(stack, outputs) == ["machine controller", "machine cpu-0"]
    provider.force_cleanup(stack, outputs)
    assert cloud.did == ["end cpu-0", "remove loose", "end images"]
    assert set(provider.clouds) == {PLACE}, "nobody was asked about the other"


def test_what_is_left_of_a_cluster_is_found_by_the_next_down_too(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    """The first `down` deletes the outputs; the cluster is forgotten only when nothing is left."""
    cloud.left = ["volume vol-1"]
    assert provider.leftovers(stack, outputs) == ["volume vol-1"]
    assert provider.leftovers(stack, dict) == ["volume vol-1"]
    provider.force_cleanup(stack, dict)
    assert cloud.did == ["remove loose", "end images"]
    cloud.left = []
    assert provider.leftovers(stack, dict) == []
    assert set(provider.clouds) == {PLACE}
    provider.leftovers(stack, dict)
    assert set(provider.clouds) == {PLACE, ClusterRef("renamed", "eu-west-1")}, (
        "the file's, as of a new stack"
    )


def test_what_stays_is_said_whether_or_not_the_stack_file_is_right(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    cloud.stays = [KeptStorage("home", "disk d-1", 50, "", {"kind": "nfs", "existing": "d-1"}, 0.08)]
    lines = provider.kept(stack, outputs)
    assert lines[1] == "  disk d-1 (home, 50 GiB): 0.0055 USD an hour, 4.00 USD a month"
    assert lines[-1] == "      home: {kind: nfs, existing: d-1}"
    stack.file.write_text("config: {}\n")
    assert provider.kept(stack, outputs) == lines
    cloud.refuses = UserError("no credentials")
    assert provider.kept(stack, outputs) == ["what stays on purpose could not be listed: no credentials"]


def test_an_up_that_would_make_anew_what_an_earlier_down_kept_says_so(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.stays = [KeptStorage("home", "disk d-1", 50, "", {"kind": "nfs", "existing": "d-1"}, 0.08)]
    said: list[str] = []
    keeping = (Mount("/home", "nfs", served_by="controller", keep=True, name="home"),)
    provider.check_changes(stack, made(mounts=keeping), dict, said.append, replace=False)
    assert said[-1] == "      home: {kind: nfs, existing: d-1}"
    said.clear()
    provider.check_changes(stack, made(), dict, said.append, replace=False)
    assert said == []


def test_what_an_up_has_begun_is_looked_for_whatever_became_of_it(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    """After an `up` that failed there are no outputs, or those of the previous cluster."""
    provider.check_changes(stack, made(), dict, print, replace=False)
    other = ClusterRef("d", "region-2")
    provider.check_changes(stack, made(name="d", region="region-2"), dict, print, replace=True)
    cloud.left, provider.clouds[other].left = ["volume vol-1"], ["bucket b"]
    assert provider.leftovers(stack, dict) == ["volume vol-1", "bucket b"]
    provider.force_cleanup(stack, dict)
    assert cloud.did == provider.clouds[other].did == ["remove loose", "end images"]


def test_a_refused_up_has_begun_nothing(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.up(made())
    with pytest.raises(UserError, match="deletes files"):
        provider.check_changes(stack, made(name="d", mounts=()), outputs, print, replace=False)
    assert known_clusters.read(stack) == []


def test_a_note_that_is_damaged_is_none(stack: Stack) -> None:
    known_clusters.note(stack, PLACE)
    known_clusters.note(stack, PLACE)
    assert known_clusters.read(stack) == [PLACE]
    (locations.state_dir(stack) / known_clusters.NAME).write_text('[{"strange": 1}]')
    assert known_clusters.read(stack) == []


def test_without_outputs_it_is_the_stack_files(provider: FakeProvider, stack: Stack) -> None:
    assert provider.leftovers(stack, dict) == []
    assert set(provider.clouds) == {PLACE, ClusterRef("renamed", "eu-west-1")}


def test_a_broken_stack_file_keeps_nobody_from_going_down(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    new = Stack(stack.project, "new")
    for one in (stack, new):
        one.file.write_text(FILE.replace("max: 2", "max: -2"))
    cloud.up(made())
    assert len(drain(provider, stack)) == 1
    assert provider.leftovers(stack, outputs) == ["machine controller"]
    with pytest.raises(UserError, match=r"does not say which one to look for:\n(?s:.*)nodes\.max") as caught:
        provider.leftovers(new, dict)
    assert caught.value.exit_code == EXIT_USAGE
    said: list[str] = []
    provider.drain(new, dict, said.append, lambda jobs: None)
    assert "it is ended all the same" in said[0]


# --- before `up` ------------------------------------------------------------------------------------------


def check_changes(provider: FakeProvider, new: ClusterDesign, *, replace: bool = False) -> list[str]:
    said: list[str] = []
    provider.check_changes(NOWHERE, new, outputs, said.append, replace=replace)
    return said


class Unreachable(FakeProvider):
    """A provider whose machines cannot be reached from here."""

    def checks(self, design: ClusterDesign | None) -> Sequence[Check]:
        def ways() -> list[Finding]:
            return [fine("ssh.client", "ssh is here"), stops("ssh.tunnel", "no tunnel", "Dig one.")]

        return [Check("quotas", lambda: [stops("quotas", "none", "Ask.")]), Check("ssh", ways)]


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
    cloud.up(made())
    assert check_changes(provider, made()) == []
    assert head.lines == []


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
        "  partition cpu: nodes.max 10 → 2: ends the jobs on nodes that are removed",
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
    ]
    hold, release = head.lines
    assert "State=DOWN" in hold, "none starts between the question and the change"
    assert release == RELEASE.format("cpu")


def test_what_is_not_changed_in_the_end_is_released(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=cpu\n7|ann|cpu|cpu-[0-1]|RUNNING||on nodes that stay\n"
    checked = provider.check_changes(NOWHERE, fewer(), outputs, print, replace=False)
    assert len(head.lines) == 1
    assert not checked.recreate, "a cloud's engine makes anew what has to be"
    checked.release()
    assert "State=UP" in head.lines[1]


def test_jobs_that_wait_in_a_partition_that_goes_are_not_lost_unasked(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=gpu\n9|bob|cpu,gpu||PENDING||later\n8|bob|cpu||PENDING||other\n"
    with pytest.raises(UserError) as caught:
        check_changes(provider, made(CPU))
    assert str(caught.value).splitlines()[2:] == ["  job 9 later (bob, PENDING on cpu,gpu)"]
    assert "State=INACTIVE" in head.lines[0], "nor is one taken meanwhile"


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
    hold, end = head.lines
    assert "State=DOWN" in hold, "none starts between the question and the change"
    assert end.startswith(
        "sudo -n scancel --quiet 6; "
        "{ sudo -n scontrol requeue 7 2>/dev/null || sudo -n scancel --quiet 7; }; n=0; "
    )
    assert "--jobs=6,7 " in end, "other jobs run on, and are not waited for"
    assert said[-4].endswith("unless they were submitted with --no-requeue: 7")
    assert said[-2].splitlines() == [
        "  job 6 just there (eve, RUNNING on cpu-9)",
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
    ]
    assert said[-1].startswith("these have not ended"), "they still run in what Slurm answered"
    checked.release()
    assert head.lines[2] == RELEASE.format("cpu"), "where the change fails"


def test_where_a_partition_goes_as_asked_its_queue_is_cancelled(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = "held=gpu\n9|bob|gpu||PENDING||later\n8|bob|cpu|cpu-1|RUNNING||other\n"
    said: list[str] = []
    provider.check_changes(NOWHERE, made(CPU), outputs, said.append, replace=True)
    assert said[0] == "partition gpu is removed: ends the jobs on nodes that are removed"
    assert said[1].splitlines() == [
        "these jobs wait, and are cancelled:",
        "  job 9 later (bob, PENDING on gpu)",
    ]
    assert head.lines[1:] == ["sudo -n scancel --quiet 9"]


def test_a_head_that_does_not_answer_is_no_head_without_jobs(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = SshError("timed out")
    with pytest.raises(UserError, match="whether there are any is not known"):
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
    with pytest.raises(UserError, match="this deletes files"):
        check_changes(provider, made(mounts=()))
    check_changes(provider, made(mounts=()), replace=True)
    smaller = made(mounts=(dataclasses.replace(HOME, size_gib=10),))
    for replace in (False, True):
        with pytest.raises(UserError, match="this is not possible"):
            check_changes(provider, smaller, replace=replace)


def test_changes_that_cost_nothing_ask_nobody(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = SshError("timed out")
    assert len(check_changes(provider, made(dataclasses.replace(CPU, max=20), GPU))) == 1
    assert head.lines == []


def test_credentials_are_missed_before_anything_changes(cloud: FakeCloud, provider: FakeProvider) -> None:
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED)
    with pytest.raises(UserError, match="there are no credentials"):
        check_changes(provider, made())
    cloud.refuses = UserError("the cloud does not answer")
    assert check_changes(provider, made()) == ["what this changes cannot be told: the cloud does not answer"]
