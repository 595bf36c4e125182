"""The names of nodes that are up, for the controller's name server: a file that follows what Slurm says.

Slurm learns the address of each node as it registers, on every cloud, and forgets it when the node is off.
So no cloud is asked. Every waiting prolog has its nodes read here, and so a job's script begins when the
names of the job's nodes are served.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from infra.node import names
from infra.node.bootstrap import files
from infra.node.elastic.view import log
from infra.node.model import Folders, Settings
from infra.node.slurm.control import Slurm, SlurmError
from infra.node.slurm.states import NodeState

FILE = "nodes"
RISING_SECONDS = 2.0
"""The pause between two looks while a node comes up, or Slurm does not answer."""
SERVED_SECONDS = 2.0
"""How long a reading waits for the name server. Without one the cluster works, except for names."""
ASK_SECONDS = 0.2
PAUSE_SECONDS = 0.005


class Names:
    """Args:
    read: all of Slurm's nodes.
    file: what the name server follows.
    suffix: the cluster's domain.
    served: the address that the name server has for a full name.
    interval: seconds between two looks while nothing comes up.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, NodeState]],
        file: Path,
        suffix: str,
        served: Callable[[str], str | None],
        interval: float,
    ) -> None:
        self._read = read
        self._file = file
        self._suffix = suffix
        self._served = served
        self._interval = interval
        self._lock = threading.Lock()
        self._placed: dict[str, str] | None = None
        self._wanted = threading.Event()

    @classmethod
    def of(cls, settings: Settings, control: Slurm) -> Names | None:
        """None where names are not the controller's to know."""
        if not names.kept(settings.design):
            return None
        file = Path(str(names.folder(Folders(settings)))) / FILE
        served = partial(names.ask, server=settings.site.controller_address, seconds=ASK_SECONDS)
        interval = settings.design.slurm.reconcile_interval
        return cls(control.nodes, file, names.domain(settings.design), served, interval)

    def nodes(self) -> Mapping[str, NodeState]:
        """All of Slurm's nodes; those that are up can be found by their names when this returns."""
        # One reading at a time: an older one must not be written after a newer one.
        with self._lock:
            found = self._read()
            self._place(addresses(found))
            return found

    def expect(self) -> None:
        """Nodes have been asked for: look again soon, whether or not a job waits for them."""
        self._wanted.set()

    def run(self) -> None:
        """Look for ever: nodes come and go also without a job that waits for them."""
        while True:
            self._wanted.wait(RISING_SECONDS if self.look() else self._interval)
            self._wanted.clear()

    def look(self) -> bool:
        """One look. Returns whether another one is due soon."""
        try:
            return any(state.is_powering_up for state in self.nodes().values())
        except SlurmError:
            return True
        except Exception as error:  # a full disk, say; names must follow again when it is mended
            log(f"names: {error!r}")
            return True

    def _place(self, wanted: dict[str, str]) -> None:
        if wanted == self._placed:
            return
        text = names.lines(wanted, self._suffix).encode()
        try:
            files.place(files.folder(self._file.parent) / self._file.name, text)
        except OSError as error:  # jobs run without names, too
            log(f"{self._file}: {error}")
            return
        before, self._placed = self._placed or {}, wanted
        new = [name for name, address in wanted.items() if before.get(name) != address]
        if new and not self._known(new[-1], wanted[new[-1]]):
            log(f"the name server does not know {new[-1]} yet")

    def _known(self, name: str, address: str) -> bool:
        """Whether the name server has read the file, which it does as a whole."""
        deadline = time.monotonic() + SERVED_SECONDS
        while self._served(f"{name}.{self._suffix}") != address:
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        return True


def addresses(nodes: Mapping[str, NodeState]) -> dict[str, str]:
    """Node -> its address, of those that have registered and are not given back."""
    return {
        name: state.address
        for name, state in sorted(nodes.items())
        if not (state.is_powering_up or state.is_powered_down or state.is_powering_down)
        and _is_address(state.address)
    }


def _is_address(text: str) -> bool:
    """Slurm has a node's name there while it knows no address."""
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False
