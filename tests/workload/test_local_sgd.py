"""The profile local-sgd: what it computes, how its rounds are chosen, and how it goes on."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_modules import training_module

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2400)]
np = training_module("numpy")
tf = training_module("tensorflow")

from tests.support.training_step import Run  # noqa: E402
from workload import data, local_sgd, published, result, sync  # noqa: E402
from workload.checkpoint import Checkpoint, Store  # noqa: E402
from workload.data import Data  # noqa: E402
from workload.errors import StoppedError, WorkloadError  # noqa: E402
from workload.loop import Plan, State  # noqa: E402
from workload.result import Epoch  # noqa: E402

# This must come before TensorFlow's first operation; importing test modules runs none.
(_CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 3)

# Rounds of 4, 4 and 3 steps; the second epoch has another order.
SHORT = ("--profile", "local-sgd", "--steps-per-epoch", "11", "--epochs", "2")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Run]:
    """A job of two workers that was never interrupted."""
    run = Run(tmp_path_factory.mktemp("two"), cache, "1", 2, *SHORT, "--average-every", "4")
    try:
        assert run.wait() == [0, 0], run.output(0) + run.output(1)
        yield run
    finally:
        run.stop()


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))


def test_both_workers_end_with_the_same_weights(two: Run) -> None:
    assert same(two.weights(0), two.weights(1))


def test_emulated_workers_are_as_those_of_two_processes(two: Run, cache: Path) -> None:
    """tests/bench/emulated.py relies on this for its results of eight workers."""
    epochs: list[Epoch] = []
    given = plan(data=data.load("synthetic", cache), steps=11, global_batch=128, learning_rate=0.2, seed=0)
    emulated = local_sgd.train(given, epochs.append)
    for a, b in zip(two.weights(), emulated.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    history = json.loads(two.result.read_text(encoding="utf-8"))["history"]
    np.testing.assert_allclose([e["loss"] for e in history], [e.loss for e in epochs], rtol=1e-4)


def test_the_record_says_how_it_was_trained(two: Run) -> None:
    record = json.loads(two.result.read_text(encoding="utf-8"))
    assert result.mistakes(record) == []
    expected = {"profile": "local-sgd", "average_every": 4, "learning_rate": 0.2, "seed": 0}
    assert {key: record[key] for key in expected} == expected
    cores = len(os.sched_getaffinity(0))
    # The tasks of this test say that they are on two nodes of two hosts.
    assert (record["cores"], record["cores_shared"]) == (2 * cores, False)
    assert 0 <= record["cores_others"] <= 1
    assert "the workers average their weights every 4 steps" in two.output()
    assert record["history"][1]["loss"] < record["history"][0]["loss"]


def test_a_training_goes_on_after_a_round(tmp_path: Path) -> None:
    """A checkpoint on the disk keeps weights, momentum, rounds, and the position within the epoch."""
    whole, reached, places = part(None, None)
    assert places == [2, 4, 5, 7, 9, 10]
    store = Store(tmp_path / "result.json", {})
    _, saved, before = part(7, None)  # within an epoch; each further position would cost 5 s
    assert [m.shape for m in saved.state.momentum] == [w.shape for w in saved.state.weights]
    store.save(saved)
    resumed, ended, after = part(None, store.load())
    assert before + after == places
    assert same(resumed.get_weights(), whole.get_weights())
    assert [(e.loss, e.accuracy) for e in ended.history] == [(e.loss, e.accuracy) for e in reached.history]


def part(until: int | None, begun: Checkpoint | None) -> tuple[Any, Checkpoint, list[int]]:
    """Train from a checkpoint to a step. Return the model, the position, and where it stopped, if it did."""
    epochs = list(begun.history) if begun else []
    steps: list[int] = []
    last: list[State] = []

    def between(step: int, capture: Callable[[], State]) -> None:
        steps.append(step)
        last.append(capture())
        if step == until:
            raise StoppedError

    trained = None
    with contextlib.suppress(StoppedError):
        # A checkpoint keeps its own rounds.
        every = 2 if begun is None else None
        trained = local_sgd.train(
            plan(average_every=every), epochs.append, begun.state if begun else None, between
        )
    return trained, Checkpoint(last[-1], tuple(epochs), 0, None), steps


@pytest.mark.parametrize("workers", [2, 3])
def test_the_outer_step_is_blockwise_model_update_filtering(workers: int) -> None:
    """Two rounds of one step each are compared with the same in NumPy, on Keras's gradients."""
    given = plan(average_every=1, epochs=2, steps=1, global_batch=64 * workers, strategy=mirrored(workers))
    trained = local_sgd.train(given, lambda _: None)

    tf.keras.utils.set_random_seed(given.seed)
    alone = published.build_model()
    start = alone.get_weights()
    momentum = [np.zeros_like(w) for w in start]
    root = workers**0.5
    beta = 1 - 1 / root
    for step in range(2):
        order = tf.random.experimental.stateless_shuffle(tf.range(192), seed=[given.seed, step + 1]).numpy()
        # Two workers take the published steps. Of more, the rate and the longest gradient grow with the root
        # of their number, and the cosine halves the rate of the second step.
        rate, longest = given.learning_rate, None
        if workers > 2:
            rate, longest = rate * root * (1.0, 0.5)[step], sync.CLIP * root
        ends = []
        for replica in range(workers):
            alone.set_weights(start)
            alone.compile(
                loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                optimizer=tf.keras.optimizers.SGD(rate, global_clipnorm=longest),
            )
            rows = order[replica * 64 : replica * 64 + 64]
            alone.train_on_batch(given.data.x_train[rows] / np.float32(255), given.data.y_train[rows])
            ends.append(alone.get_weights())
        mean = [sum(weights) / workers for weights in zip(*ends, strict=True)]
        momentum = [beta * m + (w - s) for m, w, s in zip(momentum, mean, start, strict=True)]
        start = [w + (beta * m if step == 0 else 0) for w, m in zip(mean, momentum, strict=True)]
    for a, b in zip(trained.get_weights(), start, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_one_worker_trains_as_in_sync() -> None:
    alone = plan(strategy=tf.distribute.get_strategy(), global_batch=16, learning_rate=0.2)
    one = local_sgd.train(alone, lambda _: None)
    other = sync.train(alone, lambda _: None)
    assert same(one.get_weights(), other.get_weights())


def test_the_rounds_are_chosen_in_the_first_steps_and_told() -> None:
    told: list[Any] = []
    places: list[int] = []
    given = plan(average_every=None, steps=5, epochs=5, tell=told.append)
    local_sgd.train(given, lambda _: None, None, lambda step, _: places.append(step))
    facts, spent = told
    assert spent["mean_step_seconds"] > 0
    assert spent["mean_exchange_seconds"] > 0
    assert facts["step_seconds"] > 0
    assert facts["averaging_seconds"] > 0
    assert facts["average_every"] == 1, "four rounds an epoch at least"
    # The probes have 1 and 4 steps, and in the next epoch 4 and 1: the fourth one ends at step 10.
    assert places == list(range(10, 26))


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(WorkloadError, match="a batch of 33 cannot be shared evenly by 2 replicas"):
        local_sgd.train(plan(global_batch=33), lambda _: None)


def mirrored(workers: int) -> Any:
    return tf.distribute.MirroredStrategy(
        [f"CPU:{n}" for n in range(workers)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def plan(**changes: Any) -> Plan:
    """A plan of two replicas and two epochs of five steps, in rounds of two."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (192, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 192, dtype=np.uint8)
    values = {
        "strategy": mirrored(2),
        "data": Data("digits-synthetic", images, labels, images, labels),
        "epochs": 2,
        "steps": 5,
        "global_batch": 32,
        "learning_rate": 0.05,
        "seed": 3,
        "average_every": 4 if "data" in changes else 2,
    }
    return Plan(**(values | changes))
