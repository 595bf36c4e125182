"""The one kind of error that a user of a job is meant to read."""


class WorkloadError(Exception):
    """Ends the job with status 1 and its one message, without a traceback."""
