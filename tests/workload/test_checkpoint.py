"""A run's checkpoint is complete or missing, and belongs to one job."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_modules import training_module

pytestmark = pytest.mark.tensorflow
np = training_module("numpy")

from workload import data, train  # noqa: E402
from workload.checkpoint import Checkpoint, Saver, Store  # noqa: E402
from workload.errors import StoppedError, WorkloadError  # noqa: E402
from workload.loop import Position, State  # noqa: E402
from workload.options import parse  # noqa: E402
from workload.preemption import Preemption  # noqa: E402
from workload.progress import Phases, Progress  # noqa: E402
from workload.rendezvous import Rendezvous  # noqa: E402
from workload.result import Epoch  # noqa: E402
from workload.slurm import Step, read_job, read_step  # noqa: E402

IDENTITY = {"job": "7", "submitted": 1700000000.25, "workers": 2, "seed": 0}


def checkpoint(step: int = 45) -> Checkpoint:
    generator = np.random.default_rng(step)
    weights = [generator.standard_normal(shape).astype(np.float32) for shape in ((3, 3, 1, 4), (4,), (11, 2))]
    return Checkpoint(
        state=State(Position(step, 0.1 + 0.2, 17.0, 3.5), weights),
        history=(Epoch(1, 1 / 3, 0.75, 9.25),),
        seconds_total=20.0,
        start_latency=1.25,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "result.json", IDENTITY)


def no_word(text: str) -> None:
    raise AssertionError(text)


def words(store: Store) -> str:
    """Return the message about a checkpoint that is refused."""
    said: list[str] = []
    assert store.load(said.append) is None
    (line,) = said
    return line


def equal(checkpoint: Checkpoint | None, other: Checkpoint) -> bool:
    assert checkpoint is not None
    same = all((a == b).all() for a, b in zip(checkpoint.state.weights, other.state.weights, strict=True))
    rest = (checkpoint.state.position, checkpoint.history, checkpoint.seconds_total, checkpoint.start_latency)
    return same and rest == (
        other.state.position, other.history, other.seconds_total, other.start_latency
    )  # fmt: skip


def test_every_bit_comes_back(store: Store, tmp_path: Path) -> None:
    store.save(checkpoint(20))
    store.save(checkpoint(40))
    assert equal(store.load(no_word), checkpoint(40))
    assert [path.name for path in store.path.parent.iterdir()] == ["result.npz"]
    store.remove()
    assert list(tmp_path.iterdir()) == []
    assert words(store) == "there is no checkpoint yet: starting anew"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other", "folder"])
def test_a_damaged_one_is_passed_over(store: Store, damage: str) -> None:
    store.save(checkpoint())
    content = bytearray(store.path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "folder":
        store.path.unlink()
        store.path.mkdir()
    elif damage == "other":
        np.savez(store.path, x=np.zeros(3))
    else:
        store.path.write_bytes({"cut": bytes(content[:900]), "flipped": bytes(content), "empty": b""}[damage])
    line = words(store)
    assert line.startswith(f"the checkpoint {store.path} is damaged (")
    assert line.endswith("): starting anew")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": "8"}, "(job 7, now 8)"),
        ({"submitted": 1700009999.5}, "(submitted 1700000000.25, now 1700009999.5)"),
        ({"workers": 1, "seed": 3}, "(seed 0, now 3, workers 2, now 1)"),
        ({"new": True}, "(new None, now True)"),
    ],
)
def test_another_runs_is_not_taken(store: Store, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    store.save(checkpoint())
    other = Store(tmp_path / "result.json", IDENTITY | change)
    assert words(other) == f"the checkpoint {store.path} is of another run {said}: starting anew"


def test_runs_of_one_folder_have_their_own(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other.json", IDENTITY)
    store.save(checkpoint(20))
    other.save(checkpoint(40))
    store.remove()
    assert equal(other.load(no_word), checkpoint(40))


def test_a_save_that_fails_leaves_the_last_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(checkpoint(20))

    def full(_: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.save(checkpoint(40))
    assert equal(store.load(no_word), checkpoint(20))
    assert len(list(store.path.parent.iterdir())) == 1


def test_a_task_killed_while_it_saves_leaves_the_last_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(checkpoint(20))
    child = os.fork()
    if child == 0:  # killed with all of the file written, just before it takes the other's place
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), 9))
        store.save(checkpoint(40))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert len(list(store.path.parent.iterdir())) == 2
    assert equal(store.load(no_word), checkpoint(20))
    store.remove()
    assert not store.path.parent.exists()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., train.Beginning | None]:
    """Return what a task starts with, on 128 images."""
    images, labels = np.zeros((128, 28, 28), np.uint8), np.zeros(128, np.uint8)
    digits = data.Data("digits-synthetic", images, labels, images, labels)
    monkeypatch.setattr(data, "load", lambda *_: digits)

    def begin(*arguments: str, rank: int = 0, size: int = 2, **env: str) -> train.Beginning | None:
        variables = {
            "SLURM_JOB_ID": "7",
            "SLURM_STACKS_SUBMITTED": "1700000000.25",
            "SLURM_STEP_NODELIST": f"n[0-{size - 1}]",
            "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{size})",
            "SLURM_PROCID": str(rank),
            "SLURMD_NODENAME": f"n{rank}",
        } | env
        options = parse(["--result", str(tmp_path / "result.json"), "--rendezvous-timeout", "1", *arguments])
        step, job = read_step(variables), read_job(variables, 1700000002.0)
        rendezvous = Rendezvous(tmp_path, step)
        progress = Progress(options, step.chief)
        preemption = Preemption(rendezvous, job.restarts)
        return train._begin(train.Task(options, step, job, rendezvous, progress, Phases(), preemption))

    return begin


AGAIN = {"SLURM_RESTART_COUNT": "1"}


def saved(begin: Callable[..., Any]) -> Store:
    """Return the store of a job's first start, with a checkpoint of its second epoch of one step."""
    first = begin()
    assert first.checkpoint is None
    first.store.save(checkpoint(1))
    store: Store = first.store
    return store


def test_all_tasks_go_on_from_where_the_job_was(
    begin: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    saved(begin)
    chief, other = begin(**AGAIN), begin(rank=1, **AGAIN)
    assert equal(chief.checkpoint, checkpoint(1))
    assert equal(other.checkpoint, checkpoint(1))
    assert capsys.readouterr().out == "going on from the checkpoint: epoch 2, step 0 of 1\n"  # once


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ((), {"SLURM_JOB_ID": "8"}),
        ((), {"SLURM_STACKS_SUBMITTED": "1700000300"}),
        ((), {"SLURM_STACKS_WORKLOAD_DIGEST": "ab12"}),
        ((), {"size": 1}),
        (("--seed", "1"), {}),
        (("--epochs", "3"), {}),
        (("--batch", "32"), {}),
        (("--parts", "2"), {}),
        (("--profile", "published"), {}),
    ],
)
def test_other_jobs_and_settings_start_anew(
    begin: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    changes: dict[str, Any],
) -> None:
    saved(begin)
    assert begin(*arguments, **AGAIN, **changes).checkpoint is None
    assert "is of another run" in capsys.readouterr().out
    if changes.get("size") != 1:  # and the others hear of it
        assert begin(*arguments, **AGAIN, **changes, rank=1).checkpoint is None


def test_a_first_start_never_goes_on(begin: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    store = saved(begin)
    assert begin().checkpoint is None
    assert not store.path.exists()
    assert capsys.readouterr().out == ""


def test_a_task_without_the_chiefs_checkpoint_does_not_train(begin: Callable[..., Any]) -> None:
    store = saved(begin)
    assert begin(**AGAIN).checkpoint is not None
    store.save(checkpoint(2))
    with pytest.raises(WorkloadError, match="is not the checkpoint that the chief has found"):
        begin(rank=1, **AGAIN)


class Times:
    """Return a saver of a step of one task, and the list of steps that it saved."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, every: float, cost: float) -> None:
        self.now, self.saved, self.cost = 0.0, list[int](), cost
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.rendezvous = Rendezvous(folder, Step(0, ("n0",), "n0", "7.0.0"))
        self.preemption = Preemption(self.rendezvous, 0)
        self.preemption.training()
        self.saver = Saver(
            self, self.preemption, Progress(parse([]), True), Phases(),  # type: ignore[arg-type]
            every=every, steps=1000, start_latency=None,
        )  # fmt: skip

    def save(self, checkpoint: Checkpoint) -> None:
        self.now += self.cost
        self.saved.append(checkpoint.state.position.step)

    def train(self, first: int, last: int) -> None:
        """Each step takes one second."""
        for step in range(first, last + 1):
            self.now += 1
            self.saver.between(step, lambda step=step: State(Position(step), []))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("every", "cost", "expected"), [(30, 0.125, [30, 60, 90]), (0, 0, [*range(1, 101)]), (30, 0.5, [30, 80])]
)
def test_saved_now_and_then_and_the_less_the_more_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float, cost: float, expected: list[int]
) -> None:
    times = Times(tmp_path, monkeypatch, every, cost)
    times.train(1, 100)
    assert times.saved == expected


def test_saved_and_stopped_where_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(tmp_path, monkeypatch, 30, 0.25)
    times.train(1, 3)
    times.rendezvous.publish("stop", {})
    times.train(4, 4)  # nobody has seen the note
    times.preemption.look()
    with pytest.raises(StoppedError, match=r"stopped after step 5 of 1000, saved in 0\.2 s"):
        times.train(5, 5)
    times.train(1000, 1000)  # whoever has done the last step finishes
    assert times.saved == [5, 1000]
    assert times.preemption.saved


def test_a_full_disk_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = Times(tmp_path, monkeypatch, 10, 0)

    def full(_: Checkpoint) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(times, "save", full)
    times.train(1, 15)
    assert capsys.readouterr().out == "the checkpoint could not be saved: No space left on device\n"
    assert not times.preemption.saved
