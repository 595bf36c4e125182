"""The connection between a training's workers: a protocol for `sync` and `local-sgd`, and its two kinds.

On CPUs each worker runs its own TensorFlow, and a ring of TCP connections adds the values of all: each worker
sends to its right neighbour, and receives from its left one. Each of N workers sends 2·(N-1)/N of the payload
(P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
Distrib. Comput. 69, 2009), which is the minimum. TensorFlow's own collective operations do the same through
gRPC, which copies and encodes each message, and so need more than twice the CPU time
(`tests/bench/exchange.py` measures both, and MPI). Each part of the payload is always added in the same
order, and all workers get the same bytes. So two runs on the same number of workers agree bit for bit.

On GPUs a distribution strategy of TensorFlow adds the values with NCCL.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from workload.errors import PeerLostError, WorkloadError
from workload.options import Options
from workload.rendezvous import Rendezvous, meet
from workload.slurm import Step, tf_config
from workload.waiting import wait_at_most

Floats = Any
"""An array of float32."""

PIECE = 512 * 1024
"""Bytes that are received and added at once. They fit in the processor's cache."""
SILENT_SECONDS = 120.0
"""How long a neighbour may send nothing before it counts as lost. It may be tracing a function, or saving.
The end of a neighbour is noticed at once."""
SMALL = 16 * 1024
"""Arrays with fewer numbers are sent together."""
GREETING_SECONDS = 10.0
"""How long a new connection may take to identify itself."""


class Ring:
    """This worker's place in the ring.

    Args:
        rank: The number of this worker.
        size: The number of workers, at least 2.
        right: A connection to the worker `rank + 1`.
        left: A connection from the worker `rank - 1`.

    Attributes:
        seconds: Seconds that all sums took, with the wait for slower workers.
        lost: Why the last sum failed. TensorFlow replaces the error of a Python function by its own.
    """

    def __init__(self, rank: int, size: int, right: socket.socket, left: socket.socket) -> None:
        self.rank, self.size = rank, size
        self._right, self._left = right, left
        for connection in (right, left):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._scratch: Floats = np.empty(PIECE // 4, np.float32)
        self.seconds = 0.0
        self.lost: PeerLostError | None = None

    def sums(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Return the sums of all workers' arrays. All workers must call this with arrays of the same shapes.

        Large arrays are not concatenated, which would cost about a quarter of the sum's time.

        Args:
            arrays: The arrays of float32.

        Raises:
            PeerLostError: Another worker has ended, or sends nothing.
        """
        flat = [np.ravel(np.asarray(array, np.float32)) for array in arrays]
        small = [index for index, array in enumerate(flat) if len(array) < SMALL]
        totals: list[Floats] = list(flat)
        began = time.monotonic()
        try:
            for index, array in enumerate(flat):
                if index not in small:
                    totals[index] = self._sum(array)
            if small:
                together = self._sum(np.concatenate([flat[index] for index in small]))
                ends = np.cumsum([len(flat[index]) for index in small])
                for index, part in zip(small, np.split(together, ends[:-1]), strict=True):
                    totals[index] = part
        except PeerLostError as error:
            self.lost = error
            raise
        self.seconds += time.monotonic() - began
        return [total.reshape(np.shape(array)) for total, array in zip(totals, arrays, strict=True)]

    def close(self) -> None:
        self._right.close()
        self._left.close()

    def _sum(self, values: Floats) -> Floats:
        total = np.empty_like(values)
        ends = [len(values) * part // self.size for part in range(self.size + 1)]
        parts = [slice(ends[part], ends[part + 1]) for part in range(self.size)]
        for turn in range(self.size - 1):
            out, into = parts[(self.rank - turn) % self.size], parts[(self.rank - turn - 1) % self.size]
            self._turn(values[out] if turn == 0 else total[out], total[into], values[into])
        for turn in range(self.size - 1):
            out, into = parts[(self.rank - turn + 1) % self.size], parts[(self.rank - turn) % self.size]
            self._turn(total[out], total[into], None)
        return total

    def _turn(self, out: Floats, into: Floats, plus: Floats | None) -> None:
        """Send `out` to the right neighbour, receive `into` from the left one, and add `plus` if given."""
        sending = memoryview(out).cast("B") if len(out) else memoryview(b"")
        scratch, whole = memoryview(self._scratch).cast("B"), into.nbytes
        direct = memoryview(into).cast("B") if plus is None and whole else None
        sent = received = 0
        wait = select.poll()
        if whole:
            wait.register(self._left, select.POLLIN)
        if len(sending):
            wait.register(self._right, select.POLLOUT)
        while sent < len(sending) or received < whole:
            ready = {number for number, _ in wait.poll(SILENT_SECONDS * 1000)}
            if not ready:
                raise PeerLostError.because(f"nothing came for {SILENT_SECONDS:.0f} s")
            with _lost_on_error():
                if self._right.fileno() in ready:
                    sent += self._right.send(sending[sent : sent + PIECE])
                    if sent == len(sending):
                        wait.unregister(self._right)
            with _lost_on_error():
                if self._left.fileno() in ready:
                    received += self._receive(direct, scratch, received, into, plus)
                    if received == whole:
                        wait.unregister(self._left)

    def _receive(
        self, direct: memoryview | None, scratch: memoryview, received: int, into: Floats, plus: Floats | None
    ) -> int:
        """Receive the bytes that have arrived, and return their number."""
        if direct is not None:
            got = self._left.recv_into(direct[received : received + PIECE])
        else:
            filled = received % PIECE
            end = min(PIECE, filled + into.nbytes - received)
            got = self._left.recv_into(scratch[filled:end])
            if plus is not None and got and filled + got == end:
                first = (received - filled) // 4
                piece = slice(first, first + end // 4)
                np.add(plus[piece], self._scratch[: end // 4], out=into[piece])
        if got == 0:
            raise PeerLostError.because("connection closed")
        return got


@contextlib.contextmanager
def _lost_on_error() -> Iterator[None]:
    """Say that a neighbour is lost if its connection fails. One that is not ready after all is waited for."""
    try:
        yield
    except BlockingIOError:
        pass
    except OSError as error:
        raise PeerLostError.because(str(error.strerror)) from error


def join_ring(listening: socket.socket, addresses: Sequence[str], rank: int, key: str, limit: float) -> Ring:
    """Connect to the right neighbour and wait for the left one.

    Args:
        listening: A bound socket at which this worker is reached.
        addresses: The `host:port` of each worker, in the order of their ranks; at least 2.
        rank: The number of this worker.
        key: The same for all workers of a run. A connection with another key is refused.
        limit: Seconds to wait.

    Raises:
        WorkloadError: A neighbour cannot be reached, or did not come in time.
    """
    end = time.monotonic() + limit
    size = len(addresses)
    listening.listen()
    right = _connect(addresses[(rank + 1) % size], end)
    right.sendall(_greeting(key, rank))
    expected = _greeting(key, (rank - 1) % size)
    while (seconds := end - time.monotonic()) > 0:
        listening.settimeout(seconds)
        with contextlib.suppress(OSError):  # nobody connected, or the connection broke
            left, _ = listening.accept()
            left.settimeout(GREETING_SECONDS)
            if _exactly(left, len(expected)) == expected:
                return Ring(rank, size, right, left)
            left.close()
    right.close()
    raise WorkloadError(f"worker {(rank - 1) % size} did not connect within {limit:.0f} s")


def _connect(address: str, end: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    refused = OSError("no time is left")

    def connected() -> socket.socket | None:
        nonlocal refused
        try:
            return socket.create_connection((host, int(port)), timeout=max(0.1, end - time.monotonic()))
        except OSError as error:  # it may not listen yet
            refused = error
            return None

    if (connection := wait_at_most(connected, end - time.monotonic())) is None:
        raise WorkloadError(f"the worker at {address} cannot be reached: {refused}") from refused
    return connection


def _greeting(key: str, rank: int) -> bytes:
    text = json.dumps({"slurm-stacks": key, "rank": rank}).encode()
    return len(text).to_bytes(4, "big") + text


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (more := connection.recv(count - len(received))):
        received += more
    return received


class Workers(Protocol):
    """All workers of a training, seen from one of them.

    Attributes:
        size: The number of replicas of all workers. A worker has one replica for each of its GPUs, or one.
    """

    size: int

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which variables are made."""
        ...

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on each replica of this worker; `mine` returns the replicas' values."""
        ...

    def mine(self, value: Any) -> Sequence[Any]:
        """Return the values of this worker's own replicas."""
        ...

    def shared(self, weights: Sequence[Any]) -> Sequence[Any]:
        """Return the first worker's arrays. The others' may differ by their processors' rounding."""
        ...

    def number(self) -> Any:
        """Return the replica's number, from 0. Call this in a function of `run`."""
        ...

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the sums over all replicas, in one exchange. Call this in a function of `run`."""
        ...


class StrategyWorkers:
    """The replicas of one of TensorFlow's distribution strategies."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.size: int = strategy.num_replicas_in_sync

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        scope: contextlib.AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._strategy.run(function, args=args)

    def mine(self, value: Any) -> Sequence[Any]:
        local_values: Sequence[Any] = self._strategy.experimental_local_results(value)
        return local_values

    def shared(self, weights: Sequence[Any]) -> Sequence[Any]:
        return weights  # the strategy has made the weights equal

    def number(self) -> Any:
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        flat = tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, flat)
        parts = tf.split(total, [t.shape.num_elements() for t in tensors])
        return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]


class RingWorkers:
    """Workers with one replica each, connected by a ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.size = ring.size

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def mine(self, value: Any) -> Sequence[Any]:
        return [value]

    def shared(self, weights: Sequence[Any]) -> Sequence[Any]:
        return self._ring.sums(weights if self._ring.rank == 0 else [np.zeros_like(w) for w in weights])

    def number(self) -> Any:
        return self._ring.rank

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        totals = tf.numpy_function(
            lambda *arrays: self._ring.sums(arrays), tensors, [tf.float32] * len(tensors)
        )
        for total, tensor in zip(totals, tensors, strict=True):
            total.set_shape(tensor.shape)
        return list(totals)


def of(strategy: Any, ring: Ring | None) -> Workers:
    """Return the workers of a training, connected by the ring if there is one."""
    return StrategyWorkers(strategy) if ring is None else RingWorkers(ring)


@dataclass(frozen=True, slots=True)
class Connection:
    """What connects a training's workers.

    Attributes:
        strategy: TensorFlow's distribution strategy. With a ring it knows only this worker.
        ring: The ring; `None` if the strategy connects the workers, or if there is only one worker.
        alone: Whether there is only one worker.
    """

    strategy: Any
    ring: Ring | None
    alone: bool

    def meant_by(self, error: Exception) -> Exception:
        """Return `PeerLostError` if TensorFlow's error means that a worker is lost, else the error."""
        if self.ring is not None:
            return self.ring.lost or error
        errors = tf.errors
        lost = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)
        if self.alone or not isinstance(error, (*lost, errors.InternalError, errors.DeadlineExceededError)):
            return error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The cause is deep in a listing of the graph's nodes.
        first = lines[0] if lines else "no reason given"
        return PeerLostError.because(next((line for line in lines if "aborted by" in line), first))


def connect(options: Options, step: Step, rendezvous: Rendezvous, reserved: socket.socket) -> Connection:
    """Wait for the other workers and connect to them.

    Args:
        reserved: The socket that reserves this worker's port.

    Raises:
        WorkloadError: A worker did not appear in time.
    """
    alone = step.size == 1
    if not alone:
        addresses = meet(rendezvous, options.rendezvous_timeout)
        if step.chief:
            print(f"workers: {', '.join(addresses)}", flush=True)
        # On GPUs NCCL is faster than a ring through the CPUs; `published` is as the published runs were.
        if options.gpus_per_node == 0 and options.profile != "published":
            ring = join_ring(reserved, addresses, step.rank, step.key, options.rendezvous_timeout)
            return Connection(tf.distribute.get_strategy(), ring, alone)
        os.environ["TF_CONFIG"] = tf_config(addresses, step.rank)
    return Connection(tf.distribute.MultiWorkerMirroredStrategy(), None, alone)
