"""Makes the page: one HTML file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.report import charts, draw, findings, programs, statements, words
from cli.report.charts import Chart, Entry
from cli.report.programs import Program
from cli.report.runs import Run
from cli.report.series import Series, group, ranked
from cli.report.table import COLUMNS

TEMPLATE = Path(__file__).with_name("page.html.j2")
GROUPS = (("cpu", "CPU nodes", False), ("gpu", "GPU nodes", True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart and its SVG."""

    chart: Chart
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """The plots of CPU or of GPU nodes."""

    name: str
    title: str
    entries: list[Entry]
    plots: list[Drawn]


@dataclass(frozen=True, slots=True)
class Curves:
    """Loss and accuracy over the epochs, of one series."""

    entry: Entry
    plots: list[Drawn]


def render(
    stacks: Sequence[str],
    ours: Sequence[Run],
    published: Sequence[Run],
    problems: Sequence[str],
    made: datetime,
    own_programs: Sequence[Program] = (),
) -> str:
    """Return the page's HTML.

    Args:
        stacks: Names of the stacks.
        ours: Our runs.
        published: The published runs.
        problems: Notes on kept files that are not valid results.
        made: The present time, UTC.
        own_programs: Runs of the users' own programs.
    """
    own, theirs = group(ours), group(published)
    programmed = programs.group(own_programs)
    sections, unplotted = _sections(own, theirs)
    values: dict[str, Any] = {
        "stacks": stacks,
        "made": made,
        "headline": _capital(
            programs.headline(programmed) if programmed and not own else findings.headline(stacks, own)
        ),
        "leads": [] if programmed and not own else findings.leads(stacks, own, theirs),
        "programs": programmed,
        "program_plots": [Drawn(chart, draw.svg(chart)) for chart in programs.charts(programmed)],
        "figures": findings.figures(ours, own),
        "sections": sections,
        "curves": _curves(sections),
        "series": sorted(ranked(own), key=lambda one: stacks.index(one.key.stack)),
        "published_series": theirs,
        "runs": ours,
        "published": published,
        "notes": [*findings.notes(ours, own, unplotted), *problems],
        "about_published": findings.ABOUT_PUBLISHED,
        "columns": COLUMNS,
        "words": words,
        "data_names": statements.DATA,
    }
    return str(environment().get_template(TEMPLATE.name).render(values))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sections(own: Sequence[Series], theirs: Sequence[Series]) -> tuple[list[Section], list[Series]]:
    """Return sections for the kinds of node that our runs used (both if none), and series left out."""
    made: list[Section] = []
    unplotted: list[Series] = []
    for name, title, gpu in GROUPS:
        if own and not any(one.any_run.gpu == gpu for one in own):
            continue
        entries, rest = charts.entries([one for one in (*own, *theirs) if one.any_run.gpu == gpu])
        plots = [Drawn(chart, draw.svg(chart)) for chart in charts.over_nodes(name, entries)]
        made.append(Section(name, title, entries, plots))
        unplotted += rest
    return made, unplotted


def _curves(sections: Sequence[Section]) -> list[Curves]:
    found = []
    for section in sections:
        for index, entry in enumerate(e for e in section.entries if e.ours):
            plots = charts.over_epochs(f"{section.name}-epochs-{index + 1}", entry)
            if plots:
                found.append(Curves(entry, [Drawn(chart, draw.svg(chart)) for chart in plots]))
    return found


def environment(*folders: Path) -> Any:
    """Return the templates of reports, with those in further folders."""
    import jinja2
    import markupsafe

    def code(text: str) -> markupsafe.Markup:
        """Turn `text in backticks` into code. Everything is escaped first."""
        return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATE.parent, *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["code"] = code
    return made
