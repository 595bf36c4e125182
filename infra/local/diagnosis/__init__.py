"""What of this machine would keep a local cluster from coming up: one check a cause."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from infra.doctor.finding import Check
from infra.local.cloud.kind import CONTAINER
from infra.local.diagnosis import cluster, limits, machines, network, places, software
from infra.local.diagnosis.host import Host
from infra.local.site import RunDirectory
from infra.runner import locations

if TYPE_CHECKING:
    from infra.node.model import BenchmarkDesign, ClusterDesign


def checks(
    project: Path,
    stack: str,
    design: ClusterDesign | None,
    training: BenchmarkDesign | None,
    host: Host | None = None,
) -> list[Check]:
    """All of them, in the order in which a person wants to read them.

    Args:
        design: None where the stack file has mistakes: what depends on it is left out.
        host: where facts come from; this machine by default.
    """
    here = host or Host()
    run = RunDirectory(locations.run_dir(project, stack))
    of = functools.partial
    boots = design is not None and design.machines == CONTAINER
    found = [
        Check("system", of(software.system, here)),
        # Machines that boot have their own.
        *([] if boots else [Check("packages", of(software.installed, here))]),
        Check("services", of(software.services, here, run.path)),
        Check("user", places.user),
        Check("run", of(places.run_folder, project, stack, design)),
        Check("training", of(places.training_environment, project, training)),
    ]
    if design is not None:
        wanted = design.slurm.accounting
        found += [
            *([] if boots else [Check("accounting", of(software.accounting, here, wanted=wanted))]),
            Check("memory", of(limits.memory, here, design, training)),
            Check("memory", of(limits.sizes, here, training)),
            Check("processes", of(limits.processes, here, design, training)),
            Check("files", of(limits.files, here, design)),
            Check("machines", of(machines.containers, design)),
        ]
        if not boots:  # which have all of their ports, and names
            found.append(Check("ports", of(network.free_ports, here, run, design)))
            found.append(Check("network", of(network.node_names, run)))
    return [
        *found,
        Check("network", network.loopback),
        Check("network", of(network.names, here)),
        Check("clock", of(network.clock, project)),
        Check("cluster", of(cluster.present, project, stack, design)),
        Check("others", of(cluster.others, project, stack)),
    ]
