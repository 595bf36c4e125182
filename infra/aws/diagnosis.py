"""What would keep a cluster on AWS from coming up, as far as this machine can tell: no call is made."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable

from infra import pages
from infra.aws import account
from infra.clouds import diagnosis
from infra.doctor.finding import Check, Finding, fine, stops
from infra.node.model import Access, ClusterDesign


def checks(design: ClusterDesign | None) -> list[Check]:
    """Args:
    design: None where the stack file has mistakes: what depends on it is left out.
    """
    found = [Check("credentials", credentials)]
    if design is not None:
        found.append(Check("ssh", functools.partial(ways, design.access)))
    return found


def credentials() -> Iterable[Finding]:
    """Whether there are some; only AWS could say whether they are good."""
    profile = os.environ.get("AWS_PROFILE")
    return diagnosis.credentials(account.require, f"profile {profile}" if profile else None)


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
