"""The errors that end a task with one message, without a traceback."""


class WorkloadError(Exception):
    """Ends the job with status 1 and its one message: what a user of a job is meant to read."""


class PeerLostError(WorkloadError):
    """Another worker is gone or silent, and did not say why: what a dead machine looks like from here."""


class StoppedError(Exception):
    """The training ends here because Slurm asked for it; it can go on from its checkpoint."""
