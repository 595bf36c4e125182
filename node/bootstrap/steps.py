"""The steps of a boot, in their order. Each step names the roles and the kinds of machines that take it.

Each step is idempotent, has a time limit, and reports in one line what it did. A step that fails raises an
error, and the machine does not register with Slurm: a registered node has its mounts and its accelerators.
Some steps have two versions: `process_steps` for machines that share one host's files, and `machine_steps`
for machines with a root file system of their own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from node.bootstrap import process_steps
from node.bootstrap.context import ALL, Context, SkipStep, Step
from node.design import time_limits
from node.slurm import hardware
from node.slurm.hostlist import expand

MIN_FREE_MIB = 64
DATABASE_MIB = 64
"""The size of a new accounting database on the local stack."""


class Kind(Protocol):
    """A module with the steps that differ between the kinds of machines."""

    def users(self, context: Context, /) -> str: ...

    def hosts(self, context: Context, /) -> str: ...

    def secrets(self, context: Context, /) -> str: ...

    def mounts(self, context: Context, /) -> str: ...

    def slurm(self, context: Context, /) -> str: ...

    def ready(self, context: Context, /) -> str:
        """Start the role's daemons. A compute node registers here and not before."""
        ...


def kind(context: Context) -> Kind:
    if context.process:
        return process_steps
    # Imported late to save time in the boot of a process machine.
    from node.bootstrap import machine_steps

    return machine_steps


def disks(context: Context) -> str:
    root = context.path(context.folders.root)
    free = shutil.disk_usage(root).free // 2**20
    database = not context.vm and context.role == "controller" and context.settings.design.slurm.accounting
    needed = MIN_FREE_MIB + (DATABASE_MIB if database else 0)
    if free < needed:
        raise OSError(f"{root}: {free} MiB are free, {needed} are needed; make room there")
    if context.vm:
        from node.bootstrap.vm import disks as volumes

        done = volumes.prepare(context)
        state = context.settings.design.state()
        if state is not None and context.role == "controller":
            from node.bootstrap.vm import kept_state

            done = f"{done}; {state.path}: {kept_state.prepare(context, state)}"
        return f"{done}; {free} MiB free on {root}"
    return f"{free} MiB free"


def packages(context: Context) -> str:
    from node.bootstrap.vm import packages as distribution

    return distribution.install(context)


def metadata(context: Context) -> str:
    from node.bootstrap.vm import clouds, metadata_guard

    if _open_metadata(context):
        return metadata_guard.open_to_all(context)
    return metadata_guard.install(context, clouds.of(context.settings).metadata_openings)


def _open_metadata(context: Context) -> bool:
    """Return whether the stack file opens the metadata address of this machine to every user.

    It never opens a controller's.
    """
    design = context.settings.design
    if context.role == "compute":
        partition = design.partition_of(context.host)
        return partition is not None and partition.open_metadata
    return context.role == "login" and any(
        host.open_metadata for host in design.hosts if host.name == context.host
    )


def accelerators(context: Context) -> str:
    partition = context.settings.design.partition_of(context.host)
    accelerator = partition.accelerator if partition else None
    fabric = ""
    if context.vm and partition is not None and (accelerator is not None or partition.aws.efa):
        from node.bootstrap.vm import drivers

        fabric = drivers.install(context, partition)
    if accelerator is None:
        if fabric:
            return fabric
        raise SkipStep("this machine has none")
    if accelerator.simulated:
        return f"{accelerator.count} simulated {accelerator.type}"
    devices = expand(hardware.device_files(accelerator))
    missing = [d for d in devices if not Path(d).exists()]
    if missing:
        raise FileNotFoundError(f"accelerator devices are missing: {' '.join(missing)}")
    return f"{accelerator.count} {accelerator.type}{', ' if fabric else ''}{fabric}"


def hooks(context: Context) -> str:
    scripts = [
        (number, hook)
        for number, hook in enumerate(context.settings.design.hooks)
        if hook.role in ("all", context.role)
    ]
    if not scripts:
        raise SkipStep("the stack file has none for this role")
    from node.bootstrap import hook_scripts

    lines = [line for number, hook in scripts for line in hook_scripts.run(context, number, hook)]
    return "\n".join([f"ran {len(scripts)}", *lines])


def health(context: Context) -> str:
    # Imported late to save time: most nodes have nothing to check.
    if context.settings.design.health is None:
        raise SkipStep("the design has no health checks")
    from node.health import programs
    from node.health.check import When, expected, in_a_line

    if (wanted := expected(context.settings.design, context.host)) is None:
        raise SkipStep("this machine has no devices")
    if faults := programs.look(context.settings, context.host, wanted, When.BOOT):
        raise RuntimeError("\n".join([f"health: {in_a_line(faults)}", *faults]))
    return f"{wanted.text()}: no fault found"


def environment(context: Context) -> str:
    from node.bootstrap.vm import training

    return training.prepare(context)


def logs(context: Context) -> str:
    from node.bootstrap.vm import clouds

    return clouds.of(context.settings).ship_logs(context)


HOSTS = frozenset({"controller", "login"})
"""The roles of machines that are made with the cluster, not for a job."""
VM = frozenset({"vm"})
"""A cloud's machines."""
WHOLE = VM | {"container"}
"""The machines on which packages must be installed. Process machines use those of their host."""

STEPS: tuple[Step, ...] = (
    Step("users", time_limits.USERS, ALL, lambda context: kind(context).users(context)),
    Step("hosts", time_limits.HOSTS, ALL, lambda context: kind(context).hosts(context)),
    # This comes before a machine has the key, because users may log in while it still boots.
    Step("metadata", time_limits.METADATA, ALL, metadata, VM),
    # The controller waits until its permission to read the key is active. A login machine waits for the
    # controller.
    Step("secrets", time_limits.HOSTS_SECRETS, HOSTS, lambda context: kind(context).secrets(context)),
    Step("secrets", time_limits.SECRETS, ALL - HOSTS, lambda context: kind(context).secrets(context)),
    Step("disks", time_limits.DISKS, ALL, disks),
    Step("packages", time_limits.PACKAGES, ALL, packages, WHOLE),
    Step("mounts", time_limits.MOUNTS, ALL, lambda context: kind(context).mounts(context)),
    Step("slurm", time_limits.SLURM, ALL, lambda context: kind(context).slurm(context)),
    Step("accelerators", time_limits.ACCELERATORS, frozenset({"compute"}), accelerators),
    Step("hooks", time_limits.HOOKS, ALL, hooks),
    # After the hooks, which may install DCGM.
    Step("health", time_limits.HEALTH, frozenset({"compute"}), health),
    Step("ready", time_limits.READY_HOSTS, HOSTS, lambda context: kind(context).ready(context)),
    Step("ready", time_limits.READY, ALL - HOSTS, lambda context: kind(context).ready(context)),
    Step("logs", time_limits.LOGS, ALL, logs, VM),
    # This is the last step, so that jobs that do not need the environment run meanwhile. It is a step, so
    # that the report shows it to those who wait for the cluster.
    Step("environment", time_limits.ENVIRONMENT, frozenset({"controller"}), environment, VM),
)
