"""Errors that end a task with one message and without a traceback."""

from __future__ import annotations


class WorkloadError(Exception):
    """Ends the job with status 1 and one message for the user of the job."""


class PeerLostError(WorkloadError):
    """Another worker is gone or silent and gave no reason. A dead machine looks like this to the others."""

    @classmethod
    def because(cls, reason: str) -> PeerLostError:
        """Return the error with the reason that the connection gave."""
        return cls(f"the training stopped: another worker failed or went silent ({reason})")


class StoppedError(Exception):
    """The training ends because Slurm asked for it. It can continue from its checkpoint."""
