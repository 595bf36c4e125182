"""Tests of the benchmark's idempotent submit with a fake sbatch."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from node import benchmark
from node.benchmark import Run
from node.slurm.control import Control, SlurmDown
from node.slurm.states import JobState
from node.system import foreign, subprocesses
from node.system.subprocesses import Ran
from tests.support.doubles import FakeControl, job, settings
from tests.support.hostile import HOSTILE

RUN = "0123456789abcdef/aaaabbbbcccc"


class Sbatch:
    """Counts its calls in a file, so other processes' calls count too. It is slow, to provoke a race."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "sbatch.log"
        self.seen: dict[str, Any] = {}
        self.refusal = ""

    def __call__(self, command: list[str], env: dict[str, str], **options: Any) -> Ran:
        assert command[:2] == ["/usr/bin/sbatch", "--parsable"]
        assert command[-1] == "run_keras"
        self.seen = {
            "script": (Path(options["folder"]) / "run_keras").read_text(),
            "options": command[2:-1],
            "env": env,
            **options,
        }
        if self.refusal:
            return Ran(1, "", self.refusal + "\n")
        with self.log.open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return Ran(0, f"{40 + self.calls()};t\n", "")

    def calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def ours(number: int, state: str = "RUNNING", **changes: Any) -> JobState:
    """The state of a job of the run."""
    return job(
        number, state, comment=f"slurm-stacks:{RUN}", **{"user": foreign.name(os.geteuid()), **changes}
    )


class Submitted(FakeControl):
    """The queue has all jobs that any process submitted."""

    def __init__(self, sbatch: Sbatch) -> None:
        super().__init__()
        self._sbatch = sbatch

    def jobs(self) -> dict[int, Any]:
        return {41 + number: ours(41 + number) for number in range(self._sbatch.calls())}


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sbatch:
    made = Sbatch(tmp_path)
    monkeypatch.setattr(subprocesses, "run", made)
    return made


def make(tmp_path: Path, control: FakeControl) -> Run:
    return Run(settings(tmp_path), control, RUN)


def test_a_run_is_submitted_in_its_folder_with_a_plain_environment(
    tmp_path: Path, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    run = make(tmp_path, FakeControl())
    assert run.folder == tmp_path / "shared" / "bench" / RUN
    before = time.time()
    assert run.submit("#!/bin/bash\n") == 41
    assert sbatch.seen["script"] == "#!/bin/bash\n"
    assert sbatch.seen["folder"] == run.folder
    environment = sbatch.seen["env"]
    assert environment["SLURM_CONF"] == str(tmp_path / "etc" / "slurm.conf")
    # sbatch takes options from SBATCH_*, and passes everything on to the job.
    assert set(environment) == {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "SLURM_STACKS_SUBMITTED"
    }  # fmt: skip
    assert before - 0.01 <= float(environment["SLURM_STACKS_SUBMITTED"]) <= time.time()
    assert (run.folder / "jobid").read_text() == "41\n"


def _submit(folder: str, answers: Any) -> None:
    sbatch = Sbatch(Path(folder))
    subprocesses.run = sbatch  # type: ignore[assignment]
    answers.put(make(Path(folder), Submitted(sbatch)).submit("script"))


def test_two_at_once_submit_one_job(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    both = [context.Process(target=_submit, args=(str(tmp_path), answers)) for _ in range(3)]
    for process in both:
        process.start()
    assert [answers.get(timeout=120) for _ in both] == [41, 41, 41]
    for process in both:
        process.join(60)
    assert Sbatch(tmp_path).calls() == 1


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"])
def test_a_job_that_is_not_over_is_the_runs_job(tmp_path: Path, sbatch: Sbatch, state: str) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    assert run.submit("script") == 41
    control.queue = {41: ours(41, state)}
    assert run.submit("script") == 41
    assert sbatch.calls() == 1


def test_a_run_with_a_result_is_not_submitted_again(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl())
    run.submit("script")
    (run.folder / "result.json").write_text("{}")
    assert run.submit("script") == 41
    assert sbatch.calls() == 1


@pytest.mark.parametrize(
    "queue",
    [{}, {41: ours(41, "FAILED")}, {41: ours(41, "CANCELLED")}, {41: job(41, comment="slurm-stacks:other")}],
    ids=["forgotten", "failed", "cancelled", "another's number by now"],
)
def test_a_failed_job_is_followed_by_another_and_its_output_is_kept(
    tmp_path: Path, sbatch: Sbatch, queue: dict[int, Any]
) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    run.submit("script")
    (run.folder / "out-keras.txt").write_text("the first job's words\n")
    (run.folder / "progress.json").write_text("{}")
    control.queue = queue
    assert run.submit("another script") == 42
    old = run.folder / "job-41"
    assert sorted(p.name for p in old.iterdir()) == ["jobid", "out-keras.txt", "progress.json", "run_keras"]
    assert (old / "run_keras").read_text() == "script"
    assert run.show()["progress"] is None, "progress of another job"
    assert run.show()["tail"] == []
    assert (run.folder / "jobid").read_text() == "42\n"
    assert run.submit("another script") == 43, "and so on"
    assert (run.folder / "job-42").is_dir()


def test_a_refusal_is_sbatchs_own_and_leaves_no_job(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl())
    sbatch.refusal = "sbatch: error: invalid partition specified: debug"
    with pytest.raises(RuntimeError, match="invalid partition specified: debug"):
        run.submit("script")
    assert not (run.folder / "jobid").exists()
    sbatch.refusal = ""
    assert run.submit("script") == 41


def test_a_submit_that_was_cut_off_before_the_number_was_noted_is_found_in_the_queue(
    tmp_path: Path, sbatch: Sbatch
) -> None:
    control = FakeControl(jobs=[ours(30, "FAILED"), ours(41, "PENDING"), job(50), job(51, comment="x")])
    run = make(tmp_path, control)
    (run.folder / "job-30").mkdir(parents=True)  # an earlier job, whose files were moved aside
    shown = run.show()["job"]
    assert (shown["id"], shown["state"]) == (41, "PENDING")
    assert run.submit("script") == 41
    assert sbatch.calls() == 0
    assert (run.folder / "jobid").read_text() == "41\n"


def test_a_killed_submit_holds_the_next_until_its_sbatch_has_ended(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl())
    run.submit("script")
    (lock,) = sbatch.seen["handles"]
    assert isinstance(lock, int)
    # A process that inherits the lock keeps it after its parent's end.
    with (run.folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = subprocess.Popen(["sleep", "60"], pass_fds=(held.fileno(),))
    with (run.folder / ".lock").open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.kill()
    child.wait()
    assert run.submit("script") == 42


@pytest.mark.parametrize("queue", [{}, {41: ours(41, "FAILED")}], ids=["forgotten", "failed"])
def test_a_run_that_wants_one_try_is_never_submitted_again(
    tmp_path: Path, sbatch: Sbatch, queue: dict[int, Any]
) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    assert run.submit("script", again=False) == 41
    control.queue = queue
    assert run.submit("script", again=False) == 41
    assert sbatch.calls() == 1


def test_a_job_waits_for_the_end_of_others_that_slurm_still_knows(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl(jobs=[job(30), job(31, "FAILED")]))
    run.submit("script", after=[29, 30, 31])
    assert sbatch.seen["options"] == [f"--comment=slurm-stacks:{RUN}", "--dependency=afterany:30:31"]


def test_an_sbatch_without_an_answer_does_not_count_as_refused(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl())
    sbatch.refusal = (
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    )
    with pytest.raises(SlurmDown, match="Unable to contact"):
        run.submit("script")
    assert not (run.folder / "jobid").exists()


def test_anothers_run_is_the_same_run_while_it_works_and_is_left_alone(
    tmp_path: Path, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    run.submit("script")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.folder.iterdir())
    theirs = os.getuid() + 1
    monkeypatch.setattr(benchmark, "_owner", lambda path: theirs if path == run.folder else 0)
    control.queue = {41: ours(41)}
    with pytest.raises(RuntimeError, match="is another user's run"):
        run.submit("script")  # the job has the run's comment, and is not the job of the run's owner
    control.queue = {41: ours(41, user=foreign.name(theirs))}
    assert run.submit("script") == 41
    control.queue = {41: ours(41, "FAILED", user=str(theirs))}
    assert run.submit("script", again=False) == 41
    with pytest.raises(RuntimeError, match=r"is another user's run \(.*\) and has no result"):
        run.submit("script")
    assert sorted((path, path.stat().st_mtime_ns) for path in run.folder.iterdir()) == before
    (run.folder / "result.json").write_text("{}")
    assert run.submit("script") == 41
    assert sbatch.calls() == 1


def test_nothing_is_submitted_where_another_user_could_exchange_it(
    tmp_path: Path, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, FakeControl())
    theirs = os.getuid() + 1
    monkeypatch.setattr(benchmark, "_owner", lambda path: theirs if path == run.folder.parent else None)
    with pytest.raises(RuntimeError, match="who could exchange what runs there as you"):
        run.submit("script")
    # A link belongs to whoever made it, not to the owner of what it leads to.
    monkeypatch.undo()
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    run.folder.symlink_to(tmp_path)
    assert benchmark._owner(run.folder) == run.folder.lstat().st_uid
    if os.geteuid() == 0:
        os.chown(run.folder, theirs, -1, follow_symlinks=False)
        with pytest.raises(RuntimeError, match=r"is another user's run \(.*\) and has no result"):
            run.submit("script")
    assert sbatch.calls() == 0


def test_cancel_ends_the_runs_job_and_nothing_else(tmp_path: Path, sbatch: Sbatch) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    assert run.cancel() is None
    assert control.calls == []
    run.submit("script")
    assert run.cancel() is None, "it is over"
    control.queue = {41: job(41)}
    assert run.cancel() is None, "the number is another's by now"
    assert control.calls == []
    control.queue = {41: ours(41)}
    assert run.cancel() == 41
    assert control.calls == [("cancel", 41)]


def test_what_is_known_of_a_run(tmp_path: Path, sbatch: Sbatch) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    nothing: dict[str, Any] = dict.fromkeys(("job", "owner", "progress", "result"))
    nothing |= {"folder": str(run.folder), "tail": []}
    assert run.show() == nothing
    run.submit("script")
    assert run.show()["job"] == {
        "id": 41, "state": "GONE", "nodes": "", "user": "", "partition": "", "cause": None, "alive": False,
    }  # fmt: skip
    waiting = ours(41, "PENDING", reason="Resources", admin_comment="quota: no more")
    control.queue = {41: waiting, 40: job(40)}
    assert run.show()["job"]["cause"] == "quota: no more"
    control.queue = {41: ours(41, nodes=("debug-0", "debug-1"))}
    (run.folder / "progress.json").write_text(json.dumps({"epoch": 1}))
    (run.folder / "result.json").write_text(json.dumps({"loss": 0.5}))
    (run.folder / "out-keras.txt").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % i for i in range(30)))
    shown = run.show()
    assert shown["job"] == {
        "id": 41, "state": "RUNNING", "nodes": "debug-[0-1]", "user": foreign.name(os.geteuid()),
        "partition": "debug", "cause": None, "alive": True,
    }  # fmt: skip
    assert (shown["progress"], shown["result"]) == ({"epoch": 1}, {"loss": 0.5})
    assert shown["tail"] == [f"line {i}" for i in range(15, 30)]
    json.dumps(shown)


def test_the_control_that_runs_are_given_has_what_they_ask() -> None:
    """The fake above must not have methods that the real one lacks."""
    for name in ("jobs", "cancel", "nodes", "power_down_force", "power_up", "update_job"):
        assert callable(getattr(Control, name))


def test_the_progress_of_a_users_program_is_its_last_whole_line(tmp_path: Path) -> None:
    run = make(tmp_path, FakeControl())
    run.folder.mkdir(parents=True)
    state = {"state": "running", "script": "train.py"}
    (run.folder / "progress.json").write_text(json.dumps(state))
    lines = run.folder / "progress.jsonl"
    assert run.show()["progress"] == state
    lines.write_text('{"epoch": 1, "deep": [1]}\n')
    assert run.show()["progress"] == {**state, "values": {"epoch": 1}}
    with lines.open("a") as file:
        file.write('{"text": "' + "x" * 300_000 + '"}\nwords\n7\n{"epoch": 2, "loss": 0.5}\n{"epo')
    assert run.show()["progress"] == {**state, "values": {"epoch": 2, "loss": 0.5}}
    lines.write_text("no object\n")
    assert run.show()["progress"] == {**state, "values": None}


def test_what_a_failed_program_has_saved_is_put_away_with_its_words(tmp_path: Path, sbatch: Sbatch) -> None:
    control = FakeControl()
    run = make(tmp_path, control)
    assert run.submit("script") == 41
    (run.folder / "work").mkdir()
    (run.folder / "work" / "checkpoint").touch()
    control.queue = {41: ours(41, "FAILED")}
    run.submit("script")
    assert (run.folder / "job-41" / "work" / "checkpoint").exists()
    assert not (run.folder / "work").exists()


# --- other users, who may make folders and links there, and know the names --------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
ALICE = 4711


def give(folder: Path, user: int = ALICE) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    made = tmp_path / "victim"
    made.write_text("mine")
    return made


@needs_root
@pytest.mark.parametrize("what", ["folder", "its parent", "the parent of both"])
def test_a_folder_that_another_user_makes_a_moment_before_is_not_used(
    tmp_path: Path, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch, victim: Path, what: str
) -> None:
    """Between the look at a folder and its use somebody makes it, with links in place of all our files."""
    run = make(tmp_path, FakeControl())
    mkdir = Path.mkdir

    def alice_first(path: Path, *mode: Any, **options: Any) -> None:
        if path == run.folder and not run.folder.exists():
            os.makedirs(run.folder, exist_ok=True)  # noqa: PTH103 - the other is this function
            for name in (".lock", "run_keras", ".jobid", "jobid"):
                (run.folder / name).symlink_to(victim)
            level = ["folder", "its parent", "the parent of both"].index(what)
            os.chown([run.folder, run.folder.parent, run.folder.parent.parent][level], ALICE, ALICE)
        mkdir(path, *mode, **options)

    monkeypatch.setattr(Path, "mkdir", alice_first)
    if what == "folder":
        with pytest.raises(RuntimeError, match="is another user's run"):
            run.submit("script")
    else:
        with pytest.raises(RuntimeError, match="belongs to another user, who could exchange what runs there"):
            run.submit("script")
    assert victim.read_text() == "mine"
    assert sbatch.calls() == 0


@needs_root
def test_another_users_result_is_shown_as_that_users(tmp_path: Path, sbatch: Sbatch) -> None:
    run = make(tmp_path, FakeControl())
    run.folder.mkdir(parents=True)
    (run.folder / "jobid").write_text("41\n")
    (run.folder / "result.json").write_text('{"loss": 0}')
    give(run.folder)
    shown = run.show()
    assert (shown["owner"], shown["result"]) == ("user 4711", {"loss": 0})
    give(run.folder, os.geteuid())
    assert run.show()["owner"] is None
    # A group may write in one's own folder. Then the file's owner counts.
    os.chown(run.folder / "result.json", ALICE, ALICE)
    assert run.show()["owner"] == "user 4711"
    (run.folder / "result.json").unlink()
    give(run.folder)
    assert (run.show()["owner"], run.show()["result"]) == ("user 4711", None)


def test_a_job_of_another_user_with_the_runs_comment_is_not_the_runs_job(
    tmp_path: Path, sbatch: Sbatch
) -> None:
    control = FakeControl(jobs=[ours(30, user="mallory")])
    run = make(tmp_path, control)
    assert run.show()["job"] is None
    assert run.cancel() is None
    assert control.calls == []
    assert run.submit("script") == 41, "the forged comment does not keep the run from its own job"


@needs_root
def test_what_another_user_has_put_into_a_run_is_no_danger_to_who_looks(
    tmp_path: Path, sbatch: Sbatch, victim: Path
) -> None:
    """Pipes would keep the reader waiting, links would show other files, and nested JSON would crash it."""
    run = make(tmp_path, FakeControl())
    run.folder.mkdir(parents=True)
    deep = "[" * 100_000
    (run.folder / "result.json").write_text(deep)
    (run.folder / "progress.json").write_text(deep)
    (run.folder / "out-a.txt").symlink_to(victim)
    os.mkfifo(run.folder / "out-b.txt")
    os.mkfifo(run.folder / "jobid")
    give(run.folder)
    shown = run.show()
    assert (shown["result"], shown["progress"], shown["job"]) == (None, None, None)
    assert len(shown["tail"]) == 3
    assert "mine" not in shown["tail"]
    assert (
        shown["tail"][-1] == f"({run.folder}/result.json cannot be used: it is nested deeper than 20 levels)"
    )
    (run.folder / "result.json").unlink()
    (run.folder / "result.json").symlink_to(victim)
    assert run.show()["result"] is None
    (run.folder / "progress.json").write_text('{"script": "x"}')
    (run.folder / "progress.jsonl").write_text(deep + "\n")
    assert run.show()["progress"] == {"script": "x", "values": None}
