"""The report's page: its headline, figures and notes, and one HTML file of them that loads nothing."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.commands.report import charts, draw, programs, words
from cli.commands.report.bills import Bill
from cli.commands.report.charts import Chart, Entry
from cli.commands.report.programs import Program
from cli.commands.report.runs import LOCAL_SGD, PUBLISHED_EPOCHS, SYNC, SYNTHETIC, Run
from cli.commands.report.series import Point, Series, group, ranked
from cli.commands.report.table import COLUMNS
from cli.hints import hint
from infra.instance_types import speeds
from infra.instance_types.catalog import catalog

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
    generated: datetime,
    own_programs: Sequence[Program] = (),
    bills: Sequence[Bill] = (),
) -> str:
    """Return the page's HTML.

    Args:
        stacks: Names of the stacks.
        ours: Our runs.
        published: The published runs.
        problems: Notes on kept files that are not valid results.
        generated: The present time, UTC.
        own_programs: Runs of the users' own programs.
        bills: What the clusters that are up have cost, for whom.
    """
    our_series, published_series = group(ours), group(published)
    programmed = programs.group(own_programs)
    sections, unplotted = _sections(our_series, published_series)
    values: dict[str, Any] = {
        "stacks": stacks,
        "made": generated,
        "headline": headline(stacks, ours, own_programs),
        "leads": [] if ours or own_programs else [_first(stacks[0])],
        "programs": programmed,
        "program_plots": [Drawn(chart, draw.svg(chart)) for chart in programs.charts(programmed)],
        "figures": figures(ours, our_series),
        "sections": sections,
        "curves": _curves(sections),
        "machines": machines([*our_series, *published_series]),
        "series": sorted(ranked(our_series), key=lambda item: stacks.index(item.key.stack)),
        "published_series": published_series,
        "bills": bills,
        "runs": ours,
        "published": published,
        "notes": [*notes(Shown(ours, our_series, unplotted)), *problems],
        "about_published": ABOUT_PUBLISHED,
        "columns": COLUMNS,
        "words": words,
        "data_names": charts.DATA,
    }
    return str(environment().get_template(TEMPLATE.name).render(values))


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type of a cloud, as the articles' table has it. `None` means not known."""

    name: str
    vcpus: int | None
    memory_mib: int | None
    ebs_mbps: int | None
    network: str
    processor: str
    usd_per_hour: float | None


def machines(series: Sequence[Series]) -> list[Machine]:
    """Return the clouds' instance types of these series, each once, in their order."""
    by_name: dict[str, Machine] = {}
    for item in series:
        run, name = item.any_run, item.key.machine
        if name is None or run.local or name in by_name:
            continue
        facts, more = catalog().instance_type(name), speeds.of(name)
        price = next((p for point in item.points for one in point.runs if (p := one.usd_per_hour)), None)
        by_name[name] = Machine(
            name,
            facts.vcpus if facts else None,
            facts.memory_mib if facts else None,
            more.ebs_mbps if more else None,
            more.network if more else "",
            more.processor if more else "",
            None if run.gpu and name.startswith("n1-") else price,
        )
    return list(by_name.values())


def _sections(
    our_series: Sequence[Series], published: Sequence[Series]
) -> tuple[list[Section], list[Series]]:
    """Return sections for the kinds of node that our runs used (both if none), and series left out."""
    sections: list[Section] = []
    unplotted: list[Series] = []
    for name, title, gpu in GROUPS:
        if our_series and not any(item.any_run.gpu == gpu for item in our_series):
            continue
        entries, rest = charts.entries(
            [item for item in (*our_series, *published) if item.any_run.gpu == gpu]
        )
        plots = [Drawn(chart, draw.svg(chart)) for chart in charts.over_nodes(name, entries)]
        sections.append(Section(name, title, entries, plots))
        unplotted += rest
    return sections, unplotted


def _curves(sections: Sequence[Section]) -> list[Curves]:
    pictures = []
    for section in sections:
        for index, entry in enumerate(e for e in section.entries if e.ours):
            plots = charts.over_epochs(f"{section.name}-epochs-{index + 1}", entry)
            if plots:
                pictures.append(Curves(entry, [Drawn(chart, draw.svg(chart)) for chart in plots]))
    return pictures


def environment(*folders: Path) -> Any:
    """Return the templates of reports, with those in further folders."""
    import jinja2
    import markupsafe

    def code(text: str) -> markupsafe.Markup:
        """Turn `text in backticks` into code. Everything is escaped first."""
        return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATE.parent, *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code
    return environment


ABOUT_PUBLISHED = (
    "The published figures are every row of the tables of three articles by Mia Tadic and Darija Strmecki"
    " (“High Performance Computing with Slurm on GCP”, “… with Slurm on AWS”, “… on GPUs (GCP vs AWS)”), "
    "as printed. On AWS’s GPUs the rows of two and of three nodes have the same loss and accuracy there, "
    "which may be a slip of the articles.",
    "They are single figures: MNIST, eight epochs, a batch of 64 a worker (the articles’ log has 234 "
    "steps an epoch on four nodes), TensorFlow 2.0 of 2020. The batch of a step grows with the nodes, not"
    " with the GPUs of a node.",
    "“Code execution time” is compared with our time of training, which is the sum of the epochs’ times, "
    "without start-up and evaluation. The "
    "articles do not say what it covers, but the epochs in their log (four nodes: 26 s each, so 208 s for"
    " eight) come to all but two seconds of the 209.6 s in their table.",
    "Their accuracy is that on the training data after the last epoch; they held no data out.",
    "Cost: of m4.large and c4.2xlarge with the articles’ prices; of n1-standard-2 and its V100s with the "
    "dated snapshot in infra/instance_types; of p3.2xlarge, which is retired, with its last list price in "
    "eu-central-1.",
    "Their nodes took 1.5 to 2 minutes to start on Google Cloud, with GPUs about 5 minutes there and "
    "about 4 on AWS.",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with a label and a note."""

    label: str
    value: str
    note: str


def headline(stacks: Sequence[str], ours: Sequence[Run], own_programs: Sequence[Program]) -> str:
    """Return the page's heading."""
    names = f"{'stack' if len(stacks) == 1 else 'stacks'} {words.listed(list(stacks))}"
    if ours:
        return f"Runs of {names} beside the published ones"
    if own_programs:
        return f"Programs on {names}"
    return f"No results of {names} yet; these are the published ones"


def _first(stack: str) -> str:
    first, compared = hint("up", stack), hint("run", stack, "--nodes 1,2,4")
    return f"`{first}` makes a first result, `{compared}` a comparison."


def figures(runs: Sequence[Run], ours: Sequence[Series]) -> list[Figure]:
    """Return a few numbers about our runs. The list is empty if there are none."""
    if not runs:
        return []
    stacks = {run.stack for run in runs}
    labels = {run.checkout_label for run in runs if run.checkout_label}
    note = f"of {words.count(len(stacks), 'stack')}"
    note += f", from {words.count(len(labels), 'checkout')}" if labels else ""
    shown = [Figure("Runs", f"{len(runs):,}", note)]
    points = [(series, point) for series in ours for point in series.points if not series.key.disturbed]
    if not points:
        again = "other programs disturbed every run: run it again on a quiet machine"
        return [*shown, Figure("Fastest epoch", "–", again), *_starts(runs), _cost(runs), _restarts(runs)]
    timed = [
        (t.median, series, point) for series, point in points if (t := point.seconds_per_epoch) is not None
    ]
    if timed:
        seconds, series, point = min(timed, key=lambda item: item[0])
        shown.append(Figure("Fastest epoch", words.seconds(seconds), _median_of(series, point)))
    rates = [
        (r.median, series, point)
        for series, point in points
        if (r := point.spread(lambda run: run.images_per_second)) is not None
    ]
    rate, series, point = max(rates, key=lambda item: item[0])
    shown.append(Figure("Images a second", f"{rate:,.0f}", _median_of(series, point)))
    return [*shown, *_starts(runs), _cost(runs), _restarts(runs)]


def _starts(runs: Sequence[Run]) -> list[Figure]:
    starts = [run.start_latency_seconds for run in runs if run.start_latency_seconds is not None]
    if not starts:
        return []
    note = "from when Slurm could start it"
    if len(starts) > 1:
        note += f", median of {len(starts):,}; worst {words.seconds(max(starts))}"
    return [Figure("Start of a job", words.seconds(statistics.median(starts)), note)]


def _restarts(runs: Sequence[Run]) -> Figure:
    restarts = sum(run.restarts or 0 for run in runs)
    hit = sum(1 for run in runs if run.restarts)
    return Figure("Restarts", f"{restarts:,}", f"in {words.count(hit, 'run')}" if hit else "in no run")


def _median_of(series: Series, point: Point) -> str:
    """Say where a figure is from. Of several runs it is the median, and one of them was faster."""
    runs = len(point.runs)
    where = _where(series, point)
    return f"median of {words.count(runs, 'run')}: {where}" if runs > 1 else where


def _where(series: Series, point: Point) -> str:
    return f"{series.key.stack}, {words.count(point.nodes, 'node')}"


def _cost(runs: Sequence[Run]) -> Figure:
    paid = [run for run in runs if not run.pretended_price]
    known = [run.cost_usd for run in paid if run.cost_usd is not None]
    if not paid:
        return Figure("Cost", words.usd(0), "local machines cost nothing")
    machines = sorted({run.machine or "unknown machines" for run in paid if run.cost_usd is None})
    unknown = f"price of {words.listed(machines)} unknown" if machines else ""
    if not known:
        return Figure("Cost", "–", unknown)
    note = f"nodes of {words.count(len(known), 'run')}"
    if not unknown:
        return Figure("Cost", words.usd(sum(known)), note)
    missing = words.count(len(paid) - len(known), "run")
    return Figure("Cost", f"≥{words.SPACE}{words.usd(sum(known))}", f"at least: {note}; {unknown}, {missing}")


@dataclass(frozen=True, slots=True)
class Shown:
    """What of ours is on the page.

    Attributes:
        unplotted: The series that are in the tables only.
    """

    runs: Sequence[Run]
    series: Sequence[Series]
    unplotted: Sequence[Series]

    def any(self, is_so: Callable[[Run], object]) -> bool:
        """Return whether it is so of any run."""
        return any(is_so(run) for run in self.runs)


def notes(shown: Shown) -> list[str]:
    """Return the notes on our runs."""
    return [text for applies, text in NOTES if applies(shown)]


NOTES: tuple[tuple[Callable[[Shown], bool], str], ...] = (
    (
        lambda shown: shown.any(lambda run: run.checkout_label),
        "Several checkouts have a stack of this name: each series, run and line of report.csv names its "
        "checkout.",
    ),
    (
        lambda shown: any(len(point.runs) > 1 for item in shown.series for point in item.points),
        "Repeats are shown as their median; whiskers reach from the least to the greatest value, and tables "
        "give the number of runs.",
    ),
    (
        lambda shown: shown.any(lambda run: run.local),
        "Machines named local.* are groups of processes on one machine: they share its memory, and no network"
        " lies between them. Their prices are pretended and are in no sum or plot.",
    ),
    (
        lambda shown: any(item.uneven and not item.key.disturbed for item in shown.series),
        "A series whose nodes shared cores has no speed-up: its times show that the cluster works, not what "
        "more machines would bring.",
    ),
    (
        lambda shown: any(item.key.disturbed for item in shown.series),
        "A series has no speed-up either where other programs, which may be nodes of other clusters, took a "
        "tenth or more of the cores’ time. On a quiet machine the same runs have one.",
    ),
    (
        lambda shown: any(not item.uneven and not item.point(1) for item in shown.series),
        "Speed-up and efficiency are over one node of the same series: a series without a run on one node has"
        " none. `./cluster run --stack STACK --nodes 1` makes one.",
    ),
    (
        lambda shown: shown.any(lambda run: run.data == SYNTHETIC),
        "Runs on digits-synthetic train on synthetic digits made from scikit-learn’s, as many and as large as"
        " MNIST’s. Their times may be compared, their loss and accuracy never, so these have plots of their "
        "own.",
    ),
    (
        lambda shown: shown.any(lambda run: run.data != SYNTHETIC and not run.comparable),
        "Runs on MNIST with another recipe than the published one (eight epochs, batch 64 a worker, profile "
        "published or sync) have accuracy plots of their own too.",
    ),
    (
        lambda shown: shown.any(lambda run: run.workers > 1 and run.profile in (LOCAL_SGD, SYNC)),
        "Profile published exchanges weights at each step and loses accuracy with every node. Profile sync "
        "scales the learning rate with the batch; local-sgd also exchanges only after some steps.",
    ),
    (
        lambda shown: any(item.predicted(2) is not None for item in shown.series),
        "The line “predicted” is what the times of a step and of an exchange allow on other numbers of nodes,"
        " if an exchange takes its share of a ring: a point below it lost time elsewhere.",
    ),
    (
        lambda shown: any(
            point.nodes > 1 and item.allowed(point) is not None
            for item in shown.series
            for point in item.points
        ),
        "The line “machine allows” is what local nodes would reach if no exchange took any time: a step takes"
        " longer the more of them share one memory. A point below it is what the training lost.",
    ),
    (
        lambda shown: shown.any(lambda run: run.epochs != PUBLISHED_EPOCHS),
        "Times are for one epoch, because runs differ in their number of epochs. A run’s first epoch is "
        "slower, so runs of few epochs look slower than they would over eight.",
    ),
    (
        lambda shown: (
            len({(item.key.stack, item.key.digest) for item in shown.series})
            > len({item.key.stack for item in shown.series})
        ),
        "Runs of different training code (digest) are different series and never averaged.",
    ),
    (
        lambda shown: bool(shown.unplotted),
        "The plots show four series at most; the tables have all of them.",
    ),
    (
        lambda shown: shown.any(lambda run: run.restarts),
        "The time of a restarted run includes all its starts, but not the training after the last checkpoint "
        "that was lost.",
    ),
)
"""When a note is of use, and the note: what keeps a reader from taking a figure for more than it is."""
