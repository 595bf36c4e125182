"""The elastic daemon on the controller: launches and terminates machines for Slurm, and reconciles.

It keeps no state of its own but the ledger and the requeues that Slurm may forget: Slurm knows the nodes, the
cloud knows the machines, and after a restart the next reconcile pass finds what was under way. Nothing that
slurmctld waits for calls the cloud.

Slurm's traps (docs/internals/slurm_traps.md): reboot-of-a-node-that-is-up.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.design.published import read_settings
from node.elastic import drivers, history, pool_choices
from node.elastic.budget import Budget, has_account_budgets
from node.elastic.budget_enforcer import BudgetEnforcer
from node.elastic.capacity import CapacityLimiter
from node.elastic.client import EPILOG_SECONDS, WAIT_ROUND_SECONDS
from node.elastic.disks import Disks
from node.elastic.dns_hosts import DnsHosts
from node.elastic.driver import Driver
from node.elastic.failures import Failure
from node.elastic.history import NodeHistory
from node.elastic.launcher import Launcher
from node.elastic.ledger import Ledger
from node.elastic.lost_completion import LostCompletion
from node.elastic.observer import Observer, Wait
from node.elastic.pending_jobs import NOBODY
from node.elastic.pool_choices import PoolChoices
from node.elastic.pool_guard import PoolGuard
from node.elastic.pools import Pools
from node.elastic.reconcile import Reconciler
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.renewal import Renewal
from node.elastic.requeue import Requeue
from node.elastic.requeue_cleanup import RequeueCleanup
from node.elastic.runtime import RuntimeChanges
from node.elastic.status import PoolAnswers, cost, status
from node.elastic.steps import Step
from node.elastic.topology import Topology
from node.elastic.view import log
from node.slurm import closing, in_force
from node.slurm.control import Control, Slurm
from node.slurm.hostlist import expand, fold
from node.slurm.resume_request import ResumeJob, ResumeRequest, parse_resume
from node.slurm.states import JobState
from node.system import foreign, plurals, rpc
from node.system.locks import locked
from node.system.shared import Shared

if TYPE_CHECKING:
    from node.elastic.account_budgets import AccountBudgets
    from node.elastic.directory_watch import DirectoryWatch

TERMINATE_THREADS = 4
"""Suspend requests that are carried out in parallel."""
MOST_FILES = 131072
"""As Slurm's own units have it, and ours on machines with systemd (`node.bootstrap.systemd_services`)."""
QUESTIONS = frozenset({"ping", "status", "cost", "lives"})
"""What every user of the controller may ask: nothing changes by them, and Slurm tells everybody as much."""


class Elastic:
    """The daemon's work, apart from its process.

    Args:
        settings: The design, and what is known of this machine.
        control: Slurm's commands.
        driver: The cloud.
        lib: The folder of the ledger, of the requeues that Slurm may forget, and of the requests that are
            left while the daemon is down.
        changed: When `up` last changed the settings or the code, in seconds since the epoch.
    """

    def __init__(
        self, settings: Settings, control: Slurm, driver: Driver, lib: Path, changed: float = 0.0
    ) -> None:
        self._design: ClusterDesign = settings.design
        self._control = control
        self._driver = driver
        self._lib = lib
        self._ledger = Ledger(lib / "ledger.json", settings.design, time.monotonic)
        self.names = DnsHosts.of(settings, control)
        self._observer = Observer(
            self.names.named if self.names else control.named_nodes,
            control.working_jobs,
            partial(drivers.newest_report, drivers.reports(settings)),
        )
        self._account_budgets = _account_budgets(settings, control, self._ledger)
        pools, budget = Pools(settings.design), Budget(settings.design, self._ledger)
        self.changes = RuntimeChanges(settings, control, lib)
        self.renewal = Renewal(settings.design, control, lib, record=self.changes.once)
        self._budget_enforcer = BudgetEnforcer(settings.design, control, budget)
        self.launcher = Launcher(settings.design, control, driver, pools, budget, self._ledger)
        self.capacity_limiter = CapacityLimiter(
            settings.design, control, driver, pools, budget, self.launcher, changed, self._stopped
        )
        self.reconciler = Reconciler(
            settings.design,
            control,
            driver,
            self.launcher,
            self._ledger,
            Requeue(control, lib / "requeues.json"),
            self.renewal.outdated_nodes,
        )
        self._state = Path(str(Folders(settings).state))
        self._reconfiguration = Reconfiguration(control, lib, self._state, self.changes.reconfigure)
        self._requeue_cleanup = RequeueCleanup(
            settings.design, control, lambda: self.reconciler.nodes, self._reconfiguration, lib
        )
        self._lost_completion = LostCompletion(control, lambda: self.reconciler.nodes)
        self._topology = Topology(
            settings.design, control, driver, lib, lambda: self.reconciler.seen, self._reconfiguration
        )
        nodes = [node for partition in settings.design.partitions for node in partition.nodes()]
        self._history = NodeHistory(lib / history.FILE, nodes)
        self._pool_guard = PoolGuard(settings.design, control)
        self._pool_choices = PoolChoices(lib / pool_choices.FILE, settings.design, pools)
        self._shut = partial(pool_choices.shut, pools)
        self._steps = self._look_steps()
        self._directory = _directory_watch(settings)
        self._shared_status = Shared(self.status)
        self._disks = Disks(Folders(settings))
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ending = ThreadPoolExecutor(TERMINATE_THREADS, thread_name_prefix="terminate")

    def _look_steps(self) -> tuple[Step, ...]:
        """Return the steps of a look, in their order.

        The first one reads all of Slurm and of the cloud; some of the others use what it has read.
        """
        return (
            Step("reconcile", "makes nodes and machines agree", self.reconciler.once),
            Step("history", "records the changes of nodes", self._record_history),
            Step(
                "delayed-launches",
                "launches what waits for a machine's end",
                self.launcher.launch_delayed,
            ),
            Step(
                "runtime-changes",
                "records what people change in Slurm",
                lambda: self.changes.once(self.reconciler.read_began),
            ),
            Step("renewal", "gives nodes their new lines in slurm.conf", self.renewal.once),
            Step("budget", "ends what the budget does not allow", self._budget_enforcer.enforce),
            Step("reconfiguration", "has Slurm read its configuration", self._reconfiguration.once),
            Step("requeue-cleanup", "has Slurm clean up after requeued jobs", self._requeue_cleanup.once),
            Step("lost-completion", "frees nodes whose job is long over", self._lost_completion.once),
            Step("topology", "tells Slurm where machines are", self._topology.once),
        )

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, method: str, params: dict[str, Any]) -> Any:
        """Answer one call on the daemon's socket."""
        if method == "ping":
            return {"pid": os.getpid()}
        if method == "request":
            self._queue.put(params["request"])
            return {}
        if method in ("wait", "wait_for_release"):
            return self._wait(params["job"], expand(params["nodes"]), is_epilog=method == "wait_for_release")
        if method == "status":
            return self._shared_status()
        if method == "cost":
            return cost(self._design, self._ledger, time.time(), self._uses())
        if method == "lives":
            return self._ledger.lives(time.time())
        if method == "record":
            self.changes.once()
            return {}
        if method == "renew":
            return {"renewed": self.renewal.once(wait=False)}
        if method == "reconfigure":
            return {"waits": self._reconfiguration.request()}
        raise ValueError(f"no call is named {method!r}")

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        """Answer one call on the socket of every user."""
        if method not in QUESTIONS:
            raise ValueError(f"no question is named {method!r}")
        return self.handle(method, params)

    def _wait(self, job: int, nodes: list[str], *, is_epilog: bool) -> rpc.Later:
        """Answer a prolog or an epilog when its wait is over (`node.elastic.observer`)."""
        asked_at, seconds = time.monotonic(), EPILOG_SECONDS if is_epilog else WAIT_ROUND_SECONDS
        if not is_epilog:
            self._pool_guard.check(job, nodes)
            self._pool_choices.starts(job, nodes)

        def keep(caller: rpc.Caller) -> None:
            def answer(over: bool) -> None:
                caller.answer({"over": over})

            self._observer.wait(Wait(job, nodes, asked_at, seconds, answer, caller.is_gone, is_epilog))

        return rpc.Later(keep)

    def run(self) -> None:
        """Process the requests that were left while the daemon was down, then serve and reconcile forever."""
        for file in sorted((self._lib / "requests").glob("*.json")):
            try:
                self._queue.put({**foreign.record(file), "spooled": True})
            except (OSError, ValueError, TypeError) as error:
                # A power failure leaves such files. Without this the daemon could never start again.
                log(f"{file} cannot be read and is left out: {error!r}")
            file.unlink(missing_ok=True)
        threading.Thread(target=self._reconcile_loop, daemon=True, name="reconcile").start()
        threading.Thread(target=self.capacity_limiter.run, daemon=True, name="capacity").start()
        if self._directory is not None:
            threading.Thread(target=self._directory.run, daemon=True, name="directory").start()
        if self._account_budgets is not None:
            threading.Thread(target=self._account_budgets.run, daemon=True, name="account-budgets").start()
        threading.Thread(target=self.changes.run, daemon=True, name="changes").start()
        if self.names:
            threading.Thread(target=self.names.run, daemon=True, name="names").start()
        while True:
            request = self._queue.get()
            try:
                self.process(request)
            except Exception:  # one bad request must not end the daemon; the reconciler repairs the rest
                traceback.print_exc()

    def process(self, request: dict[str, Any]) -> None:
        """Process one request of Slurm: resume, resume-fail or suspend."""
        log(f"{request['program']} {request['nodes']}")
        if request["program"] != "resume":
            self._observer.look_at_all()
        if request["program"] == "suspend":
            nodes = expand(request["nodes"])
            self.launcher.given_back(nodes)
            # Another thread does this: a machine may take seconds to end, and the next resume must not wait
            # for that.
            self._ending.submit(self._suspend, nodes, request["time"])
        elif request["program"] == "resume":
            text = request.get("resume_file")
            resume = parse_resume(text) if text else _without_file(request)
            if request.get("spooled"):
                resume = self._still_wanted(resume)
            self.launcher.resume(self.renewal.without_outdated_nodes(resume), request["id"])
            if self.names:
                self.names.expect(resume.all_nodes)
        elif request["program"] == "resume-fail":
            # Slurm has set these nodes DOWN. The reconciler powers them down, since it knows the machines'
            # states.
            log(f"not registered in time: {request['nodes']}")

    def _still_wanted(self, resume: ResumeRequest) -> ResumeRequest:
        """Reduce a request to the nodes that Slurm still waits for: its job may have been cancelled since."""
        nodes = self._control.nodes()
        left = tuple(n for n in resume.all_nodes if n in nodes and nodes[n].is_powering_up)
        return ResumeRequest(left, resume.jobs)

    def _suspend(self, nodes: list[str], asked_at: float) -> None:
        """Terminate the machines of nodes that Slurm has powered down.

        Args:
            nodes: The nodes.
            asked_at: When Slurm asked, in seconds since the epoch. A machine that was launched later is for
                the node's next job.
        """
        try:
            wanted = set(nodes)
            machines = self._driver.list()
            ids = [m.id for m in machines if m.node in wanted and m.state.alive and m.launched <= asked_at]
            if ids:
                self._driver.terminate(ids)
                log(f"terminated {plurals.count(len(ids), 'machine')} of {fold(nodes)}")
        except Exception:  # the reconciler finds machines whose nodes are off
            traceback.print_exc()

    def _reconcile_loop(self) -> None:
        while True:
            time.sleep(self.reconciler.interval)
            self.look()

    def look(self) -> None:
        """Run the steps, one after the other. The budget is also enforced while the cloud does not answer."""
        for step in self._steps:
            step.run()

    def _record_history(self) -> None:
        reconciler = self.reconciler
        self._history.see(reconciler.nodes, reconciler.machine_phases(), reconciler.read_at)

    def _stopped(self, jobs: Iterable[JobState]) -> Mapping[int, Failure] | None:
        return NOBODY if self._account_budgets is None else self._account_budgets.causes(jobs)

    def _uses(self) -> list[dict[str, Any]]:
        return [] if self._account_budgets is None else self._account_budgets.summaries()

    def status(self) -> dict[str, Any]:
        """Return the cluster's state; see `node.elastic.status`."""
        cluster = status(
            self._design,
            self._control,
            self._driver,
            self._ledger,
            self.reconciler.seen,
            self._history.of,
            self._uses(),
            PoolAnswers(lambda name: self._shut(name, time.monotonic(), time.time()), self._pool_choices.of),
        )
        others = [self.capacity_limiter.step]
        others += [part.step for part in (self._directory, self._account_budgets) if part is not None]
        steps = [step.status() for step in (*self._steps, *others)]
        closed = closing.described(closing.read(self._state), self._design.stack)
        refused = in_force.refused(self._state)
        return {**cluster, **self._disks.status(), "closed": closed, "settings": refused, "steps": steps}


def _directory_watch(settings: Settings) -> DirectoryWatch | None:
    directory = settings.design.access.directory
    if directory is None:
        return None
    # Imported late: few clusters have one.
    from node.elastic.directory_watch import DirectoryWatch

    return DirectoryWatch(directory)


def _account_budgets(settings: Settings, control: Slurm, ledger: Ledger) -> AccountBudgets | None:
    if not has_account_budgets(settings):
        return None
    # Imported late: few clusters have any.
    from node.elastic.account_budgets import AccountBudgets

    return AccountBudgets(settings, control, ledger)


def _without_file(request: dict[str, Any]) -> ResumeRequest:
    """Return a request of which Slurm has written no file: for a job with `--reboot`, before 23.02."""
    nodes, job = tuple(expand(request["nodes"])), request.get("job")
    return ResumeRequest(nodes, () if job is None else (ResumeJob(int(job), nodes),))


def _changed(settings_file: Path) -> float:
    """Return when the loader last chose settings or code: both are links, which it makes anew."""
    links = (settings_file, settings_file.with_name("current"))
    return max((link.lstat().st_mtime for link in links if link.is_symlink()), default=0.0)


def collect_seldom() -> None:
    """Have Python look for cycles of objects less often.

    A pass makes a few objects for each node, which may be tens of thousands. Looking for cycles among them as
    often as Python does would take a third of its time.
    """
    gc.set_threshold(50_000, 10, 10)


def open_many_files() -> None:
    """Let this process have as many descriptors as its user may, at most as many as its service on clouds.

    Each program that waits has one. With the 1,024 that a shell gives, a thousand waiting jobs would leave
    none for asking Slurm whether their nodes are up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main(settings_file: str) -> None:
    """Run the daemon's process. A lock keeps a second one from launching machines twice."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    collect_seldom()
    open_many_files()
    settings = read_settings(Path(settings_file))
    folders = Folders(settings)
    # The lock is held until the process ends, however it ends.
    with locked(Path(str(folders.elastic / "elastic.lock")), mode=0o600):
        control = Control(str(folders.slurm_conf))
        changed = _changed(Path(settings_file))
        elastic = Elastic(settings, control, drivers.load(settings), Path(str(folders.elastic)), changed)
        server = rpc.Server(str(folders.daemon_socket), elastic.handle)
        questions = rpc.Server(str(folders.status_socket), elastic.answer, mode=0o666)
        for each in (server, questions):
            threading.Thread(target=each.serve, daemon=True).start()
        log(f"the elastic daemon serves {settings.design.name}")
        elastic.run()
