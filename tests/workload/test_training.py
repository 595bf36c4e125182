"""The training itself, with real TensorFlow: worker processes as srun would start them, but without Slurm."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_modules import training_module

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2400)]
np = training_module("numpy")
tf = training_module("tensorflow")

from tests.support.training_step import Run, train_here  # noqa: E402
from workload import local_sgd, published, result, runtime, sync  # noqa: E402
from workload.data import Data  # noqa: E402
from workload.errors import WorkloadError  # noqa: E402
from workload.loop import Plan  # noqa: E402
from workload.result import Epoch  # noqa: E402

# 27 steps: two full calls of 10 and a part of one; the second epoch has another order.
STEPS, EPOCHS = 27, 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[dict[str, Run]]:
    """Two jobs of two workers at once, one of each profile whose workers exchange at every step."""
    length = ("--epochs", str(EPOCHS), "--steps-per-epoch")
    started = {
        "sync": Run(tmp_path_factory.mktemp("sync"), cache, "1", 2, *length, str(STEPS)),
        "published": Run(
            tmp_path_factory.mktemp("published"), cache, "2", 2, *length, "20", "--profile", "published"
        ),
    }
    try:
        for run in started.values():
            assert run.wait() == [0, 0], run.output(0) + run.output(1)
        yield started
    finally:
        for run in started.values():
            run.stop()


def record_of(run: Run) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(run.result.read_text(encoding="utf-8"))
    assert result.mistakes(record) == []
    return record


def test_two_workers_are_one_worker_at_twice_the_batch(runs: dict[str, Run], cache: Path) -> None:
    two = runs["sync"].weights()
    one, history = train_here(cache, STEPS, EPOCHS, global_batch=128, parts=2)
    assert sum(w.size for w in two) == published.PARAMETERS
    for a, b in zip(two, one, strict=True):
        assert (a == b).all()  # not just nearly: see `workload.sync`
    told = [(epoch["loss"], epoch["accuracy"]) for epoch in record_of(runs["sync"])["history"]]
    np.testing.assert_allclose(told, history, rtol=1e-6)
    (first, _), (second, _) = told
    assert second < first  # equal because both learned the same, not because neither learned


def test_another_seed_ends_elsewhere() -> None:
    one, other = (sync.train(plan(seed=seed), lambda _: None).get_weights() for seed in (0, 1))
    assert not np.allclose(one[2], other[2], atol=1e-3)


@pytest.mark.parametrize("profile", ["sync", "published"])
def test_both_workers_end_with_the_same_weights(runs: dict[str, Run], profile: str) -> None:
    for a, b in zip(runs[profile].weights(0), runs[profile].weights(1), strict=True):
        assert (a == b).all()


def test_the_published_profile_learns(runs: dict[str, Run]) -> None:
    record = record_of(runs["published"])
    assert (record["profile"], record["global_batch"], len(record["history"])) == ("published", 128, EPOCHS)
    assert record["accuracy"] > 0.2


def test_the_result_is_complete(runs: dict[str, Run]) -> None:
    record = record_of(runs["sync"])
    expected = {
        "stack": "local",
        "job_id": "1",
        "partition": "debug",
        "machine": "process",
        "nodes": 2,
        "workers": 2,
        "gpus_per_node": 0,
        "devices": ["/device:CPU:0"],
        "profile": "sync",
        "data": "digits-synthetic",
        "epochs": 2,
        "global_batch": 128,
        "restarts": 0,
    }
    assert {key: record[key] for key in expected} == expected
    assert record["seconds_train"] == pytest.approx(sum(e["seconds"] for e in record["history"]), abs=0.003)
    assert record["seconds_total"] > record["phases"]["train"] > record["seconds_train"]
    images = EPOCHS * STEPS * 128
    assert record["images_per_second"] == pytest.approx(images / record["seconds_train"], rel=0.01)
    # Two nodes at 3.6 USD an hour: 0.002 USD a second.
    assert record["cost_usd"] == pytest.approx(0.002 * record["seconds_total"], rel=0.05)
    assert 1 <= record["start_latency_seconds"] < 600
    assert record["step_seconds"] > 0
    assert record["exchange_seconds"] > 0
    assert record["versions"]["tensorflow"] == tf.__version__
    assert 0.1 < record["test_accuracy"] < 1


def test_what_a_run_says_and_leaves(runs: dict[str, Run]) -> None:
    chief, other = runs["sync"].output(0), runs["sync"].output(1)
    assert "['/device:CPU:0']" in chief
    assert "['/device:CPU:0']" in other
    assert re.search(r"^Epoch 2/2 - [\d.]+s - loss: [\d.]+ - accuracy: 0\.\d+$", chief, re.MULTILINE)
    assert "Epoch" not in other  # every worker has the same numbers
    lines = [
        [
            re.sub(r" - [\d.]+s", "", line)
            for line in runs["published"].output(task).splitlines()
            if "Epoch" in line
        ]
        for task in (0, 1)
    ]
    assert len(lines[0]) == EPOCHS
    assert lines[0] == lines[1], "as published: one of each node, with equal loss and accuracy"
    progress = json.loads((runs["sync"].folder / "progress.json").read_text(encoding="utf-8"))
    assert progress | {"loss": 0, "accuracy": 0, "seconds": 0} == {
        "state": "done",
        "epoch": 2,
        "epochs": 2,
        "loss": 0,
        "accuracy": 0,
        "seconds": 0,
        "average_every": None,
    }
    assert not (runs["sync"].folder / ".rendezvous").exists()
    assert [path for run in runs.values() for path in run.temporary.iterdir()] == []


def test_jobs_at_once_use_different_ports(runs: dict[str, Run]) -> None:
    ports = []
    for run in runs.values():
        (line,) = re.findall(r"^workers: (.*)$", run.output(), re.MULTILINE)
        ports += re.findall(r"127\.0\.0\.[12]:(\d+)", line)
    assert len(set(ports)) == 4


def test_tensorboard_has_each_epoch(runs: dict[str, Run]) -> None:
    """TensorFlow's own reader finds what TensorBoard would show."""
    folder = runs["sync"].folder / "tensorboard"
    (file,) = folder.iterdir()
    found: dict[str, list[int]] = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
            assert value.simple_value > 0
    assert found == {
        "loss": [1, 2],
        "accuracy": [1, 2],
        "images_per_second": [1, 2],
        "test_accuracy": [2],
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\n", "580.95.05"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n",
            "570.124.06",
        ),
        ("something else\n", None),
    ],
)
def test_the_drivers_version(tmp_path: Path, text: str, version: str | None) -> None:
    """Two lines as NVIDIA's closed and open modules write them."""
    file = tmp_path / "version"
    file.write_text(text)
    assert runtime.driver_version(file) == version
    assert runtime.driver_version(tmp_path / "none") is None


@pytest.fixture
def start(tmp_path: Path, cache: Path) -> Iterator[Any]:
    runs: list[Run] = []

    def start(tasks: int, *arguments: str) -> Run:
        runs.append(Run(tmp_path, cache, str(len(runs) + 1), tasks, *arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


# By default test_gpus_are_those_asked_for raises this error, and test_train_ending.py ends runs by others.
@pytest.mark.wide
def test_missing_gpus_end_the_run(start: Any) -> None:
    run = start(2, "--gpus-per-node", "1", "--epochs", "1")
    run.result.write_text("an earlier run's", encoding="utf-8")
    assert run.wait() == [1, 1], run.output(0) + run.output(1)
    (line,) = [line for line in run.output().splitlines() if line.startswith("workload:")]
    assert line.startswith("workload: 127.0.0.1: 1 GPU(s) asked for, but TensorFlow sees 0 on 127.0.0.1")
    assert "Traceback" not in run.output()
    assert not run.result.exists()
    assert json.loads((run.folder / "progress.json").read_text(encoding="utf-8"))["state"] == "failed"


def test_a_dead_worker_ends_the_run(start: Any) -> None:
    run = start(2, "--steps-per-epoch", "5", "--epochs", "100000")
    run.wait_for("Epoch 3/")
    run.signal(signal.SIGKILL, 1)
    # It may have been a machine: the job is to be queued again.
    assert run.wait_for_end(0) == 75, run.output()
    (line,) = [line for line in run.output().splitlines() if line.startswith("workload:")]
    assert line.startswith("workload: 127.0.0.1: the training stopped: another worker failed or went silent")
    assert re.search(r"connection closed|reset by peer|Broken pipe", line)
    assert "Traceback" not in run.output()
    assert not run.result.exists()
    assert json.loads((run.folder / "progress.json").read_text(encoding="utf-8"))["state"] == "stopped"


@pytest.mark.parametrize(
    ("visible", "asked_for", "tasks", "message"),
    [
        (0, 0, 1, None),
        (4, 4, 1, None),
        (2, 4, 2, None),
        (1, 0, 1, r"0 GPU\(s\) asked for, but TensorFlow sees 1 on n0"),
        (3, 4, 1, r"4 GPU\(s\) asked for, but TensorFlow sees 3 on n0"),
        (4, 4, 2, r"2 GPU\(s\) asked for, but TensorFlow sees 4"),
        (1, 3, 2, "cannot be shared evenly"),
    ],
)
def test_gpus_are_those_asked_for(visible: int, asked_for: int, tasks: int, message: str | None) -> None:
    if message is None:
        runtime.check_gpus(visible, asked_for, tasks, "n0")
    else:
        with pytest.raises(WorkloadError, match=message):
            runtime.check_gpus(visible, asked_for, tasks, "n0")


def test_every_gpu_takes_memory_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:0", f"{kind}:1"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: grown.append((gpu, on)))
    runtime.set_up_gpus(2, 1, "n0")
    assert grown == [("GPU:0", True), ("GPU:1", True)]


def test_the_model_is_the_published_one() -> None:
    built = published.build_model()
    assert built.count_params() == published.PARAMETERS == 2_770_634
    assert [type(layer).__name__ for layer in built.layers] == [
        "Reshape",
        "Conv2D",
        "Flatten",
        "Dense",
        "Dense",
    ]
    _, conv, _, hidden, logits = built.layers
    assert (conv.filters, conv.kernel_size, conv.activation.__name__) == (32, (3, 3), "relu")
    assert (hidden.units, hidden.activation.__name__) == (128, "relu")
    assert (logits.units, logits.activation.__name__) == (10, "linear")


def plan(**changes: Any) -> Plan:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (96, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 96, dtype=np.uint8)
    values = {
        "strategy": tf.distribute.get_strategy(),
        "data": Data("digits-synthetic", images, labels, images, labels),
        "epochs": 2,
        "steps": 3,
        "global_batch": 32,
        "learning_rate": 0.05,
        "seed": 3,
    }
    return Plan(**(values | changes))


def test_sync_does_what_keras_does() -> None:
    """The fast loop against Keras's own training step, over the same batches."""
    epochs: list[Epoch] = []
    given = plan(epochs=8, steps=1, global_batch=96, learning_rate=0.04)
    fast = sync.train(given, epochs.append)

    tf.keras.utils.set_random_seed(given.seed)
    slow = published.build_model()
    slow.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(global_clipnorm=0.5),
        metrics=["accuracy"],
    )
    # One step at the published rate, an eighth of all; then half as much again, for a batch of 96, and down.
    rates = [0.04, *(0.06 * (1 + np.cos(np.pi * step / 7)) / 2 for step in range(7))]
    for epoch, rate in enumerate(rates, 1):
        rows = tf.random.experimental.stateless_shuffle(tf.range(96), seed=[given.seed, epoch]).numpy()
        assert sorted(rows) == list(range(96))
        slow.optimizer.learning_rate.assign(rate)
        x = given.data.x_train[rows] / np.float32(255)
        logs = slow.train_on_batch(x, given.data.y_train[rows], return_dict=True)
        assert epochs[epoch - 1].loss == pytest.approx(logs["loss"], rel=1e-4)
        assert epochs[epoch - 1].accuracy == pytest.approx(logs["accuracy"], abs=1e-6)
        slow.reset_metrics()
    for a, b in zip(fast.get_weights(), slow.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_up_to_the_published_batch_sync_is_the_published_recipe() -> None:
    """A constant rate and whole gradients: one worker trains as in the articles."""
    given = plan(epochs=1)
    fast = sync.train(given, lambda _: None)
    tf.keras.utils.set_random_seed(given.seed)
    slow = published.build_model()
    rate = given.learning_rate * 32 / 64
    slow.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(rate),
    )
    order = tf.random.experimental.stateless_shuffle(tf.range(96), seed=[given.seed, 1]).numpy()
    for rows in order.reshape(3, 32):
        slow.train_on_batch(given.data.x_train[rows] / np.float32(255), given.data.y_train[rows])
    for a, b in zip(fast.get_weights(), slow.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_parts_add_up_to_the_batch() -> None:
    weights = []
    for parts in (1, 3, 4):
        weights.append(sync.train(plan(epochs=1, global_batch=24, parts=parts), lambda _: None).get_weights())
    for others in weights[1:]:
        for a, b in zip(weights[0], others, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    with pytest.raises(WorkloadError, match=r"24 cannot be shared evenly by 1 replicas in 5 part"):
        sync.train(plan(global_batch=24, parts=5), lambda _: None)


@pytest.mark.parametrize("loop", [sync, local_sgd, published])
def test_a_training_that_diverges_ends_at_once(loop: Any) -> None:
    epochs: list[Epoch] = []
    with pytest.raises(WorkloadError, match="the training diverged: the loss of epoch 1 is"):
        loop.train(plan(learning_rate=1e36), epochs.append)
    assert epochs == []


def test_held_out_accuracy() -> None:
    images = np.arange(25, dtype=np.uint8).reshape(25, 1, 1).repeat(28, axis=1).repeat(28, axis=2)
    labels = np.arange(25) % 3

    def knows_most(x: Any, training: bool) -> Any:
        number = tf.cast(tf.round(x[:, 0, 0] * 255.0), tf.int32)
        return tf.one_hot(tf.where(number == 24, 1, number % 3), 10)  # wrong about the last one

    assert published.held_out_accuracy(knows_most, images, labels, batch=10) == 24 / 25
