"""Sends the machine's logs to Cloud Logging, where they outlive the machine, and its metrics.

Google's Ops Agent does this. A machine works without it: a failure here is reported, but the boot goes on.
"""

from __future__ import annotations

import json

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import apt, apt_repositories
from node.bootstrap.vm.clouds.interface import LOGS
from node.design.sites import GcpSite
from node.system import files

PACKAGE = "google-cloud-ops-agent"
REPOSITORY = "https://packages.cloud.google.com/apt"
KEY_URL = f"{REPOSITORY}/doc/apt-key.gpg"
PLACES = f"{REPOSITORY} {PACKAGE}-{{suite}}-2 main"
"""The repository of the agent's second major version, for which the configuration below is."""
CONFIG = f"etc/{PACKAGE}/config.yaml"
SERVICE = f"{PACKAGE}.service"


def ship(context: Context) -> str:
    """Make the agent send this role's logs to Cloud Logging.

    Raises:
        SkipStep: The settings do not want it, or the agent could not be installed.
    """
    if not asked_for(context):
        raise SkipStep("the settings ask for no logs in Cloud Logging")
    config = context.at(CONFIG)
    try:
        install_agent(context)
        config.parent.mkdir(parents=True, exist_ok=True)
        # Every JSON text is YAML.
        if files.write(config, json.dumps(wanted(context), indent=1).encode()):
            context.run("systemctl", "restart", SERVICE, timeout=100.0)
    except (OSError, CommandError) as error:
        context.report.content["facts"]["logs"] = f"not in Cloud Logging: {error}"
        raise SkipStep(f"logs stay on this machine: {str(error).splitlines()[0]}") from error
    return "sent to Cloud Logging"


def asked_for(context: Context) -> bool:
    """Return whether the settings say that logs go to Cloud Logging."""
    return context.settings.site.of(GcpSite).logs


def install_agent(context: Context) -> None:
    """Install Google's agent.

    Raises:
        ServiceError: The repository's key cannot be fetched.
        CommandError: The agent cannot be installed.
    """
    if apt.missing(context, [PACKAGE]):
        source = PLACES.format(suite=apt.suite(context))
        apt_repositories.add_repository(context, PACKAGE, KEY_URL, source, attempts=2)
        apt.install(context, [PACKAGE])


def wanted(context: Context) -> dict[str, object]:
    """Return the configuration in addition to the agent's own (system log, metrics): one log per file."""
    log = context.folders.log
    receivers = {
        name.removesuffix(".log"): {
            "type": "files",
            "include_paths": [str(log / name)],
            "record_log_file_path": True,
        }
        for name in LOGS[context.role]
    }
    pipelines = {"slurm": {"receivers": list(receivers)}} if receivers else {}
    return {"logging": {"receivers": receivers, "service": {"pipelines": pipelines}}}
