"""The states of nodes and jobs, as `node.slurm.answers` reads them from Slurm's output.

All times are seconds since 1970. `None` means that Slurm has no such time.

Slurm's traps (docs/internals/slurm_traps.md): node-words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from node.slurm import node_flags
from node.slurm.phases import Phase, phase


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node in slurmctld.

    Attributes:
        base: The base state, one of `node_flags.BASES`.
        flags: The rest of the state, of `node_flags.FLAGS` or of a release to come.
        reason: Why the node is down, drained or powered down, by a user or by Slurm. It may be old.
        reason_user: The user who set the reason.
        boot_time: The start time of the node's machine, as its slurmd reported at registration.
        slurmd_start_time: The start time of that slurmd.
        next_state: The state that a reboot shall leave (`scontrol reboot nextstate=…`). `ASAP` alone means
            RESUME.
        cpus_alloc: The number of allocated CPUs, also by a job that waits for the node.
        gres_used: The number of generic resources in use; 0 unless it was asked for by
            `Slurm.detailed_nodes`.
        features: What jobs may ask for by `--constraint`, as Slurm shows it. People may change this, `weight`
            (empty if Slurm shows none) and `cpu_bind` at run time.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    reason_user: str | None = None
    reason_time: float | None = None
    boot_time: float | None = None
    slurmd_start_time: float | None = None
    next_state: str | None = None
    last_busy_time: float | None = None
    cpus_alloc: int = 0
    cpus: int = 0
    partitions: tuple[str, ...] = ()
    address: str = ""
    hostname: str = ""
    gres: str | None = None
    gres_used: int = 0
    version: str | None = None
    features: str = ""
    weight: str = ""
    cpu_bind: str = ""

    @classmethod
    def parse(
        cls, name: str, state: str, reason: str | None = None, next_state: str | None = None
    ) -> NodeState:
        """Return the node of a state in Slurm's notation: IDLE+CLOUD+POWERED_DOWN."""
        return cls(name, *base_and_flags(state), reason, next_state=next_state)

    @property
    def is_up(self) -> bool:
        """Whether the node is registered and answers. A drained node is up, but takes no new job."""
        # POWER_UP alone is ignored: a node that was requested twice keeps the flag while it is up.
        return (
            self.base not in node_flags.BROKEN
            and not self.flags & (node_flags.OFF | node_flags.UNFIT | {node_flags.POWERING_UP})
            and not self.is_powering_down
        )

    @property
    def is_powering_up(self) -> bool:
        """Whether the node was requested and has not registered yet."""
        return (
            node_flags.POWERING_UP in self.flags
            or {node_flags.POWER_UP, node_flags.POWERED_DOWN} <= self.flags
        )

    @property
    def is_powered_down(self) -> bool:
        """Whether the node is off and not requested. A job may hold it for a second before ResumeProgram."""
        return node_flags.POWERED_DOWN in self.flags and not self.is_powering_up and not self.is_powering_down

    @property
    def is_powering_down(self) -> bool:
        """Whether SuspendProgram was called, or will be called as soon as the node is free."""
        return node_flags.POWERING_DOWN in self.flags or (
            node_flags.POWER_DOWN in self.flags and not self.has_job
        )

    @property
    def is_off(self) -> bool:
        """Whether the node is off, whatever was asked of it since."""
        return node_flags.POWERED_DOWN in self.flags

    @property
    def is_falling(self) -> bool:
        """Whether SuspendProgram was called, and Slurm counts the node as busy until SuspendTimeout."""
        return node_flags.POWERING_DOWN in self.flags

    @property
    def is_leaving(self) -> bool:
        """Whether somebody wants the node to be powered down, at once or when its job ends."""
        return node_flags.POWER_DOWN in self.flags

    @property
    def is_down(self) -> bool:
        """Whether the node failed or was set to DOWN, whatever its power state is."""
        return self.base in node_flags.BROKEN

    @property
    def is_set_down(self) -> bool:
        """Whether Slurm or somebody has set the node to DOWN."""
        return self.base == node_flags.DOWN

    @property
    def is_unknown(self) -> bool:
        """Whether Slurm has not heard from the node since slurmctld started."""
        return self.base == node_flags.UNKNOWN

    @property
    def is_missing(self) -> bool:
        """Whether the cluster has the node, and Slurm does not list it."""
        return self.base == node_flags.MISSING

    @property
    def is_idle(self) -> bool:
        """Whether no job holds the node, whatever its power state is."""
        return self.base == node_flags.IDLE

    @property
    def is_unfit(self) -> bool:
        """Whether the node has registered with less hardware than its line says."""
        return node_flags.INVALID_REG in self.flags

    @property
    def is_reserved(self) -> bool:
        """Whether Slurm marks the node as a reservation's."""
        return not self.flags.isdisjoint(node_flags.OF_RESERVATIONS)

    @property
    def is_rebooting(self) -> bool:
        """Whether Slurm has called RebootProgram for the node, which was free, and waits for its boot."""
        return node_flags.REBOOT_ISSUED in self.flags

    @property
    def awaits_reboot(self) -> bool:
        """Whether somebody has asked for the node's reboot (`scontrol reboot`), and it is not over."""
        return self.is_rebooting or node_flags.REBOOT_REQUESTED in self.flags

    @property
    def does_not_respond(self) -> bool:
        """Whether the node has not answered; an administrator's RESUME leaves this of one that is off."""
        return node_flags.NOT_RESPONDING in self.flags

    @property
    def is_silent(self) -> bool:
        """Whether the node was up and no longer answers."""
        return self.does_not_respond and not self.is_powering_up and not self.flags & node_flags.OFF

    @property
    def is_drained(self) -> bool:
        """Whether the node takes no new job (DRAIN, or FAIL, which differs for some programs only).

        A job may still run on it.
        """
        return not self.flags.isdisjoint(node_flags.OUT_OF_SERVICE)

    @property
    def is_usable(self) -> bool:
        """Whether any job of its partition can get the node, now or as soon as it has started."""
        return not (
            self.is_down
            or self.is_drained
            or self.is_silent
            or self.is_powering_down
            or self.flags & node_flags.KEPT
        )

    @property
    def ends_job(self) -> bool:
        """Whether a job that ends still holds the node."""
        return node_flags.COMPLETING in self.flags

    @property
    def has_job(self) -> bool:
        """Whether a job holds the node, also while the job starts or ends."""
        return self.base in node_flags.WITH_JOBS or self.ends_job


@lru_cache(maxsize=1024)  # thousands of nodes have a few states, and share their flags
def base_and_flags(state: str) -> tuple[str, frozenset[str]]:
    """Return the base and the flags of a node's state in Slurm's notation: IDLE+CLOUD+POWERED_DOWN."""
    base, *flags = state.split("+")
    # 22.05 marks a silent node with a star here, too. Newer releases have only the flag.
    silent = {node_flags.NOT_RESPONDING} if base.endswith("*") else set()
    return base.rstrip("*"), frozenset(flags) | silent


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, of an array's task, or of a pending array in slurmctld.

    Attributes:
        id: The unique id. An array's task has its own.
        array_job: The array's id. `None` means that the job is not part of an array.
        array_task: The task's index. A pending array has a list of indices (`3-9`).
        het_job: The id of the heterogeneous job. `None` means that the job is not part of one.
        state: Slurm's word, for people. What it means is `phase`.
        reason: Slurm's reason for waiting or ending: "None" (as text), Resources, BeginTime, JobHeldUser, …
        explanation: The reason as a sentence, if Slurm has one.
        nodes: The nodes that the job holds or held.
        wanted_nodes: The number of nodes. For a pending job, the number that it requests.
        restarts: How often the job was requeued.
        eligible_time: The earliest time at which the job may start. A requeue delays it.
        start_time: The start time. For a pending job, Slurm's estimate.
        run_seconds: How long it has run, without the time in which it was suspended, as squeue counts it;
            0 unless it was asked for by `Slurm.detailed_jobs`, as the next three.
        time_limit: Its time limit in seconds. `None` means that it has none.
        reservation: The name of the reservation in which it asks to run.
        required_nodes: The nodes that it asks for by name.
        exit_code: The exit status. It is 0 if a signal ended the job.
        signal: The number of the signal that ended the job, otherwise 0.
    """

    id: int
    name: str
    state: str
    reason: str
    explanation: str | None
    partition: str
    user: str
    nodes: tuple[str, ...]
    wanted_nodes: int
    batch_host: str | None
    requeue: bool
    restarts: int
    priority: int
    submit_time: float | None
    eligible_time: float | None
    start_time: float | None
    end_time: float | None
    array_job: int | None
    array_task: str | None
    het_job: int | None
    exit_code: int
    signal: int
    comment: str | None
    admin_comment: str | None
    run_seconds: float = 0.0
    time_limit: float | None = None
    reservation: str | None = None
    required_nodes: tuple[str, ...] = ()

    @property
    def spelling(self) -> int | str:
        """The job's name in commands: `12`, `12_3`, or `12_[3-9]` for a pending array.

        The last task of an array has the array's id, which in a command would mean all of its tasks.
        """
        tasks = (self.array_task or "").partition("%")[0]
        # squeue may cut the list of a pending array short.
        if self.array_job is None or not tasks or "..." in tasks:
            return self.id
        return f"{self.array_job}_{tasks}" if tasks.isdigit() else f"{self.array_job}_[{tasks}]"

    @property
    def slurm_id(self) -> str:
        """The id in squeue's notation: `12`, `12_3` for an array's task, `12_[3-9%2]` for pending tasks."""
        if self.array_job is None or self.array_task is None:
            return str(self.id)
        task = self.array_task
        return f"{self.array_job}_{task}" if task.isdigit() else f"{self.array_job}_[{task}]"

    @property
    def elapsed(self) -> float | None:
        """Seconds in which the job ran, as squeue shows them. `None` means that it has no nodes."""
        return self.run_seconds if self.is_active else None

    @property
    def phase(self) -> Phase:
        """What the job does, whatever word Slurm has for it."""
        return phase(self.state, nodes=bool(self.nodes))

    @property
    def is_active(self) -> bool:
        """Whether the job holds nodes."""
        return self.phase.holds_nodes

    @property
    def is_pending(self) -> bool:
        """Whether the job waits, also one that is held."""
        return self.phase is Phase.WAITING

    @property
    def is_starting(self) -> bool:
        """Whether the job waits for its nodes to be ready."""
        return self.phase is Phase.STARTING

    @property
    def is_running(self) -> bool:
        """Whether the job has begun and its script has not ended. It may be suspended or stopped."""
        return self.phase is Phase.RUNNING

    @property
    def has_work(self) -> bool:
        """Whether the job holds nodes and does not end, so that it may be requeued."""
        return self.phase.has_work

    @property
    def is_completing(self) -> bool:
        """Whether Slurm cleans up the job's nodes. It may be about to run again."""
        return self.phase is Phase.COMPLETING

    @property
    def is_held(self) -> bool:
        """Whether the job does not start until it is released.

        Slurm holds a job that it suspends. The hold remains when the job is requeued.
        """
        return self.priority == 0

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and will not run again."""
        return self.phase is Phase.OVER

    @property
    def cause(self) -> str | None:
        """Why the job waits: our admin comment if there is one, otherwise Slurm's explanation or reason."""
        if not self.is_pending:
            return None
        return self.admin_comment or self.explanation or (self.reason if self.reason != "None" else None)
