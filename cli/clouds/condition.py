"""The doctor's check of a cluster on a cloud that is up: it asks the login machine for the status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from cli.clouds import known_clusters
from cli.clouds.ssh_access import Login
from cli.doctor import condition
from cli.doctor.finding import Finding, fine, warns
from cli.access import TOOL
from cli.ssh import openssh
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from node import plurals

SECONDS = 12.0
"""The time limit of the question. All checks together have `cli.doctor.finding.SECONDS`."""


def findings(stack: Stack, login: Callable[[], Login]) -> Iterable[Finding]:
    """The findings about the cluster's budget and nodes.

    Args:
        login: Finds the login machine. Nothing is asked of a stack that was never brought up from here.
    """
    if not known_clusters.read(stack):
        return
    try:
        target = replace(login().target, patience=0)
        status = json.loads(openssh.run(target, f"{TOOL} status", seconds=SECONDS))
    except NotUpError:
        return
    except (UserError, ValueError) as error:
        # Other checks say what is missing here: credentials, or a program.
        if getattr(error, "exit_code", None) != EXIT_REFUSED:
            cure = f"`./cluster status --stack {stack.name}` asks again, and waits longer."
            said = str(error).splitlines()[0].rstrip(".")
            yield warns("cluster.state", f"it could not be asked for its nodes: {said}", cure)
        return
    yield from condition.budget(status["cost"], stack.name)
    yield from condition.health(status["nodes"], stack.name)
    yield from condition.service(status, stack.name)
    running = status["machines"]["running"]
    yield fine("cluster.state", f"is up, {plurals.count(running, 'node')} running")
