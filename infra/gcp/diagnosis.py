"""What would keep a cluster on Google Cloud from coming up.

New projects have no GPUs at all and no API enabled, which nothing here could tell: so this asks Google, with
calls that only read, where there are credentials.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable

from infra import pages
from infra.clouds import diagnosis
from infra.doctor.finding import Check, Finding, fine, stops, warns
from infra.errors import UserError
from infra.gcp import account
from infra.node.model import Access, ClusterDesign


def checks(design: ClusterDesign | None) -> list[Check]:
    """Args:
    design: None where the stack file has mistakes: what depends on it is left out.
    """
    found = [Check("credentials", credentials)]
    if design is not None:
        found += [
            Check("project", functools.partial(project, design)),
            Check("quotas", functools.partial(limits, design)),
            Check("ssh", functools.partial(ways, design.access)),
        ]
    return found


def credentials() -> Iterable[Finding]:
    """Whether there are some; only Google could say whether they are good."""
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return diagnosis.credentials(account.require, file)


def project(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the stack file names one."""
    if not design.project:
        found = "the stack file names no project"
        cure = "Write gcp:project into it: `gcloud projects list` shows yours."
        yield stops("project", found, cure)
    else:
        yield fine("project", f"the cluster is in project {design.project}; not looked up")


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Quotas and GPUs; nothing where nobody can be asked, which others of the checks say."""
    from infra.gcp import quotas

    try:
        there = account.of(str(design.project))
    except UserError:
        return
    if not design.project:
        return
    try:
        yield from quotas.findings(there, design)
    except UserError as error:
        yield warns("quotas", f"could not be asked for: {error}", "Nothing is known about them.")


def ways(access: Access) -> Iterable[Finding]:
    """What the way to the login machine needs here."""
    yield from diagnosis.client()
    if access.mode == "iap":
        if shutil.which("gcloud") is None:
            found = "gcloud, which Identity-Aware Proxy needs, is not on PATH"
            yield stops("ssh.gcloud", found, f"Install it: {pages.GCLOUD}; or use access.mode: ssh.")
        else:
            yield fine("ssh.gcloud", "gcloud is on PATH")
    yield diagnosis.own_key()
