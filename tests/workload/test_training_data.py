"""The choice of a run's data, the cache that tasks share, and refused data."""

import multiprocessing
import os
import socket
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_modules import training_module

pytestmark = pytest.mark.tensorflow
np = training_module("numpy")

from workload import data  # noqa: E402
from workload.errors import WorkloadError  # noqa: E402


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the digits by a few images, which are made quickly. The value counts the times."""
    made: list[float] = []
    arrays = (
        np.arange(4 * 784, dtype=np.uint8).reshape(4, 28, 28),
        np.arange(4, dtype=np.uint8),
        np.ones((2, 28, 28), np.uint8),
        np.zeros(2, np.uint8),
    )

    def make() -> data.Arrays:
        made.append(time.monotonic())
        time.sleep(0.3)
        return arrays

    monkeypatch.setattr(data, "SYNTHETIC_SHA256", data._digest(arrays))
    monkeypatch.setattr(data, "make_digits", make)
    return made


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(data, "MNIST_URL", "http://127.0.0.1:9/mnist.npz")


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that is accepted as MNIST."""
    path = tmp_path / "given" / "mnist.npz"
    path.parent.mkdir()
    images, labels = np.full((3, 28, 28), 7, np.uint8), np.arange(3, dtype=np.uint8)
    np.savez(path, x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])
    monkeypatch.setattr(data, "MNIST_SHA256", data._sha256(path))
    return path


def test_the_real_digits_are_the_pinned_ones(tmp_path: Path) -> None:
    """The real digits from scikit-learn's: 60,000 + 10,000 images, the same bytes on every machine."""
    found = data.load("synthetic", tmp_path)
    assert found.name == "digits-synthetic"
    assert found.x_train.shape == (60_000, 28, 28)
    assert found.x_test.shape == (10_000, 28, 28)
    assert found.x_train.dtype == found.y_train.dtype == np.uint8
    assert sorted(set(found.y_train.tolist())) == sorted(set(found.y_test.tolist())) == list(range(10))
    assert found.x_train.max() > 200
    assert (found.x_train.reshape(60_000, -1).max(axis=1) > 100).all()  # no empty image
    originals = data.held_out_originals()
    assert set(originals.tolist()) <= set(data.split_originals(data.ORIGINALS)[1].tolist())
    assert (training_module("sklearn.datasets").load_digits().target[originals] == found.y_test).all()


def test_no_original_is_on_both_sides() -> None:
    kept, held_out = data.split_originals(data.ORIGINALS)
    assert (len(kept), len(held_out)) == (1437, 360)
    assert set(kept.tolist()) | set(held_out.tolist()) == set(range(1797))


def test_made_once_then_read(tmp_path: Path, small: list[float]) -> None:
    first = data.load("synthetic", tmp_path)
    second = data.load("digits-synthetic", tmp_path)  # as the chief tells the others
    assert len(small) == 1
    assert (first.x_train == second.x_train).all()
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other", "others"])
def test_a_damaged_cache_is_made_again(
    tmp_path: Path, small: list[float], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = data.load("synthetic", tmp_path)
    (path,) = tmp_path.glob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "other":
        np.savez(path, x_train=good.x_train)
    elif damage == "others":  # a whole file of other digits: only the digest tells
        labels = good.y_train[::-1]
        np.savez(path, x_train=good.x_train, y_train=labels, x_test=good.x_test, y_test=good.y_test)
    else:
        path.write_bytes({"cut": bytes(content[:900]), "flipped": bytes(content), "empty": b""}[damage])
    again = data.load("synthetic", tmp_path)
    assert (again.x_train == good.x_train).all()
    assert (again.y_train == good.y_train).all()
    assert len(small) == 2
    assert "is damaged: making it again" in capsys.readouterr().out
    data.load("synthetic", tmp_path)
    assert len(small) == 2  # and the new one is whole


def test_tasks_that_start_together_make_it_once(tmp_path: Path, small: list[float]) -> None:
    # Processes and not threads, because a file lock works between processes.
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    make = data.make_digits

    def counted() -> data.Arrays:
        with counter.get_lock():
            counter.value += 1
        return make()

    data.make_digits = counted  # `small` puts it back
    tasks = [context.Process(target=data.load, args=("synthetic", tmp_path)) for _ in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(120)
    assert [task.exitcode for task in tasks] == [0, 0, 0, 0]
    assert counter.value == 1


def test_a_lock_that_is_never_released_delays_only(
    tmp_path: Path, small: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "LOCK_SECONDS", 0.3)
    name = f"digits-synthetic-{data.SYNTHETIC_SHA256[:16]}.lock"
    with data._lock(tmp_path / name):
        assert data.load("synthetic", tmp_path).name == "digits-synthetic"


def test_other_originals_are_refused(
    tmp_path: Path, small: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SYNTHETIC_SHA256", "0" * 64)
    with pytest.raises(WorkloadError, match="not those of the locked version"):
        data.load("synthetic", tmp_path)
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.usefixtures("offline")
def test_auto_says_in_one_sentence_what_it_took(
    tmp_path: Path, small: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    found = data.load("auto", tmp_path)
    assert found.name == "digits-synthetic"
    output = [line for line in capsys.readouterr().out.splitlines() if "MNIST" in line]
    assert len(output) == 1
    assert "digits-synthetic, which is not MNIST" in output[0]


@pytest.mark.usefixtures("offline")
def test_mnist_is_never_replaced_where_it_is_asked_for(tmp_path: Path, small: list[float]) -> None:
    with pytest.raises(WorkloadError, match="mnist is asked for"):
        data.load("mnist", tmp_path)
    assert small == []


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["auto", "mnist"])
def test_a_given_file(kind: str, tmp_path: Path, mnist: Path) -> None:
    found = data.load(kind, tmp_path, mnist)
    assert (found.name, found.x_train[0, 0, 0], len(found.x_test)) == ("mnist", 7, 1)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("place", ["cache", "keras/datasets"])
def test_a_file_that_is_there(place: str, tmp_path: Path, mnist: Path) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    mnist.rename(tmp_path / place / "mnist.npz")
    assert data.load("auto", tmp_path / "cache").name == "mnist"


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["auto", "mnist"])
def test_a_given_file_that_is_not_mnist(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    path.write_bytes(b"something else")
    with pytest.raises(WorkloadError, match=r"is not MNIST: its sha256 is \w{64}, expected is 731c5ac6"):
        data.load(kind, tmp_path / "cache", path)
    with pytest.raises(WorkloadError, match="cannot be read"):
        data.load(kind, tmp_path / "cache", tmp_path / "nowhere.npz")


@pytest.mark.usefixtures("offline")
def test_a_wrong_file_in_the_cache_is_passed_over(tmp_path: Path, small: list[float]) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"half a download")
    assert data.load("auto", tmp_path).name == "digits-synthetic"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/mnist.npz"


def test_the_probe_is_bounded(silent_server: str) -> None:
    assert not data._reachable(silent_server, 0.5)


def _answering_server() -> tuple[socket.socket, str]:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    return server, f"http://127.0.0.1:{server.getsockname()[1]}/mnist.npz"


def _loader(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """Put in place a TensorFlow module tree with this `tf.keras.datasets.mnist.load_data`."""
    tree = types.SimpleNamespace(
        keras=types.SimpleNamespace(
            datasets=types.SimpleNamespace(mnist=types.SimpleNamespace(load_data=load))
        )
    )
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", tree)


@pytest.mark.usefixtures("offline")
def test_mnist_comes_by_the_real_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, url = _answering_server()
    monkeypatch.setattr(data, "MNIST_URL", url)
    monkeypatch.setattr(data, "PROBE_SECONDS", 60.0)
    images, labels = np.zeros((5, 28, 28), np.uint8), np.zeros(5, np.uint8)
    _loader(monkeypatch, lambda: ((images, labels), (images[:2], labels[:2])))
    with server:
        found = data.load("auto", tmp_path)
    assert (found.name, len(found.x_train), len(found.x_test)) == ("mnist", 5, 2)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("kind", "slow"), [("auto", False), ("auto", True), ("mnist", False)])
def test_a_download_that_fails(
    kind: str,
    slow: bool,
    tmp_path: Path,
    small: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, url = _answering_server()
    monkeypatch.setattr(data, "MNIST_URL", url)
    monkeypatch.setattr(data, "PROBE_SECONDS", 60.0)
    ended = threading.Event()
    if slow:
        monkeypatch.setattr(data, "DOWNLOAD_SECONDS", 0.3)

    def load() -> None:
        if slow:
            ended.wait(60)
        raise Exception("Incomplete or corrupted file detected")

    _loader(monkeypatch, load)
    expected = "took more than 0 s" if slow else "the download failed: Incomplete or corrupted"
    with server:
        if kind == "mnist":
            with pytest.raises(WorkloadError, match=expected):
                data.load(kind, tmp_path)
        else:
            assert data.load(kind, tmp_path).name == "digits-synthetic"
            assert expected in capsys.readouterr().out
    ended.set()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_another_user_put_in_a_locks_place_neither_stops_nor_harms(tmp_path: Path, kind: str) -> None:
    lock = tmp_path / "mnist.lock"
    if kind == "link":
        lock.symlink_to(tmp_path / "new")
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with data._lock(lock):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.lock"]
