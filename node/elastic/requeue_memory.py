"""The requeues that Slurm was asked for, until it is sure that it does not forget them.

A slurmctld that is killed forgets some that it has acknowledged. `elastic/requeue.py` repeats them.

Slurm's traps (docs/internals/slurm_traps.md): forgotten-requeue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from node.elastic.view import log
from node.slurm.phases import CANCELLED, FAILED, NODE_FAIL
from node.slurm.states import JobState
from node.system import files, foreign
from node.system.codec import shown

KEPT_SECONDS = 300.0
"""slurmctld knows a job for this long after its end (MinJobAge), and requeues none after that."""
PASS_SECONDS = 30.0
"""A pass is at most this long after the one before it, unless Slurm did not answer between them."""
SAVED_SECONDS = 30.0
"""When Slurm has shown a requeue for this long, it has saved it: it does so within 5 s, or later if busy."""
CAUSED = (FAILED, NODE_FAIL)
"""The ends that the loss of a machine may cause."""


@dataclass(frozen=True, slots=True)
class RequestedRequeue:
    """A requeue that Slurm was asked for. The file has these fields.

    Attributes:
        restarts: How often the job had been requeued before.
        submitted: When the job was submitted. A later job may have the same id: slurmctld also forgets ids.
        node: The node for whose sake the job is requeued.
        reason: Why the node is lost.
        acknowledged: Whether Slurm has acknowledged the request while the job ran. Any end of that run is
            then due to the request. Otherwise the job may have ended by itself just before.
    """

    restarts: int
    submitted: float | None
    node: str
    reason: str
    acknowledged: bool = False

    @classmethod
    def of(cls, job: JobState, node: str, reason: str) -> RequestedRequeue:
        return cls(job.restarts, job.submit_time, node, reason)

    def is_for(self, job: JobState) -> bool:
        """Return whether this is the job, and not a later one with its id."""
        return self.submitted is None or job.submit_time is None or job.submit_time <= self.submitted


class RequeueMemory:
    """The record of requeues that Slurm may still forget.

    Args:
        file: Where the record is stored. It survives the daemon, and the controller if its state is kept.
            A file that cannot be read counts as empty. `None` keeps the record in memory only.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._requests: dict[int, RequestedRequeue] = {}
        self._written: dict[int, RequestedRequeue] = {}
        # Seconds for which Slurm has answered since the request, and at which of them it first showed the
        # requeue. They begin anew with the daemon, because its clock does.
        self._ages: dict[int, float] = {}
        self._shown: dict[int, float] = {}
        self._read_at = time.monotonic()
        if file is not None:
            self._read(file)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def expect(self, requests: Mapping[int, RequestedRequeue]) -> None:
        """Record requests before Slurm acknowledges them, and store them.

        A request that Slurm has acknowledged for the same run stays as it is.

        Args:
            requests: The job's id -> the request.
        """
        if not self._requests:
            self._read_at = time.monotonic()
        for job, request in requests.items():
            known = self._requests.get(job)
            if known is None or not known.acknowledged or known.restarts != request.restarts:
                self._requests[job] = request
            self._ages[job] = 0.0
            self._shown.pop(job, None)
        self.save()

    def acknowledge(self, job: int) -> None:
        """Note that Slurm has acknowledged the request for a job."""
        self._requests[job] = replace(self._requests[job], acknowledged=True)

    def refuse(self, job: int) -> None:
        """Drop the request for a job, which Slurm has refused, unless it had acknowledged an earlier one."""
        if job in self._requests and not self._requests[job].acknowledged:
            self.drop(job)

    def drop(self, job: int) -> None:
        """Drop the request for a job."""
        for of in (self._requests, self._ages, self._shown):
            of.pop(job, None)

    def forgotten(self, jobs: Mapping[int, JobState]) -> list[tuple[JobState, RequestedRequeue]]:
        """Find the jobs whose requeue Slurm has forgotten, and drop the requests that are settled.

        A job that runs again is not among them: it ends by itself, or its node is evacuated once more.

        Args:
            jobs: All jobs that Slurm knows.
        """
        now = time.monotonic()
        passed, self._read_at = min(now - self._read_at, PASS_SECONDS), now
        lost = []
        for number, request in list(self._requests.items()):
            self._ages[number] += passed
            job = jobs.get(number)
            if job is None or self._is_settled(job, request):
                self.drop(number)
            elif job.restarts <= request.restarts and job.is_over:
                lost.append((job, request))
        self.save()
        return lost

    def _is_settled(self, job: JobState, request: RequestedRequeue) -> bool:
        age = self._ages[job.id]
        if job.state == CANCELLED or age > KEPT_SECONDS:
            return True
        if job.restarts > request.restarts:
            return age - self._shown.setdefault(job.id, age) > SAVED_SECONDS
        self._shown.pop(job.id, None)
        if not request.is_for(job):
            return True
        return job.is_over and not request.acknowledged and job.state not in CAUSED

    def save(self) -> None:
        """Store the record if it has changed."""
        if self._file is None or self._requests == self._written:
            return
        content = {str(job): asdict(request) for job, request in self._requests.items()}
        try:
            files.write(self._file, json.dumps(content).encode(), durable=True)
        except OSError as error:  # a full disk must not keep jobs from being requeued; the next change tries
            log(f"{self._file} cannot be written: {error}")
            return
        self._written = dict(self._requests)

    def _read(self, file: Path) -> None:
        try:
            content = foreign.record(file)
            self._requests = {int(job): _request(value) for job, value in content.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log(f"{file} cannot be read ({error!r}): requeues that Slurm has forgotten are not repeated")
            return
        self._written = dict(self._requests)
        self._ages = dict.fromkeys(self._requests, 0.0)


def _request(value: dict[str, object]) -> RequestedRequeue:
    """Return the request of an entry of the file.

    Raises:
        KeyError, TypeError: The entry is damaged.
    """
    restarts, submitted = value["restarts"], value["submitted"]
    node, reason, acknowledged = value["node"], value["reason"], value["acknowledged"]
    if (
        type(restarts) is not int
        or (submitted is not None and (isinstance(submitted, bool) or not isinstance(submitted, float | int)))
        or not (isinstance(node, str) and isinstance(reason, str) and isinstance(acknowledged, bool))
    ):
        raise TypeError(f"not a request: {shown(value)}")
    return RequestedRequeue(restarts, submitted, node, reason, acknowledged)
