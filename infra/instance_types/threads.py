"""Cores with one thread: which machine types have them, and which can start with them.

EC2's are of DescribeInstanceTypes (VCpuInfo), Google's of its page on threads per core
(docs.cloud.google.com/compute/docs/instances/set-threads-per-core).
"""

from __future__ import annotations

import re

EC2_ONE_THREAD = re.compile(
    r"(t1|t2|c1|m1|m2|g7|hpc[0-9]+[a-z]*|[cmrx]([7-9]|[1-9][0-9])a[a-z]*)\..*|m3\.medium|u-6tb1\.56xlarge"
)
"""Virtual CPUs of the oldest types are cores, and so are those of HPC types and of AMD's from Zen 4 on."""
GOOGLE_ONE_THREAD = ("t2a", "t2d", "h3", "h4d", "c4a", "n4a")
GOOGLE_SHARED_CORE = ("e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small")


def has_one(machine_type: str, provider: str) -> bool:
    """Return whether each vCPU of a machine type is a core of its own anyway."""
    if provider == "aws":
        return EC2_ONE_THREAD.fullmatch(machine_type) is not None
    return provider == "gcp" and machine_type.partition("-")[0] in GOOGLE_ONE_THREAD


def why_not_one(machine_type: str, provider: str, vcpus: int) -> str | None:
    """Return why a machine type cannot have cores with one thread; `None` if it can, or has them anyway."""
    if has_one(machine_type, provider):
        return None
    if "metal" in re.split(r"[.-]", machine_type):
        return "it is bare metal, which starts as it is built"
    if machine_type in GOOGLE_SHARED_CORE:
        return "it shares a core with other machines"
    return "it has one CPU" if vcpus < 2 else None
