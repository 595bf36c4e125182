"""The report's page: its headline, figures and notes, and one HTML file of them that loads nothing."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.commands.report import charts, draw, programs, words
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
) -> str:
    """Return the page's HTML.

    Args:
        stacks: Names of the stacks.
        ours: Our runs.
        published: The published runs.
        problems: Notes on kept files that are not valid results.
        generated: The present time, UTC.
        own_programs: Runs of the users' own programs.
    """
    our_series, published_series = group(ours), group(published)
    programmed = programs.group(own_programs)
    sections, unplotted = _sections(our_series, published_series)
    values: dict[str, Any] = {
        "stacks": stacks,
        "made": generated,
        "headline": _capital(
            programs.headline(programmed) if programmed and not our_series else headline(stacks, our_series)
        ),
        "leads": [] if programmed and not our_series else leads(stacks, our_series, published_series),
        "programs": programmed,
        "program_plots": [Drawn(chart, draw.svg(chart)) for chart in programs.charts(programmed)],
        "figures": figures(ours, our_series),
        "sections": sections,
        "curves": _curves(sections),
        "machines": machines([*our_series, *published_series]),
        "series": sorted(ranked(our_series), key=lambda item: stacks.index(item.key.stack)),
        "published_series": published_series,
        "runs": ours,
        "published": published,
        "notes": [*notes(ours, our_series, unplotted), *problems],
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
    found: dict[str, Machine] = {}
    for item in series:
        run, name = item.any_run, item.key.machine
        if name is None or run.local or name in found:
            continue
        facts, more = catalog().instance_type(name), speeds.of(name)
        price = next((p for point in item.points for one in point.runs if (p := one.usd_per_hour)), None)
        found[name] = Machine(
            name,
            facts.vcpus if facts else None,
            facts.memory_mib if facts else None,
            more.ebs_mbps if more else None,
            more.network if more else "",
            more.processor if more else "",
            None if run.gpu and name.startswith("n1-") else price,
        )
    return list(found.values())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


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


def headline(stacks: Sequence[str], series: Sequence[Series]) -> str:
    """Return the page's first sentence, about the best series that nothing has disturbed (`ranked`)."""
    if not series:
        names = words.listed(list(stacks))
        what = "stack" if len(stacks) == 1 else "stacks"
        return f"No results of {what} {names} yet; these are the published ones"
    if all(item.key.disturbed for item in series):
        return "Other programs disturbed every run: run it again on a quiet machine"
    return _sentence(_best(series)[0], named=len(stacks) > 1)


def _best(series: Sequence[Series]) -> list[Series]:
    """Return the series as `ranked`, without those that other programs have disturbed, unless all are."""
    return ranked([item for item in series if not item.key.disturbed] or series)


def _sentence(series: Series, named: bool) -> str:
    """Return a sentence about a series, without the full stop."""
    where = f" on {series.key.stack}" if named else ""
    if named and series.any_run.local:
        where = f" (stack {series.key.stack})"
    run, last = series.any_run, series.points[-1]
    text = charts.compared_title(series)
    if text is not None:
        if run.local:
            return f"On one machine’s cores, {text.replace(' nodes ', ' workers ')}{where}"
        return text + where
    spread = last.seconds_per_epoch
    if spread is None:
        return f"{words.count(last.nodes, 'node')} trained {words.count(run.epochs, 'epoch')}{where}"
    verb = "trains" if last.nodes == 1 else "train"
    return f"{words.count(last.nodes, 'node')} {verb} an epoch in {words.seconds(spread.median)}{where}"


def leads(stacks: Sequence[str], ours: Sequence[Series], published: Sequence[Series]) -> list[str]:
    """Return the sentences below the headline."""
    if not ours:
        stack = stacks[0]
        first, compared = hint("up", stack), hint("run", stack, "--nodes 1,2,4")
        return [f"`{first}` makes a first result, `{compared}` a comparison."]
    best = _best(ours)
    firsts = [next((s for s in best if s.key.stack == stack), None) for stack in stacks]
    texts = []
    for first_series in (first for first in firsts if first is not None):
        sentences = [f"{_sentence(first_series, named=True)}."] if first_series != best[0] else []
        sentences += [text] if (text := _beside(first_series, published)) else []
        if sentences:
            texts.append(" ".join(sentences))
    uncompared = all(charts.compared_title(first_series) is None for first_series in ours)
    if uncompared and not any(item.uneven for item in ours):
        texts.append(f"`{hint('run', stacks[0], '--nodes 1,2')}` tells how much faster more nodes are.")
    if any(first_series.any_run.local for first_series in ours):
        texts.append(
            _on_one_machine(
                [run for first_series in ours for point in first_series.points for run in point.runs]
            )
        )
    if uncompared and (uneven := next((item for item in ours if item.uneven), None)) is not None:
        texts.append(_again(uneven.key.stack, ours))
    return texts


def _again(stack: str, ours: Sequence[Series]) -> str:
    """Return the command whose runs can be compared, for a stack whose runs cannot: its nodes were uneven."""
    nodes = {point.nodes for item in ours if item.key.stack == stack for point in item.points}
    numbers = sorted({1, *nodes}) if nodes != {1} else [1, 2]
    command = hint("run", stack, f"--nodes {','.join(map(str, numbers))}")
    return (
        f"Run it again on a quiet machine that has the cores: there `{command}` tells how much faster more "
        "nodes are."
    )


def _on_one_machine(runs: Sequence[Run]) -> str:
    """Return what the times of local nodes are worth, which depends on their having cores of their own."""
    several = [run for run in runs if run.local and run.workers > 1]
    if disturbed := [run for run in runs if run.disturbed]:
        most = max(run.cores_others or 0.0 for run in disturbed)
        return (
            f"Other programs took up to {words.share(most)} of the cores’ time in {len(disturbed):,} of "
            f"{words.count(len(runs), 'run')}: these say nothing of how much faster more nodes are."
        )
    if several and all(run.cores_shared is False for run in several):
        return (
            "The local stack’s nodes are on one machine, each with CPU cores of its own: memory and its "
            "bandwidth are all that they shared, and no network lay between them."
        )
    if shared := [run for run in several if run.cores_shared and run.cores]:
        worst = max(shared, key=lambda run: run.workers / (run.cores or 1))
        workers, cores = words.count(worst.workers, "worker"), words.count(worst.cores or 0, "core")
        return (
            f"The local stack’s nodes are on one machine, and {workers} shared its {cores}: its times show "
            "that the cluster works, not what more machines would bring."
        )
    return (
        "The local stack’s nodes share one machine’s cores: its times show that the cluster works, not what "
        "more machines would bring."
    )


def _beside(series: Series, published: Sequence[Series]) -> str | None:
    """Compare with the same machines in the articles, on the largest number of nodes that both have."""
    k = series.key
    same = [p for p in published if (p.key.machine, p.key.gpus_per_node) == (k.machine, k.gpus_per_node)]
    for point in reversed(series.points):
        other = next((o for p in same if (o := p.point(point.nodes)) is not None), None)
        if other is None or point.seconds_per_epoch is None or other.seconds_per_epoch is None:
            continue
        ours, theirs = point.seconds_per_epoch.median, other.seconds_per_epoch.median
        run = other.runs[0]
        gpus = f" with {run.gpus_per_node} {(run.accelerator or '').upper()}" if run.gpu else ""
        return (
            f"An epoch takes {words.seconds(ours)} on {words.count(point.nodes, 'node')} of {k.stack}; "
            f"published for as many {k.machine}{gpus}: {words.seconds(theirs)}."
        )
    return None


def figures(runs: Sequence[Run], ours: Sequence[Series]) -> list[Figure]:
    """Return a few numbers about our runs. The list is empty if there are none."""
    if not runs:
        return []
    stacks = {run.stack for run in runs}
    labels = {run.checkout_label for run in runs if run.checkout_label}
    note = f"of {words.count(len(stacks), 'stack')}"
    note += f", from {words.count(len(labels), 'checkout')}" if labels else ""
    found = [Figure("Runs", f"{len(runs):,}", note)]
    points = [(series, point) for series in ours for point in series.points if not series.key.disturbed]
    if not points:
        again = "other programs disturbed every run: run it again on a quiet machine"
        return [*found, Figure("Fastest epoch", "–", again), *_starts(runs), _cost(runs), _restarts(runs)]
    timed = [
        (t.median, series, point) for series, point in points if (t := point.seconds_per_epoch) is not None
    ]
    if timed:
        seconds, series, point = min(timed, key=lambda item: item[0])
        found.append(Figure("Fastest epoch", words.seconds(seconds), _median_of(series, point)))
    rates = [
        (r.median, series, point)
        for series, point in points
        if (r := point.spread(lambda run: run.images_per_second)) is not None
    ]
    rate, series, point = max(rates, key=lambda item: item[0])
    found.append(Figure("Images a second", f"{rate:,.0f}", _median_of(series, point)))
    return [*found, *_starts(runs), _cost(runs), _restarts(runs)]


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


def notes(runs: Sequence[Run], ours: Sequence[Series], unplotted: Sequence[Series]) -> list[str]:
    """Return the notes on our runs."""
    sentences = []
    if any(run.checkout_label for run in runs):
        sentences.append(
            "Several checkouts have a stack of this name: each series, run and line of report.csv names its "
            "checkout."
        )
    if any(len(point.runs) > 1 for item in ours for point in item.points):
        sentences.append(
            "Repeats are shown as their median; whiskers reach from the least to the greatest value, and "
            "tables give the number of runs."
        )
    if any(run.local for run in runs):
        sentences.append(
            "Machines named local.* are groups of processes on one machine and share its cores. Their prices "
            "are pretended and are in no sum or plot."
        )
    if any(run.data == SYNTHETIC for run in runs):
        sentences.append(
            "Runs on digits-synthetic train on synthetic digits made from scikit-learn’s, as many and as "
            "large as MNIST’s. Their times may be compared, their loss and accuracy never, so these have "
            "plots of their own."
        )
    if any(run.data != SYNTHETIC and not run.comparable for run in runs):
        sentences.append(
            "Runs on MNIST with another recipe than the published one (eight epochs, batch 64 a worker, "
            "profile published or sync) have accuracy plots of their own too."
        )
    if any(run.profile == LOCAL_SGD and run.workers > 1 for run in runs):
        sentences.append(
            "Profile local-sgd is the default: workers train alone for some steps and then average their "
            "weights, so that 11 MB cross the network once for those steps instead of at each of them. Its "
            "held-out accuracy is that of profile sync, which does send them at each step; published loses "
            "accuracy with every node. On one worker local-sgd and sync are the same training."
        )
    sentences += _where_time_goes(ours)
    if any(run.profile == SYNC and run.comparable and run.workers > 1 for run in runs):
        sentences.append(
            "Profile sync scales the learning rate with the batch and lets it fall towards the end; the "
            "articles and profile published keep 0.2 throughout."
        )
    if {run.epochs for run in runs} - {PUBLISHED_EPOCHS}:
        sentences.append(
            "Times are for one epoch, because runs differ in their number of epochs. A run’s first epoch is "
            "slower, so runs of few epochs look slower than they would over eight."
        )
    sentences += [
        _uneven(item) if item.uneven else _no_base(item) for item in ours if item.uneven or not item.point(1)
    ]
    if len({(item.key.stack, item.key.digest) for item in ours}) > len({item.key.stack for item in ours}):
        sentences.append("Runs of different training code (digest) are different series and never averaged.")
    if unplotted:
        names = "; ".join(f"{item.key.stack}: {words.recipe(item)}{words.code(item)}" for item in unplotted)
        sentences.append(f"In the tables but not in the plots, which show four series at most: {names}.")
    if any(run.restarts for run in runs):
        sentences.append(
            "The time of a restarted run includes all its starts, but not the training after the last "
            "checkpoint that was lost."
        )
    return sentences


def _where_time_goes(ours: Sequence[Series]) -> list[str]:
    """Say of the first series that has it what a step consists of, and what the predicted line is."""
    for item in ranked(ours):
        measured = next(
            (m for point in reversed(item.points) for run in point.runs if (m := run.scaling) is not None),
            None,
        )
        if measured is None:
            continue
        steps = "step" if measured.every == 1 else words.count(measured.every, "step")
        return [
            f"Where the time of {item.key.stack} on {words.count(measured.workers, 'worker')} goes: "
            f"{words.share(measured.computing)} computes and the rest exchanges weights. A step takes "
            f"{1000 * measured.step:.1f} ms, an exchange every {steps} {1000 * measured.exchange:.1f} ms. "
            + (
                "Nothing is predicted of other numbers of nodes: they share one machine’s memory, so a step "
                "takes longer the more of them compute."
                if item.any_run.local
                else "The line “predicted” is what these two times allow on other numbers of nodes, if an "
                "exchange takes its share of a ring (workload/scaling.py): a point below it lost time "
                "elsewhere."
            )
        ]
    return []


def _uneven(series: Series) -> str:
    name = f"{series.key.stack} ({words.recipe(series)}{words.code(series)})"
    if series.key.disturbed:
        return (
            "Other programs, which may be nodes of other clusters, took a tenth or more of the cores’ time "
            f"in runs of {name}: no speed-up is computed. On a quiet machine the same runs have one."
        )
    return f"{name}: its nodes had less than a core for each of their CPUs, so no speed-up is computed."


def _no_base(series: Series) -> str:
    return (
        f"{series.key.stack} ({words.recipe(series)}{words.code(series)}) has no run on one node, so its "
        f"speed-up and efficiency are not known. `./cluster run --stack {series.key.stack} --nodes 1` "
        "makes one."
    )
