"""The page: everything in one HTML file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from infra.report import charts, draw, findings, statements, words
from infra.report.charts import Chart, Entry
from infra.report.runs import Run
from infra.report.series import Series, group, ranked
from infra.report.table import COLUMNS

TEMPLATE = Path(__file__).with_name("page.html.j2")
GROUPS = (("cpu", "CPU nodes", False), ("gpu", "GPU nodes", True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plot with the words around it."""

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
) -> str:
    """The page's text.

    Args:
        problems: of kept files that are no results.
        made: now, UTC.
    """
    own, theirs = group(ours), group(published)
    sections, unplotted = _sections(own, theirs)
    values: dict[str, Any] = {
        "stacks": stacks,
        "made": made,
        "headline": _capital(findings.headline(stacks, own)),
        "leads": findings.leads(stacks, own, theirs),
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
    return str(_environment().get_template(TEMPLATE.name).render(values))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sections(own: Sequence[Series], theirs: Sequence[Series]) -> tuple[list[Section], list[Series]]:
    """Of the kinds of node that we have runs of; of both where we have none."""
    made: list[Section] = []
    unplotted: list[Series] = []
    for name, title, gpu in GROUPS:
        if own and not any(one.one.gpu == gpu for one in own):
            continue
        entries, rest = charts.entries([one for one in (*own, *theirs) if one.one.gpu == gpu])
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


def _environment() -> Any:
    import jinja2
    import markupsafe

    def code(text: str) -> markupsafe.Markup:
        """`like this` in a sentence becomes code; everything is escaped first."""
        return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code
    return environment
