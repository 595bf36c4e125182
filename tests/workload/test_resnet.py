"""The training of ResNet: its data, its descent, its checkpoints, and two workers that learn together."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.batch_job import BatchJob
from tests.support.training_modules import training_module
from workload import result
from workload.errors import StoppedError, WorkloadError
from workload.resnet import resize
from workload.resnet.options import Options, parse
from workload.result import Epoch

pytestmark = pytest.mark.tensorflow

COLOURS = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40)]
EACH = {"train": 24, "validation": 5}
FILES = ["--size", "40", "--shards", "4", "--validation-shards", "2"]


@pytest.fixture(scope="module")
def tf() -> Any:
    return training_module("tensorflow")


@pytest.fixture(scope="module")
def source(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders like ImageNet's, in which a class is a colour. One image is damaged."""
    folder = tmp_path_factory.mktemp("source")
    for split, count in EACH.items():
        for label, colour in enumerate(COLOURS):
            (there := folder / split / f"n{label:08d}").mkdir(parents=True)
            for number in range(count):
                size = (60, 48) if number % 2 else (48, 72)
                noise = tf.random.stateless_normal((*size, 3), [label, number], stddev=40.0)
                pixels = tf.cast(tf.clip_by_value(noise + colour, 0, 255), tf.uint8)
                (there / f"{number}.JPEG").write_bytes(tf.io.encode_jpeg(pixels).numpy())
    (folder / "train" / "n00000000" / "damaged.JPEG").write_bytes(b"\xff\xd8\xff no image")
    return folder


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TFRecords that two nodes have made of these images."""
    out = tmp_path_factory.mktemp("resized")
    for rank, whole in (("1", False), ("0", True)):
        given = {"JOB_DIR": str(out), "RANK": rank, "WORLD_SIZE": "2"}
        found = resize.run([str(source), *FILES], given)
        assert (found["files"], found["whole"]) == (3, whole)
    return out


def records(tf: Any, folder: Path, split: str, count: int) -> Iterator[Any]:
    for file in resize.shard_files(folder, split, count):
        for one in tf.data.TFRecordDataset(str(file)):
            yield tf.train.Example.FromString(one.numpy()).features.feature


def test_every_image_is_in_one_file_and_smaller(tf: Any, made: Path) -> None:
    manifest = json.loads((made / resize.MANIFEST).read_text())
    assert manifest["classes"] == [f"n{label:08d}" for label in range(4)]
    assert manifest["splits"] == {
        "train": {"images": 4 * EACH["train"], "shards": 4},
        "validation": {"images": 4 * EACH["validation"], "shards": 2},
    }
    found = [
        (
            record["image/class/text"].bytes_list.value[0].decode(),
            record["image/filename"].bytes_list.value[0].decode(),
            record[resize.LABEL].int64_list.value[0],
            *tf.io.decode_jpeg(record[resize.ENCODED].bytes_list.value[0]).shape,
        )
        for record in records(tf, made, "train", 4)
    ]
    sizes = [(60, 40, 3) if number % 2 == 0 else (50, 40, 3) for number in range(EACH["train"])]
    assert sorted(found) == sorted(
        (f"n{label:08d}", f"{number}.JPEG", label, *(size if number % 2 else (40, 60, 3)))
        for label in range(4)
        for number, size in enumerate(sizes)
    )
    damaged = [resize.noted(file) for file in resize.shard_files(made, "train", 4)]
    assert [name for note in damaged if note for name in note["damaged"]] == ["train/n00000000/damaged.JPEG"]


def test_a_job_that_was_ended_makes_what_is_missing(made: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(made, out)
    missing = out / resize.shard_name("train", 2, 4)
    before = missing.read_bytes()
    missing.unlink()
    (out / resize.MANIFEST).unlink()
    again = resize.run([str(source), *FILES], {"JOB_DIR": str(out)})
    assert (again["files"], again["whole"]) == (1, True)
    assert missing.read_bytes() == before, "the same images in the same order"
    with pytest.raises(WorkloadError, match="was made of other images or with other settings"):
        resize.run([str(source), *FILES, "--quality", "80"], {"JOB_DIR": str(out)})


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="holds no training images"):
        resize.run([str(tmp_path)], {"JOB_DIR": str(tmp_path / "out")})


def place(number: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(num_input_pipelines=count, input_pipeline_id=number, num_replicas_in_sync=count)


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_share_the_images(tf: Any, made: Path, tmp_path: Path, workers: int) -> None:
    """This also holds with fewer files than workers."""
    from workload.resnet import images

    options = Options(tmp_path, made, batch=4, image_size=24)
    found = images.find(options)
    assert (found.name, found.classes) == ("tfrecords", 4)
    held_out = []
    for worker in range(workers):
        batches = images.held_out(found, options, place(worker, workers))
        held_out += [int(n) for _, labels in batches.take(6) for n in labels if n >= 0]
    assert sorted(held_out) == sorted([*range(4)] * EACH["validation"]), "each once"
    pixels, labels = next(iter(images.training(found, options, place(workers - 1, workers), 0, 0)))
    assert (pixels.shape, pixels.dtype, labels.dtype) == ((4, 24, 24, 3), tf.uint8, tf.int64)
    for mean, label in zip(tf.reduce_mean(tf.cast(pixels, tf.float32), [1, 2]), labels, strict=True):
        assert abs(float(mean[0]) - COLOURS[int(label)][0]) < 40, "an image keeps its label"


def test_data_that_is_not_whole_is_not_trained_on(made: Path, tmp_path: Path) -> None:
    from workload.resnet import images

    shutil.copy(made / resize.shard_name("train", 0, 4), tmp_path)
    with pytest.raises(WorkloadError, match=r"have not all been made. Run the job"):
        images.find(Options(tmp_path, tmp_path))
    assert images.find(Options(tmp_path, tmp_path / "nothing")).name == "synthetic"


def test_the_learning_rate_rises_and_falls() -> None:
    from workload.resnet.network import Schedule

    schedule = Schedule(3.2, 100, 10)
    rates = [float(schedule(step)) for step in range(100)]
    assert rates[0] == pytest.approx(0.32)
    assert max(rates) == pytest.approx(3.2)
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(3.2 / 4)
    assert rates[-1] < 0.001


def test_a_step_that_overflows_changes_no_weight(tf: Any) -> None:
    from workload.resnet.network import FIRST_SCALE, Schedule, optimizer

    weight, bias = tf.Variable([[1.0, 2.0]]), tf.Variable([1.0])
    descent = optimizer(Schedule(0.1, 10, 0), FIRST_SCALE)
    descent.apply_gradients([(tf.constant([[float("inf"), 1.0]]), weight), (tf.constant([0.0]), bias)])
    assert weight.numpy().tolist() == [[1.0, 2.0]]
    assert (float(descent.loss_scale), int(descent.iterations)) == (FIRST_SCALE / 2, 1)
    rates = [0.1 * 0.9**2, 0.1 * 0.8**2]
    for _ in rates:
        descent.apply_gradients([(tf.constant([[1.0, 0.0]]), weight), (tf.constant([0.0]), bias)])
    after_one = 1 - rates[0] * (1 + 5e-5)
    momentum = 0.9 * (1 + 5e-5) + 1 + 5e-5 * after_one
    assert weight.numpy()[0, 0] == pytest.approx(after_one - rates[1] * momentum, rel=1e-6)
    assert bias.numpy() == [1.0], "no weight decay"


class Watched:
    """A training that its own process asks to end after a number of calls."""

    def __init__(self, tf: Any, options: Options, calls: int = 10**9, *, mixed: bool = False) -> None:
        from workload.resnet import images
        from workload.resnet.training import Training, Watch

        self.left, self.epochs, self.lines = calls, [], []  # type: ignore[var-annotated]
        watch = Watch(self.epochs.append, self.lines.append, self.asked)
        strategy = tf.distribute.get_strategy()
        self.training = Training(options, strategy, images.find(options), True, watch, mixed)

    def asked(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(
        tmp_path / "run",
        tmp_path,
        "synthetic",
        "tiny",
        epochs=2,
        steps=7,
        batch=4,
        image_size=16,
        warmup_epochs=0.5,
    )


def test_a_training_goes_on_from_where_it_was_stopped(tf: Any, options: Options) -> None:
    """It ends with the weights of one that was not stopped, and with the same history."""
    options = replace(options, steps=15, checkpoint_steps=20)
    whole = Watched(tf, options)
    whole.training.run()
    other = replace(options, folder=options.folder / "other")
    first = Watched(tf, other, calls=2)
    with pytest.raises(StoppedError, match="stopped after step 25 of 30, saved"):
        first.training.run()
    second = Watched(tf, other)
    assert (second.training.resumed, second.lines) == (25, ["going on from step 25 of 30"])
    second.training.run()
    for one, two in zip(whole.training.model.weights, second.training.model.weights, strict=True):
        assert (one.numpy() == two.numpy()).all(), one.name
    told = [(e.epoch, e.loss, e.accuracy) for e in [*first.epochs, *second.epochs]]
    assert told == [(e.epoch, e.loss, e.accuracy) for e in whole.epochs]
    with pytest.raises(WorkloadError, match="is of another run"):
        Watched(tf, replace(other, batch=2))


def test_mixed_precision_computes_in_float16_and_keeps_float32(tf: Any, options: Options) -> None:
    watched = Watched(tf, replace(options, epochs=1, steps=2), mixed=True)
    try:
        model = watched.training.model
        assert {layer.compute_dtype for layer in model.layers if "conv2d" in layer.name} == {"float16"}
        assert {weight.dtype for weight in model.weights} == {tf.float32}
        assert model.output.dtype == tf.float32
        watched.training.run()
        assert [type(epoch) for epoch in watched.epochs] == [Epoch]
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def test_resnet_50_has_the_published_number_of_parameters(tf: Any) -> None:
    from workload.resnet import network

    model = network.build("resnet50", 1000, 224)
    assert sum(weight.shape.num_elements() for weight in model.trainable_weights) == 25_557_032


@pytest.fixture
def two(made: Path, tmp_path: Path) -> Iterator[Callable[..., BatchJob]]:
    jobs = []
    shutil.copytree(made, tmp_path / "fsx")

    def make(*arguments: str) -> BatchJob:
        program = ("python", "-m", "workload.resnet.train", "--network", "tiny", "--image-size", "32")
        jobs.append(BatchJob(tmp_path, 2, *program, "--warmup-epochs", "1", *arguments))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def test_two_nodes_learn_together(two: Callable[..., BatchJob]) -> None:
    """This runs the container's entry point, both workers' training, the result and TensorBoard's logs."""
    job = two("--epochs", "4", "--checkpoint-steps", "0")
    job.start()
    assert job.wait() == [0, 0], job.logs()
    made = job.result()
    assert result.batch_mistakes(made) == []
    losses = [line["loss"] for line in made["history"]]
    assert (len(losses), losses[-1]) == (4, made["loss"])
    assert losses[-1] < 0.75 * losses[0], losses
    assert made["test_accuracy"] > 0.9
    expected = {"nodes": 2, "workers": 2, "global_batch": 16, "steps": 6, "data": "tfrecords", "gpus": 0}
    assert expected.items() <= made.items()
    assert made["images_per_second"] > 0
    assert list(job.run_folder.glob("tensorboard/events.out.tfevents.*"))


@pytest.mark.wide
def test_two_nodes_save_when_one_is_asked_to_end(two: Callable[..., BatchJob]) -> None:
    """TensorFlow has a handler of its own for SIGTERM, which must not take it from the training."""
    job = two("--epochs", "500", "--checkpoint-steps", "0")
    job.start()
    job.wait_for_log(0, "Epoch 2/500")
    job.signal(1, signal.SIGTERM)
    assert job.wait() == [143, 143], job.logs()
    (first,) = re.findall(r"stopped after step (\d+) of 3000, saved", job.log(0))
    assert f"stopped after step {first} of 3000, saved" in job.log(1)
    job.start(AWS_BATCH_JOB_ATTEMPT="2")
    job.wait_for_log(0, f"Epoch {int(first) // 6 + 2}/500")
    assert f"going on from step {first} of 3000" in job.log(0)
    job.signal(0, signal.SIGTERM)
    assert job.wait() == [143, 143], job.logs()
    lines = (job.run_folder / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, len(lines) + 1)]


def test_the_entry_points_variables_are_the_defaults() -> None:
    env = {"JOB_DIR": "/fsx/resized", "BATCH_SIZE": "128", "SLURM_STACKS_FOLDER": "/fsx/resized/runs/1"}
    read = parse([], env)
    assert (read.batch, read.epochs, read.network) == (128, 90, "resnet50")
    assert (str(read.data_folder), str(read.folder)) == ("/fsx/resized", "/fsx/resized/runs/1")


WRONG = ["--batch 0", "--epochs x", "--learning-rate 0", "--data mnist"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong.split(), {})
    assert wrong.split(maxsplit=1)[0] in capsys.readouterr().err
