"""Tables of a plan, of a cluster's status and of a result, on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

PLAIN_WIDTH = 160
FOLD_NODES_OVER = 20


def output() -> Console:
    """Standard output; wide enough that nothing is cut where it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def _text(value: object) -> str:
    return "–" if value is None or value == "" else escape(str(value))


def show_status(status: dict[str, Any]) -> None:
    """The status contract as tables: partitions, nodes that are not just off, jobs, cost."""
    console = output()
    partitions = _table("Partitions", "name", "machine", "min", "max", "up")
    for p in status["partitions"]:
        partitions.add_row(*(_text(p[key]) for key in ("name", "machine", "min", "max", "up")))
    console.print(partitions)

    off = "POWERED_DOWN"
    awake = [n for n in status["nodes"] if off not in n["state"] or n["reason"] or n["machine_state"]]
    if awake:
        nodes = _table("\nNodes", "name", "partition", "state", "machine", "reason")
        for n in awake:
            row = (n["name"], n["partition"], n["state"].lower(), n["machine_state"], n["reason"])
            nodes.add_row(*(_text(value) for value in row))
        console.print(nodes)
    console.print(
        f"{len(status['nodes']) - len(awake)} nodes are off, as they should be while nobody needs them"
    )

    if status["jobs"]:
        jobs = _table("\nJobs", "id", "name", "state", "nodes", "cause")
        for job in status["jobs"]:
            jobs.add_row(*(_text(job[key]) for key in ("id", "name", "state", "nodes", "cause")))
        console.print(jobs)
    else:
        console.print("\nNo jobs")
    cost = status["cost"]
    usd = "no price known" if cost["usd"] is None else f"{cost['usd']:.2f} USD"
    console.print(f"Cost so far: {cost['node_hours']:.2f} node-hours, {usd}")


def show_result(result: dict[str, Any], console: Console | None = None) -> None:
    """A benchmark's result record."""
    console = console or output()
    data = result["data"] if result["data"] == "mnist" else f"{result['data']} (not MNIST)"
    rows = [
        ("workers", f"{result['workers']} on {result['nodes']} × {result['machine']}"),
        ("profile", f"{result['profile']}, {result['epochs']} epochs, global batch {result['global_batch']}"),
        ("data", data),
        ("time", f"{result['seconds_total']:.1f} s, training {result['seconds_train']:.1f} s"),
        ("images a second", f"{result['images_per_second']:.0f}"),
        ("loss, accuracy", f"{result['loss']:.4f}, {result['accuracy']:.4f}"),
        ("held-out accuracy", f"{result['test_accuracy']:.4f}"),
    ]
    if result.get("start_latency_seconds") is not None:
        rows.append(("submit to start", f"{result['start_latency_seconds']:.2f} s"))
    if result.get("cost_usd") is not None:
        rows.append(("cost", f"{result['cost_usd']:.4f} USD"))
    table = _table(f"Result of job {result['job_id']}", "", "")
    table.show_header = False
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)


def show_plan(plan: Mapping[str, Any]) -> None:
    """A plan: the tree of resources, the cost, warnings."""
    console = output()
    tree = Tree(f"[bold]stack {escape(plan['stack'])}[/bold]")
    branches: dict[str, Tree] = {}
    for resource in plan["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            continue
        parent = branches.get(resource["parent"], tree)
        label = f"{escape(resource['name'])} [dim]{escape(resource['type'])}[/dim]"
        branches[resource["urn"]] = parent.add(label)
    console.print(tree)
    console.print(f"{len(branches)} resources")
    show_cost(plan["cost"], console)
    for warning in plan["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def show_outputs(outputs: Mapping[str, Any]) -> None:
    """A stack's outputs; the object that other stacks consume in short."""
    console = output()
    table = _table("\nOutputs", "", "")
    table.show_header = False
    for name, value in sorted(outputs.items()):
        if name == "cluster" and isinstance(value, Mapping):
            scheduler = value["scheduler"]
            text = f"{value['apiVersion']}: {value['name']}, {scheduler['version'] or scheduler['name']}, "
            text += "partitions " + ", ".join(p["name"] for p in value["partitions"])
        else:
            text = str(value)
        table.add_row(name, escape(text))
    console.print(table)


def show_cost(cost: dict[str, Any], console: Console) -> None:
    """Idle floor and most, an hour."""
    idle, most = cost.get("idle_usd_per_hour"), cost.get("max_usd_per_hour")
    if idle is not None and most is not None:
        console.print(f"Cost: {idle:.2f} USD an hour idle, at most {most:.2f} USD an hour")
    for name in cost.get("unknown", []):
        console.print(f"  no price is known of {escape(str(name))}")
