"""Sends the machine's logs and metrics to CloudWatch, where they outlive the machine.

Amazon's agent does this. A machine works without the agent: a failure here is reported, but the boot goes on.
"""

from __future__ import annotations

import json

from node.aws.api import domain
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import apt, signed_files
from node.bootstrap.vm.clouds.interface import LOGS
from node.bootstrap.vm.signed_files import Signer
from node.design.sites import AwsSite
from node.design.storage import Mount
from node.system import files

AGENT = "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
CONFIG = "opt/slurm-stacks/cloudwatch.json"
URL = "https://amazoncloudwatch-agent-{region}.s3.{region}.{domain}/{distribution}/amd64/latest/{file}"
DISTRIBUTIONS = {"noble": "ubuntu"}
"""Suite -> the folder of its package. All others have Debian's."""
FILE = "amazon-cloudwatch-agent.deb"
SYSLOG = "rsyslog"
"""The package that writes /var/log/syslog. Debian's images have none."""
SIGNER = Signer(
    "https://s3.amazonaws.com/amazoncloudwatch-agent/assets/amazon-cloudwatch-agent.gpg",
    "937616F3450B7D806CBD9725D58167303B789C72",
)
"""Amazon's key and its fingerprint (CloudWatch user guide, "Verifying the signature of the … package")."""
INTERVAL_SECONDS = 60
"""Seconds between two values of a metric. CloudWatch charges per metric and hour, and per call for values."""
CPU, MEMORY, DISK = ["usage_active", "usage_iowait"], ["used_percent"], ["used_percent"]
GPU = ["utilization_gpu", "memory_used", "memory_total", "temperature_gpu", "power_draw"]


def namespace(cluster: str) -> str:
    """Return the namespace of a cluster's metrics. Its machines may not write into any other."""
    return f"slurm-stacks/{cluster}"


def ship(context: Context) -> str:
    """Make the agent send this role's logs to the cluster's log group, and the machine's metrics.

    Raises:
        SkipStep: The settings have no log group, or the agent could not be installed.
    """
    site = context.settings.site.of(AwsSite)
    group, region = site.log_group, site.region
    if not group or not region:
        raise SkipStep("the settings name no log group")
    agent, config = context.at(AGENT), context.at(CONFIG)
    try:
        install_agent(context, region)
        files.write(config, json.dumps(wanted(context, group, region), indent=1).encode())
        start = (str(agent), "-a", "fetch-config", "-m", "ec2", "-s", "-c", f"file:{config}")
        context.run(*start, timeout=60.0)
    except (OSError, CommandError) as error:
        context.report.content["facts"]["logs"] = f"not in CloudWatch: {error}"
        raise SkipStep(f"logs stay on this machine: {str(error).splitlines()[0]}") from error
    return f"sent to {group}, with metrics in {namespace(context.settings.design.name)}"


def wanted(context: Context, group: str, region: str) -> dict[str, object]:
    """Return the agent's configuration: one log stream per file, and a few metrics of the machine.

    Log streams are named after the machine. Metrics have the host's name, which the agent gets from the
    machine.
    """
    log = context.folders.log
    paths = [str(log / name) for name in LOGS[context.role]]
    # The output of the boot is in the system's log.
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
    """Return the settings of the agent's plugins: CPU, memory, the machine's own disks, and GPUs."""
    paths = [mount.path for mount in context.mounts() if _on_own_disk(context, mount)]
    inputs: dict[str, dict[str, object]] = {
        "cpu": {"measurement": CPU, "totalcpu": True},
        "mem": {"measurement": MEMORY},
        # A device's name has no meaning, and changes from boot to boot.
        "disk": {"measurement": DISK, "resources": ["/", *paths], "drop_device": True},
    }
    partition = context.settings.design.partition_of(context.host)
    accelerator = partition.accelerator if partition is not None and context.role == "compute" else None
    if accelerator is not None and accelerator.gres == "gpu" and not accelerator.simulated:
        inputs["nvidia_gpu"] = {"measurement": GPU}
    return {
        name: {**section, "metrics_collection_interval": INTERVAL_SECONDS} for name, section in inputs.items()
    }


def _on_own_disk(context: Context, mount: Mount) -> bool:
    """Return whether a mount is on the machine's own disk. A server of another mount could hang the agent."""
    return mount.kind == "nvme" or (mount.kind in ("nfs", "disk") and mount.served_by == context.role)


def install_agent(context: Context, region: str) -> None:
    """Install Amazon's agent.

    Raises:
        ServiceError: The agent cannot be fetched.
        CommandError: The agent is not signed by Amazon, or cannot be installed.
    """
    if context.at(AGENT).exists():
        return
    apt.install(context, [SYSLOG])
    distribution = DISTRIBUTIONS.get(apt.suite(context), "debian")
    url = URL.format(region=region, domain=domain(region), distribution=distribution, file=FILE)
    package = files.folder(context.at("var/tmp/slurm-stacks"), 0o700) / FILE
    signed_files.fetch_signed(context, url, f"{url}.sig", SIGNER, package, attempts=2)
    context.run("dpkg", "--install", str(package), timeout=120.0)
    package.unlink()
