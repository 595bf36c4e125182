"""Loads the training data: MNIST if it is available, otherwise synthetic digits.

`mnist` and `synthetic` are strict. `auto` takes MNIST if its file is here or can be downloaded after a short
probe. Otherwise it takes the synthetic digits and prints one sentence about it. The result always names the
data, and both kinds are checked against a pinned digest. This module needs NumPy; TensorFlow is imported only
for a download.

The synthetic digits, "digits-synthetic", are made of scikit-learn's 1,797 real handwritten digits of 8x8
pixels. Each example warps one of them to 28x28 by a random affine map. 360 of the originals are held out and
make the test set, so no test image is a warp of an original that was trained on. All arithmetic is on
integers, and so are the random numbers. Every machine therefore makes the same bytes, and their digest can be
pinned. Workers that each make their own copy train on the same data.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workload import files
from workload.errors import WorkloadError
from workload.waiting import wait_at_most

Arrays = tuple[Any, Any, Any, Any]
"""Training images (n, 28, 28) uint8, training labels (n,) uint8, test images, test labels."""


MNIST, SYNTHETIC = "mnist", "digits-synthetic"
MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
"""Digest of the file mnist.npz. Keras's loader checks the same one."""
SYNTHETIC_SHA256 = "f0f80e40cfeee8a52c1fd458d4d43b187f6faed5add01885591b734174981a44"
"""Digest of the bytes of the four arrays, in order."""

PROBE_SECONDS = 3.0
DOWNLOAD_SECONDS = 120.0
LOCK_SECONDS = 180.0
TRAIN, TEST, HELD_OUT = 60_000, 10_000, 360
ORIGINALS = 1_797
SIZE = 28
PADDING = 3
"""Pixels of background added around each 8x8 source image, because the warp reads there."""
_CHUNK = 2_000
_FIXED_POINT = 1 << 16
"""1.0 as a fixed-point number. Coordinates are in source pixels."""


@dataclass(frozen=True)
class Data:
    """60,000 training and 10,000 test images (n, 28, 28) uint8 with labels (n,) uint8.

    Attributes:
        name: The name in the result record: `mnist` or `digits-synthetic`.
    """

    name: str
    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any


def load(kind: str, cache: Path, mnist_file: Path | None = None) -> Data:
    """Load the data of a run.

    Args:
        kind: `auto`, `mnist` or `synthetic` as in the stack file, or a `Data.name`.
        cache: A folder that tasks and jobs may share.
        mnist_file: A local mnist.npz. It is used unless the kind is synthetic.

    Raises:
        WorkloadError: MNIST is required and not available, or a given file is not MNIST.
    """
    if kind in ("synthetic", SYNTHETIC):
        return _synthetic(cache)
    if mnist_file is not None:
        return _read_mnist(mnist_file)  # the user named it, so an error in it is not ignored
    for candidate in (cache / "mnist.npz", _keras_home() / "datasets" / "mnist.npz"):
        if candidate.exists() and _sha256(candidate) == MNIST_SHA256:
            return _read_mnist(candidate)
    reason = f"no answer from {MNIST_URL} within {PROBE_SECONDS:.0f} s"
    if _reachable(MNIST_URL, PROBE_SECONDS):
        try:
            return _download_mnist(cache)
        except WorkloadError as error:
            reason = str(error)
    if kind == MNIST:
        raise WorkloadError(f"data: mnist is asked for, but there is no file and {reason}")
    print(
        f"MNIST is not here ({reason}): training on {SYNTHETIC}, which is not MNIST; "
        "its accuracies do not compare with published ones.",
        flush=True,
    )
    return _synthetic(cache)


def _keras_home() -> Path:
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_mnist(path: Path) -> Data:
    try:
        actual = _sha256(path)
    except OSError as error:
        raise WorkloadError(f"MNIST's file cannot be read: {error}") from error
    if actual != MNIST_SHA256:
        raise WorkloadError(f"{path} is not MNIST: its sha256 is {actual}, expected is {MNIST_SHA256}")
    with np.load(path) as arrays:
        return Data(MNIST, *(arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")))


def _reachable(url: str, limit: float) -> bool:
    """Return whether the server answers in time. It runs in a thread: resolving a name has no time limit."""
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=limit).close()
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit)
    return answered.is_set()


def _download_mnist(cache: Path) -> Data:
    """Download MNIST with Keras's loader, which checks the digest.

    One task at a time downloads, because the loader writes in place.
    """
    outcome: list[Any] = []

    def fetch() -> None:
        try:
            import tensorflow as tf

            outcome.append(tf.keras.datasets.mnist.load_data())
        except Exception as error:  # the loader raises every network error as a bare Exception
            outcome.append(WorkloadError(f"the download failed: {error}"))

    with _lock(cache / "mnist.lock"):
        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        thread.join(DOWNLOAD_SECONDS)
    if not outcome:
        raise WorkloadError(f"the download took more than {DOWNLOAD_SECONDS:.0f} s")
    if isinstance(outcome[0], WorkloadError):
        raise outcome[0]
    (x_train, y_train), (x_test, y_test) = outcome[0]
    return Data(MNIST, x_train, y_train, x_test, y_test)


def _synthetic(cache: Path) -> Data:
    path = cache / f"{SYNTHETIC}-{SYNTHETIC_SHA256[:16]}.npz"
    if (arrays := _read_synthetic(path)) is not None:
        return Data(SYNTHETIC, *arrays)
    with _lock(path.with_suffix(".lock")):
        arrays = _read_synthetic(path)  # another task made it while this one waited
        if arrays is None:
            print("making the synthetic digits (once, some seconds)", flush=True)
            arrays = make_digits()
            if (actual := _digest(arrays)) != SYNTHETIC_SHA256:
                raise WorkloadError(
                    f"{SYNTHETIC}: made {actual}, expected is {SYNTHETIC_SHA256}: "
                    "scikit-learn's digits are not those of the locked version"
                )
            _write_atomically(path, arrays)
    return Data(SYNTHETIC, *arrays)


def _read_synthetic(path: Path) -> Arrays | None:
    """Return the cached arrays. `None` means that there are none or they are damaged."""
    try:
        with np.load(path) as file:
            arrays = (file["x_train"], file["y_train"], file["x_test"], file["y_test"])
    except FileNotFoundError:
        return None
    except Exception:  # a damaged zip raises many kinds of error; each means that it must be made again
        arrays = None
    if arrays is None or _digest(arrays) != SYNTHETIC_SHA256:
        print(f"{path} is damaged: making it again", flush=True)
        return None
    return arrays


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def _write_atomically(path: Path, arrays: Arrays) -> None:
    x_train, y_train, x_test, y_test = arrays
    with files.replacing(path) as file:
        np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file lock, so that only one of many tasks does the work.

    The lock only saves work. After `LOCK_SECONDS`, or on a file system without locks, two tasks do the same
    work, which is harmless because the file is replaced in one step.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Any user may have put a link or a pipe there.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        yield
        return
    with os.fdopen(handle, "wb") as file:
        with contextlib.suppress(OSError):
            wait_at_most(lambda: _acquire(file), LOCK_SECONDS)
        yield


def _acquire(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_digits() -> Arrays:
    """Make the whole data set. It takes about 4 s."""
    from sklearn.datasets import load_digits

    source = load_digits()
    images = source.images.astype(np.int32)  # 0 … 16
    labels = source.target.astype(np.uint8)
    kept, held_out = split_originals(len(images))
    train = _warp_all(images, kept, TRAIN, stream=1)
    test = _warp_all(images, held_out, TEST, stream=2)
    return train[0], labels[train[1]], test[0], labels[test[1]]


def split_originals(originals: int) -> tuple[Any, Any]:
    """Return the indices of the originals to train on, and of those held out."""
    order = np.argsort(_random(0, np.arange(originals), 0), kind="stable")
    return order[HELD_OUT:], order[:HELD_OUT]


def held_out_originals() -> Any:
    """Return, for each test image, the index of the original that it is a warp of.

    Warps of one original are no independent samples, so the error of an accuracy has to count originals.
    """
    return _choose(split_originals(ORIGINALS)[1], TEST, stream=2)


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
        a, b = round(low * _FIXED_POINT), round(high * _FIXED_POINT)
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
    edge = (source.shape[1] - 2) * _FIXED_POINT
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
