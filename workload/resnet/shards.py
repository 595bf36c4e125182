"""The files of the resized images: their names, and the features of their records. Standard library only."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "dataset.json"
"""The file that says that all images are there: classes, and images and files of each split."""
SPLITS = ("train", "validation")
ENCODED, LABEL = "image/encoded", "image/class/label"
"""The features of a record that the training reads. Labels begin at 0, in the order of the classes' names."""


def name(split: str, number: int, count: int) -> str:
    """Return the name of a file, as TensorFlow's scripts for ImageNet have it."""
    return f"{split}-{number:05d}-of-{count:05d}"


def files(folder: Path, split: str, count: int) -> list[Path]:
    """Return the files of a split in their order."""
    return [folder / name(split, number, count) for number in range(count)]
