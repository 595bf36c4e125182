"""Makes "digits-synthetic", which replaces MNIST if there is neither the file nor the internet.

scikit-learn ships 1,797 real handwritten digits of 8x8 pixels. Each example warps one of them to 28x28 by a
random affine map. 360 of the originals are held out and make the test set, so no test image is a warp of an
original that was trained on.

All arithmetic is on integers, and so are the random numbers. Every machine therefore makes the same bytes,
and their digest can be pinned. Workers that each make their own copy train on the same data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TRAIN, TEST, HELD_OUT = 60_000, 10_000, 360
ORIGINALS = 1_797
SIZE = 28
PADDING = 3
"""Pixels of background added around each 8x8 source image, because the warp reads there."""
_CHUNK = 2_000
_ONE = 1 << 16
"""1.0 as a fixed-point number. Coordinates are in source pixels."""

Arrays = tuple[Any, Any, Any, Any]
"""Training images (n, 28, 28) uint8, training labels (n,) uint8, test images, test labels."""


def make() -> Arrays:
    """Make the whole data set. It takes about 4 s."""
    from sklearn.datasets import load_digits

    source = load_digits()
    images = source.images.astype(np.int32)  # 0 … 16
    labels = source.target.astype(np.uint8)
    kept, held_out = split(len(images))
    train = _warp_all(images, kept, TRAIN, stream=1)
    test = _warp_all(images, held_out, TEST, stream=2)
    return train[0], labels[train[1]], test[0], labels[test[1]]


def split(originals: int) -> tuple[Any, Any]:
    """Return the indices of the originals to train on, and of those held out."""
    order = np.argsort(_random(0, np.arange(originals), 0), kind="stable")
    return order[HELD_OUT:], order[:HELD_OUT]


def held_out_originals() -> Any:
    """Return, for each test image, the index of the original that it is a warp of.

    Warps of one original are no independent samples, so the error of an accuracy has to count originals.
    """
    return _choose(split(ORIGINALS)[1], TEST, stream=2)


def _choose(choices: Any, count: int, stream: int) -> Any:
    return choices[_random(stream, np.arange(count), 0) % np.uint64(len(choices))]


def _warp_all(images: Any, choices: Any, count: int, stream: int) -> tuple[Any, Any]:
    padded = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    result: Any = np.empty((count, SIZE, SIZE), np.uint8)
    chosen = _choose(choices, count, stream)
    for start in range(0, count, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, count))
        result[start : start + _CHUNK] = _warp(padded[chosen[numbers]], numbers, stream)
    return result, chosen


def _warp(source: Any, numbers: Any, stream: int) -> Any:
    """Warp each image by a random affine map, with bilinear interpolation."""

    def between(slot: int, low: float, high: float) -> Any:
        """Return uniform fixed-point numbers, one for each image."""
        a, b = round(low * _ONE), round(high * _ONE)
        value = a + (_random(stream, numbers, slot) % np.uint64(b - a)).astype(np.int64)
        return value[:, None, None]

    # How many source pixels a pixel of the result spans: a digit's 8 pixels become about 20, as in MNIST.
    turn = between(3, -0.08, 0.08)
    xx, yy = between(1, 0.34, 0.46), between(2, 0.34, 0.46)
    xy, yx = turn + between(4, -0.05, 0.05), -turn + between(5, -0.05, 0.05)
    middle = PADDING + 3.5
    dx, dy = between(6, middle - 0.7, middle + 0.7), between(7, middle - 0.7, middle + 0.7)

    doubled: Any = 2 * np.arange(SIZE) - (SIZE - 1)  # twice the distance from the middle: an integer
    column, row = doubled[None, None, :], doubled[None, :, None]
    x = (xx * column + xy * row) // 2 + dx
    y = (yx * column + yy * row) // 2 + dy
    edge = (source.shape[1] - 2) * _ONE
    x, y = np.clip(x, 0, edge), np.clip(y, 0, edge)

    # 8 bits of fraction are enough for 8-bit pixels, and the products below fit 32 bits.
    x0, fx = (x >> 16).astype(np.int32), ((x >> 8) & 255).astype(np.int32)
    y0, fy = (y >> 16).astype(np.int32), ((y >> 8) & 255).astype(np.int32)
    width = source.shape[2]
    flat = source.reshape(-1)
    at = np.arange(len(source), dtype=np.int32)[:, None, None] * (width * width) + y0 * width + x0
    upper = flat[at] * (256 - fx) + flat[at + 1] * fx
    lower = flat[at + width] * (256 - fx) + flat[at + width + 1] * fx
    value = upper * (256 - fy) + lower * fy  # at most 16 · 2^16
    return ((value * 255) >> 20).astype(np.uint8)


def _random(stream: int, numbers: Any, slot: int) -> Any:
    """Return 64 random bits for each number.

    They are made by SplitMix64's finalizer, because numpy's own streams may change with its version.
    """
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) * np.uint64(16) + np.uint64(slot)
        z = (z + np.uint64((stream + 1) << 40)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
