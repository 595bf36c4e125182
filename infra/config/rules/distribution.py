"""Checks of the distribution that machines boot, and of what its release of Slurm is safe for."""

from __future__ import annotations

from collections.abc import Iterator

from infra import slurm_releases
from infra.config import distributions
from infra.config.cluster import ClusterConfig
from infra.config.mistakes import Location, path_of
from infra.config.rules.context import CLUSTER, Context


def check_distribution(c: Context) -> None:
    """Check that the distribution has what the stack needs, and a maintained Slurm where users rely on it."""
    if c.provider == "local":
        if c.cluster.image.source is not None:
            at = (*CLUSTER, "image", "source")
            c.add(
                "image.source-local",
                at,
                c.cluster.image.source,
                "nothing on the local stack",
                "local: {suite: …} is its counterpart",
            )
        return
    if c.cluster.image.source is not None:
        _offered(c, c.cluster.image.source)
    if c.cluster.scheduler == "slurm":
        _accepted(c)


def _offered(c: Context, source: str) -> None:
    row = distributions.DISTRIBUTIONS[source]
    lacking = {
        need: f"{_named(need, at)}: {row.offers[need].why}"
        for need, at in distributions.needs(c.cluster, c.facts)
        if not row.offers[need].supported
    }
    if not lacking:
        return
    others = [
        name
        for name, other in distributions.DISTRIBUTIONS.items()
        if all(other.offers[need].supported for need in lacking)
    ]
    advice = f"write source: {' or '.join(others)}, or remove what needs it"
    if lacking.keys() == {"session_manager"}:
        advice = f"write access: {{mode: ssh, ssh_cidrs: […], key: …}}, or source: {others[0]}"
    c.add(
        "image.unsupported",
        (*CLUSTER, "image", "source"),
        source,
        f"{' or '.join(others)} with {'; '.join(lacking.values())}",
        advice,
    )


def _accepted(c: Context) -> None:
    """Refuse what lets users rely on a Slurm that nobody maintains, until the stack file accepts that."""
    table = slurm_releases.table()
    name, accepted = distributions.slurm_package(c.cluster, c.facts), c.cluster.slurm.accept_unmaintained
    at = (*CLUSTER, "slurm", "accept_unmaintained")
    if accepted is not None and accepted > table.date.isoformat():
        c.add(
            "slurm.accepted-late",
            at,
            accepted,
            f"a day up to {table.date}, on which the table of releases was made",
            "what is published later is not known here, so nobody can accept it",
        )
        return
    if name is None or table.maintained(package := table.packages[name]):
        return
    latest = max((a.date for a in table.open_in(package.version)), default=table.date)
    if accepted is not None and accepted >= latest.isoformat():
        return
    for location, given, feature in _relied_on(c.cluster):
        c.add(
            "slurm.unmaintained",
            (*CLUSTER, *location),
            given,
            f"no {slurm_releases.FEATURES[feature]} with {table.described(package)}: "
            f"{_ids(table, package, feature)} would be open",
            f"{_maintained(c, table)}; or accept it for this stack by slurm: {{accept_unmaintained: "
            f'"{table.date}"}} (docs/versions.md says what users can then do)',
        )


def _maintained(c: Context, table: slurm_releases.Table) -> str:
    """Say how the stack gets a Slurm that is maintained: another distribution's, or built from its source."""
    name, row = next(
        (name, row)
        for name, row in distributions.DISTRIBUTIONS.items()
        if table.maintained(table.packages[name])
    )
    needed = {need for need, _ in distributions.needs(c.cluster, c.facts)}
    if all(row.offers[need].supported for need in needed):
        return f"image: {{source: {name}}} has a Slurm that is maintained"
    return (
        f"slurm: {{source: {name}}} with image: {{bake: true}} builds {row.title}'s Slurm, which is "
        "maintained, for the image"
    )


def _named(need: str, at: Location) -> str:
    return f"{distributions.NEEDS[need]} ({path_of(at)})"


def _ids(table: slurm_releases.Table, package: slurm_releases.Package, feature: str) -> str:
    found = [a.id for a in table.open_in(package.version) if a.affects == feature]
    return ", ".join(found) or "whatever is published next"


def _relied_on(cluster: ClusterConfig) -> Iterator[tuple[Location, object, str]]:
    """Yield key, value and feature for all that users must be able to rely on."""
    if cluster.slurm.accounting:
        yield ("slurm", "accounting"), True, "accounting"
    if cluster.containers is not None:
        runtime = cluster.containers.runtime
        yield ("containers", "runtime"), runtime, runtime
