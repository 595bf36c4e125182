"""The lines that `cli.changes.jobs` has a cluster run, and what a cluster answers."""

from __future__ import annotations

import shlex

from cli.changes import jobs
from node.slurm import environment

CONF = "/etc/slurm/slurm.conf"
MARK = "00112233445566778899aabbccddeeff"


def told(text: str) -> str:
    """The answer to a listing. Each line of the text is a job with its name last, or another command's."""
    others, jobs = [], []
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) == 7:
            jobs.append(record(*fields))
        else:
            others.append(f"{line}\n")
    return "".join(others) + listing(*jobs)


def listing(*records: str) -> str:
    """What `LISTING` prints for these records."""
    return f"mark={MARK}\n" + "".join(records)


def record(*fields: str) -> str:
    """A job's record: id, user, partition, nodes, state, required nodes and name.

    The state may be followed by the time so far, the start and the end, all separated by commas.
    """
    values = list(fields)
    if len(values) == 7:
        values[4], *times = values[4].split(",")
        values += [*(times or ["1:00", "N/A", "N/A"]), "users", "normal"]
    return f"{MARK}f".join(values) + f"{MARK}r\n"


def inner(line: str, conf: str = CONF) -> str:
    """The POSIX line in one that gives it the environment of ours; `sudo -n ` stands for administrators."""
    start = f"exec {shlex.join(environment.words(conf))} /bin/sh -c "
    assert line.startswith(start), line
    (found,) = shlex.split(line.removeprefix(start))
    return found.replace(f"sudo -n {shlex.join(environment.words(conf))} ", "sudo -n ")


def kind(line: str) -> str:
    """What a line does: it looks, lists, takes partitions out of service, ends jobs, or opens partitions."""
    if "; taken=; " in line:
        return "hold INACTIVE" if "State=INACTIVE" in line else "hold DOWN"
    if "grep -qx token=" in line:
        return "release"
    if jobs.PARTITIONS_LISTING in line and "squeue" not in line:
        return "partitions"
    if "scancel" in line or "scontrol requeue" in line:
        return "end"
    return "look" if "s/^/mark:/" in line else "list"
