"""The workers' ring: the same sums for all, bit for bit, and an end when a neighbour is gone."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.training_modules import training_module
from workload.errors import PeerLostError, WorkloadError

pytestmark = pytest.mark.tensorflow
SECONDS = 60.0


def bound() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening


def address(listening: socket.socket) -> str:
    return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(4) as made:
        yield made


@contextlib.contextmanager
def joined(pool: concurrent.futures.ThreadPoolExecutor, size: int) -> Iterator[list[Any]]:
    from workload import workers

    with contextlib.ExitStack() as ends:
        listening = [ends.enter_context(bound()) for _ in range(size)]
        addresses = [address(one) for one in listening]

        def join(rank: int) -> Any:
            return workers.join_ring(listening[rank], addresses, rank, "run", SECONDS)

        rings = list(pool.map(join, range(size)))
        for one in rings:
            ends.callback(one.close)
        yield rings


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_workers_get_the_same_sums(
    size: int, pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    np: Any = training_module("numpy")
    from workload import workers

    monkeypatch.setattr(workers, "PIECE", 64 * 1024)
    # Arrays: empty, of fewer numbers than workers, several at once, in many pieces, with a short last piece.
    shapes = [(0,), (1,), (), (3, 5), (workers.SMALL - 1,), (7, 100_003)]
    given = [
        [np.asarray(np.random.default_rng(rank).standard_normal(shape), np.float32) for shape in shapes]
        for rank in range(size)
    ]
    with joined(pool, size) as rings:
        for _ in range(2):
            found = list(pool.map(lambda rank: rings[rank].sums(given[rank]), range(size)))
            for index, shape in enumerate(shapes):
                totals = [of_one[index] for of_one in found]
                assert totals[0].shape == shape
                assert all((total == totals[0]).all() for total in totals)
                expected = sum(one[index] for one in given)
                if size == 2:  # there is one order only
                    assert (totals[0] == expected).all()
                np.testing.assert_allclose(totals[0], expected, rtol=1e-4, atol=1e-5)


def test_a_worker_that_ends_or_is_silent_is_lost(
    pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    np: Any = training_module("numpy")
    from workload import workers

    with joined(pool, 2) as (one, other):
        monkeypatch.setattr(workers, "SILENT_SECONDS", 0.2)
        with pytest.raises(PeerLostError, match=r"went silent \(nothing came for 0 s\)"):
            one.sums([np.zeros(10, np.float32)])
        assert one.lost is not None
        other.close()
        with pytest.raises(PeerLostError, match=r"connection closed|reset by peer|Broken pipe"):
            one.sums([np.zeros(1 << 20, np.float32)])


def test_a_stranger_is_turned_away_and_who_does_not_come_is_named(
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    training_module("numpy")
    from workload import workers

    with bound() as first, bound() as second, bound() as nobody:
        addresses = [address(first), address(second)]
        begun = pool.submit(workers.join_ring, first, addresses, 0, "run", SECONDS)
        others = [address(nobody), address(first)]
        stranger = pool.submit(workers.join_ring, nobody, others, 0, "another run", 3.0)
        with pytest.raises(WorkloadError, match="worker 1 did not connect within 3 s"):
            stranger.result()
        partner = workers.join_ring(second, addresses, 1, "run", SECONDS)
        with contextlib.closing(begun.result()), contextlib.closing(partner):
            pass
    with (
        bound() as alone,
        bound() as deaf,
        pytest.raises(WorkloadError, match=f"the worker at {address(deaf)} cannot be reached"),
    ):
        workers.join_ring(alone, [address(alone), address(deaf)], 0, "run", 0.5)
