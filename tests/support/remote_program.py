"""A Pulumi program with the benchmark over SSH, as a provider declares it. `spec.json` has its settings.

Its head is a command that does nothing. It stands for the machine that a destroy deletes first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command

from infra.benchmark import BenchmarkRun, Workload
from infra.clouds.shell import Endpoint, OpenSshShell, ShellPaths
from infra.slurm_cluster import Benchmark


def declare(spec: dict[str, Any], root: Path) -> None:
    """Declare the program's resources.

    Args:
        spec: the settings: the shell's options, endpoint, place, script, benchmark (whether there is one).
        root: the project, with the workload.
    """
    head = command.local.Command("head", create="true")
    if not spec["benchmark"]:
        return
    endpoint, paths = Endpoint(**spec["endpoint"]), ShellPaths(**spec["place"])
    shell = OpenSshShell(endpoint, paths, **spec["options"])
    run = BenchmarkRun(spec["script"], Workload.of(root).digest)
    made = Benchmark("b", run, shell, head)
    pulumi.export("job", made.job_id)
    pulumi.export("result", made.result)


if __name__ == "__main__":
    declare(json.loads(Path("spec.json").read_text()), Path.cwd())
