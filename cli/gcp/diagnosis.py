"""Checks for what would keep a cluster on Google Cloud from coming up.

New projects have no GPU quota and no enabled API, which only Google Cloud can tell. So these checks ask it,
with read-only calls, if there are credentials.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

from cli import hints
from cli.clouds import diagnosis
from cli.clouds.quotas import QUOTAS
from cli.doctor.finding import Check, Finding, fine, stops, warns
from cli.gcp import account
from infra.errors import UserError
from node.model import Access, ClusterDesign


def checks(design: ClusterDesign | None) -> list[Check]:
    """The checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    found = [Check("credentials", credentials)]
    if design is not None:
        found += [
            Check("project", functools.partial(project, design)),
            Check(QUOTAS, functools.partial(limits, design)),
            Check("storage", functools.partial(storage, design)),
            Check("ssh", functools.partial(ssh_programs, design.access)),
        ]
    return found


def credentials() -> Iterable[Finding]:
    """Whether there are credentials. Only Google could tell whether they are valid."""
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return diagnosis.credentials(account.require, file)


def project(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the stack file names a project."""
    if not design.project:
        found = "the stack file names no project"
        cure = "Write gcp:project into it: `gcloud projects list` shows yours."
        yield stops("project", found, cure)
    else:
        yield fine("project", f"the cluster is in project {design.project}; not looked up")


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Quotas and GPUs; no finding without credentials or a project, which other checks report."""
    from cli.gcp import quotas

    try:
        there = account.of(str(design.project))
    except UserError:
        return
    if not design.project:
        return
    try:
        yield from quotas.findings(there, design)
    except UserError as error:
        yield warns(QUOTAS, f"could not be asked for: {error}", "Nothing is known about them.")


def storage(design: ClusterDesign) -> Iterable[Finding]:
    """The existing disks and instances that the stack file names; no finding without credentials."""
    from cli.gcp import storage as lookup

    if not design.project or not any(m.existing or m.restore or m.keep for m in design.mounts):
        return
    try:
        there = account.of(design.project)
    except UserError:
        return
    try:
        yield from list(lookup.findings(there, design))
    except UserError as error:
        yield warns("storage", f"could not be asked for: {error}", "Nothing is known about it.")


def ssh_programs(access: Access) -> Iterable[Finding]:
    """What SSH access to the login machine needs on this machine."""
    yield from diagnosis.client()
    if access.mode == "iap":
        yield from diagnosis.installed(("gcloud", "which Identity-Aware Proxy needs", hints.GCLOUD_PAGE))
    yield diagnosis.own_key()
