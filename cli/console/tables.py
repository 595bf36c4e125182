"""Prints tables on standard output: a result, a stack's outputs, and what other tables are made of."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import IO, Any, cast

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from cli.hints import FromHere
from node.logs.text import printable
from node.system import plurals

PLAIN_WIDTH = 160


def output() -> Console:
    """Return standard output. Without a terminal it is so wide that nothing is cut."""
    file = cast(IO[str], FromHere(sys.stdout))
    # Without emoji: names and types stay as they are, such as a job that is called :bomb:.
    console = Console(file=file, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


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
            # A program appends a command to gcloud's line; a person opens a shell with it.
            text = str(value).removesuffix(" --")
        table.add_row(name, escape(text))
    put(table)
