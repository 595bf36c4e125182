"""The names of nodes that are up, for the controller's name server: files that follow what Slurm says.

Slurm learns the address of each node as it registers, on every cloud, and forgets it when the node is off.
So no cloud is asked. Every waiting prolog has its nodes read here, and so a job's script begins when the
names of the job's nodes are served.
"""

from __future__ import annotations

import socket
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

FILE = "nodes-"
"""How the files' names begin. Each is of a hundred nodes: dnsmasq compares each line of a file that has
changed with all that it knows, so that a change in a file of thousands would take it seconds."""
RISING_SECONDS = 2.0
"""The pause between two looks while a node comes up, or Slurm does not answer."""
SERVED_SECONDS = 2.0
"""How long a reading waits for the name server. Without one the cluster works, except for names."""
ASK_SECONDS = 0.2
PAUSE_SECONDS = 0.005


class Names:
    """Args:
    read: all of Slurm's nodes.
    folder: what the name server follows.
    suffix: the cluster's domain.
    served: the address that the name server has for a full name.
    interval: seconds between two looks while nothing comes up.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, NodeState]],
        folder: Path,
        suffix: str,
        served: Callable[[str], str | None],
        interval: float,
    ) -> None:
        self._read = read
        self._folder = folder
        self._suffix = suffix
        self._served = served
        self._interval = interval
        self._lock = threading.Lock()
        self._placed: dict[str, str] | None = None
        self._texts: dict[str, str] = {}
        self._wanted = threading.Event()

    @classmethod
    def of(cls, settings: Settings, control: Slurm) -> Names | None:
        """None where names are not the controller's to know."""
        if not names.kept(settings.design):
            return None
        folder = Path(str(names.folder(Folders(settings))))
        served = partial(names.ask, server=settings.site.controller_address, seconds=ASK_SECONDS)
        interval = settings.design.slurm.reconcile_interval
        return cls(control.nodes, folder, names.domain(settings.design), served, interval)

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
        try:
            self._write(wanted)
        except OSError as error:  # jobs run without names, too
            log(f"{self._folder}: {error}")
            return
        before, self._placed = self._placed or {}, wanted
        if new := [name for name, address in wanted.items() if before.get(name) != address]:
            # The files are read in the order in which they are written, and each as a whole.
            last = max(new, key=_file)
            if not self._known(last, wanted[last]):
                log(f"the name server does not know {last} yet")

    def _write(self, wanted: dict[str, str]) -> None:
        folder = files.folder(self._folder)
        # Those that an earlier daemon has left, too: a node that is off is to be in none.
        texts = {file.name: "" for file in folder.glob(f"{FILE}*")}
        for name, address in wanted.items():
            texts[_file(name)] = texts.get(_file(name), "") + f"{address} {name}.{self._suffix}\n"
        for file, text in sorted(texts.items()):
            if self._texts.get(file) != text:
                files.place(folder / file, text.encode())
                self._texts[file] = text

    def _known(self, name: str, address: str) -> bool:
        """Whether the name server has read that."""
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


def _file(node: str) -> str:
    partition, _, number = node.rpartition("-")
    return f"{FILE}{partition}-{number[:-2] or 0}"


def _is_address(text: str) -> bool:
    """Slurm has a node's name there while it knows no address."""
    # This is asked of each node ten times a second: ipaddress would take a core for it.
    try:
        return text.count(".") == 3 and bool(socket.inet_aton(text))
    except OSError:
        return False
