"""What would keep a cluster on AWS from coming up.

New accounts have no vCPUs of some families, which nothing here could tell: so this asks AWS, with calls that
only read, where there are credentials.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from infra import pages
from infra.aws import account
from infra.clouds import diagnosis, keys
from infra.doctor.finding import Check, Finding, fine, stops, warns
from infra.errors import UserError
from infra.node.model import Access, ClusterDesign


def checks(design: ClusterDesign | None) -> list[Check]:
    """Args:
    design: None where the stack file has mistakes: what depends on it is left out.
    """
    found = [Check("credentials", credentials)]
    if design is not None:
        found += [
            Check("quotas", functools.partial(limits, design)),
            Check("key", functools.partial(pair, design)),
            Check("ssh", functools.partial(ways, design.access)),
        ]
    return found


def credentials() -> Iterable[Finding]:
    """Whether there are some; only AWS could say whether they are good."""
    profile = os.environ.get("AWS_PROFILE")
    return diagnosis.credentials(account.require, f"profile {profile}" if profile else None)


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """EC2's vCPUs; nothing where nobody can be asked, which others of the checks say."""
    from infra.aws import quotas

    yield from _asked(design, "quotas", lambda ec2, service: quotas.findings(service, ec2, design))


def pair(design: ClusterDesign) -> Iterable[Finding]:
    """The key pair that the stack file names, if it names one."""
    from infra.aws import quotas

    name, region = design.access.key, str(design.region)
    if name is not None:
        yield from _asked(
            design, "key", lambda ec2, _service: [quotas.key_pair(ec2, name, region, keys.agents())]
        )


def _asked(
    design: ClusterDesign, check: str, ask: Callable[[Any, Any], Iterable[Finding]]
) -> Iterable[Finding]:
    """What AWS says; a warning where it says nothing."""
    try:
        ec2, service = account.clients(str(design.region), "ec2", "service-quotas", patient=False)
    except UserError:
        return
    try:
        with account.explained():
            yield from list(ask(ec2, service))
    except UserError as error:
        yield warns(check, f"could not be asked for: {error}", "Nothing is known about it.")


def ways(access: Access) -> Iterable[Finding]:
    """What the way to the login machine needs here."""
    yield from diagnosis.client()
    if access.mode == "ssh":
        yield diagnosis.agents_key()
        return
    for program, what, page in (
        ("aws", "the AWS CLI", pages.AWS_CLI),
        ("session-manager-plugin", "its Session Manager plugin", pages.SESSION_MANAGER),
    ):
        if shutil.which(program) is None:
            found = f"{program}, {what}, is not on PATH"
            yield stops(f"ssh.{program}", found, f"Install it: {page}; or use access.mode: ssh.")
        else:
            yield fine(f"ssh.{program}", f"{program} is on PATH")
    if access.key is None:
        yield diagnosis.own_key()
