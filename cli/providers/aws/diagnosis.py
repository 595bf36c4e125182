"""Checks for what would keep a cluster on AWS from coming up.

New accounts have no vCPUs of some families, which only AWS can tell. So these checks ask AWS, with read-only
calls, if there are credentials.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from cli.findings import Check, Finding, warns
from cli.providers.aws import existing
from cli.providers.clouds import diagnosis
from cli.providers.clouds.quotas import QUOTAS
from infra.clouds.commands import ClusterRef
from infra.config import placeholders, provider_settings
from infra.errors import UserError
from node.design.model import Access, ClusterDesign
from operations import pages
from operations.aws import account
from operations.clouds import own_keys


def checks(design: ClusterDesign | None) -> list[Check]:
    """Return the checks of a design.

    Args:
        design: `None` if the stack file has mistakes; then the checks that depend on it are left out.
    """
    wanted = [Check("credentials", functools.partial(credentials, design))]
    if design is not None:
        wanted += [
            Check(QUOTAS, functools.partial(limits, design)),
            Check(existing.KEY, functools.partial(pair, design)),
            Check(existing.IMAGE, functools.partial(images, design)),
            Check(existing.STORAGE, functools.partial(storage, design)),
            Check(existing.PLATFORM, functools.partial(platform, design)),
            Check("ssh", functools.partial(ssh_programs, design.access)),
        ]
    return wanted


def credentials(design: ClusterDesign | None) -> Iterable[Finding]:
    """Whether there are credentials. Only AWS could tell whether they are valid."""
    settings = design.provider_settings if design is not None else None
    named = provider_settings.settings(settings)
    profile = named.get("profile") or os.environ.get("AWS_PROFILE")
    words = [f"profile {profile}"] * bool(profile) + [
        role["roleArn"] for role in named.get("assumeRoles", [])
    ]
    require = functools.partial(account.require, settings)
    return diagnosis.credentials(require, " and ".join(words) or None)


def limits(design: ClusterDesign) -> Iterable[Finding]:
    """Check the quotas of vCPUs, addresses and volumes; another check reports missing credentials."""
    from cli.providers.aws import quotas

    yield from _asked(design, QUOTAS, lambda client: quotas.findings(client, design))


def pair(design: ClusterDesign) -> Iterable[Finding]:
    """Check the EC2 key pair, if the stack file names one."""
    name, region = design.access.key, str(design.region)
    if name is not None and not placeholders.is_placeholder(name):
        keys = own_keys.agent_keys()
        options = provider_settings.shell_options(design.provider_settings)
        look = functools.partial(existing.key_pair, name=name, region=region, offered=keys, options=options)
        yield from _asked(design, existing.KEY, lambda client: [look(client("ec2"))])


def images(design: ClusterDesign) -> Iterable[Finding]:
    """Check the images that the stack file names; no finding without credentials."""
    if existing.named_images(design):
        yield from _asked(design, existing.IMAGE, lambda client: existing.images(client("ec2"), design))


def storage(design: ClusterDesign) -> Iterable[Finding]:
    """Check existing disks, file systems and buckets of the stack file; no finding without credentials."""
    if design.backup is None and not any(mount.existing or mount.restore for mount in design.mounts):
        return
    yield from _asked(design, existing.STORAGE, lambda client: existing.storage(client, design))


def platform(design: ClusterDesign) -> Iterable[Finding]:
    """Check the groups and the boundary that the stack file names; no finding without credentials."""
    if design.aws.permissions_boundary is not None or existing.named_groups(design):
        yield from _asked(design, existing.PLATFORM, lambda client: existing.platform(client, design))


def _asked(
    design: ClusterDesign, check: str, ask: Callable[[Callable[[str], Any]], Iterable[Finding]]
) -> Iterable[Finding]:
    """Return the findings from AWS's answer; a warning if it has none, nothing without credentials.

    Args:
        ask: Gets what gives the boto3 client of a service in the cluster's region.
    """

    def client(service: str) -> Any:
        return account.clients(ClusterRef.of(design), service, patient=False)[0]

    try:
        account.session(design.provider_settings)
    except UserError:
        return
    try:
        with account.explained():
            yield from list(ask(client))
    except UserError as error:
        yield warns(check, f"could not be asked for: {error}", "Nothing is known about it.")


def ssh_programs(access: Access) -> Iterable[Finding]:
    """Check what SSH access to the login machine needs on this machine."""
    yield from diagnosis.client()
    if access.mode == "ssh":
        yield diagnosis.login_key()
        return
    yield from diagnosis.installed(
        ("aws", "the AWS CLI", pages.AWS_CLI),
        ("session-manager-plugin", "its Session Manager plugin", pages.SESSION_MANAGER),
    )
    if access.key is None:
        yield diagnosis.own_key()
