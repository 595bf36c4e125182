"""The lines that `cli.changes.jobs` has a cluster run, and what a cluster answers."""

from __future__ import annotations

import shlex

from node.slurm import environment

CONF = "/etc/slurm/slurm.conf"
MARK = "00112233445566778899aabbccddeeff"


def told(text: str) -> str:
    """The answer to a listing. Each line of the text is a job with its name last, or another command's."""
    jobs, names = [], []
    for line in text.splitlines():
        *fields, name = line.split("|", 6)
        jobs.append("|".join(fields) if len(fields) == 6 else line)
        if len(fields) == 6:
            names.append(f"{MARK}{fields[0]}|{name}\n")
    return "".join(f"{line}\n" for line in jobs) + f"names={MARK}\n{''.join(names)}"


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
    if "scancel" in line or "scontrol requeue" in line:
        return "end"
    return "look" if "s/^/mark:/" in line else "list"
