"""The states of nodes and jobs, as `node.slurm.answers` reads them from Slurm's output.

All times are seconds since 1970. `None` means that Slurm has no such time.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.slurm.phases import Phase, phase

_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
_BROKEN = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN", "MISSING"})
# The node is registered but unusable: silent, restarting, or with less hardware than its line says.
_UNFIT = frozenset({"NOT_RESPONDING", "REBOOT_ISSUED", "INVALID_REG"})
_OUT_OF_SERVICE = frozenset({"DRAIN", "FAIL"})
# Slurm gives these nodes to no job, or only to those of a reservation.
_KEPT = frozenset({"MAINTENANCE", "RESERVED", "PERFCTRS", "BLOCKED", "INVALID_REG", "REBOOT_ISSUED"})
MISSING = "MISSING"
"""Our word for the base state of a node that the cluster has and Slurm does not list.

`scontrol` leaves out a node that somebody has set to FUTURE, and one without a line in slurm.conf.
"""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node in slurmctld.

    Attributes:
        base: The base state: IDLE, ALLOCATED, MIXED, DOWN, UNKNOWN, ERROR or FUTURE.
        flags: The rest of the state: CLOUD, POWERED_DOWN, POWERING_UP, NOT_RESPONDING, DRAIN, …
        reason: Why the node is down, drained or powered down, by a user or by Slurm. It may be old.
        reason_user: The user who set the reason.
        boot_time: The start time of the node's machine, as its slurmd reported at registration.
        slurmd_start_time: The start time of that slurmd.
        next_state: The state that a reboot shall leave (`scontrol reboot nextstate=…`). `ASAP` alone means
            RESUME.
        cpus_alloc: The number of allocated CPUs, also by a job that waits for the node.
        gres_used: The number of generic resources in use; 0 unless it was asked for by
            `Slurm.detailed_nodes`.
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

    @property
    def is_up(self) -> bool:
        """Whether the node is registered and answers. A drained node is up, but takes no new job."""
        # POWER_UP alone is ignored: a node that was requested twice keeps the flag while it is up.
        return (
            self.base not in _BROKEN
            and not self.flags & (_OFF | _UNFIT | {"POWERING_UP"})
            and not self.is_powering_down
        )

    @property
    def is_powering_up(self) -> bool:
        """Whether the node was requested and has not registered yet."""
        return "POWERING_UP" in self.flags or {"POWER_UP", "POWERED_DOWN"} <= self.flags

    @property
    def is_powered_down(self) -> bool:
        """Whether the node is off and not requested. A job may hold it for a second before ResumeProgram."""
        return "POWERED_DOWN" in self.flags and not self.is_powering_up and not self.is_powering_down

    @property
    def is_powering_down(self) -> bool:
        """Whether SuspendProgram was called, or will be called as soon as the node is free."""
        return "POWERING_DOWN" in self.flags or ("POWER_DOWN" in self.flags and not self.has_job)

    @property
    def is_down(self) -> bool:
        """Whether the node failed or was set to DOWN, whatever its power state is."""
        return self.base in _BROKEN

    @property
    def is_rebooting(self) -> bool:
        """Whether Slurm has called RebootProgram for the node, which was free, and waits for its boot."""
        return "REBOOT_ISSUED" in self.flags

    @property
    def awaits_reboot(self) -> bool:
        """Whether somebody has asked for the node's reboot (`scontrol reboot`), and it is not over."""
        return self.is_rebooting or "REBOOT_REQUESTED" in self.flags

    @property
    def is_silent(self) -> bool:
        """Whether the node was up and no longer answers."""
        return "NOT_RESPONDING" in self.flags and not self.is_powering_up and not self.flags & _OFF

    @property
    def is_drained(self) -> bool:
        """Whether the node takes no new job (DRAIN, or FAIL, which differs for some programs only).

        A job may still run on it.
        """
        return not self.flags.isdisjoint(_OUT_OF_SERVICE)

    @property
    def is_usable(self) -> bool:
        """Whether any job of its partition can get the node, now or as soon as it has started."""
        return not (
            self.is_down or self.is_drained or self.is_silent or self.is_powering_down or self.flags & _KEPT
        )

    @property
    def has_job(self) -> bool:
        """Whether a job holds the node, also while the job starts or ends."""
        return self.base in ("ALLOCATED", "MIXED") or "COMPLETING" in self.flags


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
        return self.is_starting or self.is_running

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
