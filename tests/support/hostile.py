"""What a caller's shell and a user's text may hold to mislead us."""

from __future__ import annotations

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
