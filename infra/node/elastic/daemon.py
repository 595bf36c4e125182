"""The elastic daemon on the controller: answers Slurm's programs, launches, gives back, reconciles.

It holds no truth of its own: Slurm knows the nodes, the cloud knows the machines, and after a restart the
next reconcile pass finds what was under way. Nothing that slurmctld waits for calls the cloud.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.node import rpc, words
from infra.node.codec import from_json
from infra.node.elastic import drivers
from infra.node.elastic.budget import Budget
from infra.node.elastic.client import WAIT_ROUND_SECONDS
from infra.node.elastic.driver import Driver
from infra.node.elastic.fencing import Fencing
from infra.node.elastic.launcher import Launcher
from infra.node.elastic.ledger import Ledger
from infra.node.elastic.names import Names
from infra.node.elastic.observer import Observer
from infra.node.elastic.overspent import Overspent
from infra.node.elastic.pools import Pools
from infra.node.elastic.reconcile import Reconciler
from infra.node.elastic.renewal import Renewal
from infra.node.elastic.status import status
from infra.node.elastic.view import log
from infra.node.model import ClusterDesign, Folders, Settings
from infra.node.slurm.control import Control, Slurm, SlurmError
from infra.node.slurm.hostlist import expand, fold
from infra.node.slurm.version import ResumeRequest, parse_resume

TERMINATE_THREADS = 4
"""Requests whose machines are ended at once."""


class Elastic:
    """The daemon's work, apart from its process.

    Args:
        lib: where requests are left while the daemon is down, and the ledger lies.
    """

    def __init__(self, settings: Settings, control: Slurm, driver: Driver, lib: Path) -> None:
        self._design: ClusterDesign = settings.design
        self._control = control
        self._driver = driver
        self._lib = lib
        self._ledger = Ledger(lib / "ledger.json", settings.design, time.monotonic)
        self.names = Names.of(settings, control)
        self._observer = Observer(
            self.names.nodes if self.names else control.nodes,
            lambda: {job.id for job in control.jobs().values() if not job.is_over},
        )
        pools, budget = Pools(settings.design), Budget(settings.design, self._ledger)
        self.renewal = Renewal(settings.design, control, lib)
        self._overspent = Overspent(settings.design, control, budget)
        self.launcher = Launcher(settings.design, control, driver, pools, budget)
        self.fencing = Fencing(settings.design, control, driver, pools, budget, self.launcher)
        self.launcher.changed = self.fencing.wake
        self.reconciler = Reconciler(
            settings.design, control, driver, self.launcher, self._ledger, self.renewal.kept
        )
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ending = ThreadPoolExecutor(TERMINATE_THREADS, thread_name_prefix="terminate")

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "ping":
            return {"pid": os.getpid()}
        if method == "request":
            self._queue.put(params["request"])
            return {}
        if method == "wait":
            nodes = expand(params["nodes"])
            over = self._observer.wait(params["job"], nodes, params["asked"], WAIT_ROUND_SECONDS)
            return {"over": over}
        if method == "status":
            return self.status()
        if method == "renew":
            return {"renewed": self.renewal.once(wait=False)}
        raise ValueError(f"no call is named {method!r}")

    def run(self) -> None:
        """Requests that were left while the daemon was down, then requests and reconciling, for ever."""
        for file in sorted((self._lib / "requests").glob("*.json")):
            try:
                self._queue.put({**json.loads(file.read_text()), "late": True})
            except (OSError, ValueError, TypeError) as error:
                # A machine that lost its power leaves such: the daemon could never start again.
                log(f"{file} cannot be read and is left out: {error!r}")
            file.unlink(missing_ok=True)
        threading.Thread(target=self._reconcile_loop, daemon=True, name="reconcile").start()
        threading.Thread(target=self.fencing.run, daemon=True, name="fences").start()
        if self.names:
            threading.Thread(target=self.names.run, daemon=True, name="names").start()
        while True:
            request = self._queue.get()
            try:
                self.process(request)
            except Exception:  # one bad request must not end the daemon; the reconciler mends what is left
                traceback.print_exc()

    def process(self, request: dict[str, Any]) -> None:
        """One request of Slurm's: resume, resume-fail or suspend."""
        log(f"{request['program']} {request['nodes']}")
        if request["program"] == "suspend":
            nodes = expand(request["nodes"])
            self.launcher.given_back(nodes)
            # Not here: a machine may take seconds to end, and a resume behind it must not wait for that.
            self._ending.submit(self._suspend, nodes, request["time"])
        elif request["program"] == "resume":
            text = request.get("resume_file")
            wish = parse_resume(text) if text else ResumeRequest(tuple(expand(request["nodes"])))
            if request.get("late"):
                wish = self._still_wanted(wish)
            self.launcher.resume(self.renewal.without_kept(wish), request["id"])
            if self.names:
                self.names.expect()
        elif request["program"] == "resume-fail":
            # Slurm has set these nodes DOWN; the reconciler gives them back with the machine's state at hand.
            log(f"not registered in time: {request['nodes']}")

    def _still_wanted(self, wish: ResumeRequest) -> ResumeRequest:
        """What Slurm waits for even now: a request may have lain here while its job was cancelled."""
        nodes = self._control.nodes()
        left = tuple(n for n in wish.all_nodes if n in nodes and nodes[n].is_powering_up)
        return ResumeRequest(left, wish.jobs)

    def _suspend(self, nodes: list[str], asked: float) -> None:
        """Args:
        asked: when, in seconds since the epoch: a machine launched after it is for the node's next job.
        """
        try:
            wanted = set(nodes)
            machines = self._driver.list()
            ids = [m.id for m in machines if m.node in wanted and m.state.alive and m.launched <= asked]
            if ids:
                self._driver.terminate(ids)
                log(f"terminated {words.count(len(ids), 'machine')} of {fold(nodes)}")
        except Exception:  # the reconciler finds machines whose nodes are off
            traceback.print_exc()

    def _reconcile_loop(self) -> None:
        while True:
            time.sleep(self.reconciler.interval)
            self.look()

    def look(self) -> None:
        """What is done now and then. Money is watched also while the cloud says nothing."""
        for part in (self.reconciler.once, self.renewal.once, self._overspent.enforce):
            try:
                part()
            except (SlurmError, rpc.RpcUnavailableError, rpc.RpcError) as error:
                log(f"reconcile: {error}")
            except Exception:  # the next pass reads everything anew
                traceback.print_exc()

    def status(self) -> dict[str, Any]:
        """See `infra.node.elastic.status`."""
        return status(self._design, self._control, self._driver, self._ledger, self.reconciler.seen)


def main(settings_file: str) -> None:
    """The daemon's process: one at a time, by a lock, so that no machine is launched twice."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    folders = Folders(settings)
    # Held until the process ends, however it ends.
    lock = os.open(str(folders.lib / "elastic.lock"), os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    control = Control(str(folders.slurm_conf))
    elastic = Elastic(settings, control, drivers.load(settings), Path(str(folders.lib)))
    server = rpc.Server(str(folders.daemon_socket), elastic.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    log(f"the elastic daemon serves {settings.design.name}")
    elastic.run()
