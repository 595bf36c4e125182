"""`./cluster report`: our results and the published ones, as a page and a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cli import results
from infra.config import stack_file
from infra.errors import EXIT_USAGE, UserError
from infra.program import locations
from infra.program.files import write_atomically
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.commands.report.bills import Bill
    from cli.commands.report.programs import Program
    from cli.commands.report.runs import Run

PAGE, TABLE = "report.html", "report.csv"
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Made:
    """The two files of a report."""

    page: Path
    table: Path


def make(
    stacks: Sequence[str],
    output: Path | None = None,
    *,
    project: Path | None = None,
    bills: Sequence[Bill] = (),
) -> Made:
    """Write the report of some stacks.

    Results are kept by the stack's name (`cli.results`). If two checkouts have a stack of the same name, both
    are in the report, and every series, run and line names its checkout.

    A stack without results is allowed: the page then has the published figures, and a line on standard error
    says how to get results. Files that are not valid results are named there and in the page.

    Args:
        stacks: Names of stacks, in the page's order.
        output: The folder to write to. The default is `<state folder>/reports/<stack[+stack]>`.
        project: The checkout whose stack files tell which names without results are stacks.
        bills: What the clusters that are up have cost, for whom.

    Raises:
        UserError: A name cannot be a stack's, or has neither results nor a stack file (exit 2); or the folder
            cannot be written (exit 1).
    """
    from cli.commands.report import page, runs, table

    names = checked(stacks, project)
    ours: list[Run] = []
    programs: list[Program] = []
    problems: list[str] = []
    loaded = {name: results.load(name) for name in names}
    checkouts = {kept.checkout for results_of_stack, _ in loaded.values() for kept in results_of_stack}
    short = results.short_names(checkouts)
    for name in names:
        trainings, others, wrong = _runs(name, *loaded[name], short)
        ours += trainings
        programs += others
        if not trainings and not others:
            _say(
                f"no results of stack {name} are kept yet: `./cluster up --stack {name}` makes one, "
                f"`./cluster run --stack {name} --nodes 1,2` a comparison"
            )
        for problem in wrong:
            _say(f"left out, because it is not a valid result: {problem}")
            # The page may be given to others, so it shows the file's name without the folder.
            shown = runs.printable(problem).replace(f"{results.folder(name)}/", "")
            problems.append(f"Left out, because it is not a valid result: {shown}")
    published = runs.published_runs()
    # The page is made before anything is written: a failure leaves an earlier report as it was.
    text = page.render(names, ours, published, problems, datetime.now(UTC), programs, bills)
    return write(names, output, text, table.text([*ours, *published], programs))


def checked(stacks: Sequence[str], project: Path | None) -> list[str]:
    """Return each name once.

    Raises:
        UserError: As for `make`.
    """
    names = list(dict.fromkeys(stacks))
    for name in names:
        _check_name(name)
        _check_known(name, project)
    return names


def write(names: Sequence[str], output: Path | None, page: str, table: str) -> Made:
    """Write a report of some stacks.

    Args:
        output: As for `make`.

    Raises:
        UserError: The folder cannot be written.
    """
    folder = output or locations.state_root() / "reports" / "+".join(names)
    files = Made(folder / PAGE, folder / TABLE)
    _write(files.page, page)
    _write(files.table, table)
    return files


def _runs(
    stack: str, found: list[results.Kept], wrong: list[str], short: Mapping[Path | None, str | None]
) -> tuple[list[Run], list[Program], list[str]]:
    """Return a stack's runs ordered by nodes and time, and the errors of files that are not valid results.

    The first list has runs of the built-in training, the second one those of the users' own programs.

    Args:
        stack: The stack's name.
        found: Its kept results.
        wrong: Errors that are known already.
        short: Short names of all checkouts that have results in the report.
    """
    from cli.commands.report import programs, runs

    several = len({kept.checkout for kept in found}) > 1
    trainings: list[Run] = []
    user_programs: list[Program] = []
    for kept in found:
        try:
            if kept.program:
                user_programs.append(programs.of(kept, stack, short[kept.checkout], several=several))
            else:
                trainings.append(runs.of(kept, stack, short[kept.checkout], several=several))
        except ValueError as error:
            wrong.append(f"{kept.path}: {error}")

    def order(run: Run | Program) -> tuple[int, str, str]:
        return run.nodes, run.kept_at or "", run.source

    return sorted(trainings, key=order), sorted(user_programs, key=order), wrong


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _check_name(name: str) -> None:
    """Refuse a name that cannot be a folder."""
    if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name) > LONGEST_NAME:
        raise UserError(
            f"--stack {name!r} is not a stack's name: at most {LONGEST_NAME} printable characters, without /",
            EXIT_USAGE,
            code="report.stack-name",
        )


def _check_known(name: str, project: Path | None) -> None:
    if project is None or Stack(project, name).file.exists() or any(results.folder(name).glob("*.json")):
        return
    files = stack_file.stacks(project)
    kept = sorted(p.name for p in results.folder(name).parent.glob("*") if any(p.glob("*.json")))
    raise UserError(
        f"stack {name}: no results are kept of it, and {Stack(project, name).file} does not exist.\n"
        f"Stacks here: {', '.join(files) or 'none'}. Results are kept of: {', '.join(kept) or 'none'}.\n"
        "`./cluster up --stack S` makes a result, `./cluster run --stack S --nodes 1,2,4` a comparison.",
        EXIT_USAGE,
        code="report.no-stack",
    )


def _write(path: Path, text: str) -> None:
    """Replace a file in one step.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {path}: {error.strerror}. Give another folder with --output.",
            code="report.not-written",
        ) from error
