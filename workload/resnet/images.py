"""The images of a training: TFRecords that the resize job has made, or random ones of the same shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from workload.errors import WorkloadError
from workload.resnet.options import Options
from workload.resnet.resize import ENCODED, LABEL, MANIFEST, shard_files

SYNTHETIC_IMAGES, SYNTHETIC_CLASSES = 1_281_167, 1000
"""The size of ImageNet's training data."""
SHUFFLED = 4096
"""The size of a node's shuffle buffer, in images."""
CROP = 0.875
"""The share of an image's side that is kept when accuracy is measured: 224 of 256 pixels."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images to train on.

    Attributes:
        name: `synthetic`, or `tfrecords`.
        folder: The folder with the TFRecords; None for synthetic images.
        classes: The number of classes.
        counts: Split -> number of images.
        shards: Split -> number of files.
    """

    name: str
    folder: Path | None
    classes: int
    counts: Mapping[str, int]
    shards: Mapping[str, int]


def find(options: Options) -> Images:
    """Return the images that the options choose.

    Raises:
        WorkloadError: There are no TFRecords, or the job that makes them has not finished.
    """
    folder = options.data_folder
    manifest = folder / MANIFEST
    if options.data == "synthetic" or (
        options.data == "auto" and not manifest.exists() and not any(folder.glob("train-*-of-*"))
    ):
        return Images("synthetic", None, SYNTHETIC_CLASSES, {"train": SYNTHETIC_IMAGES}, {})
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        splits = content["splits"]
        counts = {name: int(split["images"]) for name, split in splits.items()}
        numbers = {name: int(split["shards"]) for name, split in splits.items()}
        classes = len(content["classes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise WorkloadError(
            f"{manifest} is not there or not whole: the images have not all been made. Run the job "
            "`python3 -m workload.resnet.resize` to its end, or train with --data synthetic"
        ) from None
    if not counts.get("train"):
        raise WorkloadError(f"{folder} has no images to train on")
    return Images("tfrecords", folder, classes, counts, numbers)


def training(images: Images, options: Options, context: Any, epoch: int, skip: int) -> Any:
    """Return one epoch of this worker's images as a data set of batches, without an end.

    Args:
        images: The images of all workers.
        options: The options.
        context: TensorFlow's description of this worker's place among all.
        epoch: The number of the epoch, from 0. Each epoch has another order.
        skip: The images of this worker that an earlier start of the job has used.
    """
    if images.folder is None:
        return _synthetic(images, options)
    count, index = context.num_input_pipelines, context.input_pipeline_id
    files = shard_files(images.folder, "train", images.shards["train"])
    seed = options.seed * 1000 + epoch
    # Each worker reads files of its own; if there are too few, each reads all and takes every n-th image.
    own_files = len(files) >= count
    files_of_worker = files[index::count] if own_files else files
    records = tf.data.Dataset.from_tensor_slices([str(file) for file in files_of_worker])
    records = records.shuffle(len(files_of_worker), seed=seed)
    records = records.interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE)
    if not own_files:
        records = records.shard(count, index)
    records = records.shuffle(SHUFFLED, seed=seed).repeat().skip(skip)
    size = options.image_size
    records = records.map(lambda record: _distorted(record, size), num_parallel_calls=tf.data.AUTOTUNE)
    return records.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def held_out(images: Images, options: Options, context: Any) -> Any:
    """Return this worker's share of the validation images, each once, then fillers with the label -1."""
    assert images.folder is not None
    files = [str(f) for f in shard_files(images.folder, "validation", images.shards["validation"])]
    size = options.image_size
    records = tf.data.TFRecordDataset(files).shard(context.num_input_pipelines, context.input_pipeline_id)
    records = records.map(lambda record: _central(record, size), num_parallel_calls=tf.data.AUTOTUNE)
    filler = (tf.zeros([size, size, 3], tf.uint8), tf.constant(-1, tf.int64))
    records = records.concatenate(tf.data.Dataset.from_tensors(filler).repeat())
    return records.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _synthetic(images: Images, options: Options) -> Any:
    """Return one random batch again and again, so that the measurement has no reading and decoding."""
    size = options.image_size
    shape = [options.batch, size, size, 3]
    pixels = tf.cast(tf.random.stateless_uniform(shape, [options.seed, 1], 0, 256, tf.int32), tf.uint8)
    labels = tf.random.stateless_uniform([options.batch], [options.seed, 2], 0, images.classes, tf.int64)
    return tf.data.Dataset.from_tensors((pixels, labels)).repeat()


def _parsed(record: Any) -> tuple[Any, Any]:
    features = tf.io.parse_single_example(
        record,
        {
            ENCODED: tf.io.FixedLenFeature([], tf.string),
            LABEL: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return features[ENCODED], features[LABEL]


def _distorted(record: Any, size: int) -> tuple[Any, Any]:
    """Return a random part of the image, at least 8 % of its area, perhaps mirrored, as published."""
    encoded, label = _parsed(record)
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
    return _scaled(tf.image.random_flip_left_right(image), size), label


def _central(record: Any, size: int) -> tuple[Any, Any]:
    encoded, label = _parsed(record)
    return _scaled(tf.image.central_crop(_square(tf.io.decode_jpeg(encoded, channels=3)), CROP), size), label


def _square(image: Any) -> Any:
    """Return the largest square in the middle of an image."""
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    side = tf.minimum(height, width)
    return tf.image.crop_to_bounding_box(image, (height - side) // 2, (width - side) // 2, side, side)


def _scaled(image: Any, size: int) -> Any:
    image = tf.image.resize(image, [size, size])
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
