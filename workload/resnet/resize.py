"""Makes the training data: `python3 -m workload.resnet.resize SOURCE`, one process a node.

SOURCE has a folder for each split, `train` and perhaps `validation`, in which each class is a folder of
images, as in ImageNet. Every image is resized, so that its shorter side has the requested number of pixels,
and written as JPEG into TFRecords. Nodes divide the files by their numbers. A file appears only when it is
complete, and a repeated job makes only the missing ones. The last file is `dataset.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload import files
from workload.errors import WorkloadError

MANIFEST = "dataset.json"
"""The file that is written when all images are there: the classes, and each split's images and files."""
SPLITS = ("train", "validation")
ENCODED, LABEL = "image/encoded", "image/class/label"
"""The features of a record that the training reads. Labels begin at 0, in the order of the classes' names."""
API_VERSION = "slurm-stacks/images/v1"
SUFFIXES = (".jpeg", ".jpg", ".png")
ORDER_SEED = 7
MOST_DAMAGED = 0.01
"""The share of images that may be damaged. More means that the source is probably wrong."""
SAY_SECONDS = 30.0


def shard_name(split: str, number: int, count: int) -> str:
    """Return the name of a file, as TensorFlow's scripts for ImageNet name it."""
    return f"{split}-{number:05d}-of-{count:05d}"


def shard_files(folder: Path, split: str, count: int) -> list[Path]:
    """Return the files of a split in order."""
    return [folder / shard_name(split, number, count) for number in range(count)]


@dataclass(frozen=True, slots=True)
class Split:
    """The images of a split, in an order that mixes the classes.

    Attributes:
        name: train | validation.
        images: The path of each image, relative to the source, and the number of its class.
        count: The number of TFRecord files.
        digest: A digest of the images' names and all settings. Files with another one belong to another data
            set.
    """

    name: str
    images: tuple[tuple[str, int], ...]
    count: int
    digest: str

    def of(self, number: int) -> tuple[tuple[str, int], ...]:
        """Return the images of one file."""
        return self.images[number :: self.count]


def parse(arguments: Sequence[str] | None, env: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m workload.resnet.resize", allow_abbrev=False)
    parser.add_argument("source", type=Path, help="holds train/<class>/<image> and perhaps validation/…")
    parser.add_argument("--out", type=Path, default=Path(env.get("JOB_DIR") or "."), help="JOB_DIR")
    parser.add_argument("--size", type=int, default=256, help="pixels of an image's shorter side")
    parser.add_argument("--quality", type=int, default=95, help="the quality of the JPEGs, 1 to 100")
    parser.add_argument("--shards", type=int, default=1024, help="files of the training images")
    parser.add_argument("--validation-shards", type=int, default=128)
    options = parser.parse_args(arguments)
    for name, most in (("size", 4096), ("quality", 100), ("shards", 99999), ("validation_shards", 99999)):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name.replace('_', '-')}: a whole number from 1 to {most} is expected")
    return options


def listed(source: Path, options: argparse.Namespace) -> tuple[list[str], list[Split]]:
    """Return the names of the classes and the splits of a source.

    Raises:
        WorkloadError: There are no training images, or a split has classes of its own.
    """
    numbers: dict[str, int] = {}
    splits = []
    for name, count in zip(SPLITS, (options.shards, options.validation_shards), strict=True):
        folder = source / name
        if not folder.is_dir():
            continue
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        numbers = numbers or {folder_name: number for number, folder_name in enumerate(classes)}
        if strangers := [folder_name for folder_name in classes if folder_name not in numbers]:
            raise WorkloadError(f"{folder} has classes that train does not have: {', '.join(strangers[:5])}")
        images = [
            (f"{name}/{folder_name}/{entry.name}", numbers[folder_name])
            for folder_name in classes
            for entry in sorted(os.scandir(folder / folder_name), key=lambda found: found.name)
            if entry.name.lower().endswith(SUFFIXES)
        ]
        if images:
            random.Random(ORDER_SEED).shuffle(images)
            text = json.dumps([images, options.size, options.quality])
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            splits.append(Split(name, tuple(images), min(count, len(images)), digest))
    if not splits or splits[0].name != "train":
        raise WorkloadError(f"{source} holds no training images: train/<class>/<image>.JPEG is expected")
    return list(numbers), splits


class Resizer:
    """Makes the files of one node.

    Args:
        options: As `parse` returns them.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        import tensorflow as tf

        self._tf, self._options = tf, options
        self.damaged: list[str] = []

    def make(self, split: Split, number: int) -> bool:
        """Make one file if it is missing, and return whether it was made.

        Raises:
            WorkloadError: The existing file belongs to another data set, or too many images are damaged.
        """
        out = self._options.out
        file = out / shard_name(split.name, number, split.count)
        if (note := noted(file)) is not None and file.exists():
            if note["digest"] != split.digest:
                raise WorkloadError(
                    f"{file} was made of other images or with other settings: remove the files of the old "
                    "data set, or give another folder with --out"
                )
            return False
        damaged: list[str] = []
        images = split.of(number)
        with files.replacing(file) as draft:
            with (
                ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
                self._tf.io.TFRecordWriter(str(draft.name)) as writer,
            ):
                for (name, _), example in zip(images, pool.map(self._example, images), strict=True):
                    if example is None:
                        damaged.append(name)
                    else:
                        writer.write(example)
            if len(damaged) > max(1, MOST_DAMAGED * len(images)):
                raise WorkloadError(
                    f"of the {len(images)} in {file.name}, {len(damaged)} cannot be read, {damaged[0]} among "
                    "them"
                )
        note = {"digest": split.digest, "images": len(images) - len(damaged), "damaged": damaged}
        files.write_json(_note(file), note)  # written last: a file without a note is made again
        self.damaged += damaged
        return True

    def _example(self, image: tuple[str, int]) -> bytes | None:
        """Return an image's record; None if the image cannot be read."""
        tf, (name, label) = self._tf, image
        try:
            pixels = tf.io.decode_image(
                tf.io.read_file(str(self._options.source / name)), channels=3, expand_animations=False
            )
        except tf.errors.InvalidArgumentError:
            return None
        height, width, _ = pixels.shape
        shorter = min(height, width)
        if shorter > self._options.size:
            size = [round(side * self._options.size / shorter) for side in (height, width)]
            pixels = tf.cast(tf.round(tf.image.resize(pixels, size, "area")), tf.uint8)
        texts = {
            ENCODED: [tf.io.encode_jpeg(pixels, quality=self._options.quality).numpy()],
            "image/class/text": [Path(name).parent.name.encode()],
            "image/filename": [Path(name).name.encode()],
        }
        numbers = {LABEL: label, "image/height": pixels.shape[0], "image/width": pixels.shape[1]}
        train = tf.train
        feature = {
            **{key: train.Feature(bytes_list=train.BytesList(value=text)) for key, text in texts.items()},
            **{key: train.Feature(int64_list=train.Int64List(value=[n])) for key, n in numbers.items()},
        }
        written: bytes = train.Example(features=train.Features(feature=feature)).SerializeToString()
        return written


def _note(file: Path) -> Path:
    return file.with_name(f".{file.name}.json")


def noted(file: Path) -> dict[str, Any] | None:
    """Return the note on a complete file; None if the file is missing."""
    try:
        note: dict[str, Any] = json.loads(_note(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note


def finish(options: argparse.Namespace, classes: Sequence[str], splits: Sequence[Split]) -> bool:
    """Write the manifest if the files of all nodes are complete, and return whether they are."""
    counted = {}
    for split in splits:
        notes = [
            noted(file) if file.exists() else None
            for file in shard_files(options.out, split.name, split.count)
        ]
        whole = [note for note in notes if note is not None and note["digest"] == split.digest]
        if len(whole) < split.count:
            return False
        counted[split.name] = {"images": sum(note["images"] for note in whole), "shards": split.count}
    settings = {"apiVersion": API_VERSION, "size": options.size, "quality": options.quality}
    files.write_json(options.out / MANIFEST, {**settings, "splits": counted, "classes": list(classes)})
    return True


def run(arguments: Sequence[str] | None, env: Mapping[str, str]) -> dict[str, Any]:
    """Make the files of this node.

    Returns:
        `files`, `damaged` (images), `whole` (whether the data set is complete) and `seconds`.
    """
    options = parse(arguments, env)
    rank, nodes = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
    began = spoken = time.monotonic()
    classes, splits = listed(options.source, options)
    options.out.mkdir(parents=True, exist_ok=True)
    shards = [(s, number) for s in splits for number in range(rank, s.count, nodes)]
    resizer = Resizer(options)
    made_now = 0
    for done, (split, number) in enumerate(shards, 1):
        made_now += resizer.make(split, number)
        if time.monotonic() - spoken > SAY_SECONDS:
            print(f"resize: files of this node that are there: {done} of {len(shards)}", flush=True)
            spoken = time.monotonic()
    for name in resizer.damaged:
        print(f"resize: left out, because it cannot be read: {name}", file=sys.stderr, flush=True)
    whole = finish(options, classes, splits)
    state = f"{options.out / MANIFEST} is written" if whole else "other nodes are not done yet"
    print(f"resize: files of this node made now: {made_now} of {len(shards)}; {state}", flush=True)
    seconds = round(time.monotonic() - began, 3)
    return {"files": made_now, "damaged": len(resizer.damaged), "whole": whole, "seconds": seconds}


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    # Images are resized on the CPU. TensorFlow would still take the memory of a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        values = run(None, os.environ)
        if os.environ.get("RANK", "0") == "0" and (file := os.environ.get("SLURM_STACKS_RESULT")):
            files.write_json(Path(file), values)
    except (WorkloadError, OSError) as error:
        print(f"resize: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
