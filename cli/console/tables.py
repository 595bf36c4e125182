"""Prints a plan, a cluster's status, a result and outputs as tables on standard output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from cli.console.node_words import PARTITION_STATES, node_words
from cli.console.picture import note, picture
from cli.hints import hint
from infra import cost
from node import plurals
from node.logs.text import printable
from node.slurm.hostlist import expand, fold
from node.slurm.reasons import in_words
from node.slurm.reservations import Reservation, now_kept

PLAIN_WIDTH = 160
MOST_JOBS = 50
BUDGET_UNITS = {"usd": "USD", "hours": "node-hours"}


def output() -> Console:
    """Return standard output. Without a terminal it is so wide that nothing is cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def put(what: RenderableType, console: Console | None = None) -> None:
    """Print without cropping. Without a terminal the spaces at the ends of lines are removed."""
    console = console or output()
    # A line that the user may copy stays one line; a narrow terminal wraps it.
    if console.is_terminal:
        console.print(what, crop=False)
        return
    with console.capture() as captured:
        console.print(what, crop=False)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def cell(value: object) -> str:
    # A job's name may hold anything, even control sequences for the terminal.
    return "–" if value is None or value == "" else escape(printable(str(value)))


def show_status(status: dict[str, Any], stack: str = "local", *, here: bool = False) -> None:
    """Print the status as tables: partitions, nodes that are not simply off, reservations, jobs, cost.

    Args:
        here: Whether the cloud is a process of this machine, which the user can start again.
    """
    partitions = new_table("Partitions", "name", "machine", "min", "max", "up")
    for p in status["partitions"]:
        partitions.add_row(*(cell(p[key]) for key in ("name", "machine", "min", "max", "up")))
    put(partitions)
    for p in status["partitions"]:
        if why := PARTITION_STATES.get(p.get("state", "UP")):
            cure = hint("exec", stack, f"-- scontrol update partitionname={p['name']} state=up")
            put(f"\nPartition {cell(p['name'])} is {p['state'].lower()}: {why}; `{cure}` opens it")
    if error := status.get("cloud"):
        cure = f" If its agent is dead or hangs, `{hint('up', stack)}` starts it again." if here else ""
        put(f"\nThe cloud does not answer: {cell(error)}. The states of machines are old.{cure}")
    reserved = [_reservation(one) for one in status.get("reservations", ())]
    waiting = any(job["state"] == "PENDING" for job in status["jobs"])
    _show_nodes(status["nodes"], reserved, waiting=waiting, listed=not status.get("cloud"))
    _show_reservations(reserved)
    _show_jobs(status["jobs"], stack)
    _show_spent(status)


def show_release(name: str, advisories: Iterable[str]) -> None:
    """Print which Slurm a cluster runs, and what is open in it."""
    if name:
        put(f"\n{cell(name)}")
    for line in advisories:
        put(f"[yellow]warning:[/yellow] {cell(line)}")


def _show_spent(status: Mapping[str, Any]) -> None:
    cost: Mapping[str, Any] = status["cost"]
    put(f"\nCost so far: {cost['node_hours']:.2f} node-hours, {_usd(cost, status['partitions'])}")
    if damaged := cost["damaged"]:
        put(f"  and what is in {cell(', '.join(damaged))}, which could not be read")
    if (budget := cost["budget"]) is None:
        return
    left = [
        f"{budget[f'left_{key}']:.2f} of {budget[f'max_{key}']:.2f} {unit}"
        for key, unit in BUDGET_UNITS.items()
        if budget[f"max_{key}"] is not None
    ]
    what = {"keep": "jobs that run go on", "cancel": "running jobs are cancelled"}[budget["running_jobs"]]
    end = f"used up: no new node starts, {what}" if budget["used"] >= 1 else f"{budget['used']:.0%} used"
    put(f"Budget: {' and '.join(left)} are left, {end}")


def _usd(cost: Mapping[str, Any], partitions: Iterable[Mapping[str, Any]]) -> str:
    """Return the sum. If a price is not known, return the least sum and the machines without a price."""
    if cost["usd"] is not None:
        return f"{cost['usd']:.2f} USD"
    machines = {p["name"]: p["machine"] for p in partitions}
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
            node["state"], node["machine_state"], node["reason"], kept.get(node["name"]), listed=listed
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


def _reservation(told: Mapping[str, Any]) -> Reservation:
    nodes, flags = tuple(expand(told["nodes"])), frozenset(told["flags"])
    return Reservation(told["name"], told["start"], told["end"], nodes, flags, told["users"])


def _show_reservations(reserved: Iterable[Reservation]) -> None:
    now = time.time()
    table = new_table("\nReservations", "name", "nodes", "for", "when")
    for one in sorted(reserved, key=lambda one: (one.start, one.name)):
        table.add_row(*map(cell, (one.name, fold(one.nodes), one.purpose, one.times(now))))
    if table.row_count:
        put(table)


def _show_jobs(jobs: list[dict[str, Any]], stack: str) -> None:
    """Print jobs that hold nodes first, then those that wait, with the cause."""
    if not jobs:
        put("\nNo jobs")
        return
    table = new_table("\nJobs", "id", "name", "user", "partition", "state", "time", "nodes", "why")
    # By the ids that are shown: Slurm gives an array's tasks ids of their own, and the last one the array's.
    ordered = sorted(jobs, key=lambda job: (job["state"] == "PENDING", _numbers(job["slurm_id"])))
    for job in ordered[:MOST_JOBS]:
        why = {"PENDING": in_words(job["cause"], job.get("advice")), "CONFIGURING": "its nodes are starting"}
        row = (
            job["slurm_id"],
            job["name"],
            job["user"],
            job["partition"],
            job["state"].lower(),
            _elapsed(job["elapsed_seconds"]),
            job["nodes"],
            why.get(job["state"]),
        )
        table.add_row(*map(cell, row))
    put(table)
    if len(jobs) > MOST_JOBS:
        put(f"and {len(jobs) - MOST_JOBS} more: {hint('exec', stack, '-- squeue')}")


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


def show_result(result: dict[str, Any], owner: str | None = None, console: Console | None = None) -> None:
    """Print a benchmark's result record.

    Args:
        owner: The user whose result it is; `None` for one's own.
    """
    console = console or output()
    if "script" in result:
        _show_program(result, owner, console)
        return
    data = result["data"] if result["data"] == "mnist" else f"{result['data']} (not MNIST)"
    rows = [
        ("workers", f"{result['workers']} on {result['nodes']} × {result['machine']}"),
        (
            "profile",
            f"{result['profile']}, {plurals.count(result['epochs'], 'epoch')}, "
            f"global batch {result['global_batch']}",
        ),
        ("data", data),
        ("time", f"{result['seconds_total']:.1f} s, training {result['seconds_train']:.1f} s"),
        ("images a second", f"{result['images_per_second']:.0f}"),
        ("loss, accuracy", f"{result['loss']:.4f}, {result['accuracy']:.4f}"),
        ("held-out accuracy", f"{result['test_accuracy']:.4f}"),
    ]
    if result.get("average_every") is not None:
        every = result["average_every"]
        rows.append(("weights averaged", "every step" if every == 1 else f"every {every} steps"))
    if (cores := _cores(result)) is not None:
        rows.append(("cores", cores))
    _put_result(result, rows, owner, console)


def _cores(result: Mapping[str, Any]) -> str | None:
    """Say which cores the workers had."""
    if result.get("cores") is None:
        return None
    cores, workers = plurals.count(result["cores"], "core"), plurals.count(result["workers"], "worker")
    if result["cores_shared"]:
        text = f"{workers} shared {cores}: more nodes add no computing power"
    else:
        text = f"{cores} for {workers}"
    if (others := result.get("cores_others")) is None:
        return text
    return f"{text}; other programs took {100 * others:.0f} % of their time"


def _show_program(result: Mapping[str, Any], owner: str | None, console: Console) -> None:
    """Print the result of a user's program: what is known of every program, and what it says of itself."""
    rows = [
        ("program", " ".join([result["script"], *result["arguments"]])),
        ("workers", f"{result['workers']} on {result['nodes']} × {result['machine']}"),
        ("time", f"{result['seconds_total']:.1f} s, exit status {result['exit_status']}"),
    ]
    for name, value in result["values"].items():
        rows.append((name, f"{value:.6g}" if isinstance(value, float) else str(value)))
    rows += [("note", note) for note in result["notes"]]
    _put_result(result, rows, owner, console)


def _put_result(
    result: Mapping[str, Any], rows: list[tuple[str, str]], owner: str | None, console: Console
) -> None:
    """Print the rows of a result, and those that every result has."""
    if result.get("start_latency_seconds") is not None:
        rows.append(("start of the job", f"{result['start_latency_seconds']:.2f} s after it could start"))
    if result.get("cost_usd") is not None:
        rows.append(("cost", f"{result['cost_usd']:.4f} USD"))
    whose = "" if owner is None else f", {owner}'s"
    table = new_table(escape(printable(f"Result of job {result['job_id']}{whose}")), "", "")
    table.show_header = False
    for name, value in rows:
        # A job has written them, and may have written anything.
        table.add_row(escape(printable(name)), escape(printable(value)))
    put(table, console)


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print a plan: the overview, the tree of resources, the cost, warnings."""
    console = output()
    if (shown := picture(plan)) is not None:
        put(shown, console)
        console.print()
    tree = Tree(f"[bold]stack {escape(plan['stack'])}[/bold]")
    branches: dict[str, Tree] = {}
    for resource in plan["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            continue
        parent = branches.get(resource["parent"], tree)
        said = escape(note(resource))
        label = f"{escape(resource['name'])} [dim]{escape(resource['type'])}[/dim] {said}".rstrip()
        branches[resource["urn"]] = parent.add(label)
    console.print(tree)
    console.print(plurals.count(len(branches), "resource"))
    show_cost(plan["cost"], console)
    if plan.get("slurm"):
        console.print(escape(plan["slurm"]))
    for warning in plan["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    show_changes(plan, console)


def show_changes(plan: Mapping[str, Any], console: Console) -> None:
    """Print what `up` would change in a cluster that is up, and the effect on its jobs."""
    changes, cluster = plan.get("changes"), plan["outputs"].get("cluster")
    if changes is None:
        if isinstance(cluster, Mapping) and cluster.get("provider") != "local":
            console.print("[dim]If the cluster is up, `up` says what it will change before it does it.[/dim]")
        return
    if not changes:
        console.print(
            "The cluster is up and already as the stack file says: `up` would change nothing of it."
        )
        return
    console.print("[bold]The cluster is up. What `up` would change:[/bold]")
    for change in changes:
        console.print(f"  {escape(change['line'])}")
        for line in change.get("lost", ()):
            console.print(f"    lost: {escape(line)}")
        for job in change["jobs"] or ():
            where = job["nodes"] or job["partition"]
            line = f"job {job['id']} {job['name']} ({job['user']}, {job['state']} on {where})"
            console.print(f"    {escape(line)}: [bold]{job['consequence']}[/bold]")
    if any(change["jobs"] is None for change in changes):
        console.print("[yellow]The effect on its jobs is not known: the cluster does not answer.[/yellow]")


def show_outputs(outputs: Mapping[str, Any]) -> None:
    """Print a stack's outputs. The object that other stacks consume is abbreviated."""
    table = new_table("\nOutputs", "", "")
    table.show_header = False
    for name, value in sorted(outputs.items()):
        if name == "cluster" and isinstance(value, Mapping):
            scheduler = value["scheduler"]
            text = f"{value['apiVersion']}: {value['name']}, {scheduler['version'] or scheduler['name']}, "
            text += "partitions " + ", ".join(p["name"] for p in value["partitions"])
        else:
            text = str(value)
        table.add_row(name, escape(text))
    put(table)


def show_cost(bill: Mapping[str, Any], console: Console) -> None:
    """Print the price an hour, idle and at most, and how long the budget lasts.

    Nothing is printed for a plan without a cluster.
    """
    if bill.get("parts") is not None:
        console.print(f"Cost: {escape(cost.sentence(cast('cost.Cost', bill)))}")
    if budget := bill.get("budget"):
        console.print(escape(cost.reach(budget)))
