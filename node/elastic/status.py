"""The cluster's status in the format of `./cluster status --json`, which is a contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node.design.model import ClusterDesign, SharedPartition
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


def status(
    design: ClusterDesign,
    control: Slurm,
    driver: Driver,
    ledger: Ledger,
    seen: Sequence[Machine] = (),
    changes: Callable[[str], Iterable[Change]] = lambda _: (),
    accounts: Sequence[Mapping[str, Any]] = (),
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
    """
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
        {
            "name": p.name,
            "state": states.get(p.name, "UP"),
            "machine": p.instance_type,
            "min": p.min,
            "max": p.max,
            "up": sum(1 for n in p.nodes() if n in nodes and nodes[n].is_up),
        }
        for p in design.partitions
    ]
    partitions += [_shared(design, p, states, nodes) for p in design.shared_partitions]
    return {
        "partitions": partitions,
        "nodes": [
            {
                "name": name,
                "partition": getattr(design.partition_of(name), "name", None),
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
            for job in jobs.values()
            if not job.is_over
        ],
        "cost": cost(design, ledger, now, accounts),
    }


def _shared(
    design: ClusterDesign, shared: SharedPartition, states: Mapping[str, str], nodes: Mapping[str, NodeState]
) -> dict[str, Any]:
    """Return a partition that has the nodes of another one, which are counted there, too."""
    pools = design.pools_of(shared.name)
    return {
        "name": shared.name,
        "state": states.get(shared.name, "UP"),
        "machine": pools[0].instance_type,
        "min": sum(p.min for p in pools),
        "max": sum(p.max for p in pools),
        "up": sum(1 for p in pools for n in p.nodes() if n in nodes and nodes[n].is_up),
        "nodes_of": shared.nodes_of,
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
