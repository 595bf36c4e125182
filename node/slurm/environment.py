"""The environments of Slurm's programs. What a shell has set must change neither our view nor anybody's job.

Each of Slurm's programs takes defaults from variables. One SQUEUE_USERS in a shell empties the list of jobs,
an SBATCH_PARTITION moves a job, and the SLURM_JOB_ID of another cluster's job turns a new srun into a step of
the job that has this number here. So a program that we start inherits nothing, and a command that a user
types inherits nothing that Slurm has set for a job.

Slurm's traps (docs/internals/slurm_traps.md): option-variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "scrun",
    "sdiag", "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger", "sview",
)  # fmt: skip
"""Slurm's programs. `tests/test_slurm_programs.py` holds that only a few functions start them."""
OURS = "SLURM_STACKS_"
"""The beginning of this project's own variables, which are none of Slurm's."""
SLURM = re.compile(rf"(SLURM|SLURMD|SLURMCTLD|SLURMDBD|{'|'.join(PROGRAMS).upper()})_")
"""How the variables begin that Slurm's programs read or set."""
_TASTE = frozenset({"SLURM_TIME_FORMAT"})
"""Variables with SLURM_ that Slurm sets nowhere, and that change only how something is written."""
_OF_A_JOB = re.compile(
    # Slurm sets SBATCH_* for how a job's tasks are bound; the rest of SBATCH_* are a user's own defaults.
    r"SLURM_|SLURMD_|SLURMCTLD_|SRUN_|SBATCH_(CPU|MEM)_BIND"
    # Of Slurm's and other launchers of MPI: which task of which step this is, and where it reports.
    r"|PMI_|PMI[12]_|PMIX_|PRTE_|PALS_|OMPI_COMM_WORLD_|OMPI_MCA_(ess|orte|pmix|prte)|HYDRA_|HYDI_|MPI_LOCAL"
)
_ONLY_IN_A_JOB = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL", "ENVIRONMENT"}
)
"""Variables that are Slurm's inside a job, and anybody's elsewhere."""


def of_ours(slurm_conf: str | PurePath) -> dict[str, str]:
    """Return the whole environment of a program of Slurm's that we start.

    Times are seconds since 1970, whatever the machine's time zone is. Lists of an array's tasks are not cut,
    because commands refuse a list that is.
    """
    return {
        "PATH": PATH,
        "SLURM_CONF": str(slurm_conf),
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
        "LC_ALL": "C.UTF-8",
    }


def words(slurm_conf: str | PurePath) -> list[str]:
    """Return the words that give exactly the environment `of_ours` to the command that follows them.

    They hold behind `sudo` too, which adds /etc/environment's variables, and in a session over SSH, which has
    those of ~/.bashrc.
    """
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in of_ours(slurm_conf).items())]


def shell_line(line: str, slurm_conf: str | PurePath) -> str:
    """Return a line for any login shell that runs a POSIX line with the environment `of_ours`.

    So the shell's aliases and functions are out of the way as well.
    """
    return f"exec {shlex.join([*words(slurm_conf), '/bin/sh', '-c', line])}"


def of_submitter(slurm_conf: str | PurePath, home: str, user: str, **more: str) -> dict[str, str]:
    """Return the whole environment of our own `sbatch`. Slurm passes it on to the job.

    Args:
        more: Variables of ours for the job.
    """
    # No time format and no locale for parsers: they would be the job's, and its programs' output.
    fixed = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "USER": user, "LOGNAME": user}
    return {**fixed, "LANG": "C.UTF-8", "SLURM_CONF": str(slurm_conf), **more}


def without_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without all variables that change what a program of Slurm's does.

    It is for programs of ours that start Slurm's daemons and others, and for tests, which have clusters of
    their own.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(OURS) or not (SLURM.match(name) or _OF_A_JOB.match(name))
    }


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what Slurm has set for a job or one of its steps.

    It is for commands that a user types for a cluster. They run as on its login machine, where no shell is
    inside a job, so it makes no difference whose job it is: another cluster's, or one of this cluster. Our
    own variables go as well, because our batch scripts and machines mark what is theirs by them. What nobody
    but the user sets stays, such as SQUEUE_FORMAT and SBATCH_ACCOUNT: these are the user's defaults.
    """
    inside = "SLURM_JOB_ID" in environment or "SLURM_JOBID" in environment
    return {
        name: value
        for name, value in environment.items()
        if name in _TASTE or not (_OF_A_JOB.match(name) or (inside and name in _ONLY_IN_A_JOB))
    }


def defaults(environment: Mapping[str, str]) -> list[str]:
    """Return the variables of an environment that give options to programs of Slurm's which a user types."""
    return sorted(name for name in without_job(environment) if SLURM.match(name) and name not in _TASTE)
