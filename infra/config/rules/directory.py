"""Checks of the directory of users."""

from __future__ import annotations

import re

from infra.config.hosts import DirectoryConfig
from infra.config.rules.context import CLUSTER, Context
from infra.config.rules.software import script_in_project

AT = (*CLUSTER, "access", "directory")
SECRETS = {
    "aws": (
        r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+",
        "the ARN of a secret in AWS Secrets Manager: arn:aws:secretsmanager:…:secret:NAME-XXXXXX",
    ),
    "gcp": (
        r"projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]{1,255}",
        "the name of a secret in Secret Manager: projects/PROJECT/secrets/NAME",
    ),
    "local": (r"(/[A-Za-z0-9_.-]+)+", "the path of a file of this machine, which is yours alone (mode 600)"),
}
"""Provider -> the form of what names a secret, and the form in words."""


def check_directory(c: Context) -> None:
    directory = c.cluster.access.directory
    if directory is None or not c.sound(AT):
        return
    if c.cluster.has_process_machines():
        c.add(
            "directory.on-processes",
            AT,
            directory.domain,
            "nothing where machines are processes: they are their owner's alone",
            "remove it, or write local: {isolation: container}",
        )
        return
    if c.cluster.scheduler != "slurm":
        allowed = "nothing with scheduler: batch: nobody logs in to its machines"
        c.add("directory.on-batch", AT, directory.domain, allowed, "remove it")
        return
    _check_bind(c, directory)
    if directory.ca_certificate is not None:
        script_in_project(c, directory.ca_certificate, (*AT, "ca_certificate"))


def _check_bind(c: Context, directory: DirectoryConfig) -> None:
    secret, at = directory.password_secret, (*AT, "password_secret")
    if directory.bind_dn is None and secret is not None:
        allowed = "nothing without bind_dn: nobody asks with this password"
        c.add("directory.no-bind-dn", at, secret, allowed, "write bind_dn, or remove it")
    elif directory.bind_dn is not None and secret is None:
        allowed = f"{SECRETS[c.provider][1]}, with bind_dn"
        c.add("directory.no-password", at, "nothing: no secret is named", allowed)
    elif directory.bind_dn is None and directory.ldap_schema == "ad":
        allowed = "the DN of a user who may read, for Active Directory"
        c.add("directory.ad-needs-bind", (*AT, "bind_dn"), "nothing: it is left out", allowed)
    form, words = SECRETS[c.provider]
    if secret is not None and not re.fullmatch(form, secret):
        c.add("directory.secret", at, secret, words, "the password itself never stands in a stack file")
