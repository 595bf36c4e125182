"""The machine's logs in Cloud Logging, where they are still when the machine has gone, and its metrics.

By Google's Ops Agent. A machine works without it: what goes wrong here is said, and no boot fails of it.
"""

from __future__ import annotations

import json

from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context, SkipStep
from infra.node.bootstrap.vm import apt, repositories
from infra.node.bootstrap.vm.cloud import LOGS

PACKAGE = "google-cloud-ops-agent"
REPOSITORY = "https://packages.cloud.google.com/apt"
KEY_URL = f"{REPOSITORY}/doc/apt-key.gpg"
PLACES = f"{REPOSITORY} {PACKAGE}-noble-2 main"
"""The second major version: its configuration is the one below."""
CONFIG = f"etc/{PACKAGE}/config.yaml"
SERVICE = f"{PACKAGE}.service"


def ship(context: Context) -> str:
    """Have the agent send this role's logs to Cloud Logging.

    Raises:
        SkipStep: the site wants none, or the agent could not be had.
    """
    if not asked_for(context):
        raise SkipStep("the settings ask for no logs in Cloud Logging")
    config = context.at(CONFIG)
    try:
        have_agent(context)
        config.parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML.
        if files.place(config, json.dumps(wanted(context), indent=1).encode()):
            context.run("systemctl", "restart", SERVICE, timeout=100.0)
    except (OSError, CommandError) as error:
        context.report.content["facts"]["logs"] = f"not in Cloud Logging: {error}"
        raise SkipStep(f"logs stay on this machine: {str(error).splitlines()[0]}") from error
    return "sent to Cloud Logging"


def asked_for(context: Context) -> bool:
    return context.settings.site.driver.get("logs") == "true"


def have_agent(context: Context) -> None:
    """Have Google's agent installed.

    Raises:
        ServiceError: nobody has its key for us.
        CommandError: it cannot be installed.
    """
    if apt.missing(context, [PACKAGE]):
        repositories.add(context, PACKAGE, KEY_URL, PLACES, attempts=2)
        apt.install(context, [PACKAGE])


def wanted(context: Context) -> dict[str, object]:
    """The agent's configuration beside its own (the system's log, metrics): a log a file, named after it."""
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
