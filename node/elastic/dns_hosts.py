"""Hosts files for the controller's name server: the names and addresses of the nodes that are up.

Slurm learns the address of each node when it registers, on every cloud, and forgets it when the node is off.
So no cloud is asked. The readings for waiting prologs also come through here, so a job's script starts only
when the names of its nodes can be resolved.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from node.design import names
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic.view import log
from node.slurm.control import Slurm, SlurmError
from node.slurm.states import NodeState
from node.system import files
from node.system.waiting import wait_at_most

FILE = "nodes-"
"""The prefix of the files' names.

Each file holds a hundred nodes. dnsmasq compares each line of a changed file with all that it knows, so a
change in a file of thousands would take it seconds.
"""
POWERING_UP_SECONDS = 2.0
"""Seconds between two readings while a node comes up, or while Slurm does not answer."""
SPARED_SECONDS = 13.0
"""The same after all nodes that come up were read for jobs that wait for them. Whoever waits reads them again
by then (`observer.ALL_SECONDS`), and as soon as the last node of a job is up."""
SERVED_SECONDS = 2.0
"""How long a reading waits for the name server. Without one the cluster works, except for names."""
ASK_SECONDS = 0.2
"""The time limit of one query to the name server."""
PAUSE_SECONDS = 0.005


class DnsHosts:
    """The keeper of the name server's hosts files.

    Args:
        read: Returns all of Slurm's nodes, as a reading has them that began at this time or later, on
            `time.monotonic`; the same object as before if none has changed.
        read_named: Returns at least those of some nodes that Slurm knows (`Slurm.named_nodes`).
        folder: The folder that the name server watches.
        suffix: The cluster's domain.
        served: Returns the address that the name server has for a full name.
        interval: Seconds between two readings while no node comes up.
    """

    def __init__(
        self,
        read: Callable[[float], Mapping[str, NodeState]],
        read_named: Callable[[Collection[str]], Mapping[str, NodeState]],
        folder: Path,
        suffix: str,
        served: Callable[[str], str | None],
        interval: float,
    ) -> None:
        self._read = read
        self._read_named = read_named
        self._folder = folder
        self._suffix = suffix
        self._served = served
        self._interval = interval
        self._lock = threading.Lock()
        self._published: dict[str, str] | None = None
        self._nodes: Mapping[str, NodeState] | None = None
        self._named: Mapping[str, NodeState] | None = None
        self._addresses: dict[str, str] = {}
        self._failed = False
        self._coming: set[str] = set()
        """The nodes that came up when all were read."""
        self._expected: dict[str, float] = {}
        """Node -> when it was asked for, of those that no reading of all has begun after."""
        self._expecting = threading.Lock()
        self._asked_at = -math.inf
        self._read_at: dict[str, float] = {}
        """Node -> when it was read for those who wait for it, since all were."""
        self._texts: dict[str, str] = {}
        self._wanted = threading.Event()

    @classmethod
    def of(cls, settings: Settings, control: Slurm) -> DnsHosts | None:
        """Return the hosts files of a cluster; `None` where the controller does not serve names."""
        if not names.has_name_server(settings.design):
            return None
        folder = Path(str(names.folder(Folders(settings))))
        served = partial(names.ask, server=settings.site.controller_address, seconds=ASK_SECONDS)
        interval = settings.design.slurm.reconcile_interval
        return cls(
            control.nodes_since, control.named_nodes, folder, names.domain(settings.design), served, interval
        )

    def nodes(self, since: float = math.inf) -> Mapping[str, NodeState]:
        """Read all of Slurm's nodes. Those that are up can be resolved when this returns.

        Args:
            since: A reading that began at this time or later, on `time.monotonic`, will do.
        """
        # The lock covers reading and writing: an older reading must not be written after a newer one.
        with self._lock:
            return self._read_all(since)

    def named(self, names: Collection[str]) -> Mapping[str, NodeState]:
        """Read at least these nodes. Those of them that are up can be resolved when this returns.

        Returns:
            As `Slurm.named_nodes`.
        """
        with self._lock:
            if self._published is None:  # an earlier daemon's files, and nodes that are up
                return self._read_all(math.inf)
            begun = time.monotonic()
            nodes = self._read_named(names)
            if nodes is not self._named:
                self._named = nodes
                self._add(addresses(nodes), nodes)
            self._publish(self._addresses)
            self._read_at = {**self._read_at, **dict.fromkeys(nodes, begun)}
            return nodes

    def _read_all(self, since: float) -> Mapping[str, NodeState]:
        begun = self._asked_at = time.monotonic()
        self._failed, self._read_at = True, {}
        nodes = self._read(since)
        if nodes is not self._nodes:
            self._nodes, self._named, self._addresses = nodes, None, addresses(nodes)
            self._coming = {name for name, state in nodes.items() if state.is_powering_up}
        with self._expecting:
            newest = min(begun, since)
            self._expected = {name: asked for name, asked in self._expected.items() if asked > newest}
        self._failed = False
        self._publish(self._addresses)
        return nodes

    def _add(self, found: Mapping[str, str], nodes: Mapping[str, NodeState]) -> None:
        """Have what was found of these nodes in the place of what was known of them."""
        if any(self._addresses.get(name) != found.get(name) for name in nodes):
            others = {name: address for name, address in self._addresses.items() if name not in nodes}
            self._addresses = dict(sorted({**others, **found}.items()))
            # The next reading of all counts, also if it is the same as the last one.
            self._nodes = None

    def _coming_up(self) -> set[str]:
        return self._coming | self._expected.keys()

    def expect(self, nodes: Iterable[str]) -> None:
        """Read these nodes soon, because they are being launched, whether or not a job waits for them."""
        with self._expecting:
            self._expected = {**self._expected, **dict.fromkeys(nodes, time.monotonic())}
        self._wanted.set()

    def run(self) -> None:
        """Read forever: nodes also come and go without a job that waits for them."""
        since = math.inf
        while True:
            self.look(since)
            while (left := self._due() - time.monotonic()) > 0:
                if self._wanted.wait(left):
                    self._wanted.clear()
            # While no node comes up, another's reading of late will do.
            is_quiet = not self._failed and not self._coming_up()
            since = time.monotonic() - self._interval / 2 if is_quiet else math.inf

    def _due(self) -> float:
        """Return when all nodes are to be read next.

        Whoever waits for nodes reads those, and so spares a reading of all while no other node comes up.
        """
        if self._failed:
            return self._asked_at + POWERING_UP_SECONDS
        read_at, expected = self._read_at, self._expected
        first = min(
            (
                read_at[name] + SPARED_SECONDS
                if name in read_at
                else expected.get(name, self._asked_at) + POWERING_UP_SECONDS
                for name in self._coming_up()
            ),
            default=math.inf,
        )
        return min(first, self._asked_at + self._interval)

    def look(self, since: float = math.inf) -> bool:
        """Read once.

        Args:
            since: As for `nodes`.

        Returns:
            Whether the next reading is due soon.
        """
        try:
            self.nodes(since)
            return bool(self._coming_up())
        except SlurmError:
            return True
        except Exception as error:  # such as a full disk; the names must follow again when it is repaired
            log(f"names: {error!r}")
            return True

    def _publish(self, wanted: dict[str, str]) -> None:
        if wanted is self._published or wanted == self._published:
            return
        try:
            self._write(wanted)
        except OSError as error:  # jobs also run without names
            log(f"{self._folder}: {error}")
            return
        before, self._published = self._published or {}, wanted
        if new := [name for name, address in wanted.items() if before.get(name) != address]:
            # The name server reads the files in the order in which they are written, and each as a whole.
            last = max(new, key=_file)
            if not self._is_served(last, wanted[last]):
                log(f"the name server does not know {last} yet")

    def _write(self, wanted: dict[str, str]) -> None:
        folder = files.folder(self._folder)
        # This includes files of an earlier daemon: a node that is off must be in none of them.
        texts = {file.name: "" for file in folder.glob(f"{FILE}*")}
        for name, address in wanted.items():
            texts[_file(name)] = texts.get(_file(name), "") + f"{address} {name}.{self._suffix}\n"
        for file, text in sorted(texts.items()):
            if self._texts.get(file) != text:
                files.write(folder / file, text.encode())
                self._texts[file] = text

    def _is_served(self, name: str, address: str) -> bool:
        """Return whether the name server has read this name with this address."""
        whole = f"{name}.{self._suffix}"
        return wait_at_most(lambda: self._served(whole) == address, SERVED_SECONDS, PAUSE_SECONDS)


def addresses(nodes: Mapping[str, NodeState]) -> dict[str, str]:
    """Return node -> address for the nodes that have registered and are not being powered down."""
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
    """Return whether the text is an IPv4 address. While Slurm knows no address, it shows the node's name."""
    # This runs ten times a second for each node; the module ipaddress would take a whole core.
    try:
        return text.count(".") == 3 and bool(socket.inet_aton(text))
    except OSError:
        return False
