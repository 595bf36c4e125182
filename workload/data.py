"""Loads the training data: MNIST if it is available, otherwise synthetic digits.

`mnist` and `synthetic` are strict. `auto` takes MNIST if its file is here or can be downloaded after a short
probe. Otherwise it takes the synthetic digits and prints one sentence about it. The result always names the
data, and both kinds are checked against a pinned digest. This module needs NumPy; TensorFlow is imported only
for a download.
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

from workload import digits, files
from workload.errors import WorkloadError
from workload.waiting import wait_at_most

MNIST, SYNTHETIC = "mnist", "digits-synthetic"
MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
"""Digest of the file mnist.npz. Keras's loader checks the same one."""
SYNTHETIC_SHA256 = "f0f80e40cfeee8a52c1fd458d4d43b187f6faed5add01885591b734174981a44"
"""Digest of the bytes of the four arrays, in order."""

PROBE_SECONDS = 3.0
DOWNLOAD_SECONDS = 120.0
LOCK_SECONDS = 180.0


@dataclass(frozen=True)
class Data:
    """60,000 training and 10,000 test images (n, 28, 28) uint8 with labels (n,) uint8."""

    name: str
    """The name in the result record: `mnist` or `digits-synthetic`."""
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
            arrays = digits.make()
            if (actual := _digest(arrays)) != SYNTHETIC_SHA256:
                raise WorkloadError(
                    f"{SYNTHETIC}: made {actual}, expected is {SYNTHETIC_SHA256}: "
                    "scikit-learn's digits are not those of the locked version"
                )
            _write_atomically(path, arrays)
    return Data(SYNTHETIC, *arrays)


def _read_synthetic(path: Path) -> digits.Arrays | None:
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


def _digest(arrays: digits.Arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def _write_atomically(path: Path, arrays: digits.Arrays) -> None:
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
