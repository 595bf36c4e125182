"""Errors that end a task with one message and without a traceback."""


class WorkloadError(Exception):
    """Ends the job with status 1 and one message for the user of the job."""


class PeerLostError(WorkloadError):
    """Another worker is gone or silent and gave no reason. A dead machine looks like this to the others."""


class StoppedError(Exception):
    """The training ends because Slurm asked for it. It can continue from its checkpoint."""
