"""NeuronCores as a generic resource: the lines in Slurm's files, and how the installed Slurm reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.config import load_file
from infra.design import design as design_of
from infra.instance_types.catalog import catalog
from node.design.accelerators import Accelerator
from node.design.model import Partition, SlurmSettings
from node.slurm import conf
from node.slurm.hardware import Lines, device_files
from tests.node.slurm_cluster import SlurmCluster, design, needs_slurm
from tests.support.checkout import ROOT

CORES = Accelerator("trainium", 16, gres="neuron", simulated=True, cores=2)
TIMERS = SlurmSettings(suspend_time=600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    node = Partition("trn", "tiny", 64, 1000, 0, 1, accelerator=CORES, default=True)
    with SlurmCluster(design(node, slurm=TIMERS)) as running:
        yield running


def test_jobs_ask_for_devices_unless_the_stack_file_says_cores(tmp_path: Path) -> None:
    shipped = design_of(load_file(ROOT / "Pulumi.aws-trn1.yaml"), catalog())
    assert conf.gres_conf(shipped, Lines()) == [
        "NodeName=compute-gpu-[0-3] Name=neuron Type=trainium File=/dev/neuron[0-15]"
    ]
    file = tmp_path / "Pulumi.aws-trn1.yaml"
    text = (ROOT / file.name).read_text()
    file.write_text(text.replace("aws: {efa: true}", "aws: {efa: true, neuron_cores: true}"))
    made = design_of(load_file(file), catalog())
    accelerator = made.partitions[0].accelerator
    assert accelerator is not None
    assert conf.node_gres(accelerator) == "neuroncore:trainium:32"
    assert conf.gres_types(made, Lines()) == ["neuroncore"]
    assert conf.gres_conf(made, Lines()) == [
        "NodeName=compute-gpu-[0-3] Name=neuroncore Type=trainium Count=32"
    ]
    assert device_files(accelerator) == "/dev/neuron[0-15]", "the boot waits for devices"


@pytest.mark.cluster
@needs_slurm
def test_the_installed_slurm_counts_cores(cluster: SlurmCluster) -> None:
    control = cluster.control

    def submit(cores: int) -> int:
        wanted = ("-c1", f"--gres=neuroncore:trainium:{cores}", "--wrap", "sleep 600")
        return int(cluster.run("sbatch", "--parsable", *wanted).stdout)

    first, second = submit(20), submit(12)
    cluster.wait("two jobs share the node", lambda: all(control.jobs()[j].is_active for j in (first, second)))
    third = submit(1)
    cluster.wait("no core is left", lambda: control.jobs()[third].reason == "Resources")
    control.cancel([second])
    cluster.wait("the third has its core", lambda: control.jobs()[third].is_active)
    refused = cluster.run("sbatch", "--gres=neuroncore:33", "--wrap", "true", check=False)
    assert refused.returncode != 0
    assert "not available" in refused.stderr
