"""The doctor's checks of this machine for a local cluster."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cli.findings import Check
from cli.providers.local.diagnosis import cluster, cluster_folders, software
from cli.providers.local.diagnosis import host as of_host
from cli.providers.local.diagnosis.host import Host
from infra.program import locations
from infra.program.stack import Stack
from node.design.model import CONTAINER
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign, ClusterDesign


def checks(
    stack: Stack,
    design: ClusterDesign | None,
    training: BenchmarkDesign | None,
    host: Host | None = None,
) -> list[Check]:
    """Return all checks, in the order in which their findings are shown.

    Args:
        design: `None` if the stack file has mistakes; checks that depend on it are left out then.
        host: The source of facts; `None` means this machine.
    """
    machine = host or Host()
    run = RunDirectory(locations.run_dir(stack))
    of = functools.partial
    # What the built-in training needs is known, what a program of the user's needs is not.
    known = None if training is None or training.own else training
    boots = design is not None and design.isolation == CONTAINER
    of_machines = [
        Check("system", of(software.system, machine)),
        # Container machines have Slurm in their image.
        *([] if boots else [Check("packages", of(software.installed, machine))]),
        Check("user", cluster_folders.user),
        Check("run", of(cluster_folders.run_folder, stack, design)),
        Check("training", of(cluster_folders.training_environment, stack.project, training)),
    ]
    if design is not None:
        of_machines.append(Check("memory", of(of_host.memory, machine, design, known)))
        if boots:
            of_machines.append(Check("machines", of(cluster_folders.containers, design)))
        else:  # container machines have their own ports
            of_machines.append(Check("ports", of(of_host.free_ports, run, design)))
            if design.slurm.accounting:
                of_machines.append(Check("accounting", of(software.accounting, machine)))
    return [
        *of_machines,
        Check("network", of(of_host.answers, boots=boots)),
        Check("cluster", of(cluster.present, stack, design)),
    ]
