"""Checks for what would keep a cluster on Google Cloud from coming up: account, quotas, existing storage."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from cli.findings import Check, Finding, fine, stops, warns
from cli.providers.clouds import diagnosis
from cli.providers.clouds.quotas import QUOTAS
from cli.providers.gcp.existing import fetched, storage_findings
from cli.providers.gcp.quotas import quota_findings
from infra.clouds.commands import ClusterRef
from infra.config import provider_settings
from infra.errors import UserError
from node.design.model import Access, ClusterDesign
from operations import pages
from operations.gcp import account, identity


def checks(design: ClusterDesign | None) -> list[Check]:
    """Return the checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    wanted = [Check("credentials", functools.partial(credentials, design))]
    if design is not None:
        wanted += [
            Check("project", functools.partial(project, design)),
            Check(QUOTAS, functools.partial(limits, design)),
            Check("storage", functools.partial(storage, design)),
            Check("ssh", functools.partial(ssh_programs, design.access)),
        ]
    return wanted


def credentials(design: ClusterDesign | None) -> Iterable[Finding]:
    """Whether there are credentials. Only Google could tell whether they are valid."""
    settings = design.provider_settings if design is not None else None
    named = identity.described(provider_settings.settings(settings))
    return diagnosis.credentials(functools.partial(account.require, settings), named)


def project(design: ClusterDesign) -> Iterable[Finding]:
    """Whether the stack file names a project."""
    if not design.project:
        problem = "the stack file names no project"
        cure = "Write gcp:project into it: `gcloud projects list` shows yours."
        yield stops("project", problem, cure)
    else:
        yield fine("project", f"the cluster is in project {design.project}; not looked up")


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Quotas and GPUs; no finding without credentials or a project, which other checks report."""
    try:
        project_account = account.of(ClusterRef.of(design))
    except UserError:
        return
    if not design.project:
        return
    try:
        yield from quota_findings(project_account, design)
    except UserError as error:
        yield warns(QUOTAS, f"could not be asked for: {error}", "Nothing is known about them.")


def storage(design: ClusterDesign) -> Iterable[Finding]:
    """Check the existing disks, instances and buckets of the stack file; no finding without credentials."""
    named = design.backup is not None or any(m.existing or m.restore or m.keep for m in design.mounts)
    if not design.project or not (named or fetched(design)):
        return
    try:
        project_account = account.of(ClusterRef.of(design))
    except UserError:
        return
    try:
        yield from list(storage_findings(project_account, design))
    except UserError as error:
        yield warns("storage", f"could not be asked for: {error}", "Nothing is known about it.")


def ssh_programs(access: Access) -> Iterable[Finding]:
    """Check what SSH access to the login machine needs on this machine."""
    yield from diagnosis.client()
    if access.mode == "iap":
        yield from diagnosis.installed(("gcloud", "which Identity-Aware Proxy needs", pages.GCLOUD))
    yield diagnosis.own_key()
