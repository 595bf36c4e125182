"""The cluster's status in the format of `./cluster status --json`, which is a contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from node.design.model import ClusterDesign, Partition
from node.elastic.budget import summary
from node.elastic.driver import Driver, Machine, MachineState
from node.elastic.history import Change
from node.elastic.ledger import Ledger
from node.elastic.view import state_text
from node.slurm import reservations
from node.slurm.control import Slurm
from node.slurm.hostlist import fold
from node.slurm.node_flags import MISSING
from node.slurm.reasons import cure
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState

ANSWER_SECONDS = 5.0
"""How long the cloud may take to list the machines."""


class PoolAnswers(NamedTuple):
    """What the daemon knows of pools (`node.elastic.pool_choices`).

    Attributes:
        shut: Takes the name of a pool's group of nodes, and returns why it is shut and until when.
        why: Takes a job's id, and returns why it has nodes of a later pool than the first.
    """

    shut: Callable[[str], dict[str, Any] | None] = lambda _: None
    why: Callable[[int], str | None] = lambda _: None


def status(
    design: ClusterDesign,
    control: Slurm,
    driver: Driver,
    ledger: Ledger,
    seen: Sequence[Machine] = (),
    changes: Callable[[str], Iterable[Change]] = lambda _: (),
    accounts: Sequence[Mapping[str, Any]] = (),
    pools: PoolAnswers | None = None,
) -> dict[str, Any]:
    """Return partitions, nodes, reservations, machines, jobs that have not ended, the cost and the budget.

    Args:
        design: The cluster's design.
        control: Slurm's commands.
        driver: The cloud.
        ledger: What was spent.
        seen: The last listing of machines. It is used if the cloud does not answer, which is just when people
            ask.
        changes: Returns a node's last changes, the oldest first.
        accounts: What accounts have used of their budgets.
        pools: What is known of pools.
    """
    pools = pools or PoolAnswers()
    nodes = dict(control.nodes())
    # A node that Slurm no longer lists is missed by name.
    nodes |= {n: NodeState(n, MISSING) for p in design.partitions for n in p.nodes() if n not in nodes}
    cloud_error = None
    listed = seen
    try:
        listed = _in_time(driver)
    except TimeoutError:
        cloud_error = f"no answer within {ANSWER_SECONDS:g} s"
    except Exception as error:  # the cloud's client may raise anything
        cloud_error = str(error) or repr(error)
    machines = [m for m in listed if m.state is not MachineState.TERMINATED]
    jobs, reserved, states = control.detailed_jobs(), control.reservations(), control.partition_states()
    by_node = {m.node: m for m in machines if m.node}
    now = time.time()
    kept = reservations.now_kept(reserved, now)
    partitions = [
        _partition(name, states.get(name, "UP"), of, nodes, pools)
        for name, of in design.slurm_partitions().items()
    ]
    # They have the nodes of others, which are counted there, too.
    owners = {shared.name: shared.nodes_of for shared in design.shared_partitions}
    partitions = [p | ({"nodes_of": owners[p["name"]]} if p["name"] in owners else {}) for p in partitions]
    return {
        "partitions": partitions,
        "nodes": [
            {
                "name": name,
                "partition": getattr(design.partition_of(name), "slurm_name", None),
                "pool": getattr(design.partition_of(name), "pool", None),
                "state": state_text(state),
                "usable": state.is_usable and name not in kept,
                "machine_state": by_node[name].state.value if name in by_node else None,
                "reason": state.reason,
                "next_state": state.next_state,
                "changes": [change.fields() for change in changes(name)],
            }
            for name, state in nodes.items()
        ],
        "reservations": [_reservation(reservation) for reservation in reserved],
        "machines": {
            "running": sum(1 for m in machines if m.state is MachineState.RUNNING),
            "pending": sum(1 for m in machines if m.state is MachineState.PENDING),
        },
        "cloud": cloud_error,
        "jobs": [
            _job(job, reservations.advice(job, reserved, design.nodes_of(job.partition), now))
            | _pool_of(job, design, pools)
            for job in jobs.values()
            if not job.is_over
        ],
        "cost": cost(design, ledger, now, accounts),
    }


def _partition(
    name: str, state: str, pools: Sequence[Partition], nodes: Mapping[str, NodeState], known: PoolAnswers
) -> dict[str, Any]:
    """Return one of Slurm's partitions: the numbers are those of all of its pools together."""
    each = [
        {
            "name": p.pool,
            "machine": p.instance_type,
            "spot": p.spot,
            "price_usd_per_hour": p.price_hour,
            "min": p.min,
            "max": p.max,
            "up": sum(1 for n in p.nodes() if n in nodes and nodes[n].is_up),
            "shut": None if p.pool is None else known.shut(p.name),
        }
        for p in pools
    ]
    return {
        "name": name,
        "state": state,
        "machine": pools[0].instance_type,
        **{key: sum(pool[key] for pool in each) for key in ("min", "max", "up")},
        "pools": [] if pools[0].pool is None else each,
    }


def _pool_of(job: JobState, design: ClusterDesign, known: PoolAnswers) -> dict[str, Any]:
    """Return the pool of a job's nodes, and why it is not its partition's first one."""
    pools = [p.pool for n in job.nodes if (p := design.partition_of(n)) is not None and p.pool is not None]
    return {
        "pool": ",".join(dict.fromkeys(pools)) or None,
        "pool_reason": known.why(job.id) if pools else None,
    }


def _reservation(reservation: Reservation) -> dict[str, Any]:
    return {
        "name": reservation.name,
        "start": int(reservation.start),
        "end": int(reservation.end),
        "nodes": fold(reservation.nodes),
        "flags": sorted(reservation.flags),
        "users": reservation.users,
    }


def _job(job: JobState, reservation: str | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "slurm_id": job.slurm_id,
        "name": job.name,
        "user": job.user,
        "partition": job.partition,
        "state": job.state,
        "elapsed_seconds": None if job.elapsed is None else int(job.elapsed),
        "nodes": fold(job.nodes),
        "cause": job.cause,
        "advice": cure(job, reservation),
    }


def _in_time(driver: Driver) -> Sequence[Machine]:
    """Return the cloud's listing. A client of a hanging cloud may wait for minutes; a person should not."""
    asking = ThreadPoolExecutor(1, thread_name_prefix="status")
    answer = asking.submit(driver.list)
    asking.shutdown(wait=False)
    return answer.result(ANSWER_SECONDS)


def cost(
    design: ClusterDesign, ledger: Ledger, now: float, accounts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return node-hours and USD so far, and what is left of the budget and of those of accounts.

    Args:
        now: Seconds since the epoch.
        accounts: What accounts have used of their budgets.
    """
    account = ledger.account(now)
    return {
        **ledger.cost(now),
        "damaged": list(account.damaged),
        "budget": summary(design, account),
        "accounts": list(accounts),
    }
