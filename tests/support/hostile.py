"""What a caller's shell and a user's text may hold to mislead us."""

from __future__ import annotations

import json
from pathlib import Path

OPTIONS = Path(__file__).parents[1] / "node" / "data" / "slurm-options.json"
"""Options with a value by release, made by tools/slurm_options.py."""

HOSTILE = {
    # Each of the first six alone empties the list of jobs (squeue(1), INPUT ENVIRONMENT VARIABLES).
    "SQUEUE_USERS": "somebody-else",
    "SQUEUE_PARTITION": "elsewhere",
    "SQUEUE_NAMES": "none",
    "SQUEUE_ACCOUNT": "none",
    "SQUEUE_QOS": "none",
    "SQUEUE_LICENSES": "none",
    "SQUEUE_STATES": "FAILED",
    "SQUEUE_FORMAT": "%j",
    "SQUEUE_FORMAT2": "name:9",
    "SQUEUE_SORT": "-i",
    "SQUEUE_ARRAY_UNIQUE": "1",
    "SINFO_PARTITION": "elsewhere",
    "SINFO_FORMAT": "%N",
    "SACCT_FORMAT": "jobname",
    "SCANCEL_STATE": "PENDING",
    "SCANCEL_USER": "somebody-else",
    "SCANCEL_INTERACTIVE": "1",
    "SPRIO_FORMAT": "%i",
    "SDIAG_X": "1",
    "SREPORT_CLUSTER": "other",
    "SBATCH_PARTITION": "elsewhere",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_ACCOUNT": "other",
    "SALLOC_PARTITION": "elsewhere",
    "SRUN_EXPORT_ENV": "NONE",
    "SLURM_CLUSTERS": "other",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_BITSTR_LEN": "3",
    "SLURM_CONF": "/nowhere/slurm.conf",
    "SLURM_JOB_ID": "7",
    "SLURM_JOBID": "7",
    "SLURM_MEM_PER_NODE": "123",
    "SLURM_MEM_PER_CPU": "456",
    "SLURM_NODELIST": "elsewhere",
    "SLURMD_NODENAME": "elsewhere",
    "PMI_RANK": "3",
    "PMIX_RANK": "3",
    "OMPI_COMM_WORLD_RANK": "3",
    "LC_ALL": "xx_XX.UTF-8",
    "TZ": "Asia/Kathmandu",
}
"""Variables of a shell that belongs to another cluster, or to one of its jobs."""
IDENTITY = {
    name for name in HOSTILE if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM"))
} - {"SLURM_TIME_FORMAT", "SLURM_CONF"}
"""Those of them that Slurm or a launcher sets for a job. SLURM_CONF is replaced."""
SEPARATORS = "\n\r\t\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029|=:;,@%\\'\"[](){}<> "
"""What ends a line, a record or a field somewhere."""
FORGED = (
    "x\n1|root|gpu|gpu-1|RUNNING||y",
    "x\n   StdErr=/etc/passwd\n   StdOut=/etc/passwd",
    "x\x1e\n1\x1f1\x1fN/A\x1fN/A\x1fRUNNING\x1fNone\x1fgpu\x1froot\x1fgpu-1",
    "x\nnames=0\n0|1|y",
    "x\nheld=gpu",
    "x\nNodeName=debug-1 CPUAlloc=9 State=DOWN ",
    "\x1b]0;title\x07\x1b[2J\x1b[31m",
    "\ufffd\u202e\u200b" + "y" * 900,
)
"""Texts that forge a record of one of the readings, or control a terminal."""
FORGED_LINES = (
    "x State=DOWN CPUTot=99 StartTime=1 Nodes=debug-[0-5]",
    "x\nNodeName=debug-1 CPUTot=9 State=DOWN \nPartitionName=debug State=DOWN\n"
    "ReservationName=kept StartTime=1 EndTime=9 Nodes=debug-[0-5]",
)
"""Texts that forge a field or a line of `scontrol show --oneliner`."""
BOMB = ",".join(f"n{number}x[0-999990]" for number in range(4))
"""A list of nodes with four million names."""
FORMS = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), "{}:1"),
    **dict.fromkeys(("licenses", "Licenses"), "{}:1"),
    **dict.fromkeys(("chdir", "output", "error", "input"), "/{}"),
    **dict.fromkeys(("gres", "Gres"), "gpu:{}:1"),
    "TRESPerNode": "gres:gpu:{}:1", "tres-per-task": "cpu=1,gres/gpu:{}=1", "tres-bind": "gres/gpu:{}",
    "gpu-bind": "map_gpu:{}", "export": "NONE,X={}", "acctg-freq": "task={}", "bb": "capacity={}",
    "constraint": "{}*1",
}  # fmt: skip
"""Option -> the form of its value; `{}` is the text."""
BESIDE = {
    # They keep sbatch from reaching slurmctld, or have it wait.
    "clusters", "uid", "gid", "wrap", "export-file", "bbf", "propagate", "array",
}  # fmt: skip
"""Options that are not tried: what they name is read or used by the submitting program itself."""


def options(program: str) -> list[str]:
    """Return the options of a program that take a value, in any release."""
    releases = json.loads(OPTIONS.read_text()).values()
    return sorted({name for release in releases for name in release["options"][program]})


def forged_records(job: int) -> list[str]:
    """Return texts that forge a job's record, or a line of another program's, in some reading."""
    values = [
        job,
        job,
        "N/A",
        0,
        "PENDING",
        "launch failed requeued held",
        "debug",
        "x",
        BOMB,
        1,
        "",
        1,
        0,
        0,
    ]
    fields = [*values, *[1790000000] * 3, "N/A", "", "", "", 0, "(x)"]
    return [
        "x\x1e\n" + "\x1f".join(map(str, fields)) + "\x1e\n",
        "x" + "".join(text.replace("1", str(job), 1) for text in FORGED if len(text) < 200),
    ]
