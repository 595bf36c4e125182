"""The example of a job on Trainium asks for what the stack has, and starts a worker on each NeuronCore."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from infra.config import load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from node.slurm.conf import node_gres
from tests.support.checkout import ROOT

SCRIPT = ROOT / "examples" / "neuron.sh"
TRACE = """\
#!/bin/sh
case "$0 $1 $2" in
*/scontrol\\ show\\ hostnames) printf 'compute-gpu-0\\ncompute-gpu-1\\n' ;;
*) echo "$FI_PROVIDER $FI_EFA_USE_DEVICE_RDMA $*" >>"$TRACE" ;;
esac
"""


def test_the_job_asks_for_what_the_stack_has() -> None:
    cluster = design(load_file(ROOT / "Pulumi.aws-trn1.yaml"), catalog())
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", SCRIPT.read_text(), re.M))
    partition = cluster.partition(asked["partition"])
    assert partition.accelerator is not None
    assert asked["gres"] == node_gres(partition.accelerator)
    assert int(asked["nodes"]) <= partition.max
    assert f"DEVICES={partition.accelerator.count} " in SCRIPT.read_text()


def test_it_starts_a_worker_on_each_core_of_each_node(tmp_path: Path) -> None:
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text(TRACE)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "compute-gpu-[0-1]"}
    for cores, workers in (({}, 32), ({"CORES": "4"}, 64)):
        trace = tmp_path / f"trace-{workers}"
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRACE": str(trace), **slurm, **cores}
        command = ["bash", str(SCRIPT), "/apps/venv", "train.py", "--epochs", "2"]
        subprocess.run(command, env=environment, check=True, timeout=60)
        listed, trained = trace.read_text().splitlines()
        assert listed == "efa 1 /opt/aws/neuron/bin/neuron-ls"
        assert trained == (
            f"efa 1 /apps/venv/bin/torchrun --nnodes 2 --nproc-per-node {workers} --rdzv-backend c10d "
            "--rdzv-id 42 --rdzv-endpoint compute-gpu-0:20042 train.py --epochs 2"
        )
