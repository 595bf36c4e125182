"""A cluster that is up: its published design, and access to its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from cli.changes.closing import Holder
from cli.changes.decision import ClusterControl
from cli.findings import Finding, Severity, fine, from_message, warns
from cli.providers.clouds import heads, known_clusters
from cli.providers.condition import backups, budget, disks, health, service
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.design.published import parse_settings
from node.system import foreign, plurals
from operations import openssh
from operations.access import TOOL
from operations.clouds import ssh_access
from operations.clouds.cloud import Cloud
from operations.clouds.ssh_access import Login

# The doctor's check of a cluster on a cloud that is up: it asks the login machine for the status.

CONDITION_SECONDS = 12.0
"""The time limit of the question. All checks together have `cli.findings.SECONDS`."""


def condition(
    stack: Stack, login: Callable[[], Login], silence: Callable[[], UserError | None]
) -> Iterable[Finding]:
    """Check the cluster's budget and nodes; if it does not answer, its controller.

    Args:
        login: Finds the login machine. Nothing is asked of a stack that was never brought up from here.
        silence: Returns what the cloud says of a controller that does not answer.
    """
    if not known_clusters.known_places(stack):
        return
    try:
        target = replace(login().target, patience=0)
        status = foreign.parse(openssh.run(target, f"{TOOL} status", seconds=CONDITION_SECONDS))
    except NotUpError:
        return
    except (UserError, ValueError) as error:
        # Other checks say what is missing here: credentials, or a program.
        if isinstance(error, UserError) and (why := _why(error, silence)) is not None:
            # `up` makes another one or starts it, unless its queue is lost.
            yield from_message("cluster.controller", Severity.WARNS, str(why))
        elif getattr(error, "exit_code", None) != EXIT_REFUSED:
            cure = f"`./cluster status --stack {stack.name}` asks again, and waits longer."
            reason = str(error).splitlines()[0].rstrip(".")
            yield warns("cluster.state", f"it could not be asked for its nodes: {reason}", cure)
        return
    yield from disks(status, stack.name)
    yield from budget(status["cost"], stack.name)
    yield from health(status["nodes"], stack.name)
    yield from service(status, stack.name)
    yield from backups(status, stack.name)
    running = status["machines"]["running"]
    yield fine("cluster.state", f"is up, {plurals.count(running, 'node')} running")


def _why(error: UserError, silence: Callable[[], UserError | None]) -> UserError | None:
    """Return what the cloud says of the controller, which may be the error itself."""
    if error.code.startswith("controller."):
        return error
    return None if error.exit_code == EXIT_REFUSED else silence()


def published(cloud: Cloud) -> ClusterDesign | None:
    """Return the published design that a cluster's machines use; `None` if nothing is published (yet).

    Raises:
        UserError: There are no credentials, the cloud refuses, or another release published the design.
    """
    bucket = heads.bucket(cloud)
    current = None if bucket is None else cloud.read(bucket, "current.json")
    if bucket is None or current is None:
        return None
    try:
        named = foreign.parse_strictly(current)
        if "settings" not in named:
            return None
        settings = cloud.read(bucket, named["settings"]["key"])
        return None if settings is None else parse_settings(settings).design
    except (ValueError, KeyError, TypeError) as error:
        cluster = cloud.place.cluster
        raise UserError(
            f"what was published of cluster {cluster} cannot be read: {error}",
            code="cluster.settings-unreadable",
        ) from error


def reach(stack: Stack, design: ClusterDesign, cloud: Cloud, command: str) -> ClusterControl:
    """Access to the cluster's Slurm over SSH, on the controller, which has the mark of what is closed.

    Args:
        design: The design of the cluster that is up.
        command: The word after `./cluster`, for that mark.
    """

    def run(line: str, seconds: float) -> str:
        try:
            login = ssh_access.find(stack, design, cloud)
            line = ssh_access.controller_line(stack, cloud, login, line)
        except NotUpError:
            # Without its controller a cluster has jobs all the same.
            if (why := heads.silence(cloud, design, stack.name)) is not None:
                raise why from None
            raise
        # A single attempt, because the caller goes on without the answer.
        return openssh.run(replace(login.target, patience=0), line, seconds=seconds)

    return ClusterControl(run, sudo=True, holder=Holder.of(stack, command))
