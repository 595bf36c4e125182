"""Shows a cluster's status: what it spends, its nodes, reservations and jobs, in words."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from cli.console.tables import cell, new_table, put
from cli.disks import troubles
from cli.hints import hint
from node.backup import archive
from node.elastic.rules import NodePhase
from node.elastic.view import REASON_PREFIX, REBOOT_ISSUED, REBOOT_REASONS, is_admin_disabled
from node.elastic.view import phase as phase_of
from node.slurm import node_flags
from node.slurm.hostlist import MOST_FOREIGN, Expander, fold
from node.slurm.phases import Phase, phase
from node.slurm.reasons import in_words
from node.slurm.reservations import Reservation, now_kept
from node.slurm.states import NodeState
from node.system import plurals

MOST_JOBS = 50
MOST_REMARKS = 3
"""More are not shown: they are mostly of the same script."""
FAILING_TIMES = 2
OF_THE_CLOUD = ("reconcile", "topology")
"""The steps that ask the cloud, of whose silence the status has a line of its own."""
BUDGET_UNITS = {"usd": "USD", "hours": "node-hours"}


def show_status(
    status: dict[str, Any], stack: str = "local", *, on_this_machine: bool = False, outputs: str | None = None
) -> None:
    """Print the status as tables: partitions, nodes that are not simply off, reservations, jobs, cost.

    Args:
        outputs: The value of `--outputs`, where that takes the stack's place.
        on_this_machine: Whether the cloud is a process of this machine, which the user can start again.
    """
    for trouble, cure in troubles(status, stack):
        put(f"[yellow]warning:[/yellow] {cell(f'{trouble}. {cure}'.rstrip())}")
    if refused := status.get("settings"):
        put(f"[yellow]warning:[/yellow] {cell(str(refused))}")
    partitions = new_table("Partitions", "name", "machine", "min", "max", "up")
    for p in status["partitions"]:
        _add_partition(partitions, p)
    put(partitions)
    _show_shut(status["partitions"])
    closed = status.get("closed") or {"partitions": []}
    for p in status["partitions"]:
        if p["name"] in closed["partitions"]:
            continue
        if why := PARTITION_STATES.get(p.get("state", "UP")):
            # People paste this line, and the name may be any machine's.
            name = shlex.quote(f"partitionname={p['name']}")
            cure = hint("exec", stack, f"-- scontrol update {name} state=up", outputs)
            put(f"\nPartition {cell(p['name'])} is {p['state'].lower()}: {why}; `{cell(cure)}` opens it")
    if closed["partitions"]:
        _show_closed(closed, stack)
    if error := status.get("cloud"):
        cure = (
            f" If its agent is dead or hangs, `{hint('up', stack)}` starts it again."
            if on_this_machine
            else ""
        )
        put(f"\nThe cloud does not answer: {cell(error)}. The states of machines are old.{cure}")
    _show_failing(status, hint("logs controller", stack, outputs=outputs))
    expander = Expander(MOST_FOREIGN)
    reserved = [_reservation(reservation, expander) for reservation in status.get("reservations", ())]
    waiting = any(_phase(job) is Phase.WAITING for job in status["jobs"])
    _show_nodes(status["nodes"], reserved, waiting=waiting, listed=not status.get("cloud"))
    _show_reservations(reserved)
    first = {p["name"]: p["pools"][0]["name"] for p in status["partitions"] if p.get("pools")}
    _show_jobs(status["jobs"], hint("exec", stack, "-- squeue", outputs), first)
    _show_remarks(status.get("remarks", ()))
    _show_spent(status)
    _show_backup(status.get("backup"))


def _add_partition(table: Table, partition: Mapping[str, Any]) -> None:
    """Add a partition's row, and below it one for each of its pools."""
    numbers = ("min", "max", "up")
    pools = partition.get("pools", ())
    machine = plurals.count(len(pools), "pool") if pools else partition["machine"]
    if partition.get("nodes_of"):
        machine, pools = f"nodes of {partition['nodes_of']}", ()
    table.add_row(*map(cell, (partition["name"], machine, *(partition[key] for key in numbers))))
    for pool in pools:
        machine = f"{pool['machine']}{', spot' if pool['spot'] else ''}"
        row = (f"{partition['name']}/{pool['name']}", machine, *(pool[key] for key in numbers))
        table.add_row(*map(cell, row))


def _show_shut(partitions: Iterable[Mapping[str, Any]]) -> None:
    """Say which pools give no machines, why and until when. Jobs get nodes of the others."""
    for partition in partitions:
        for pool in () if partition.get("nodes_of") else partition.get("pools", ()):
            if (shut := pool["shut"]) is None:
                continue
            until, left = shut["until"], shut["left"]
            end = "" if until is None else f" until {time.strftime('%F %T UTC', time.gmtime(until))}"
            state = f"gives {left} more at most" if left else "is shut"
            put(f"\nPool {cell(partition['name'])}/{cell(pool['name'])} {state}{end}: {cell(shut['cause'])}")


def _show_failing(status: Mapping[str, Any], logs: str) -> None:
    """Warn of the daemon's steps that fail again and again. The next try may work after a single failure."""
    for step in status.get("steps", ()):
        error = step["error"]
        is_told = status.get("cloud") and step["name"] in OF_THE_CLOUD
        if error is None or error["times"] < FAILING_TIMES or is_told:
            continue
        since = time.strftime("%F %T UTC", time.gmtime(error["since"]))
        what = f"the elastic daemon's step {step['name']}, which {step['does']}, has failed since {since}"
        line = f"{what}: {error['message']}; its log: `{logs}`"
        put(f"[yellow]warning:[/yellow] {cell(line)}")


def _show_closed(closed: Mapping[str, Any], stack: str) -> None:
    """Say which command has closed partitions, and whether it still works or was interrupted."""
    at = time.strftime("%F %T UTC", time.gmtime(closed["at"]))
    what = f"`{closed['command']}` of {closed['who']} has closed partitions at {at}"
    then = (
        "it is working"
        if closed["works"]
        else f"it was interrupted. `{hint('up', stack)}` opens what it has closed"
    )
    put(f"\n{cell(what)} ({cell(', '.join(closed['partitions']))}): {cell(then)}")


def show_release(name: str, advisories: Iterable[str]) -> None:
    """Print which Slurm a cluster runs, and what is open in it."""
    if name:
        put(f"\n{cell(name)}")
    for line in advisories:
        put(f"[yellow]warning:[/yellow] {cell(line)}")


def _show_backup(backup: Mapping[str, Any] | None) -> None:
    if backup is None:
        return
    last = backup["last"]
    when = "none yet" if last is None else archive.when(last["at"])
    place = "" if last is None else f", {last['bytes'] / 2**20:.1f} MiB to {cell(last['place'])}"
    late = ", which is late" if backup["late"] else ""
    put(f"Last backup: {when}{place}{late}")
    if (failure := backup["failure"]) is not None:
        at = archive.when(failure["at"])
        put(f"[yellow]warning:[/yellow] the backup at {at} failed: {cell(failure['message'])}")


def _show_spent(status: Mapping[str, Any]) -> None:
    cost: Mapping[str, Any] = status["cost"]
    put(f"\nCost so far: {cost['node_hours']:.2f} node-hours, {_usd(cost, status['partitions'])}")
    if damaged := cost["damaged"]:
        put(f"  and what is in {cell(', '.join(damaged))}, which could not be read")
    if (budget := cost["budget"]) is not None:
        put(f"Budget: {_left(budget, 'no new node starts')}")
    for line in account_budgets(cost.get("accounts", ())):
        put(cell(line))


def account_budgets(budgets: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each account's budget."""
    for budget in budgets:
        month = time.strftime(" in %Y-%m", time.gmtime(budget["at"])) if budget["period"] == "month" else ""
        yield f"Budget of account {budget['account']}{month}: {_left(budget, 'no job of it starts')}"


def _left(budget: Mapping[str, Any], stops: str) -> str:
    """Return what is left of a budget.

    Args:
        stops: What happens once it is used up.
    """
    left = [
        f"{budget[f'left_{key}']:.2f} of {budget[f'max_{key}']:.2f} {unit}"
        for key, unit in BUDGET_UNITS.items()
        if budget[f"max_{key}"] is not None
    ]
    what = {"keep": "jobs that run go on", "cancel": "running jobs are cancelled"}[budget["running_jobs"]]
    end = f"used up: {stops}, {what}" if budget["used"] >= 1 else f"{budget['used']:.0%} used"
    return f"{' and '.join(left)} are left, {end}"


def _usd(cost: Mapping[str, Any], partitions: Iterable[Mapping[str, Any]]) -> str:
    """Return the sum. If a price is not known, return the least sum and the machines without a price."""
    if cost["usd"] is not None:
        return f"{cost['usd']:.2f} USD"
    machines = {p["name"]: p["machine"] for p in partitions}
    machines |= {f"{p['name']}/{q['name']}": q["machine"] for p in partitions for q in p.get("pools", ())}
    unknown = dict.fromkeys(machines.get(name) or f"partition {name}" for name in cost["unknown"])
    return f"at least {cost['at_least_usd']:.2f} USD, price of {cell(', '.join(unknown))} unknown"


def _show_nodes(
    nodes: list[dict[str, Any]], reserved: Iterable[Reservation], *, waiting: bool, listed: bool
) -> None:
    """Print nodes of equal state on one line, and the number of nodes that are simply off.

    Args:
        reserved: The reservations.
        waiting: Whether a job waits. The jobs' table then says what for.
        listed: Whether the cloud has listed the machines just now.
    """
    kept = now_kept(reserved, time.time())
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    off = 0
    for node in nodes:
        state, why = node_words(
            node["state"],
            node["machine_state"],
            node["reason"],
            kept.get(node["name"]),
            next_state=node.get("next_state"),
            listed=listed,
        )
        if state == "off" and not why:
            off += 1
        else:
            row = (node["partition"] or "", state, node["machine_state"] or "", why)
            rows.setdefault(row, []).append(node["name"])
    if rows:
        table = new_table("\nNodes", "name", "partition", "state", "machine", "why")
        for cells, names in rows.items():
            table.add_row(*map(cell, (fold(names), *cells)))
        put(table)
    if off:
        why = f", as it should be while nobody needs {'it' if off == 1 else 'them'}"
        put(f"\n{plurals.count(off, 'node is', 'nodes are')} off{'' if waiting else why}")


def _reservation(fields: Mapping[str, Any], expander: Expander) -> Reservation:
    nodes, flags = expander(fields["nodes"]), frozenset(fields["flags"])
    return Reservation(fields["name"], fields["start"], fields["end"], nodes, flags, fields["users"])


def _show_reservations(reserved: Iterable[Reservation]) -> None:
    now = time.time()
    table = new_table("\nReservations", "name", "nodes", "for", "when")
    for reservation in sorted(reserved, key=lambda reservation: (reservation.start, reservation.name)):
        table.add_row(
            *map(
                cell, (reservation.name, fold(reservation.nodes), reservation.purpose, reservation.times(now))
            )
        )
    if table.row_count:
        put(table)


def _show_jobs(jobs: list[dict[str, Any]], every: str, first: Mapping[str, str]) -> None:
    """Print jobs that hold nodes first, then those that wait, with the cause.

    Args:
        every: The command that lists all of them.
        first: Partition with pools -> its first pool.
    """
    if not jobs:
        put("\nNo jobs")
        return
    table = new_table("\nJobs", "id", "name", "user", "partition", "state", "time", "nodes", "why")
    # By the ids that are shown: Slurm gives an array's tasks ids of their own, and the last one the array's.
    ordered = sorted(jobs, key=lambda job: (_phase(job) is Phase.WAITING, _numbers(job["slurm_id"])))
    for job in ordered[:MOST_JOBS]:
        waits = in_words(job["cause"], job.get("advice"))
        pool = _pool_of(job, first)
        why = {Phase.WAITING: waits, Phase.STARTING: _joined("its nodes are starting", pool)}
        row = (
            job["slurm_id"],
            job["name"],
            job["user"],
            job["partition"],
            job["state"].lower(),
            _elapsed(job["elapsed_seconds"]),
            job["nodes"],
            why.get(_phase(job), pool),
        )
        table.add_row(*map(cell, row))
    put(table)
    if len(jobs) > MOST_JOBS:
        put(f"and {len(jobs) - MOST_JOBS} more: {every}")


def _pool_of(job: Mapping[str, Any], first: Mapping[str, str]) -> str:
    """Return which pool a job has, and why; empty if its partition has none."""
    if (pool := job.get("pool")) is None:
        return ""
    if pool == first.get(job["partition"]):
        return f"pool {pool}, the first choice"
    return f"pool {pool}; {why}" if (why := job.get("pool_reason")) else f"pool {pool}"


def _show_remarks(remarks: Iterable[Mapping[str, Any]]) -> None:
    """Print what jobs of this user have written that says too little, the latest first."""
    for remark in list(remarks)[::-1][:MOST_REMARKS]:
        job = f"job {remark['job']} ({remark['name']}, {remark['state'].lower()})"
        put(f"\n[yellow]warning:[/yellow] {cell(f'{job} has written: ' + remark['text'])}")


def _phase(job: Mapping[str, Any]) -> Phase:
    return phase(job["state"], nodes=bool(job["nodes"]))


def _numbers(name: str | int) -> list[int]:
    """Return the numbers in a job's id, in which ids are ordered: 3 and 10 for `3_10`."""
    return [int(number) for number in re.findall(r"[0-9]+", str(name))]


def _elapsed(seconds: float | None) -> str | None:
    """Return a time as squeue writes it: 0:05, 1:02:03, 2-01:02:03."""
    if seconds is None:
        return None
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{left:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


UNUSABLE = {
    node_flags.INVALID_REG: ("unfit", "it has less than slurm.conf says"),
    node_flags.PERFCTRS: ("busy", "a job uses its performance counters, so it takes no other job"),
    node_flags.BLOCKED: ("blocked", "a job that has the nodes around it keeps others away"),
}
"""Flag of a node that takes no jobs for now -> its state, and why if Slurm has no reason."""
SOON = {
    node_flags.POWER_DOWN: "it is powered down after its job",
    node_flags.REBOOT_REQUESTED: "it restarts when it is free",
}
"""Flag of a node that is up -> what will become of it, also if it is out of service until then."""
PLANNED = {node_flags.PLANNED: "Slurm plans to start a waiting job on it"}
BY_HAND = "its restart was asked for by hand"
PARTITION_STATES = {
    "DOWN": "it takes jobs and starts none",
    "DRAIN": "it takes no more jobs, and starts those that wait",
    "INACTIVE": "it takes no jobs and starts none",
}
"""What a partition does that is not UP."""


def node_words(
    state: str,
    machine: str | None,
    reason: str | None,
    kept: Reservation | None = None,
    *,
    next_state: str | None = None,
    listed: bool = True,
) -> tuple[str, str]:
    """Return a node's state, and why it is not up, in words.

    What somebody has taken out of service comes before what its machine does, so it never looks usable.
    While a node restarts, Slurm shows it as down, and as drained if that was asked for with ASAP.

    Args:
        state: The state in Slurm's notation: IDLE+CLOUD+POWERED_DOWN.
        machine: The state of its machine, as the cloud reports it. `None` means that there is no machine.
        reason: Slurm's reason, which may be an old one.
        kept: The reservation that has the node now. Slurm marks its nodes a few seconds later.
        next_state: The state that a reboot shall leave. `None` means that none was named.
        listed: Whether the cloud has listed the machines just now.
    """
    node = NodeState.parse("", state, reason, next_state)
    cause = (reason or "").removeprefix(REASON_PREFIX)
    if node.is_missing:
        return "missing", (
            "Slurm does not list it: it was set to FUTURE by hand, or slurm.conf was changed; "
            "`scontrol reconfigure` brings back what slurm.conf has"
        )
    restarts = phase_of(node) is NodePhase.REBOOTING
    # Slurm itself drains what it is told to power down.
    leaves = node.is_powering_down and not is_admin_disabled(node)
    if node.is_drained and not (restarts or leaves):
        return _drained(node, cause)
    if node.is_down and not node.is_unknown and not restarts:
        return _down(node, cause)
    if kept is not None or node.is_reserved:
        rest = "+".join([node.base, *sorted(node.flags - node_flags.OF_RESERVATIONS)])
        words = node_words(rest, machine, reason, next_state=next_state, listed=listed)
        return _reserved(node, kept, *words)
    if restarts:
        return "restarting", _restart(node)
    if node.is_powering_up:
        waits = {None: "no machine yet", "pending": "its machine boots", "running": "has not registered yet"}
        return "starting", waits.get(machine, "")
    if node.is_powering_down:
        return "going back", cause
    if node.is_powered_down:
        return "off", "its machine is being ended" if machine is not None else _last(cause)
    return _registered(node, cause, missing=machine is None and listed)


def _last(cause: str) -> str:
    return f"last: {cause}" if cause else ""


def _down(node: NodeState, cause: str) -> tuple[str, str]:
    if node.is_powered_down and not is_admin_disabled(node):
        return "down", _last(cause)
    return "down", _joined(cause or "Slurm gives no reason", *_coming(node, SOON))


def _reserved(node: NodeState, kept: Reservation | None, what: str, why: str) -> tuple[str, str]:
    """Return the words for a node in a reservation, from those that it would have without."""
    repairs = node_flags.MAINTENANCE in node.flags or (kept is not None and kept.is_maintenance)
    trouble = f"; {why}" if why and what not in ("off", "idle", "busy") else ""
    whose = f"{kept.name}, for {kept.purpose} {kept.times(time.time())}" if kept else "by a reservation"
    return f"{'in maintenance' if repairs else 'reserved'}, {what}", f"{whose}{trouble}"


def _drained(node: NodeState, cause: str) -> tuple[str, str]:
    if node.is_powered_down and (node.reason or "").startswith(REASON_PREFIX):
        return "drained, powered down", cause
    # FAIL is DRAIN under another name, for programs that then leave the node.
    word = "drained" if node_flags.DRAIN in node.flags else "drained (fail)"
    coming = _coming(node, SOON)
    by_hand = [] if coming else ["it was taken out of service by hand"]
    return (
        f"{word}, its job goes on" if node.has_job else word,
        _joined(*([cause] if cause else by_hand), *coming),
    )


def _restart(node: NodeState) -> str:
    """Return why a node restarts, and whether somebody wants it to be out of service afterwards."""
    why = (node.reason or "").removeprefix(REASON_PREFIX).removesuffix(REBOOT_ISSUED)
    after = "then it stays out of service" if is_admin_disabled(node) else ""
    return _joined(BY_HAND if why in ("", *REBOOT_REASONS) else why, after)


def _coming(node: NodeState, known: Mapping[str, str]) -> list[str]:
    """Return what will become of a node. One that is free is powered down at once."""
    after_a_job = frozenset() if node.has_job else {node_flags.POWER_DOWN}
    return [why for flag, why in known.items() if flag in node.flags - after_a_job]


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _registered(node: NodeState, cause: str, *, missing: bool) -> tuple[str, str]:
    """Return the words for a node that is neither off nor out of service.

    Args:
        missing: Whether the cloud lists no machine for it.
    """
    if node.is_unknown:
        return "unknown", "Slurm has not heard from it since slurmctld started"
    if node.is_silent:
        return "silent", cause or "does not answer"
    for flag, words in UNUSABLE.items():
        if flag in node.flags:
            return words[0], cause or words[1]
    why = ["the cloud lists no machine of this name"] if missing else _coming(node, {**SOON, **PLANNED})[:1]
    new = [f"Slurm says {flag}" for flag in node_flags.unknown(node.flags)]
    return ("busy" if node.has_job else "idle"), _joined(*why, *new)
