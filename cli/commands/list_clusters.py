"""`./cluster list`: every cluster of this user; and `down --cluster`, for one whose checkout is gone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.hints import left_over
from cli.providers import provider as providers
from cli.providers.clouds.listing import Listed
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import clusters, owner
from infra.program.clusters import Cluster

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.console.progress import Console


WORKERS = 16
CLOUDS = ("aws", "gcp")


@dataclass(frozen=True, slots=True)
class UserCluster:
    """A cluster in the list.

    Attributes:
        record: This user's record of it; `None` for one that only a cloud knows: another user's, or one that
            was brought up on another machine.
    """

    listed: Listed
    record: Cluster | None

    def as_json(self) -> dict[str, Any]:
        """Return the contract of `./cluster list --json`, for one cluster."""
        record = self.record
        return {
            "id": record.id if record else None,
            "checkout": record.checkout if record else None,
            "gone": record.gone if record else None,
            **asdict(self.listed),
            "since": _time(self.listed.since),
        }


def find(project: Path, *, clouds: bool) -> tuple[list[UserCluster], list[str]]:
    """Return this user's clusters, oldest first, and a sentence for each place that did not answer.

    Args:
        project: The checkout of the caller. Its stack files name further regions and projects to ask.
        clouds: Whether to ask clouds. The records alone say that a cluster was made there.
    """
    records = clusters.recorded()
    local = [each for each in records if each.provider == "local" and not owner.is_void(each)]
    with ThreadPoolExecutor(WORKERS) as pool:
        user_clusters = [
            UserCluster(listed, record)
            for record, listed in zip(local, pool.map(providers.listed_here, local), strict=True)
        ]
        answers, problems = _ask(_places(project, records), pool) if clouds else ([], [])
    by_place = {(place, record.id): record for record in records for place in _refs(record)}
    for (provider, ref), listed in answers:
        keys = [key for key in by_place if key[0] == ref and by_place[key].provider == provider]
        record = by_place.pop(keys[0]) if keys else None
        user_clusters.append(UserCluster(replace(listed, since=record.since) if record else listed, record))
    silent = {place for place, _ in problems}
    for (ref, _), record in by_place.items():
        unknown = not clouds or (record.provider, replace(ref, cluster="")) in silent
        user_clusters.append(
            UserCluster(
                Listed(
                    record.provider,
                    ref.cluster,
                    record.stack,
                    record.since,
                    "not asked" if unknown else "not found",
                    place=_place(ref),
                ),
                record,
            )
        )
    return sorted(user_clusters, key=lambda each: each.listed.since or 0.0), list(
        dict.fromkeys(text for _, text in problems)
    )


def _refs(record: Cluster) -> list[ClusterRef]:
    """Return the clusters of a record in the form in which a cloud's list names them, which has no zone."""
    refs = (ClusterRef(**{**fields, "zone": None}) for fields in record.places)
    return list(dict.fromkeys(refs))


Place = tuple[str, ClusterRef]
"""Provider, and region, project and account of no cluster: what one call asks for."""


def _places(project: Path, records: Iterable[Cluster]) -> list[Place]:
    """Return where the clusters of the records may be, and those of the checkout's stack files."""
    from infra.config import provider_settings, stack_file
    from infra.program.stack import Stack

    places = {(record.provider, replace(ref, cluster="")) for record in records for ref in _refs(record)}
    for name in stack_file.stacks(project):
        file = Stack(project, name).file
        provider = stack_file.provider(file, project)
        if provider not in CLOUDS:
            continue
        try:
            values = stack_file.all_values(file, project)
            settings = provider_settings.of_file(file, project)
        except UserError:  # `plan` says what is wrong with it
            continue
        region, owner = values.get(f"{provider}:region"), values.get("gcp:project")
        if isinstance(region, str) and (provider == "aws" or isinstance(owner, str)):
            project_id = owner if provider == "gcp" else None
            places.add((provider, ClusterRef("", region, None, project_id, settings)))
    return sorted(places, key=str)


def _ask(
    places: Sequence[Place], pool: ThreadPoolExecutor
) -> tuple[list[tuple[tuple[str, ClusterRef], Listed]], list[tuple[Place, str]]]:
    """Ask every place for its clusters. Return them, and a sentence for each place that did not answer."""

    def ask(place: Place) -> list[Listed] | UserError:
        provider, where = place
        try:
            return providers.cloud(provider).clusters(where)
        except UserError as error:
            return error

    listed: list[tuple[tuple[str, ClusterRef], Listed]] = []
    problems: list[tuple[Place, str]] = []
    for place, answer in zip(places, pool.map(ask, places), strict=True):
        provider, where = place
        if isinstance(answer, UserError):
            problems.append((place, f"{provider} {where.region} was not asked: {answer}"))
            continue
        refs = ((provider, replace(where, cluster=str(each.cluster))) for each in answer)
        listed += zip(refs, answer, strict=True)
    return listed, problems


def _place(ref: ClusterRef) -> str:
    return f"{ref.project}/{ref.region}" if ref.project else ref.region


def show(found: Sequence[UserCluster], *, clouds: bool) -> None:
    """Print the list as a table."""
    from cli.console.tables import cell, new_table, put

    if not found:
        return put(
            "No cluster is known here." + ("" if clouds else " `./cluster list --clouds` asks clouds.")
        )
    table = new_table(
        "Clusters", "stack", "cluster", "where", "checkout", "since", "state", "nodes", "cost so far"
    )
    for each in found:
        listed, record = each.listed, each.record
        where = f"{listed.provider} {listed.place}".strip()
        checkout = "not of this user and machine" if record is None else record.checkout
        if record is not None and record.gone:
            checkout += " (gone)"
        since = listed.since and datetime.fromtimestamp(listed.since).astimezone().strftime("%Y-%m-%d %H:%M")
        words = (
            listed.stack,
            listed.cluster,
            where,
            checkout,
            since,
            listed.state,
            listed.nodes,
            _cost(listed),
        )
        table.add_row(*map(cell, words))
    put(table)
    for each in found:
        if each.record is not None and each.record.gone:
            put(
                f"\nThe checkout of {each.record.id} was moved or deleted: "
                f"`{each.record.down_command}` ends it"
            )
    if any(each.listed.state == "not asked" for each in found) and not clouds:
        put("\n`./cluster list --clouds` asks the clouds for their clusters' nodes and cost.")
    if any(each.listed.provider in CLOUDS and each.listed.usd is not None for each in found):
        put("\nCost on a cloud: the machines that run now, since their start. `status` has all nodes so far.")
    return None


def _cost(listed: Listed) -> str | None:
    if listed.node_hours is None:
        return None
    usd = "price unknown" if listed.usd is None else f"{listed.usd:.2f} USD"
    return f"{listed.node_hours:.2f} node-hours, {usd}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def take_down(cluster: str, console: Console, agree: Callable[[str, Sequence[Job]], None]) -> None:
    """End a cluster whose checkout is gone.

    Args:
        cluster: Its id.
        agree: Is called with the stack's name and the jobs; raises UserError if somebody wants to keep them.

    Raises:
        UserError: There is no such cluster, or its checkout still has it; or something of it is left.
    """
    records = {record.id: record for record in clusters.recorded()}
    record = records.get(cluster)
    if record is None:
        known = ", ".join(records) or "none"
        raise UserError(
            f"--cluster {cluster}: this user has no cluster of that id. Known: {known}. `./cluster list` "
            "shows them",
            EXIT_USAGE,
            code="list.cluster-unknown",
        )
    if not record.gone:
        raise UserError(
            f"cluster {cluster} belongs to {record.checkout}, which is there: run "
            f"`{shlex.quote(record.checkout + '/cluster')} down --stack {record.stack}`",
            EXIT_REFUSED,
            code="list.checkout-there",
        )
    if record.provider == "local":
        providers.take_down_gone(record, console, lambda jobs: agree(record.stack, jobs))
        return
    cloud = providers.cloud(record.provider)
    refs = [ClusterRef(**fields) for fields in record.places]
    if left := [line for ref in refs for line in cloud.cloud(ref).leftovers()]:
        raise UserError(
            left_over(record.stack, left, record.down_command)
            + f"\nFirst end it by its state. Is that in your Pulumi backend? Then `./cluster down --stack "
            f"{record.stack}` in any checkout of this project destroys it. Was it in the deleted checkout "
            f"({record.checkout})? Restore that folder, or delete what is listed in the cloud's console.",
            code="list.state-left",
        )
    clusters.remove(record.id)
    console.say("nothing is left")
