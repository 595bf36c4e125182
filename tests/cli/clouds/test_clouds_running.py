"""A cluster's design, and its jobs before a destroy, also with a dead controller."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.changes import decision
from cli.changes.jobs import Job, wait_line
from cli.providers.clouds import known_clusters, running
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import clusters, locations
from infra.program.stack import Stack
from node.design.model import Host
from node.design.storage import Mount
from node.slurm.fields import LISTED
from operations.access import StackUp
from operations.clouds.kept import KeptStorage
from operations.openssh import SshError
from tests.support import sentences
from tests.support.cloud_up import (
    FILE,
    HELD,
    JOBS,
    NOWHERE,
    cloud,
    head,
    made,
    outputs,
    provider,
    stack,
    state,
)
from tests.support.fake_cloud import PLACE, FakeCloud, FakeProvider, Head
from tests.support.job_lines import inner, kind

__all__ = ["cloud", "head", "provider", "stack", "state"]


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
    cloud.write("settings/x", b'{"api_version": "slurm-stacks/settings/v3"}')
    cloud.write("current.json", json.dumps({"settings": {"key": "settings/x"}}).encode())
    with sentences.raises("cluster.settings-unreadable", "/v3"):
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
    provider.drain(StackUp(stack, "aws"), known, said.append, agree)
    return said


def test_jobs_are_held_off_first_and_then_asked_to_end(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    cloud.up(made())
    head.answer = HELD + JOBS + "9|bob|gpu||PENDING||later\n"
    asked: list[str] = []
    said = drain(provider, agree=lambda jobs: asked.extend(job.id for job in jobs))
    assert [kind(line) for line in head.lines] == ["look", "hold DOWN", "end"]
    end = head.lines[2]
    assert asked == ["7", "8_1", "9"], "those that wait are lost, too"
    assert end.startswith("sudo -n scancel --quiet 7 8_1; end=$(($(date +%s) + 45)); until "), "and bounded"
    assert [target.patience for target, _ in head.targets] == [0, 0, 0], "one attempt"
    assert [seconds for _, seconds in head.targets] == [
        decision.SECONDS,
        decision.SECONDS,
        decision.SECONDS + decision.END_SECONDS,
    ]
    assert said[0] == (
        "no further job starts (if you keep the cluster, `./cluster up --stack test` lets them start again)"
    )
    assert said[2].splitlines() == [
        "  job 7 train|v2 (ann, RUNNING on cpu-[1-2])",
        "  job 8_1 x (bob, CONFIGURING on gpu)",
    ]
    assert said[3].startswith("these have not ended"), "they still run in what Slurm answered"


def test_with_login_machines_the_lines_run_on_the_controller_which_has_the_mark(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    known = made()
    with_login = dataclasses.replace(
        known, hosts=(*known.hosts, Host("login-0", "login", ("login",), "m", 0))
    )
    cloud.up(with_login)
    cloud.run("login-0", role="login")
    cloud.report("login-0", "ready")
    head.answer = ""
    drain(provider)
    look = shlex.split(head.lines[0])
    assert (look[0], look[-3:-1]) == ("ssh", ["--", "controller"])
    assert any(word.startswith("-oKnownHostsCommand=/usr/bin/printf") for word in look), "its own host key"
    assert kind(inner(look[-1])) == "look"


def test_who_wants_to_keep_the_jobs_has_a_cluster_in_which_jobs_start(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    def no(jobs: Sequence[Job]) -> None:
        raise UserError("nothing was changed", EXIT_REFUSED, code="change.preview-failed")

    cloud.up(made())
    head.answer = "held=gpu\n" + JOBS
    with sentences.raises("change.preview-failed"):
        drain(provider, agree=no)
    assert [kind(line) for line in head.lines] == ["look"], "nothing is touched before the consent"


def test_jobs_that_came_while_somebody_was_asked_are_asked_about_and_kept(
    cloud: FakeCloud, provider: FakeProvider, head: Head
) -> None:
    """What was agreed is what is ended: neither more running jobs nor more that wait."""
    questions: list[list[str]] = []

    def answer(jobs: Sequence[Job]) -> None:
        questions.append([job.id for job in jobs])
        head.answer = HELD + JOBS + "9|bob|gpu||PENDING||later\n"
        if len(questions) == 2:
            raise UserError("nothing was changed", EXIT_REFUSED, code="down.not-agreed")

    cloud.up(made())
    head.answer = JOBS
    with sentences.raises("down.not-agreed"):
        drain(provider, agree=answer)
    assert questions == [["7", "8_1"], ["9"]]
    assert [kind(line) for line in head.lines] == ["look", "hold DOWN", "release"]


@pytest.mark.parametrize(("failures", "released"), [(2, []), (99, None)])
def test_a_controller_that_is_restarted_is_asked_again_to_let_jobs_start(
    monkeypatch: pytest.MonkeyPatch, failures: int, released: list[str] | None
) -> None:
    monkeypatch.setattr(decision, "RELEASE_PAUSE_SECONDS", 0.0)
    asked: list[str] = []

    def run(line: str, _seconds: float) -> str:
        asked.append(line)
        if len(asked) <= failures:
            raise UserError("slurmctld does not answer", code="cluster.no-answer")
        return ""

    assert decision.ClusterControl(run).release() == released
    assert len(asked) == (decision.RELEASE_TRIES if released is None else 3)


def test_many_jobs_are_not_all_listed(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = "".join(f"{n}|a|cpu|cpu-0|RUNNING||x\n" for n in range(25))
    listed = drain(provider)[2]
    assert len(listed.splitlines()) == 21
    assert listed.endswith("\n  and 5 more")


def test_a_head_that_is_dead_is_a_sentence(cloud: FakeCloud, provider: FakeProvider, head: Head) -> None:
    cloud.up(made())
    head.answer = SshError("cannot reach ann@x port 22: timed out", passing=True, code="ssh.no-answer")
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
    cloud.refuses = UserError("there are no credentials", EXIT_REFUSED, code="aws.no-credentials")
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
    assert "case '  ' in" in head.lines[1], "nothing is spared"


# --- which cluster goes -----------------------------------------------------------------------------------


def test_after_a_rename_the_cluster_that_is_up_is_drained_reported_and_cleaned_up(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.up(made())
    cloud.run("cpu-0", role="compute")
    assert len(drain(provider, stack)) == 1
    assert "case '  ' in" in head.lines[1]
    assert provider.leftovers(StackUp(stack, "aws"), outputs) == ["machine controller", "machine cpu-0"]
    provider.force_cleanup(StackUp(stack, "aws"), outputs)
    assert cloud.did == ["end cpu-0", "remove loose", "end images"]
    assert set(provider.clouds) == {PLACE}, "nobody was asked about the other"


def test_what_is_left_of_a_cluster_is_found_by_the_next_down_too(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    """The first `down` deletes the outputs; the cluster is forgotten only when nothing is left."""
    cloud.left = ["volume vol-1"]
    assert provider.leftovers(StackUp(stack, "aws"), outputs) == ["volume vol-1"]
    assert provider.leftovers(StackUp(stack, "aws"), dict) == ["volume vol-1"]
    provider.force_cleanup(StackUp(stack, "aws"), dict)
    assert cloud.did == ["remove loose", "end images"]
    cloud.left = []
    assert provider.leftovers(StackUp(stack, "aws"), dict) == []
    assert set(provider.clouds) == {PLACE}
    provider.leftovers(StackUp(stack, "aws"), dict)
    assert set(provider.clouds) == {PLACE, ClusterRef("renamed", "eu-west-1")}, (
        "the file's, as of a new stack"
    )


def test_what_stays_is_said_whether_or_not_the_stack_file_is_right(
    cloud: FakeCloud, provider: FakeProvider, stack: Stack
) -> None:
    cloud.stays = [KeptStorage("home", "disk d-1", 50, "", {"kind": "nfs", "existing": "d-1"}, 0.08)]
    lines = provider.kept(StackUp(stack, "aws"), outputs)
    assert lines[1] == "  disk d-1 (home, 50 GiB): 0.0055 USD an hour, 4.00 USD a month"
    assert lines[-1] == "      home: {kind: nfs, existing: d-1}"
    stack.file.write_text("config: {}\n")
    assert provider.kept(StackUp(stack, "aws"), outputs) == lines
    cloud.refuses = UserError("no credentials", code="aws.no-credentials")
    assert provider.kept(StackUp(stack, "aws"), outputs) == [
        "what stays on purpose could not be listed: no credentials"
    ]


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
    assert provider.leftovers(StackUp(stack, "aws"), dict) == ["volume vol-1", "bucket b"]
    provider.force_cleanup(StackUp(stack, "aws"), dict)
    assert cloud.did == provider.clouds[other].did == ["remove loose", "end images"]


def test_a_refused_up_has_begun_nothing(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    cloud.up(made())
    with sentences.raises("change.deletes-files"):
        provider.check_changes(stack, made(name="d", mounts=()), outputs, print, replace=False)
    assert known_clusters.known_places(stack) == []


def test_a_note_that_is_damaged_is_none(stack: Stack) -> None:
    known_clusters.note_cluster(stack, PLACE)
    known_clusters.note_cluster(stack, PLACE)
    assert known_clusters.known_places(stack) == [PLACE]
    (record,) = clusters.recorded()
    assert (record.home, record.provider, record.id) == (stack, "aws", locations.cluster_id(stack))
    (file,) = (locations.state_root() / "clusters").iterdir()
    file.write_text(file.read_text().replace("region", "strange"))
    assert known_clusters.known_places(stack) == []


def test_without_outputs_it_is_the_stack_files(provider: FakeProvider, stack: Stack) -> None:
    assert provider.leftovers(StackUp(stack, "aws"), dict) == []
    assert set(provider.clouds) == {PLACE, ClusterRef("renamed", "eu-west-1")}


def test_a_broken_stack_file_keeps_nobody_from_going_down(
    cloud: FakeCloud, provider: FakeProvider, head: Head, stack: Stack
) -> None:
    new = Stack(stack.project, "new")
    for one in (stack, new):
        one.file.write_text(FILE.replace("max: 2", "max: -2"))
    cloud.up(made())
    assert len(drain(provider, stack)) == 1
    assert provider.leftovers(StackUp(stack, "aws"), outputs) == ["machine controller"]
    with sentences.raises("cluster.unknown", "nodes.max") as caught:
        provider.leftovers(StackUp(new, "aws"), dict)
    assert caught.value.exit_code == EXIT_USAGE
    said: list[str] = []
    provider.drain(StackUp(new, "aws"), dict, said.append, lambda jobs: None)
    assert "it is ended all the same" in said[0]


ONE = Job("12", "ada", "debug", "debug-0", "RUNNING", "", "wrap")


@pytest.mark.parametrize(
    ("only", "answers", "asked"),
    [
        ((ONE,), ["1", "0 12", "0 112 12_3"], 3),
        ((), ["0 12", "1", "1", "0"], 4),
        ((ONE,), ["0"], 1),
    ],
    ids=["other jobs go on", "all jobs", "none is left"],
)
def test_a_controller_that_does_not_answer_is_no_job_that_has_ended(
    tmp_path: Path, only: tuple[Job, ...], answers: list[str], asked: int
) -> None:
    """A machine would otherwise end while its jobs save their work."""
    for number, answer in enumerate(answers, 1):
        status, *ids = answer.split()
        (tmp_path / str(number)).write_text(
            "".join(f"echo '{job}|RUNNING|debug-0'\n" for job in ids) + f"exit {status}\n"
        )
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\ncase $* in *%u* | *--all) echo listed $SQUEUE_FORMAT; exit;; esac\n"
        f"echo x >>{tmp_path}/asked\n"
        f". {tmp_path}/$(wc -l <{tmp_path}/asked | tr -d ' ')\n"
    )
    squeue.chmod(0o755)
    (tmp_path / "sleep").symlink_to("/bin/true")
    done = subprocess.run(
        ["sh", "-c", wait_line(600, only)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, listed = done.stdout.splitlines()
    mark = first.removeprefix("mark=")
    assert listed == "listed " + f"{mark}f".join(LISTED) + f"{mark}r"
    assert len((tmp_path / "asked").read_text().split()) == asked
    assert subprocess.run(
        ["sh", "-c", wait_line(0, only)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60, check=True
    )
