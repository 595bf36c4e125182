"""What the page says in words: the headline, the figures below it, and what a reader must know."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from infra.hints import hint
from infra.report import statements, words
from infra.report.runs import PUBLISHED_EPOCHS, SYNTHETIC, Run
from infra.report.series import Point, Series, ranked

ABOUT_PUBLISHED = (
    "The published figures are every row of the tables of three articles by Mia Tadic and Darija Strmecki"
    " (“High Performance Computing with Slurm on GCP”, “… with Slurm on AWS”, “… on GPUs (GCP vs AWS)”), "
    "as printed. On AWS’s GPUs the rows of two and of three nodes have the same loss and accuracy there, "
    "which may be a slip of the articles.",
    "They are single figures: MNIST, eight epochs, a batch of 64 a worker (the articles’ log has 234 "
    "steps an epoch on four nodes), TensorFlow 2.0 of 2020. The batch of a step grows with the nodes, not"
    " with the GPUs of a node.",
    "“Code execution time” is compared with our time of training, without start-up and evaluation. The "
    "articles do not say what it covers, but the epochs in their log (four nodes: 26 s each, so 208 s for"
    " eight) come to all but two seconds of the 209.6 s in their table.",
    "Their accuracy is that on the training data after the last epoch; they held no data out.",
    "Cost: of m4.large and c4.2xlarge with the articles’ prices; of n1-standard-2 and its V100s with the "
    "dated snapshot in infra/machines.yaml; of p3.2xlarge, which is retired, no price is known.",
    "Their nodes took 1.5 to 2 minutes to start on Google Cloud, with GPUs about 5 minutes there and "
    "about 4 on AWS.",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number worth its own line."""

    label: str
    value: str
    note: str


def headline(stacks: Sequence[str], series: Sequence[Series]) -> str:
    """The page's first sentence: the first stack's most telling series."""
    if not series:
        names = words.listed(list(stacks))
        what = "stack" if len(stacks) == 1 else "stacks"
        return f"No results of {what} {names} yet; these are the published ones"
    return _sentence(ranked(series)[0], named=len(stacks) > 1)


def _sentence(series: Series, named: bool) -> str:
    """A series in a sentence without its full stop."""
    where = f" on {series.key.stack}" if named else ""
    if named and series.one.local:
        where = f" (stack {series.key.stack})"
    run, last = series.one, series.points[-1]
    text = statements.compared(series)
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
    """The sentences below the headline."""
    if not ours:
        stack = stacks[0]
        first, compared = hint("up", stack), hint("run", stack, "--nodes 1,2,4")
        return [f"`{first}` makes a first result, `{compared}` a comparison."]
    best = ranked(ours)
    firsts = [next((s for s in best if s.key.stack == stack), None) for stack in stacks]
    said = []
    for one in (first for first in firsts if first is not None):
        sentences = [f"{_sentence(one, named=True)}."] if one != best[0] else []
        sentences += [text] if (text := _beside(one, published)) else []
        if sentences:
            said.append(" ".join(sentences))
    if all(statements.compared(one) is None for one in ours):
        said.append(f"`{hint('run', stacks[0], '--nodes 1,2')}` tells how much faster more nodes are.")
    if any(one.one.local for one in ours):
        said.append(
            "The local stack’s nodes share one machine’s cores: its times show that the cluster works, not "
            "what more machines would bring."
        )
    return said


def _beside(series: Series, published: Sequence[Series]) -> str | None:
    """The same machines in the articles, on the most nodes that both have."""
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
    """Our runs in a few numbers; empty without runs."""
    if not runs:
        return []
    stacks = {run.stack for run in runs}
    whose = {run.whose for run in runs if run.whose}
    note = f"of {words.count(len(stacks), 'stack')}"
    note += f", from {words.count(len(whose), 'checkout')}" if whose else ""
    found = [Figure("Runs", f"{len(runs):,}", note)]
    points = [(one, point) for one in ours for point in one.points]
    timed = [(t.median, one, point) for one, point in points if (t := point.seconds_per_epoch) is not None]
    if timed:
        seconds, one, point = min(timed, key=lambda item: item[0])
        found.append(Figure("Fastest epoch", words.seconds(seconds), _where(one, point)))
    rates = [
        (r.median, one, point)
        for one, point in points
        if (r := point.spread(lambda run: run.images_per_second)) is not None
    ]
    rate, one, point = max(rates, key=lambda item: item[0])
    found.append(Figure("Images a second", f"{rate:,.0f}", _where(one, point)))
    starts = [run.start_latency_seconds for run in runs if run.start_latency_seconds is not None]
    if starts:
        median, worst = statistics.median(starts), max(starts)
        note = "from when Slurm could start it"
        if len(starts) > 1:
            note += f", median of {len(starts):,}; worst {words.seconds(worst)}"
        found.append(Figure("Start of a job", words.seconds(median), note))
    found.append(_cost(runs))
    restarts = sum(run.restarts or 0 for run in runs)
    hit = sum(1 for run in runs if run.restarts)
    found.append(Figure("Restarts", f"{restarts:,}", f"in {words.count(hit, 'run')}" if hit else "in no run"))
    return found


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
    """What a reader must know of our runs."""
    said = []
    if any(run.whose for run in runs):
        said.append(
            "Several checkouts have a stack of this name: each series, run and line of report.csv says whose "
            "it is. Results that an older version has kept do not say so: unknown checkout."
        )
    if any(len(point.runs) > 1 for one in ours for point in one.points):
        said.append(
            "Repeats: the median; whiskers reach from the least to the most, and tables say how many."
        )
    if any(run.local for run in runs):
        said.append(
            "Machines named local.* are groups of processes on one machine and share its cores; prices of "
            "theirs are pretended ones and in no sum or plot."
        )
    if any(run.data == SYNTHETIC for run in runs):
        said.append(
            "Runs on digits-synthetic train on synthetic digits made from scikit-learn’s, as many and as "
            "large images as MNIST: their times may be compared, their loss and accuracy never, so they have "
            "plots of their own."
        )
    if any(run.data != SYNTHETIC and not run.comparable for run in runs):
        said.append(
            "Runs on MNIST with another recipe than the published one (eight epochs, batch 64 a worker, "
            "profile published or sync) have accuracy plots of their own too."
        )
    if {run.epochs for run in runs} - {PUBLISHED_EPOCHS}:
        said.append(
            "Times are those of one epoch, because runs differ in epochs. The first epoch of a run is "
            "slower, so runs of few epochs look slower than they would over eight."
        )
    said += [_no_base(one) for one in ours if one.point(1) is None]
    if len({(one.key.stack, one.key.digest) for one in ours}) > len({one.key.stack for one in ours}):
        said.append("Runs of different training code (digest) are different series and never averaged.")
    if unplotted:
        names = "; ".join(f"{one.key.stack}: {words.recipe(one)}{words.code(one)}" for one in unplotted)
        said.append(f"In the tables but not in the plots, which show four series at most: {names}.")
    if any(run.restarts for run in runs):
        said.append(
            "Times of a run that was restarted are those of all its starts; what was trained after the last "
            "checkpoint, and lost, is not in them."
        )
    return said


def _no_base(one: Series) -> str:
    return (
        f"{one.key.stack} ({words.recipe(one)}{words.code(one)}) has no run on one node, so its speed-up and "
        f"efficiency are not known. `./cluster run --stack {one.key.stack} --nodes 1` makes one."
    )
