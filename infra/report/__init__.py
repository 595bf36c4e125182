"""`./cluster report`: our results beside the published ones, as a page and a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from infra import results
from infra.errors import EXIT_USAGE, UserError
from infra.runner import locations

if TYPE_CHECKING:
    from infra.report.runs import Run

PAGE, TABLE = "report.html", "report.csv"
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Made:
    """The two files of a report."""

    page: Path
    table: Path


def make(stacks: Sequence[str], output: Path | None = None, *, project: Path | None = None) -> Made:
    """Write the report of some stacks.

    Results are kept by the stack's name (`infra.results`): those of two clones with a stack of the same name
    are in one report, which says of each series, run and line whose it is.

    A stack that has no results yet is no mistake: the page then has the published figures, and a line on
    standard error says how results come about. Files among the results that are none are named there too,
    and in the page.

    Args:
        stacks: names, in the page's order.
        output: a folder; `<state folder>/reports/<stack[+stack]>` without one.
        project: the checkout whose stack files say which names without results are stacks at all.

    Raises:
        UserError: exit 2, a name that can be no stack, or one with neither results nor a stack file; exit 1,
            the folder cannot be written.
    """
    names = list(dict.fromkeys(stacks))
    for name in names:
        _check_name(name)
        _check_known(name, project)

    from infra.report import page, published, runs, table

    ours: list[Run] = []
    problems: list[str] = []
    loaded = {name: results.load(name, project) for name in names}
    checkouts = {kept.checkout for found, _ in loaded.values() for kept in found}
    short = results.short_names(checkouts)
    for name in names:
        own, wrong = _runs(name, *loaded[name], short)
        ours += own
        if not own:
            _say(
                f"no results of stack {name} are kept yet: `./cluster up --stack {name}` makes one, "
                f"`./cluster run --stack {name} --nodes 1,2` a comparison"
            )
        for problem in wrong:
            _say(f"left out, because it is no result: {problem}")
            # The page may go to others: the file's name is enough.
            told = runs.printable(problem).replace(f"{results.folder(name)}/", "")
            problems.append(f"Left out, because it is no result: {told}")
    theirs = published.runs()
    folder = output or locations.state_root() / "reports" / "+".join(names)
    made = Made(folder / PAGE, folder / TABLE)
    # The page first: whatever fails in making it leaves an earlier report whole.
    text = page.render(names, ours, theirs, problems, datetime.now(UTC))
    _write(made.page, text)
    _write(made.table, table.text([*ours, *theirs]))
    return made


def _runs(
    stack: str, found: list[results.Kept], wrong: list[str], short: Mapping[Path | None, str | None]
) -> tuple[list[Run], list[str]]:
    """A stack's runs by nodes and time, and what is wrong with files that are no results.

    Args:
        short: the names of all checkouts that have results in the report.
    """
    from infra.report import runs

    several = len({kept.checkout for kept in found}) > 1
    made = []
    for kept in found:
        try:
            made.append(runs.of(kept, stack, short[kept.checkout], several=several))
        except ValueError as error:
            wrong.append(f"{kept.path}: {error}")
    return sorted(made, key=lambda run: (run.nodes, run.kept_at or "", run.source)), wrong


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _check_name(name: str) -> None:
    """Names become folders."""
    if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name) > LONGEST_NAME:
        raise UserError(
            f"--stack {name!r} is no stack's name: at most {LONGEST_NAME} printable characters, without /",
            EXIT_USAGE,
        )


def _check_known(name: str, project: Path | None) -> None:
    if (
        project is None
        or (project / f"Pulumi.{name}.yaml").exists()
        or any(results.folder(name).glob("*.json"))
    ):
        return
    files = sorted(
        p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in project.glob("Pulumi.*.yaml")
    )
    kept = sorted(p.name for p in results.folder(name).parent.glob("*") if any(p.glob("*.json")))
    raise UserError(
        f"stack {name}: no results are kept of it, and {project / f'Pulumi.{name}.yaml'} does not exist.\n"
        f"Stacks here: {', '.join(files) or 'none'}. Results are kept of: {', '.join(kept) or 'none'}.\n"
        "`./cluster up --stack S` makes a result, `./cluster run --stack S --nodes 1,2,4` a comparison.",
        EXIT_USAGE,
    )


def _write(path: Path, text: str) -> None:
    """Whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8", newline="")
        draft.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {path}: {error.strerror}. Give another folder with --output."
        ) from error
