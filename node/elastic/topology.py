"""Tells Slurm where running machines are in the cloud's network, so that it chooses nodes that are close.

Slurm's traps (docs/internals/slurm_traps.md): missing-topology.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node.design.model import ClusterDesign
from node.elastic.driver import Driver, Machine, MachineState
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.steps import NOT_TRIED, NotTried
from node.elastic.view import log
from node.slurm import topology
from node.slurm.control import Slurm
from node.slurm.states import NodeState
from node.system import files, plurals

PAUSE_SECONDS = 300.0
"""Seconds between two questions to the cloud, and between two times that Slurm reads its configuration again.

Every node's daemon reads it, too, which takes slurmctld seconds in a cluster of thousands.
"""


class Topology:
    """The keeper of topology.conf, which is true to the machines that run.

    A node that is off has no place, because its next machine will be somewhere else. Nothing is changed while
    nodes of these partitions start or end, since each of them would change the file again.

    Args:
        design: The cluster's design.
        control: Slurm's commands.
        driver: The cloud, which knows the places.
        lib: The folder of topology.conf and of the record.
        clock: Seconds on a clock that never jumps.
        machines: Returns the machines of the last listing.
        reconfiguration: Has Slurm read the file.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        lib: Path,
        machines: Callable[[], Sequence[Machine]],
        reconfiguration: Reconfiguration,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._design = design
        self._control = control
        self._driver = driver
        self._lib = lib
        self._machines = machines
        self._reconfiguration = reconfiguration
        self._clock = clock
        self._nodes = frozenset(
            node for partition in design.partitions if partition.topology for node in partition.nodes()
        )
        self._next = clock()

    def once(self) -> bool | NotTried:
        """Write the file and have Slurm read it, if the places of settled machines have changed.

        Returns:
            Whether Slurm has read a new file; `NOT_TRIED` if the cloud was not asked.

        Raises:
            SlurmError: slurmctld does not answer or refuses. A later call tries again.
            Exception: The cloud refuses or does not answer. A later call asks again.
        """
        if not self._nodes:
            return False
        if self._clock() < self._next:
            return NOT_TRIED
        nodes = self._control.nodes()
        running = self._running([nodes[name] for name in sorted(self._nodes & nodes.keys())])
        if running is None:
            return NOT_TRIED
        known = topology.read(self._lib)
        if (not running and not known) or not self._reconfiguration.possible():
            return NOT_TRIED
        self._next = self._clock() + PAUSE_SECONDS
        described = self._driver.places(running) if running else {}
        places = {node: place for node, place in described.items() if node in self._nodes and place}
        if places == known:
            return False
        files.write(self._lib / topology.FILE, topology.render(self._design, places).encode())
        if not self._reconfiguration.now():
            self._next = self._clock()
            return False
        # Written last: if slurmctld did not read the file, the next pass finds the former places and repeats.
        files.write(self._lib / topology.RECORD, topology.text(places).encode())
        log(f"topology.conf has the places of {plurals.count(len(places), 'node')}")
        return True

    def _running(self, nodes: Sequence[NodeState]) -> list[Machine] | None:
        """Return the machines of the nodes that are up; `None` while nodes start or end."""
        listed = sorted(self._machines(), key=lambda machine: machine.launched)
        machines = {m.node: m for m in listed if m.state is MachineState.RUNNING}
        running = []
        for node in nodes:
            if node.is_powering_up or node.is_powering_down:
                return None
            if node.is_up:
                if node.name not in machines:
                    return None  # the listing is older than the node, or the machine has just ended
                running.append(machines[node.name])
        return running
