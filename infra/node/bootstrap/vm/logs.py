"""The machine's logs and metrics in CloudWatch, where they are still when the machine has gone.

By Amazon's agent. A machine works without it: what goes wrong here is said, and no boot fails of it.
"""

from __future__ import annotations

import json

from infra.node.aws.signed import domain
from infra.node.bootstrap import files
from infra.node.bootstrap.command import CommandError
from infra.node.bootstrap.context import Context, SkipStep
from infra.node.bootstrap.vm.cloud import LOGS
from infra.node.cloud import call
from infra.node.cloud.errors import ServiceError
from infra.node.model import Mount

AGENT = "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
CONFIG = "opt/slurm-stacks/cloudwatch.json"
URL = "https://amazoncloudwatch-agent-{region}.s3.{region}.{domain}/ubuntu/amd64/latest/{file}"
FILE = "amazon-cloudwatch-agent.deb"
INTERVAL_SECONDS = 60
"""Between two values of a metric: CloudWatch charges for metrics by the hour and for values by the call."""
CPU, MEMORY, DISK = ["usage_active", "usage_iowait"], ["used_percent"], ["used_percent"]
GPU = ["utilization_gpu", "memory_used", "memory_total", "temperature_gpu", "power_draw"]


def namespace(cluster: str) -> str:
    """Of the cluster's metrics: its machines may write into no other."""
    return f"slurm-stacks/{cluster}"


def ship(context: Context) -> str:
    """Have the agent send this role's logs to the cluster's log group, and the machine's metrics.

    Raises:
        SkipStep: the site has no log group, or the agent could not be had.
    """
    group = context.settings.site.driver.get("log_group")
    region = context.settings.site.driver.get("region")
    if not group or not region:
        raise SkipStep("the settings name no log group")
    agent, config = context.at(AGENT), context.at(CONFIG)
    try:
        have_agent(context, region)
        files.place(config, json.dumps(wanted(context, group, region), indent=1).encode())
        start = (str(agent), "-a", "fetch-config", "-m", "ec2", "-s", "-c", f"file:{config}")
        context.run(*start, timeout=60.0)
    except (OSError, CommandError) as error:
        context.report.content["facts"]["logs"] = f"not in CloudWatch: {error}"
        raise SkipStep(f"logs stay on this machine: {str(error).splitlines()[0]}") from error
    return f"sent to {group}, with metrics in {namespace(context.settings.design.name)}"


def wanted(context: Context, group: str, region: str) -> dict[str, object]:
    """The agent's configuration: a stream a file, named after the machine, and a few metrics of it.

    Metrics carry the host's name, which the agent takes from the machine.
    """
    log = context.folders.log
    paths = [str(log / name) for name in LOGS[context.role]]
    # The boot's own output is in the system's log.
    paths += ["/var/log/syslog", "/var/log/cloud-init-output.log"]
    collected = [
        {
            "file_path": path,
            "log_group_name": group,
            "log_stream_name": f"{context.host}/{path.rpartition('/')[2]}",
        }
        for path in paths
    ]
    return {
        "agent": {"region": region, "run_as_user": "root"},
        "logs": {"logs_collected": {"files": {"collect_list": collected}}, "force_flush_interval": 15},
        "metrics": {
            "namespace": namespace(context.settings.design.name),
            "metrics_collected": _measured(context),
            "force_flush_interval": INTERVAL_SECONDS,
        },
    }


def _measured(context: Context) -> dict[str, object]:
    """What the agent's plugins collect: CPU, memory, disks of the machine's own, GPUs where it has some."""
    own = [mount.path for mount in context.mounts() if _on_own_disk(context, mount)]
    found: dict[str, dict[str, object]] = {
        "cpu": {"measurement": CPU, "totalcpu": True},
        "mem": {"measurement": MEMORY},
        # A device's name says nothing, and differs from boot to boot.
        "disk": {"measurement": DISK, "resources": ["/", *own], "drop_device": True},
    }
    partition = context.settings.design.partition_of(context.host)
    accelerator = partition.accelerator if partition is not None and context.role == "compute" else None
    if accelerator is not None and accelerator.gres == "gpu" and not accelerator.simulated:
        found["nvidia_gpu"] = {"measurement": GPU}
    return {name: {**one, "metrics_collection_interval": INTERVAL_SECONDS} for name, one in found.items()}


def _on_own_disk(context: Context, mount: Mount) -> bool:
    """What others serve is theirs to measure; a server that hangs would hang the agent."""
    return mount.kind == "nvme" or (mount.kind == "nfs" and mount.served_by == context.role)


def have_agent(context: Context, region: str) -> None:
    """Have Amazon's agent installed.

    Raises:
        ServiceError: nobody has it for us.
        CommandError: it cannot be installed.
    """
    if context.at(AGENT).exists():
        return
    url = URL.format(region=region, domain=domain(region), file=FILE)
    answer = call.call("GET", url, dict, attempts=2, timeout=30.0)
    if answer.status != 200:
        raise ServiceError(f"{url}: HTTP status {answer.status}", status=answer.status)
    package = files.folder(context.at("var/tmp/slurm-stacks"), 0o700) / FILE
    package.write_bytes(answer.body)
    context.run("dpkg", "--install", str(package), timeout=120.0)
    package.unlink()
