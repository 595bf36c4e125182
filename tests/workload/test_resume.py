"""An interrupted training that continues ends with the same weights as an uninterrupted one, bit for bit.

Some tests run whole jobs with real TensorFlow and start them again as Slurm does. Others interrupt a training
in this process at every possible place.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_modules import training_module

pytestmark = pytest.mark.tensorflow
np = training_module("numpy")
tf = training_module("tensorflow")

from tests.support.training_step import Run, train_here  # noqa: E402
from workload import published, result, sync  # noqa: E402
from workload.checkpoint import Checkpoint, Store  # noqa: E402
from workload.data import Data  # noqa: E402
from workload.errors import StoppedError  # noqa: E402
from workload.loop import Plan, State  # noqa: E402
from workload.preemption import STATUS  # noqa: E402
from workload.result import Epoch  # noqa: E402

TERM = signal.SIGTERM


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))


def plan() -> Plan:
    """Two epochs of five steps. With `small_calls` an epoch is three calls of at most two steps."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (160, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 160, dtype=np.uint8)
    return Plan(
        strategy=tf.distribute.get_strategy(),
        data=Data("digits-synthetic", images, labels, images, labels),
        epochs=2,
        steps=5,
        global_batch=32,
        learning_rate=0.05,
        seed=3,
    )


def part(loop: Any, until: int | None, begun: Checkpoint | None) -> tuple[Any, Checkpoint, list[int]]:
    """Train from a checkpoint to a step. Return the model, the position, and where it stopped, if it did."""
    epochs = list(begun.history) if begun else []
    steps: list[int] = []
    stopped: State | None = None

    def between(step: int, capture: Callable[[], State]) -> None:
        nonlocal stopped
        steps.append(step)
        if step == until:
            stopped = capture()
            raise StoppedError

    try:
        model = loop.train(plan(), epochs.append, begun.state if begun else None, between)
    except StoppedError:
        assert stopped is not None
        return None, Checkpoint(stopped, tuple(epochs), 0, None), steps
    return model, Checkpoint(State(stopped, []), tuple(epochs), 0, None), steps  # type: ignore[arg-type]


def numbers(epochs: tuple[Epoch, ...]) -> list[tuple[float, float]]:
    return [(epoch.loss, epoch.accuracy) for epoch in epochs]


@pytest.mark.parametrize("loop", [sync, published])
def test_every_place_where_a_training_can_stop(
    loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "STEPS_A_CALL", 2)
    whole, done, places = part(loop, None, None)
    assert places == ([2, 4, 5, 7, 9, 10] if loop is sync else list(range(1, 11)))
    assert len(done.history) == 2
    store = Store(tmp_path / "result.json", {})
    for place in places if loop is sync else (2, 5, 8, 10):
        _, saved, before = part(loop, place, None)
        store.save(saved)
        resumed, ended, after = part(loop, None, store.load())
        assert before + after == places
        assert same(resumed.get_weights(), whole.get_weights())
        if loop is sync:
            assert numbers(ended.history) == numbers(done.history)
        else:  # Keras's means have single precision, and the interrupted epoch has two of them
            np.testing.assert_allclose(numbers(ended.history), numbers(done.history), rtol=1e-5)


class Job:
    """A job of two workers that is started again and again."""

    def __init__(self, folder: Path, cache: Path, job: str, *arguments: str) -> None:
        self._make = lambda restarts, more: Run(
            folder, cache, job, 2, *arguments, *more, restarts=restarts, submitted=1700000000
        )
        self.runs: list[Run] = []
        self.checkpoint = folder / ".checkpoint" / f"result-{job}.npz"

    def start(self, *more: str) -> Run:
        """Start the job again, with these arguments besides its own."""
        self.runs.append(self._make(len(self.runs), more))  # type: ignore[no-untyped-call]
        return self.runs[-1]

    def stop(self) -> None:
        for run in self.runs:
            run.stop()


@pytest.fixture
def make(tmp_path: Path, cache: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(*arguments: str) -> Job:
        jobs.append(Job(tmp_path, cache, str(len(jobs) + 1), *arguments))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()


def record(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.result.read_text(encoding="utf-8"))
    assert result.mistakes(found) == []
    return found


def stopped(run: Run) -> list[str]:
    """Return the chief's output of a stopped run. Nothing but its checkpoint may be left."""
    assert run.wait() == [STATUS, 0], run.output(0) + run.output(1)
    assert "Traceback" not in run.output(0) + run.output(1)
    assert json.loads((run.folder / "progress.json").read_text(encoding="utf-8"))["state"] == "stopped"
    assert not run.result.exists()
    assert not (run.folder / ".rendezvous").exists()
    return run.output().splitlines()


# A signal to one worker reaches the chief within half a second, so the steps must take longer.
LENGTH = ("--batch", "16", "--steps-per-epoch", "24", "--epochs", "5")
SHORT = (*LENGTH[:-1], "2")


@pytest.mark.timeout(2400)
def test_a_synchronous_training_that_is_killed_ends_with_the_same_weights(
    make: Callable[..., Job], cache: Path
) -> None:
    job = make(*SHORT, "--checkpoint-seconds", "0")
    run = job.start()  # all of it is killed without warning
    run.wait_for("Epoch 1/")
    run.signal(signal.SIGKILL)
    run.wait()
    assert job.checkpoint.exists()

    run = job.start()
    assert run.wait() == [0, 0], run.output(0) + run.output(1)
    assert "going on from the checkpoint: epoch " in run.output()
    # One worker at twice the batch, which test_training.py compares with two.
    whole, history = train_here(cache, steps=24, epochs=2, global_batch=32, parts=2)
    for rank in range(2):
        assert same(run.weights(rank), whole)
    parts = record(run)
    assert parts["restarts"] == 1
    assert [(epoch["loss"], epoch["accuracy"]) for epoch in parts["history"]] == history


# By default the first test stops a training at every place, test_preemption.py tells the tasks of one, and
# tests/cluster/test_container_cluster.py takes a node back under a job.
@pytest.mark.wide
@pytest.mark.timeout(3600)
def test_a_synchronous_training_through_everything(make: Callable[..., Job], tmp_path: Path) -> None:
    alone = make(*LENGTH).start()
    assert alone.wait() == [0, 0], alone.output(0) + alone.output(1)

    job = make(*LENGTH, "--checkpoint-seconds", "0")
    os.mkfifo(endless := tmp_path / "mnist.npz")
    run = job.start("--data", "mnist", "--mnist", str(endless))  # 0: while it reads its data
    run.wait_for_start(1)
    run.signal(TERM, 1)
    assert run.wait() == [STATUS, 0]
    assert "Epoch " not in run.output(), "nothing was trained for it"
    assert not job.checkpoint.exists()

    run = job.start()  # 1: killed, all of it, without a word
    run.wait_for("Epoch 1/")
    run.signal(signal.SIGKILL)
    run.wait()
    assert job.checkpoint.exists()

    run = job.start()  # 2: one task is told
    run.wait_for("Epoch ")
    # The first save comes after one call. The number of saves until the kill depends on how long one takes.
    ((epoch, step),) = re.findall(
        r"^going on from the checkpoint: epoch (.), step (\d+) of 24$", run.output(), re.M
    )
    assert (int(epoch), int(step)) >= (1, 10)
    run.signal(TERM, 1)
    lines = stopped(run)
    assert any(line.startswith("127.0.0.1: stopped after step ") and "saved in" in line for line in lines)
    assert "127.0.0.2: SIGTERM received while training: stopping" in run.output(1)

    run = job.start()  # 3: all are told, while TensorFlow builds the first call
    run.wait_for("Train on ")
    run.signal(TERM)
    stopped(run)

    run = job.start()  # 4: told when all is trained
    run.wait_for("Epoch 5/5")
    run.signal(TERM)
    assert run.wait() == [0, 0], run.output(0) + run.output(1)

    assert same(run.weights(0), alone.weights(0))
    assert same(run.weights(1), alone.weights(1))
    whole, parts = record(alone), record(run)
    assert [(e["loss"], e["accuracy"]) for e in parts["history"]] == [
        (e["loss"], e["accuracy"]) for e in whole["history"]
    ]
    assert (parts["restarts"], parts["test_accuracy"]) == (4, whole["test_accuracy"])
    assert parts["start_latency_seconds"] > 0  # of the first start that saved something to go on from
    # The time of all starts, like the epochs, which were trained in several of them.
    assert parts["seconds_total"] > parts["seconds_train"]
    assert result.mistakes(parts) == []
    assert len(parts["history"]) == 5
    assert not job.checkpoint.parent.exists()

    run = job.start()  # 5: queued again all the same: the result is not computed twice
    assert run.wait() == [0, 0]
    assert f"the result of job 2 is there already: {run.result}" in run.output()
    assert record(run) == parts


# The first test shows that this profile continues from any step, and the one above that a whole job does.
@pytest.mark.wide
@pytest.mark.timeout(2400)
def test_a_published_training_goes_on_within_an_epoch(make: Callable[..., Job]) -> None:
    length = ("--profile", "published", "--batch", "16", "--steps-per-epoch", "30", "--epochs", "2")
    alone = make(*length).start()
    assert alone.wait() == [0, 0], alone.output(0) + alone.output(1)
    job = make(*length)
    run = job.start()
    run.wait_for("Epoch 1/2")
    run.signal(TERM)
    (line,) = [line for line in stopped(run) if "stopped after step" in line]
    assert 30 <= int(line.split()[4]) < 60
    run = job.start()
    assert run.wait() == [0, 0], run.output(0) + run.output(1)
    assert "Epoch 1/2" not in run.output()
    for rank in range(2):
        assert same(run.weights(rank), alone.weights(rank))
    whole, parts = record(alone), record(run)
    assert parts["restarts"] == 1
    assert parts["start_latency_seconds"] > 0
    assert result.mistakes(parts) == []
    (first, second), (whole_first, whole_second) = parts["history"], whole["history"]
    assert (first["loss"], first["accuracy"]) == (whole_first["loss"], whole_first["accuracy"])
    # For the first part of the interrupted epoch Keras gave the chief the mean over its half of the examples.
    assert second["loss"] == pytest.approx(whole_second["loss"], rel=0.2)
    assert second["accuracy"] == pytest.approx(whole_second["accuracy"], abs=0.2)
