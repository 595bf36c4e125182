"""The files of the resized images: their names, and the features of their records. Standard library only."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "dataset.json"
"""The file that is written when all images are there: the classes, and each split's images and files."""
SPLITS = ("train", "validation")
ENCODED, LABEL = "image/encoded", "image/class/label"
"""The features of a record that the training reads. Labels begin at 0, in the order of the classes' names."""


def name(split: str, number: int, count: int) -> str:
    """Return the name of a file, as TensorFlow's scripts for ImageNet name it."""
    return f"{split}-{number:05d}-of-{count:05d}"


def files(folder: Path, split: str, count: int) -> list[Path]:
    """Return the files of a split in order."""
    return [folder / name(split, number, count) for number in range(count)]
