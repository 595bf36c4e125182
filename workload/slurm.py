"""What Slurm tells a task: its job, and its place in the job step; and the TF_CONFIG that TensorFlow reads.

Pure: everything comes from a mapping of environment variables. TensorFlow's own SlurmClusterResolver needs
GPUs and does not understand suffixes in host lists, so this module parses them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workload.errors import WorkloadError

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodes(text: str) -> list[str]:
    """Expand `"a[1-2,05]-x,b"` to `["a1-x", "a2-x", "a05-x", "b"]`, in Slurm's order.

    A name may have any number of bracket groups, with text between and after them. A range is padded with
    zeros to the width of its lower bound, as Slurm does.

    Raises:
        ValueError: The text is not a host list.
    """
    return [name for item in _split(text) for name in _expand_item(item, text)]


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in the host list {text!r}")
    if depth:
        raise ValueError(f"unbalanced brackets in the host list {text!r}")
    items.append(text[start:])
    if not all(items):
        raise ValueError(f"an empty name in the host list {text!r}")
    return items


def _expand_item(item: str, text: str) -> list[str]:
    # re.split with one group alternates: literal, bracket's inside, literal, …
    parts: list[list[str]] = []
    for position, part in enumerate(re.split(r"\[([^\]]*)\]", item)):
        parts.append([part] if position % 2 == 0 else _expand_ranges(part, text))
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _expand_ranges(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not a number or range in the host list {text!r}")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low):
            raise ValueError(f"the range {item!r} runs backwards in the host list {text!r}")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Expand `"2(x3),1"` to `[2, 2, 2, 1]`: Slurm's notation for one number for each node.

    Raises:
        ValueError: The text is not of this form.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is not a count of tasks in {text!r}")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


@dataclass(frozen=True, slots=True)
class Step:
    """One task's view of its job step.

    Attributes:
        rank: The task's number, from 0.
        nodes: The node of each task, in block order. `len(nodes)` is the number of tasks.
        node: This task's node. Under a cyclic distribution it differs from `nodes[rank]`.
        key: A key that differs between any two steps, and between two starts of one job.
    """

    rank: int
    nodes: tuple[str, ...]
    node: str
    key: str

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def chief(self) -> bool:
        return self.rank == 0

    @property
    def tasks_on_node(self) -> int:
        return self.nodes.count(self.node)

    @property
    def node_count(self) -> int:
        return len(set(self.nodes))


def read_step(env: Mapping[str, str]) -> Step:
    """Return the step that the variables describe. Without Slurm it is a single task.

    Raises:
        WorkloadError: The variables contradict one another; or several nodes are allocated and the program
            was started without `srun`, so that it would train on only one of them.
    """
    node = env.get("SLURMD_NODENAME", "localhost")
    # The batch script makes SLURM_STACKS_RUN. It also differs from that of a job with the same number on an
    # earlier cluster whose shared folder still exists.
    run = (
        env.get("SLURM_STACKS_RUN") or f"{env.get('SLURM_JOB_ID', '0')}.{env.get('SLURM_RESTART_COUNT', '0')}"
    )
    key = f"{run}.{env.get('SLURM_STEP_ID') or env.get('SLURM_STEPID') or '0'}"
    if "SLURM_STEP_NUM_TASKS" not in env:
        allocated = env.get("SLURM_JOB_NUM_NODES", "1")
        if allocated != "1":
            raise WorkloadError(f"this job has {allocated} nodes: start the training with srun")
        return Step(0, (node,), node, key)
    try:
        rank, size = int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"])
        names = expand_nodes(env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"])
        per_node = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
        counts = expand_counts(per_node) if per_node else [size // len(names)] * len(names)
    except KeyError as error:
        raise WorkloadError(f"Slurm did not set {error.args[0]} in this step") from error
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    nodes = tuple(name for name, count in zip(names, counts, strict=False) for _ in range(count))
    if len(counts) != len(names) or len(nodes) != size or not 0 <= rank < size:
        raise WorkloadError(
            f"Slurm's variables contradict one another: task {rank} of {size}, "
            f"{len(names)} nodes, tasks a node {per_node!r}"
        )
    return Step(rank, nodes, env.get("SLURMD_NODENAME") or nodes[rank], key)


def tf_config(addresses: Sequence[str], rank: int) -> str:
    """Return TF_CONFIG's value: a cluster of workers (`host:port` each, in the order of their ranks)."""
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}})


@dataclass(frozen=True, slots=True)
class Job:
    """What the result record says about the run's job. None means not known.

    Attributes:
        submitted: The time of the submission, in seconds since the epoch.
        pool: The pool of the run's nodes, if their partition has pools; of a mixed job all of its pools.
        machine: The nodes' instance type.
        price_hour: USD for a node and hour; of a mixed job the mean of its nodes.
        start_latency: Seconds from when Slurm could start the job to this start of its batch script, by the
            machines' UTC clocks.
    """

    job_id: str | None
    partition: str | None
    restarts: int
    submitted: float | None
    stack: str | None
    pool: str | None
    machine: str | None
    digest: str | None
    price_hour: float | None
    start_latency: float | None


def read_job(env: Mapping[str, str], now: float) -> Job:
    """Read the job from Slurm's variables and those of the batch script (SLURM_STACKS_…).

    A job can start from its submission on, or from its eligible time if that is later: a job that depends on
    others is eligible once these have ended, and a requeued job is eligible after Slurm's delay. Slurm
    tells the eligible time in whole seconds, rounded down, so a submission in that second counts as later.

    Args:
        now: When this task started, in seconds since the epoch; used if the batch script does not say when it
            started.

    Raises:
        WorkloadError: A variable that should be a number is not.
    """
    submitted = _number(env, "SLURM_STACKS_SUBMITTED")
    eligible = _number(env, "SLURM_STACKS_ELIGIBLE")
    could = None if eligible is None else max(eligible, submitted or eligible)
    started = _number(env, "SLURM_STACKS_STARTED") or now
    pool, machine, price = _nodes(env)
    return Job(
        job_id=env.get("SLURM_JOB_ID"),
        partition=env.get("SLURM_JOB_PARTITION"),
        restarts=int(_number(env, "SLURM_RESTART_COUNT") or 0),
        submitted=submitted,
        stack=env.get("SLURM_STACKS_STACK") or None,
        pool=pool,
        machine=machine,
        digest=env.get("SLURM_STACKS_WORKLOAD_DIGEST") or None,
        price_hour=price,
        # A negative difference means that a clock was set in between, so the latency is not known.
        start_latency=None if could is None or started < could else started - could,
    )


def _nodes(env: Mapping[str, str]) -> tuple[str | None, str | None, float | None]:
    """Return the pool, the instance type and the price of the job's nodes.

    Which pool a run gets is known once it runs: a node is `<partition>-<pool>-<number>`, and the batch script
    has the type and the price of each (`workload.script.Pool`). Other jobs' scripts name the only ones.
    """
    of_pools = env.get("SLURM_STACKS_POOLS")
    if not of_pools:
        return None, env.get("SLURM_STACKS_MACHINE") or None, _number(env, "SLURM_STACKS_PRICE_HOUR")
    try:
        known = {str(group): values for group, *values in json.loads(of_pools)}
        nodes = expand_nodes(env.get("SLURM_JOB_NODELIST") or env.get("SLURMD_NODENAME", ""))
        found = [known[node.rpartition("-")[0]] for node in nodes]
        pools, machines = ([str(values[i]) for values in found] for i in (0, 1))
        prices = [None if price is None else float(price) for _, _, price in found]
    except (ValueError, TypeError, KeyError, IndexError):
        # A node of a pool that is newer than the script: the run is worth more than its price.
        return None, None, None
    priced = [price for price in prices if price is not None]
    mean = sum(priced) / len(prices) if len(priced) == len(prices) else None
    return ",".join(dict.fromkeys(pools)), ",".join(dict.fromkeys(machines)), mean


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise WorkloadError(f"{name} is not a number: {text!r}") from error
