"""The connection between a training's workers: a protocol for `sync` and `local-sgd`, and its two kinds.

On CPUs each worker runs its own TensorFlow, and `workload.ring` adds the values of all. That takes less than
half of the CPU time of TensorFlow's collective operations (`tests/bench/exchange.py` measures it). On GPUs a
distribution strategy of TensorFlow does it with NCCL.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from workload.errors import PeerLostError
from workload.options import Options
from workload.rendezvous import Rendezvous, meet
from workload.ring import Ring, join
from workload.slurm import Step, tf_config


class Workers(Protocol):
    """All workers of a training, seen from one of them."""

    size: int
    """The number of replicas of all workers. A worker has one replica for each of its GPUs, or one."""

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
        found: Sequence[Any] = self._strategy.experimental_local_results(value)
        return found

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
        found = tf.numpy_function(
            lambda *arrays: self._ring.sums(arrays), tensors, [tf.float32] * len(tensors)
        )
        for total, tensor in zip(found, tensors, strict=True):
            total.set_shape(tensor.shape)
        return list(found)


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


def connect(options: Options, step: Step, rendezvous: Rendezvous, held: socket.socket) -> Connection:
    """Wait for the other workers and connect to them.

    Args:
        held: The socket that reserves this worker's port.

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
            ring = join(held, addresses, step.rank, step.key, options.rendezvous_timeout)
            return Connection(tf.distribute.get_strategy(), ring, alone)
        os.environ["TF_CONFIG"] = tf_config(addresses, step.rank)
    return Connection(tf.distribute.MultiWorkerMirroredStrategy(), None, alone)
