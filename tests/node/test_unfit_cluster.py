"""How a real slurmctld treats a machine that has less than its line in slurm.conf says."""

from __future__ import annotations

import re

import pytest

from node.elastic.rules import NodePhase
from node.elastic.view import is_admin_disabled, phase
from node.slurm.states import NodeState
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, needs_slurm, partition

pytestmark = [pytest.mark.cluster, needs_slurm]


def _too_much(conf: str) -> str:
    """Give every node a petabyte of memory in slurm.conf, while it reports its real memory."""
    found, count = re.subn(r"RealMemory=\d+", "RealMemory=1000000000", conf)
    assert count
    return found.replace("SlurmdParameters=config_overrides\n", "")


def test_a_machine_that_is_too_small_is_unfit_until_it_is_switched_off() -> None:
    plan = design(partition(nodes=2, static=1))
    with SlurmCluster(plan, prolog=WAIT_FOR_NODES, edit=_too_much) as cluster:
        control = cluster.control
        job = int(cluster.run("sbatch", "--parsable", "-w", "debug-1", "--mem=1", "--wrap", "true").stdout)
        control.power_up(["debug-0"])
        seen: dict[str, NodeState] = {}

        def unfit(node: str) -> bool:
            seen[node] = control.nodes()[node]
            return phase(seen[node]) is NodePhase.UNFIT

        for node in ("debug-0", "debug-1"):
            # Slurm itself powers the other node down after a while, and up again for the job.
            cluster.wait("unfit", lambda n=node: unfit(n), 120)  # type: ignore[misc]
            assert (seen[node].reason or "").startswith("Low RealMemory")
            assert not is_admin_disabled(seen[node]), "no person took it out of service"
        cluster.wait("the job is queued again", lambda: control.jobs()[job].restarts >= 1, 120)
        control.cancel([job])
        control.power_down_force(["debug-0", "debug-1"], "slurm-stacks bootstrap: too small")
        for node in ("debug-0", "debug-1"):
            cluster.wait(
                "off and usable",
                lambda n=node: phase(control.nodes()[n]) is NodePhase.POWERED_DOWN,  # type: ignore[misc]
                120,
            )
            assert not control.nodes()[node].is_drained
