"""The faults of a soak: the local cloud's limits, faults of machines, and killed daemons."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from node.slurm.control import SlurmError
from node.system import rpc
from tests.support import lost_head
from tests.support.checkout import until
from tests.support.soak import commands
from tests.support.soak.cluster import CALM, DAEMONS, GPUS, POOLED, SoakCluster
from tests.support.soak.journal import HEAD, Fault, Journal
from tests.support.soak.load import Load

UNDO = {"freeze": "thaw", "cut": "join"}
MACHINES = ("kill", "preempt", *UNDO)
LIMITS = (
    "boot_delay", "boot_spread", "quota_nodes", "quota_gpus", "capacity", "never_register", "list_lag",
    "api_latency", "api_error",
)  # fmt: skip
ERRORS = ("quota", "capacity", "placement", "permission", "throttled", "config")
KINDS = (*LIMITS, "kill", "preempt", "freeze", *DAEMONS)
"""The faults for machines of every kind; `cut` needs machines that have a network of their own."""
ALL_KINDS = (*KINDS, "cut", *commands.COMMANDS)
PAUSE_SECONDS = 4.0
"""The average pause between two faults."""
SAVED_SECONDS = 6.0
"""slurmctld saves its queue every five seconds, and a SIGKILL loses what came after the last save."""
PATIENCE_SECONDS = 10.0
TAKEN_SECONDS = 3.0
"""The longest end of a machine that is taken back."""
_TROUBLE = (rpc.RpcUnavailableError, rpc.RpcError)


class Faults:
    """Injects one fault after the other. Limits and frozen machines are restored after a while.

    Args:
        kinds: the wanted kinds of ALL_KINDS; each comes once before any comes again.
        lose_head: After how many seconds the controller is lost each time; `None` means never.
    """

    def __init__(
        self,
        cluster: SoakCluster,
        journal: Journal,
        load: Load,
        chance: random.Random,
        kinds: list[str],
        lose_head: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._journal = journal
        self._load = load
        self._chance = chance
        self._kinds = kinds
        self._bag: list[str] = []
        self._next = time.monotonic() + 2 * PAUSE_SECONDS
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._repairing: threading.Thread | None = None
        self._awaits_saving = False
        self._lose_head = lose_head
        self._next_head = time.monotonic() + (lose_head or 0.0)
        self.away: list[float] = []
        """For how many seconds nobody scheduled, each time that the controller was lost."""
        self.limits: dict[str, Any] = {}
        """The limits that differ from CALM at the moment."""

    def tick(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        if self._lose_head is not None and now >= self._next_head and not (self._awaits_saving or self._busy):
            self._next_head += self._lose_head
            self._when_saved(self._lose_head_now)
        if self._kinds and now >= self._next:
            self._next = now + self._chance.uniform(0, 2 * PAUSE_SECONDS)
            if not self._bag:
                self._bag = self._chance.sample(self._kinds, len(self._kinds))
            self._inject(self._bag.pop())

    @property
    def untried(self) -> set[str]:
        """Return the kinds that have not happened yet, because the agent was down or slurmctld saved late."""
        wanted = {*self._kinds, *([HEAD] if self._lose_head is not None else [])}
        return wanted - set(self._journal.kinds())

    @property
    def _busy(self) -> bool:
        """Return whether an `up` is under way: another one would be refused."""
        return self._repairing is not None and self._repairing.is_alive()

    def clear(self) -> None:
        """End all faults; no new one follows.

        Raises:
            RpcUnavailableError: The agent does not come back.
        """
        self._kinds, self._lose_head = [], None
        self.settle()
        if not self._cluster.pids("agent"):
            self._repair()
        self._later = []
        self._cluster.cloud("limits", **CALM)
        self.limits = {}
        for machine in self._cluster.machines():
            for mark, kind in (("frozen", "freeze"), ("cut", "cut")):
                if machine[mark]:
                    self._undo(kind, machine["node"])
        self._journal.write("cleared")

    def settle(self) -> None:
        """Wait for an `up` that is under way."""
        if self._repairing is not None:
            self._repairing.join()

    def _inject(self, kind: str) -> None:
        try:
            if kind in LIMITS:
                self._limit(kind)
            elif kind in MACHINES:
                self._befall(kind)
            elif kind in commands.COMMANDS:
                self._interrupt(kind)
            else:
                self._kill(kind)
        except _TROUBLE as error:  # the agent is down just now: later
            self._bag.insert(0, kind)
            self._journal.write("no fault", kind=kind, error=str(error))

    # --- the cloud -----------------------------------------------------------------------------------------

    def _limit(self, kind: str) -> None:
        chance = self._chance
        values: dict[str, Callable[[], Any]] = {
            "boot_delay": lambda: round(chance.uniform(1, 6), 1),
            "boot_spread": lambda: round(chance.uniform(1, 6), 1),
            "quota_nodes": lambda: chance.randint(0, 8),
            "quota_gpus": lambda: chance.randint(0, 2 * GPUS),
            "capacity": lambda: chance.randint(0, 3),
            "never_register": lambda: round(chance.uniform(0.3, 1), 2),
            "list_lag": lambda: round(chance.uniform(1, 8), 1),
            "api_latency": lambda: round(chance.uniform(0.2, 3), 1),
            "api_error": lambda: chance.choice(ERRORS),
        }
        key = kind
        if kind == "capacity":
            # The local cloud knows a pool as wide/spot, whose nodes are wide-spot-0 and so on.
            pool = chance.choice(list(self._cluster.groups)).replace(f"{POOLED}-", f"{POOLED}/")
            key = f"capacity.{pool}"
        value = values[kind]()
        self._cluster.cloud("limits", **{key: value})
        self.limits[key] = value
        self._journal.fault(kind, detail=f"{key}={value}")
        self._after(chance.uniform(5, 15), lambda: self._calm(key, value))

    def _calm(self, key: str, value: Any) -> None:
        if self.limits.get(key) != value:
            return
        try:
            self._cluster.cloud("limits", **{key: CALM[key]})
        except _TROUBLE:
            self._after(1.0, lambda: self._calm(key, value))
            return
        del self.limits[key]
        self._journal.write("calm", key=key)

    def _befall(self, kind: str) -> None:
        running = {m["node"]: m["id"] for m in self._cluster.machines() if m["state"] == "running"}
        if not running:
            self._bag.insert(0, kind)
            return
        node = self._chance.choice(sorted(running))
        notice = round(self._chance.choice((0.0, self._chance.uniform(2, 15))), 1)
        more = {"notice": notice} if kind == "preempt" else {}
        lasts = notice + TAKEN_SECONDS if more else 0.0
        if kind in UNDO:
            # After the freeze the node gets what slurmctld has sent meanwhile, just before it is given up.
            lasts = self._chance.uniform(2, 25)
            self._after(lasts, lambda: self._undo(kind, node))
        # The fault is recorded before it happens, so that what it ends does not seem to have ended by itself.
        detail = f"notice {notice:g} s" if more else ""
        self._journal.fault(kind, node, detail, lasts, machine=None if kind in UNDO else running[node])
        self._cluster.cloud("fault", action=kind, node=node, **more)

    def _undo(self, kind: str, node: str) -> None:
        with contextlib.suppress(*_TROUBLE):  # the machine has ended meanwhile
            self._cluster.cloud("fault", action=UNDO[kind], node=node)
            self._journal.write(UNDO[kind], node=node)

    # --- daemons -------------------------------------------------------------------------------------------

    def _kill(self, daemon: str) -> None:
        if daemon == "slurmctld":
            # Jobs that start after the first kill would be forgotten by a second one before the next save.
            if self._awaits_saving:
                self._bag.insert(0, daemon)
                return
            self._when_saved(lambda: self._kill_now(daemon))
        elif daemon == "agent" and self._busy:
            self._bag.insert(0, daemon)
        else:
            self._kill_now(daemon)

    def _when_saved(self, action: Callable[[], None]) -> None:
        """Do something when the jobs' last changes are on the disk. Losing what comes later does no harm."""
        self._awaits_saving = True
        # Longer than any step of the soak takes: `look` ends the pause.
        self._load.paused_until = float("inf")

        def look(deadline: float) -> None:
            if self._cluster.saved() < self._journal.last_note() and time.monotonic() < deadline:
                self._after(0.0, lambda: look(deadline))
                return
            action()
            self._awaits_saving = False
            self._load.paused_until = time.monotonic() + 1.0

        self._after(SAVED_SECONDS, lambda: look(time.monotonic() + PATIENCE_SECONDS))

    def _kill_now(self, daemon: str) -> None:
        pids = self._cluster.pids(daemon)
        if not pids:
            self._journal.write("no fault", kind=daemon, error="it does not run")
            return
        pid = self._chance.choice(pids)
        self._journal.fault(daemon, detail=f"SIGKILL to {pid}")
        with contextlib.suppress(ProcessLookupError):
            self._cluster.kill(pid)
        if daemon == "agent":
            self._after(self._chance.uniform(1, 10), self._repair_aside)

    # --- ./cluster -----------------------------------------------------------------------------------------

    def _interrupt(self, kind: str) -> None:
        """Kill or refuse a command, and run `up` after it, while the soak continues."""
        if self._busy or not self._cluster.pids("agent"):
            self._bag.insert(0, kind)
            return
        fault = self._journal.fault(kind)
        seconds = self._chance.uniform(0.3, commands.LONGEST_UP_SECONDS)
        self._repairing = threading.Thread(target=self._interrupted, args=(fault, seconds))
        self._repairing.start()

    def _interrupted(self, fault: Fault, seconds: float) -> None:
        checkout, kind = self._cluster.checkout, fault.kind
        if kind == commands.DOWN_REFUSED:
            if wrong := commands.refused_down(checkout):
                self._journal.finding(f"a `down` beside another command: {wrong}")
            return
        if kind == commands.UP_KILLED:
            fault.until = float("inf")
            changed = commands.change(checkout, self._chance)
            said = f"{changed}: {commands.kill_up(checkout, seconds)}"
        else:
            said = commands.kill_down(checkout)
        self._journal.write("interrupted", kind=kind, said=said)
        self._repair()
        fault.until = time.time()
        with contextlib.suppress(SlurmError):  # slurmctld may have been killed just now
            states = self._cluster.control.partition_states()
            if closed := [name for name, state in states.items() if state != "UP"]:
                self._journal.finding(f"after {kind} and an `up` these stay closed: {', '.join(closed)}")

    def _lose_head_now(self) -> None:
        try:
            self._cluster.cloud("inspect")
        except _TROUBLE:  # without the agent nothing can be lost: later
            self._next_head = time.monotonic() + 1.0
            return
        fault = self._journal.fault(HEAD, detail="its root disk too")
        lost_head.lose(self._cluster.run)
        self._repairing = threading.Thread(target=self._replace_head, args=(fault,))
        self._repairing.start()

    def _replace_head(self, fault: Fault) -> None:
        fault.until = float("inf")
        self._repair()
        try:
            until(self._cluster.control.ping, 60, "slurmctld's answer")
        except AssertionError as error:
            self._journal.finding(f"after the loss of the controller: {error}")
        fault.until = time.time()
        self.away.append(fault.until - fault.at)
        self._journal.write("successor", away=self.away[-1])

    def _repair_aside(self) -> None:
        """Run `./cluster up`, which alone restarts the agent, while the soak continues."""
        self.settle()
        self._repairing = threading.Thread(target=self._repair)
        self._repairing.start()

    def _repair(self) -> None:
        done = self._cluster.checkout.cluster("up", timeout=600)
        if done.returncode and "api_error" in done.stderr:  # the cloud refuses every call just now
            self._journal.write("refused", said=done.stderr[-500:])
            self._cluster.cloud("limits", api_error=CALM["api_error"])
            done = self._cluster.checkout.cluster("up", timeout=600)
        self._journal.write("mended", status=done.returncode, said=done.stderr[-500:])
        if done.returncode:
            self._journal.finding(f"./cluster up, which mends: {done.returncode}\n{done.stderr}")

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))
