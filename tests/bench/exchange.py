"""What a step of the synchronous training costs by each way of adding the workers' gradients:

    .venv/bin/python -m tests.bench.exchange --cycles 6
    .venv/bin/python -m tests.bench.exchange --mpi

With `--mpi`, mpirun must be on PATH, and PYTHONPATH must name a folder with mpi4py.

Each worker is a process on a core of its own. All ways run in the same processes, some steps of each in
turns, every second cycle backwards, so that other load on the host affects all of them alike. The output is
the median over the cycles, with the least and the most, of two ratios to a single worker in the same cycle:
by the clock, which counts on an idle host, and by the CPU time of a step, which a busy host changes less.
OpenMPI waits by polling, so the CPU time of its ways says little.

one              a single worker, the others wait
alone            all workers, without any exchange: the most that is possible here
tensorflow       MultiWorkerMirroredStrategy's collective operations, over gRPC
tensorflow-fp16  the same with 16-bit floats on the wire
ring             `workload.workers`, over TCP
ring-fp16        the same with 16-bit floats on the wire (two workers)
ring-overlap     the ring runs while the convolution's gradient is computed, which needs 0.1 % of the payload
mpi              MPI_Allreduce, shared memory or what OMPI_MCA_btl says
mpi-fp16         MPI_Sendrecv of 16-bit floats (two workers)
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.figures import ROOT, parser, ratios, spread, trainer

PRINTS = r"^ring +\d+\.\d .* \d+\.\d\d \(.*\) +\d+\.\d\d \(.*\)$"
PLAIN = ("one", "alone", "tensorflow", "tensorflow-fp16", "ring", "ring-fp16", "ring-overlap")
MPI = ("mpi", "mpi-fp16")
Way = Callable[[Any], Any]


def free_address() -> tuple[socket.socket, str]:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", 0))
    return listening, f"127.0.0.1:{listening.getsockname()[1]}"


def worker(options: argparse.Namespace) -> None:
    """Measure as one worker. Rank 0 writes its results to the file `--out`."""
    mpi = None
    if options.mpi:
        mpi = importlib.import_module("mpi4py.MPI")
        rank = mpi.COMM_WORLD.Get_rank()
    else:
        rank = options.rank
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_GRPC_REUSE_PORT": "1"}
    # Two addresses each: TensorFlow's server's and the ring's.
    held = [free_address() for _ in range(2)]
    Path(options.out, f"{rank}.tmp").write_text(json.dumps([address for _, address in held]))
    Path(options.out, f"{rank}.tmp").rename(Path(options.out, f"{rank}.json"))
    notes = [Path(options.out, f"{n}.json") for n in range(options.workers)]
    while not all(note.exists() for note in notes):
        time.sleep(0.05)
    addresses = [json.loads(note.read_text()) for note in notes]
    cluster = {"worker": [tensorflow for tensorflow, _ in addresses]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})

    from workload import workers

    joined = workers.join_ring(held[1][0], [own for _, own in addresses], rank, "bench", 600.0)
    measured = _measure(options, rank, joined, mpi)
    if rank == 0:
        Path(options.out, "measured.json").write_text(json.dumps(measured))
    sys.stdout.flush()
    if mpi is not None:
        mpi.Finalize()
    os._exit(0)  # at a normal exit TensorFlow's server would wait for the others


def _measure(options: argparse.Namespace, rank: int, joined: Any, mpi: Any) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    steps = _functions(options, joined, mpi)
    nothing: Any = np.zeros(1, np.float32)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in options.ways}
    begun = options.workers * options.steps
    for cycle in range(options.cycles + 1):
        for way in options.ways[:: -1 if cycle % 2 else 1]:
            joined.sums([nothing])  # all begin at once
            cpu, wall = time.process_time(), time.monotonic()
            if way != "one" or rank == 0:
                steps[way](tf.constant(begun), tf.constant(options.steps)).numpy()
            cpu = time.process_time() - cpu
            joined.sums([nothing])
            wall = time.monotonic() - wall
            all_cpu = float(joined.sums([np.array([cpu], np.float32)])[0][0])
            if cycle:  # the first one traces functions and warms up
                each = all_cpu / (1 if way == "one" else options.workers)
                found[way].append((wall / options.steps, each / options.steps))
        if rank == 0:
            print(f"cycle {cycle} of {options.cycles}, load {os.getloadavg()[0]:.1f}", flush=True)
    return {"found": found}


def _functions(options: argparse.Namespace, joined: Any, mpi: Any) -> dict[str, Any]:
    """Way -> its function `f(begun, count)`, which runs `count` steps."""
    import numpy as np
    import tensorflow as tf

    from workload import published, sync, workers
    from workload.data import Data
    from workload.loop import Plan

    rank = joined.rank
    random = np.random.default_rng(rank)
    images = random.integers(0, 256, (6400, 28, 28), np.uint8)
    labels = random.integers(0, 10, 6400).astype(np.uint8)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    alone = tf.distribute.get_strategy()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    under_way: list[Any] = []

    def plan(used: Any) -> Plan:
        data = Data("random", images, labels, images[:1], labels[:1])
        return Plan(used, data, 1, 1000, options.batch, 0.01, 0)

    def halves(flat: Any) -> Any:
        theirs: Any = np.empty(len(flat), np.float16)
        mine = flat.astype(np.float16)
        mpi.COMM_WORLD.Sendrecv([mine.view(np.uint16), mpi.UINT16_T], 1 - rank, 0,
                                [theirs.view(np.uint16), mpi.UINT16_T], 1 - rank, 0)  # fmt: skip
        return mine.astype(np.float32) + theirs

    def of_mpi(flat: Any) -> Any:
        total = np.empty_like(flat)
        mpi.COMM_WORLD.Allreduce(flat, total)
        return total

    def python(function: Any) -> Way:
        def call(flat: Any) -> Any:
            total = tf.numpy_function(function, [flat], tf.float32)
            total.set_shape(flat.shape)
            return total

        return call

    def ring_halves(flat: Any) -> Any:
        return _exchange_halves(joined, flat)

    def collective(kind: Any) -> Way:
        def call(flat: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return tf.cast(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(flat, kind)), tf.float32)

        return call

    ways: dict[str, tuple[Any, Way | None]] = {
        "one": (alone, None),
        "alone": (alone, None),
        "tensorflow": (strategy, collective(tf.float32)),
        "tensorflow-fp16": (strategy, collective(tf.float16)),
        "ring": (alone, None),
        "ring-fp16": (alone, python(ring_halves)),
        "mpi": (alone, python(of_mpi)),
        "mpi-fp16": (alone, python(halves)),
    }

    def function(way: str) -> Any:
        used, add = ways.get(way, (alone, None))
        given = plan(used)
        with used.scope():
            built = published.build_model()
        variables = built.trainable_variables
        sizes = [v.shape.num_elements() for v in variables]
        whole = sync.gradient_of_rows(given, built)

        def begin(flat: Any) -> Any:
            under_way.append(pool.submit(joined.sums, [flat.copy()]))
            return np.float32(0)

        def end(rest: Any) -> Any:
            (large,) = under_way.pop().result()
            return np.concatenate([large, *joined.sums([rest])])

        def overlapped(rows: Any) -> list[Any]:
            """Send the gradients of the dense layers first: they are summed while the convolution's is
            computed."""
            convolution = built.layers[1]
            x = tf.reshape(tf.cast(tf.gather(given.data.x_train, rows), tf.float32) / 255.0, [-1, 28, 28, 1])
            y = tf.gather(tf.constant(given.data.y_train, tf.int64), rows)
            features = convolution(x)
            with tf.GradientTape() as tape:
                tape.watch(features)
                logits = built.layers[4](built.layers[3](built.layers[2](features)))
                loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            # The chain rule is written out, because one tape would have to be used twice.
            *dense, back = tape.gradient(loss, [*variables[2:], features])
            flat = tf.concat([tf.reshape(g, [-1]) for g in dense], axis=0)
            token = tf.numpy_function(begin, [flat], tf.float32)
            with tf.control_dependencies([token]):
                back = tf.identity(back) * tf.cast(features > 0, tf.float32)
            kernel = tf.raw_ops.Conv2DBackpropFilter(
                input=x, filter_sizes=[3, 3, 1, 32], out_backprop=back, strides=[1, 1, 1, 1], padding="VALID"
            )
            rest = tf.concat([tf.reshape(kernel, [-1]), tf.reduce_sum(back, [0, 1, 2])], axis=0)
            total = tf.numpy_function(end, [rest], tf.float32)
            total.set_shape([sum(sizes)])
            # The dense layers' gradients come first.
            *later, a, b = tf.split(total, [*sizes[2:], *sizes[:2]])
            return [tf.reshape(p, v.shape) for p, v in zip([a, b, *later], variables, strict=True)]

        def step(number: Any) -> Any:
            rows = tf.range(number % 100 * options.batch, (number % 100 + 1) * options.batch) % 6400
            if way == "ring-overlap":
                gradients = overlapped(rows)
            else:
                *gradients, _ = whole(rows)
                if way == "ring":
                    gradients = workers.RingWorkers(joined).sums(gradients)
                elif add is not None:
                    flat = add(tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0))
                    parts = tf.split(flat, sizes)
                    gradients = [tf.reshape(p, v.shape) for p, v in zip(parts, variables, strict=True)]
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(1e-4 * gradient)
            return tf.reduce_sum(gradients[-1])

        def steps(begun: Any, count: Any) -> Any:
            def one_more(number: Any, total: Any) -> Any:
                out = used.run(step, args=(begun + number,))
                return number + 1, total + used.experimental_local_results(out)[0]

            return tf.while_loop(lambda number, _: number < count, one_more, (0, tf.zeros([])))[-1]

        return tf.function(steps, autograph=False)

    return {way: function(way) for way in options.ways}


def _exchange_halves(joined: Any, flat: Any) -> Any:
    """Add two workers' 16-bit floats over the ring's own connections, without any conversion."""
    import numpy as np

    mine = flat.astype(np.float16)
    padded: Any = np.zeros(len(mine) + len(mine) % 2, np.float16)
    padded[: len(mine)] = mine
    theirs = np.empty_like(padded)
    joined._turn(padded.view(np.float32), theirs.view(np.float32), None)
    return mine.astype(np.float32) + theirs[: len(mine)]


def report(measured: dict[str, Any], workers: int) -> None:
    found: dict[str, list[list[float]]] = measured["found"]

    print(f"\n{'way':<17}{'ms a step':<25}{'CPU ms a step':<25}{'times as fast as one':<25}by CPU time")
    base = [list(column) for column in zip(*found["one"], strict=True)]
    for way, blocks in found.items():
        columns = [list(column) for column in zip(*blocks, strict=True)]
        many = 1 if way == "one" else workers
        times = [spread([1000 * seconds for seconds in column]) for column in columns]
        faster = [
            spread([many * ratio for ratio in ratios(first, column)], 2)
            for first, column in zip(base, columns, strict=True)
        ]
        print(f"{way:<17}{times[0]:<25}{times[1]:<25}{faster[0]:<25}{faster[1]}")


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__, steps=2, cycles=2, ways=["one", "ring"])
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--steps", type=int, default=10, help="of a block")
    arguments.add_argument("--cycles", type=int, default=6, help="even: as often in either order")
    arguments.add_argument("--mpi", action="store_true", help="start by mpirun, and measure MPI too")
    arguments.add_argument("--ways", nargs="+", help="these only; `one` is always among them")
    arguments.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--out", help=argparse.SUPPRESS)
    return arguments


def main() -> int:
    chosen = options().parse_args()
    chosen.ways = chosen.ways or [*PLAIN, *(MPI if chosen.mpi else ())]
    if "one" not in chosen.ways:
        chosen.ways.insert(0, "one")
    if chosen.out:
        worker(chosen)
    if len(os.sched_getaffinity(0)) < chosen.workers:
        raise SystemExit("there are fewer cores than workers: nothing can be compared")
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-exchange-") as folder:
        command = [trainer(), "-m", "tests.bench.exchange", *sys.argv[1:], "--out", folder]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        if chosen.mpi:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            # OpenMPI waits by asking again and again; so it lets others of the same core run.
            mpirun = ["mpirun", "-n", str(chosen.workers), "--bind-to", "none", "--oversubscribe"]
            commands = [[*mpirun, "--mca", "mpi_yield_when_idle", "1", *command]]
        else:
            commands = [[*command, "--rank", str(rank)] for rank in range(chosen.workers)]
        started = [subprocess.Popen(words, env=env) for words in commands]
        try:
            statuses = [process.wait() for process in started]
        finally:
            for process in started:
                process.kill()
        if any(statuses):
            raise SystemExit(f"exit statuses {statuses}")
        report(json.loads(Path(folder, "measured.json").read_text()), chosen.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
