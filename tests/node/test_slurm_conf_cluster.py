"""Tests of the rendered configuration with a real slurmctld and slurmds."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.slurm_releases import options as table
from node.design.accelerators import Accelerator
from node.design.model import Partition
from node.logs import job_output
from node.slurm import conf, runtime, topology
from node.slurm.hostlist import expand
from node.slurm.resume_request import parse_resume
from node.slurm.version import knows_last_digit, spell
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, needs_slurm, partition

pytestmark = [pytest.mark.cluster, needs_slurm]

# Messages of every slurmctld at its first start, of the distribution's packages about a missing PMIx, and
# of a busy machine.
_EXPECTED = re.compile(
    r"state file|NOTE: Trying backup|mpi/pmix|MPI: Cannot create context"
    r"|High latency for \d+ calls to gettimeofday|timed out|not responding"
)


OF_THE_FILE = {
    "KillWait": "45", "MaxStepCount": "50000", "MailDomain": "example.com", "MaxArraySize": "20001",
    "PropagateResourceLimits": "NONE", "SchedulerParameters": "bf_max_job_test=77",
    "DebugFlags": "backfill,Power", "InteractiveStepOptions": "--interactive --pty $SHELL",
    "SuspendExcParts": "trn",
}  # fmt: skip
OF_A_LINE = {
    "DefaultTime": "1-02:00:00", "PriorityTier": "7", "LLN": "YES", "DefMemPerGPU": "100",
    "DefCPUPerGPU": "2", "MaxNodes": "2", "GraceTime": "9", "TRESBillingWeights": "CPU=2.0,Mem=0.5G",
    "MaxMemPerNode": "1000", "AllowGroups": "root", "ExclusiveUser": "NO",
}  # fmt: skip
"""Options that a stack file gives."""


def _errors(log: str) -> list[str]:
    return [line for line in log.splitlines() if "error:" in line and not _EXPECTED.search(line)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    neuron = Partition("trn", "trn1", 4, 1000, 0, 1, accelerator=Accelerator("trainium", 16, "neuron", True))
    fleet = (
        replace(partition(nodes=3, static=1), topology=True),
        partition("gpu", nodes=2, gpus=8),
        partition("one", nodes=1, gpus=1),
    )
    # From 24.11 on srun needs up to 30 s on starting nodes, unless a prolog waits.
    plan = design(*fleet, replace(neuron, settings=OF_A_LINE))
    plan = replace(plan, slurm=replace(plan.slurm, settings=OF_THE_FILE))
    with SlurmCluster(plan, prolog=WAIT_FOR_NODES) as running:
        yield running


def test_no_option_is_unknown_or_defunct(cluster: SlurmCluster) -> None:
    assert _errors(cluster.log()) == []


def test_every_node_of_the_design_is_there_and_off(cluster: SlurmCluster) -> None:
    nodes = cluster.control.nodes()
    assert sorted(nodes) == sorted(n for p in cluster.settings.design.partitions for n in p.nodes())
    off = {name for name, node in nodes.items() if node.is_powered_down}
    assert {"debug-2", "trn-0"} <= off
    assert {name: node.gres for name, node in nodes.items()} == {
        **dict.fromkeys(["debug-0", "debug-1", "debug-2"]),
        **dict.fromkeys(["gpu-0", "gpu-1"], "gpu:v100:8"),
        "one-0": "gpu:v100:1",
        "trn-0": "neuron:trainium:16",
    }


def test_places_of_any_depth_are_read_again(cluster: SlurmCluster) -> None:
    places = {"debug-0": ("nn-1", "nn-2", "nn-3", "nn-4"), "debug-1": ("nn-1", "nn-5")}
    file = Path(cluster.folders.elastic) / topology.FILE
    first = file.read_text()
    for text, leaves in (
        (topology.render(cluster.settings.design, places), {"nn-4": "debug-0", "unplaced.debug": "debug-2"}),
        (first, {"unplaced.debug": "debug-[0-2]", "unplaced.trn": "trn-0"}),
    ):
        file.write_text(text)
        cluster.control.reconfigure()
        # From 23.11 on slurmctld starts itself again for this.
        cluster.wait("slurmctld", cluster.control.ping)
        shown = cluster.run("scontrol", "show", "topology").stdout
        for name, nodes in leaves.items():
            assert re.search(
                rf"^SwitchName={name} Level=0 LinkSpeed=\d+ Nodes={re.escape(nodes)}$", shown, re.M
            )
    assert _errors(cluster.log()) == []


def test_what_slurmctld_made_of_it(cluster: SlurmCluster) -> None:
    shown = dict(
        re.findall(
            r"^(\w+)(?:\[0\])?\s*= (.*)$", cluster.run("scontrol", "show", "config").stdout, re.MULTILINE
        )
    )
    rendered = dict(
        line.split("=", 1) for line in cluster.conf.read_text().splitlines() if re.match(r"\w+=", line)
    )
    # scontrol adds units and explanations.
    for key in ("ResumeTimeout", "SuspendTime", "SuspendTimeout", "PrologEpilogTimeout", "MessageTimeout"):
        assert int(shown[key].split()[0]) == int(rendered[key]), key
    for key in (
        "ResumeProgram",
        "SuspendProgram",
        "PrologSlurmctld",
        "SlurmctldParameters",
        "SchedulerParameters",
    ):
        assert shown[key] == rendered[key], key
    assert shown["SuspendExcNodes"] == "debug-0"
    assert shown["ResumeRate"].startswith("0 ")


def test_the_stack_files_own_options_arrive(cluster: SlurmCluster) -> None:
    shown = cluster.run("scontrol", "show", "config").stdout
    values = dict(re.findall(r"^(\w+)(?:\[0\])?\s*= (.*)$", shown, re.MULTILINE))
    assert values["KillWait"] == "45 sec"
    assert [values[key] for key in ("MaxStepCount", "MaxArraySize")] == ["50000", "20001"]
    assert values["PropagateResourceLimits"] == "NONE"
    assert values["PropagateResourceLimitsExcept"] == "(null)"
    assert values["InteractiveStepOptions"] == OF_THE_FILE["InteractiveStepOptions"]
    assert {"bf_max_job_test=77", "bf_interval=1"} <= {*values["SchedulerParameters"].split(",")}
    assert {*values["DebugFlags"].split(",")} == {"Backfill", "Power"}


def test_nobody_has_changed_at_run_time_what_the_stack_file_says(cluster: SlurmCluster) -> None:
    shown = runtime.Designed(
        runtime.shown_partitions(cluster.control.show_partitions()),
        {},
        runtime.shown_controller(cluster.control.show_config()),
    )
    assert runtime.compare(shown, conf.designed(cluster.settings), runtime.Record()) == runtime.Record()


def test_the_table_of_options_has_what_slurmctld_shows(cluster: SlurmCluster) -> None:
    # Other files' options follow, each with a heading.
    own = re.split(r"^\w.*Configuration:$", cluster.control.show_config(), flags=re.MULTILINE)[0]
    shown = set(re.findall(r"^(\w+)(?:\[0\])?\s*= ", own, re.MULTILINE))
    no_options = {
        "BOOT_TIME", "HASH_VAL", "MULTIPLE_SLURMD", "NEXT_JOB_ID", "SLURM_CONF", "SLURM_VERSION",
        "JobDefaults",  # DefCPUPerGPU and DefMemPerGPU
    }  # fmt: skip
    known, release = table.options(table.SLURM), spell(cluster.release)
    usable = {name for name in shown if name.lower() in known and known[name.lower()].usable_in(release)}
    assert len(usable) > 150
    assert sorted(shown - usable - no_options) == []


def test_jobs_see_their_devices(cluster: SlurmCluster) -> None:
    script = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    out = cluster.run("srun", "-pgpu", "-N2", "-n2", "--gres=gpu:v100:8", "sh", "-c", script).stdout
    assert sorted(out.splitlines()) == ["gpu-0 0,1,2,3,4,5,6,7", "gpu-1 0,1,2,3,4,5,6,7"]
    assert cluster.run("srun", "-pone", "--gres=gpu:1", "sh", "-c", script).stdout == "one-0 0\n"
    neuron = cluster.run("srun", "-ptrn", "--gres=neuron:16", "sh", "-c", "echo $SLURMD_NODENAME").stdout
    assert neuron == "trn-0\n"
    for node in ("gpu-0", "one-0", "trn-0"):
        assert _errors(cluster.log(f"slurmd-{node}")) == []


def test_where_a_batch_job_writes(cluster: SlurmCluster) -> None:
    """slurmd makes the path. What Slurm's clients tell has the pattern, or some of its values only."""
    root = str(cluster.root)
    outputs: tuple[list[str], ...] = (
        [f"-o{root}/o-%j_%A_%a_%5j_%u_%x_%n_%t_%s_%q_%J_100%%.txt", "--array=13"],
        [f"-o{root}/c\\%j%%x"],
        [f"-o{root}/e-%%%j-%%%%x-%12j"],
        [f"-o{root}/b-%a-%b", "--array=13"],
        # Below the folder that they are submitted from, or in it: without --output.
        ["-or-%j_%x"],
        [],
        ["--array=13"],
    )
    jobs = []
    for options in outputs:
        words = ["-pgpu", "-N1", "-J", "a JobState=x", *options, "--wrap", "true"]
        jobs.append(int(cluster.run("sbatch", "--parsable", *words).stdout))
    last_digit = knows_last_digit(spell(cluster.release))
    there = [
        job_output.output_files(job, fields, last_digit=last_digit)[0].path
        for job, fields in cluster.control.outputs(jobs).items()
    ]
    assert len(there) == len(outputs)
    for path in there:
        cluster.wait(f"slurmd writes {path}", lambda path=path: Path(path).exists())  # type: ignore[misc]


def test_the_resume_file_of_this_release(cluster: SlurmCluster) -> None:
    before = len(cluster.resume_files)
    job = int(cluster.run("sbatch", "--parsable", "-N2", "-n4", "--wrap", "sleep 60").stdout)
    cluster.wait("ResumeProgram is called", lambda: len(cluster.resume_files) > before)
    request = parse_resume(cluster.resume_files[-1])
    assert [wanted.job_id for wanted in request.jobs] == [job]
    assert set(request.jobs[0].nodes) == set(request.all_nodes)
    assert "debug-1" in request.all_nodes
    cluster.control.cancel([job])


def test_idle_nodes_go_and_static_ones_stay(cluster: SlurmCluster) -> None:
    control = cluster.control

    def suspends(node: str) -> int:
        return sum(node in expand(hosts) for hosts in cluster.suspends)

    cluster.wait("debug-2 is off", lambda: control.nodes()["debug-2"].is_powered_down)
    before = suspends("debug-2")
    control.power_up([n for n in ("debug-0", "debug-2") if control.nodes()[n].is_powered_down])
    # SuspendTime is 2 s, so it may be up between two reads.
    cluster.wait("debug-2 was up, and idle", lambda: suspends("debug-2") > before)
    cluster.wait("debug-2 is off again", lambda: control.nodes()["debug-2"].is_powered_down)
    cluster.wait("debug-0 is up", lambda: control.nodes()["debug-0"].is_up)
    assert suspends("debug-0") == 0


def test_nodes_that_start_in_the_second_of_their_request() -> None:
    """slurmctld's cycle is just before a second of uptime begins. Without the product's delay one node in
    five is lost, and stays POWERING_UP until ResumeTimeout."""
    before = 0.92
    while not before < time.clock_gettime(time.CLOCK_BOOTTIME) % 1 < before + 0.02:
        time.sleep(0.002)
    with SlurmCluster(design(partition(nodes=24))) as running:
        control = running.control
        for first in (0, 8, 16):
            names = [f"debug-{i}" for i in range(first, first + 8)]
            control.power_up(names)
            started = [f"slurmd-{name}" for name in names]
            running.wait("slurmds started", lambda: all(map(running.has_log, started)))  # noqa: B023
            # It registers at once, or at the second attempt if this machine is busy.
            running.wait(
                "all have registered",
                lambda: not any(control.nodes()[name].is_powering_up for name in names),  # noqa: B023
            )


@pytest.mark.parametrize("isolation", ["vm", "container"])
def test_slurmctld_takes_the_configuration_of_own_machines(isolation: str) -> None:
    def edit(text: str) -> str:
        # Only munge and slurmctld's host name are the test's. The rest is as shipped.
        socket = f"AuthInfo=socket={running.folders.munge_socket},"
        return text.replace("AuthInfo=", socket).replace("SlurmdPort", "#SlurmdPort", 1)

    real = Partition(
        "p3", "p3dn.24xlarge", 96, 700000, 0, 4, accelerator=Accelerator("v100", 8), exclusive=True
    )
    running = SlurmCluster(design(partition(nodes=10, static=2), real, isolation=isolation), edit=edit)
    with running:
        assert _errors(running.log()) == []
        assert len(running.control.nodes()) == 14
        assert running.control.nodes()["p3-3"].gres == "gpu:v100:8"
