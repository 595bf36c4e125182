"""How SSH reaches a cluster's machines: at a public address, or through Session Manager."""

from __future__ import annotations

import shlex

from infra.program.launcher import Run, pasted

OPERATIONS = "operations.aws"
"""The module that the stack's commands run."""


def ssh_proxy(
    region: str, mode: str, key: str | None, run: Run = pasted, provider_settings: str | None = None
) -> str | None:
    """Return the ProxyCommand of OpenSSH for an access mode. `None` means that none is needed.

    Args:
        mode: `access.mode`: ssh | ssm.
        key: The name of the EC2 key pair. Without one each connection sends a key of the user's along.
        run: Returns the command that runs a line of `operations`.
        provider_settings: As in `ClusterRef`. The AWS CLI cannot follow all of them by itself.
    """
    if mode != "ssm":
        return None
    if key is not None and provider_settings is None:
        return shlex.join(session(region, "%h", "%p"))
    more = "" if key is None else " --key-pair"
    if provider_settings is not None:
        # OpenSSH would expand a per cent sign.
        more += f" --provider-settings {shlex.quote(provider_settings.replace('%', '%%'))}"
    return run(f"{OPERATIONS} proxy --region {region} --instance %h --user %r --port %p{more}")


def session(region: str, instance: str, port: str) -> list[str]:
    """Return the AWS CLI's command that connects its standard input and output with a port of an instance."""
    line = ["aws", "ssm", "start-session", "--region", region, "--target", instance]
    return [*line, "--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={port}"]
