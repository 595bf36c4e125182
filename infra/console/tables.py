"""Tables of a plan, of a cluster's status and of a result, on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from infra import cost
from infra.console.picture import note, picture
from infra.hints import hint
from infra.node import words
from infra.node.elastic.view import REASON_PREFIX
from infra.node.logs.text import printable
from infra.node.slurm.hostlist import fold
from infra.node.slurm.reasons import in_words
from infra.node.slurm.states import NodeState

PLAIN_WIDTH = 160
MOST_JOBS = 50
BUDGET_UNITS = {"usd": "USD", "hours": "node-hours"}


def output() -> Console:
    """Standard output; wide enough that nothing is cut where it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def put(what: RenderableType, console: Console | None = None) -> None:
    """Print, whole; elsewhere than on a terminal without the spaces that fill up a table's columns."""
    console = console or output()
    # Not cropped: a line that is to be copied stays one line, which a narrow terminal wraps.
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
    # A job's name may hold anything, what a terminal obeys as well.
    return "–" if value is None or value == "" else escape(printable(str(value)))


def show_status(status: dict[str, Any], stack: str = "local") -> None:
    """The status contract as tables: partitions, nodes that are not just off, jobs, cost."""
    partitions = new_table("Partitions", "name", "machine", "min", "max", "up")
    for p in status["partitions"]:
        partitions.add_row(*(cell(p[key]) for key in ("name", "machine", "min", "max", "up")))
    put(partitions)
    if trouble := status.get("cloud"):
        put(f"\nThe cloud does not answer: {cell(trouble)}. What is said of machines was so a while ago.")
    _show_nodes(status["nodes"])
    _show_jobs(status["jobs"], stack)
    _show_spent(status)


def _show_spent(status: Mapping[str, Any]) -> None:
    cost: Mapping[str, Any] = status["cost"]
    put(f"\nCost so far: {cost['node_hours']:.2f} node-hours, {_usd(cost, status['partitions'])}")
    # A cluster that an older version brought up does not say the rest.
    if damaged := cost.get("damaged"):
        put(f"  and what is in {cell(', '.join(damaged))}, which could not be read")
    if (budget := cost.get("budget")) is None:
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
    """The sum; where a price is not known, the least that it can be, and the machines without a price."""
    if cost["usd"] is not None:
        return f"{cost['usd']:.2f} USD"
    if "at_least_usd" not in cost:  # from a cluster that an older version brought up
        return "no price known"
    machines = {p["name"]: p["machine"] for p in partitions}
    unknown = dict.fromkeys(machines.get(name) or f"partition {name}" for name in cost["unknown"])
    return f"at least {cost['at_least_usd']:.2f} USD, price of {cell(', '.join(unknown))} unknown"


def _show_nodes(nodes: list[dict[str, Any]]) -> None:
    """Nodes that are alike on one line; those that are just off in a number."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    off = 0
    for node in nodes:
        state, why = node_words(node["state"], node["machine_state"], node["reason"])
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
        put(
            f"\n{words.count(off, 'node is', 'nodes are')} off, as it should be while nobody needs "
            f"{'it' if off == 1 else 'them'}"
        )


def node_words(state: str, machine: str | None, reason: str | None) -> tuple[str, str]:
    """A node's state and why it is not up, for a person.

    Args:
        state: in Slurm's notation: IDLE+CLOUD+POWERED_DOWN.
        machine: what the cloud says of its machine.
        reason: what Slurm has; it may be an old one.
    """
    base, *flags = state.split("+")
    node = NodeState("", base, frozenset(flags))
    said = (reason or "").removeprefix(REASON_PREFIX)
    if node.is_drained and node.is_powered_down and (reason or "").startswith(REASON_PREFIX):
        return "drained, powered down", said
    if node.is_drained:
        word = "drained, its job goes on" if node.has_job else "drained"
        return word, said or "somebody took it out of service"
    if node.is_powering_up:
        waits = {None: "no machine yet", "pending": "its machine boots", "running": "has not registered yet"}
        return "starting", waits.get(machine, "")
    if node.is_powering_down:
        return "going back", said
    if node.is_powered_down:
        if machine is not None:
            return "off", "its machine is being ended"
        return ("down" if node.is_down else "off"), f"last: {said}" if said else ""
    if node.is_down:
        return "down", said or "Slurm says no more"
    if node.is_silent:
        return "silent", said or "does not answer"
    if not node.is_up:
        return state.lower(), said
    return ("busy" if node.has_job else "idle"), ""


def _show_jobs(jobs: list[dict[str, Any]], stack: str) -> None:
    """Those that hold nodes first, then those that wait, and why."""
    if not jobs:
        put("\nNo jobs")
        return
    table = new_table("\nJobs", "id", "name", "user", "partition", "state", "time", "nodes", "why")
    ordered = sorted(jobs, key=lambda job: (job["state"] == "PENDING", job["id"]))
    for job in ordered[:MOST_JOBS]:
        why = {"PENDING": in_words(job["cause"]), "CONFIGURING": "its nodes are starting"}
        # A cluster that an older version brought up does not say all of it.
        row = (
            job.get("slurm_id", job["id"]),
            job["name"],
            job.get("user"),
            job.get("partition"),
            job["state"].lower(),
            _elapsed(job.get("elapsed_seconds")),
            job["nodes"],
            why.get(job["state"]),
        )
        table.add_row(*map(cell, row))
    put(table)
    if len(jobs) > MOST_JOBS:
        put(f"and {len(jobs) - MOST_JOBS} more: {hint('exec', stack, '-- squeue')}")


def _elapsed(seconds: float | None) -> str | None:
    """As squeue writes it: 0:05, 1:02:03, 2-01:02:03."""
    if seconds is None:
        return None
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{left:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def show_result(result: dict[str, Any], console: Console | None = None) -> None:
    """A benchmark's result record."""
    console = console or output()
    data = result["data"] if result["data"] == "mnist" else f"{result['data']} (not MNIST)"
    rows = [
        ("workers", f"{result['workers']} on {result['nodes']} × {result['machine']}"),
        (
            "profile",
            f"{result['profile']}, {words.count(result['epochs'], 'epoch')}, "
            f"global batch {result['global_batch']}",
        ),
        ("data", data),
        ("time", f"{result['seconds_total']:.1f} s, training {result['seconds_train']:.1f} s"),
        ("images a second", f"{result['images_per_second']:.0f}"),
        ("loss, accuracy", f"{result['loss']:.4f}, {result['accuracy']:.4f}"),
        ("held-out accuracy", f"{result['test_accuracy']:.4f}"),
    ]
    if result.get("start_latency_seconds") is not None:
        rows.append(("start of the job", f"{result['start_latency_seconds']:.2f} s after it could start"))
    if result.get("cost_usd") is not None:
        rows.append(("cost", f"{result['cost_usd']:.4f} USD"))
    table = new_table(f"Result of job {result['job_id']}", "", "")
    table.show_header = False
    for name, value in rows:
        table.add_row(name, escape(value))
    put(table, console)


def show_plan(plan: Mapping[str, Any]) -> None:
    """A plan: its picture, the tree of resources, the cost, warnings."""
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
    console.print(words.count(len(branches), "resource"))
    show_cost(plan["cost"], console)
    for warning in plan["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    show_changes(plan, console)


def show_changes(plan: Mapping[str, Any], console: Console) -> None:
    """What `up` would change of a cluster that is up, and what becomes of its jobs."""
    changes, cluster = plan.get("changes"), plan["outputs"].get("cluster")
    if changes is None:
        if isinstance(cluster, Mapping) and cluster.get("provider") != "local":
            console.print(
                "[dim]What this changes of a cluster that is up, `up` says before it does it.[/dim]"
            )
        return
    if not changes:
        console.print("The cluster is up, and `up` would change nothing of it that a stack file says.")
        return
    console.print("[bold]The cluster is up. What `up` would change:[/bold]")
    for change in changes:
        console.print(f"  {escape(change['line'])}")
        for job in change["jobs"] or ():
            where = job["nodes"] or job["partition"]
            line = f"job {job['id']} {job['name']} ({job['user']}, {job['state']} on {where})"
            console.print(f"    {escape(line)}: [bold]{job['consequence']}[/bold]")
    if any(change["jobs"] is None for change in changes):
        console.print("[yellow]What becomes of its jobs is not known: the cluster does not answer.[/yellow]")


def show_outputs(outputs: Mapping[str, Any]) -> None:
    """A stack's outputs; the object that other stacks consume in short."""
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
    """Idle floor and most, an hour; how far the budget reaches. Empty where a plan has no cluster."""
    if bill.get("parts") is not None:
        console.print(f"Cost: {escape(cost.sentence(cast('cost.Cost', bill)))}")
    if budget := bill.get("budget"):
        console.print(escape(cost.reach(budget)))
