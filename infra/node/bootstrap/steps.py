"""The steps of a boot, in their order; a role is the steps that apply to it.

Each is idempotent, has a time limit, and says in one line what it did. A step that fails raises, and the
machine does not register: a node is one that has its mounts and its accelerators. What a step does may differ
between machines that share a host's files (`shared`) and those with files of their own (`own`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

from infra.node.bootstrap import limits, shared
from infra.node.bootstrap.context import ALL, Context, SkipStep, Step
from infra.node.bootstrap.daemons import end_of
from infra.node.slurm import gres

MIN_FREE_MIB = 64
DATABASE_MIB = 64
"""Accounting's at its beginning, on the local stack."""


class Kind(Protocol):
    """A module with the steps that one kind of machine takes in its own way."""

    def users(self, context: Context, /) -> str: ...

    def hosts(self, context: Context, /) -> str: ...

    def secrets(self, context: Context, /) -> str: ...

    def mounts(self, context: Context, /) -> str: ...

    def slurm(self, context: Context, /) -> str: ...

    def ready(self, context: Context, /) -> str:
        """Start the role's daemons; a compute node registers here and not before."""
        ...


def kind(context: Context) -> Kind:
    if context.process:
        return shared
    # Here and not above: a process machine's boot has no time for it.
    from infra.node.bootstrap import own

    return own


def disks(context: Context) -> str:
    root = context.path(context.folders.root)
    free = shutil.disk_usage(root).free // 2**20
    database = not context.vm and context.role == "controller" and context.settings.design.slurm.accounting
    needed = MIN_FREE_MIB + (DATABASE_MIB if database else 0)
    if free < needed:
        raise OSError(f"{root}: {free} MiB are free, {needed} are needed; make room there")
    if context.vm:
        from infra.node.bootstrap.vm import disks as volumes

        return f"{volumes.prepare(context)}; {free} MiB free on {root}"
    return f"{free} MiB free"


def packages(context: Context) -> str:
    from infra.node.bootstrap.vm import packages as distribution

    return distribution.install(context)


def metadata(context: Context) -> str:
    from infra.node.bootstrap.vm import clouds, metadata_guard

    return metadata_guard.place(context, clouds.of(context.settings).metadata_openings)


def accelerators(context: Context) -> str:
    partition = context.settings.design.partition_of(context.host)
    accelerator = partition.accelerator if partition else None
    fabric = ""
    if context.vm and partition is not None and (accelerator is not None or partition.efa):
        from infra.node.bootstrap.vm import drivers

        fabric = drivers.install(context, partition)
    if accelerator is None:
        if fabric:
            return fabric
        raise SkipStep("this machine has none")
    if accelerator.simulated:
        return f"{accelerator.count} simulated {accelerator.type}"
    devices = gres.devices(accelerator)
    missing = [d for d in devices if not Path(d).exists()]
    if missing:
        raise FileNotFoundError(f"accelerator devices are missing: {' '.join(missing)}")
    return f"{accelerator.count} {accelerator.type}{', ' if fabric else ''}{fabric}"


def hooks(context: Context) -> str:
    mine = [
        (number, hook)
        for number, hook in enumerate(context.settings.design.hooks)
        if hook.role in ("all", context.role)
    ]
    if not mine:
        raise SkipStep("the stack file has none for this role")
    from infra.node.bootstrap import scripts

    for number, hook in mine:
        script = scripts.place(context, number, hook)
        log = context.path(context.folders.log) / f"hook-{number}-{context.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # A file and no pipe: a service that the hook leaves behind would hold a pipe open for ever.
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    [str(script), *hook.args],
                    stdout=output,
                    stderr=output,
                    timeout=hook.timeout,
                    stdin=subprocess.DEVNULL,
                    check=False,
                    env={**os.environ, "SLURM_STACKS_ROLE": context.role, "SLURM_STACKS_HOST": context.host},
                ).returncode
                ended = f"ended with status {status}"
            except subprocess.TimeoutExpired:
                status, ended = None, f"was not done after {hook.timeout} s"
        if status != 0:
            raise RuntimeError("\n".join([f"{hook.source} {ended}; the end of {log}:", *end_of(log)]))
    return f"ran {len(mine)}"


def environment(context: Context) -> str:
    from infra.node.bootstrap.vm import training

    return training.prepare(context)


def logs(context: Context) -> str:
    from infra.node.bootstrap.vm import clouds

    return clouds.of(context.settings).ship_logs(context)


HOSTS = frozenset({"controller", "login"})
"""The roles of machines that are made with their cluster, and not for a job."""
VM = frozenset({"vm"})
"""A cloud's machines."""
WHOLE = VM | {"container"}
"""Machines that have no software of ours yet; others share their host's."""

STEPS: tuple[Step, ...] = (
    Step("users", limits.USERS, ALL, lambda context: kind(context).users(context)),
    Step("hosts", limits.HOSTS, ALL, lambda context: kind(context).hosts(context)),
    # A controller waits until its cloud knows that it may read the key, a login machine for the controller.
    Step("secrets", limits.HOSTS_SECRETS, HOSTS, lambda context: kind(context).secrets(context)),
    Step("secrets", limits.SECRETS, ALL - HOSTS, lambda context: kind(context).secrets(context)),
    Step("disks", limits.DISKS, ALL, disks),
    Step("packages", limits.PACKAGES, ALL, packages, WHOLE),
    Step("metadata", limits.METADATA, frozenset({"controller"}), metadata, VM),
    Step("mounts", limits.MOUNTS, ALL, lambda context: kind(context).mounts(context)),
    Step("slurm", limits.SLURM, ALL, lambda context: kind(context).slurm(context)),
    Step("accelerators", limits.ACCELERATORS, frozenset({"compute"}), accelerators),
    Step("hooks", limits.HOOKS, ALL, hooks),
    Step("ready", limits.READY_HOSTS, HOSTS, lambda context: kind(context).ready(context)),
    Step("ready", limits.READY, ALL - HOSTS, lambda context: kind(context).ready(context)),
    Step("logs", limits.LOGS, ALL, logs, VM),
    # Last, so that jobs that do not need it run meanwhile; with the others in one report, so that who waits
    # for the cluster sees it.
    Step("environment", limits.ENVIRONMENT, frozenset({"controller"}), environment, VM),
)
