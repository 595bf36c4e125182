"""Compute machines of a process cluster have a /tmp of their own; checkout and home are in this host's."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.system.processes import ProcessId
from operations.local import namespaces
from tests.support.checkout import Checkout, until

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 4}}, default: true}}
          - {{name: wide, instance_type: local.medium, nodes: {{max: 1}}}}
        slurm: {{suspend_time: 20}}
      slurm-stacks:benchmark:
        enabled: false
        script: train.py
        arguments: [--data={data}]
"""
pytestmark = pytest.mark.skipif(
    (_problem := namespaces.unsupported_reason("127.9.64.0")) is not None,
    reason=f"no namespaces here: {_problem}",
)


@pytest.fixture(scope="module")
def host() -> Iterator[Path]:
    """A folder in this host's /tmp; its name marks what the tests put there."""
    path = Path(tempfile.mkdtemp(prefix="own-tmp-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(host: Path) -> Iterator[Checkout]:
    """A cluster whose checkout, home and data are in /tmp. The fixture's end proves that nothing is left."""
    (host / "home").mkdir()
    (host / "data").mkdir()
    (host / "data" / "numbers").write_text("1 2 3\n")
    checkout = Checkout(host / "a checkout", STACK.format(data=host / "data"))
    checkout.env["HOME"] = str(host / "home")
    (checkout.folder / "train.py").touch()
    try:
        checkout.cluster("up", check=True)
        yield checkout
        run = checkout.run_directory
        assert checkout.cluster("down", check=True).returncode == 0
        assert not run.exists()
        assert mounted(run) == []
    finally:
        left = checkout.close()
    assert left == []
    assert beside(host) == []


def mounted(run: Path) -> list[str]:
    """Return the mounts of any process that are of the run directory."""
    found = set()
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found |= {line for line in table.read_text().splitlines() if str(run) in line}
        except OSError:  # the process has just ended
            continue
    return sorted(found)


def beside(host: Path) -> list[str]:
    """Return what jobs have left in this host's /tmp under the name of the tests' folder."""
    return [path.name for path in host.parent.glob(f"{host.name}?*")]


def machine_tmp(cluster: Checkout, node: str) -> Path:
    return cluster.run_directory / "tmp" / node


def test_nodes_of_a_job_have_their_own_file_of_one_name(cluster: Checkout, host: Path) -> None:
    file = f"{host}-file"
    script = (
        f"echo $SLURMD_NODENAME >{file}; touch {host}/home/$SLURMD_NODENAME; "
        f"while [ $(ls {host}/home | grep -c debug-) -lt 2 ]; do sleep 0.1; done; "
        f"echo $(cat {file}) $SLURMD_NODENAME $(stat -c %a /tmp)"
    )
    lines = sorted(cluster.execute("srun", "-N2", "sh", "-c", script).splitlines())
    nodes = [line.split()[0] for line in lines]
    assert lines == [f"{node} {node} 1777" for node in nodes]
    assert len(set(nodes)) == 2
    # A later job of the same node finds it, as on a cloud. This host and the login machine do not.
    assert cluster.execute("srun", f"--nodelist={nodes[0]}", "cat", file) == f"{nodes[0]}\n"
    assert cluster.execute("sh", "-c", f"ls {file} || true") == ""
    assert beside(host) == []
    assert (machine_tmp(cluster, nodes[0]) / Path(file).name).read_text() == f"{nodes[0]}\n"


def test_nodes_see_the_checkout_the_home_folder_and_the_data_in_tmp(cluster: Checkout, host: Path) -> None:
    seen = cluster.execute("srun", "-N1", "find", "/tmp", "-mindepth", "1", "-maxdepth", "2").splitlines()
    wanted = {str(host), *(str(host / name) for name in ("a checkout", "home", "data"))}
    assert wanted < set(seen)
    stack_file = cluster.folder / "Pulumi.test.yaml"
    assert cluster.execute("srun", "-N1", "cat", str(stack_file)) == stack_file.read_text()
    assert cluster.execute("srun", "-N1", "cat", str(host / "data" / "numbers")) == "1 2 3\n"
    job = host / "home" / "job.sh"
    job.write_text(f"#!/bin/sh\n#SBATCH --chdir={job.parent}\npwd; echo $HOME\n")
    cluster.execute("sbatch", "--wait", "--output=out", str(job))
    assert (host / "home" / "out").read_text() == f"{host}/home\n{host}/home\n"


def test_variables_for_python_reach_jobs_and_no_program_of_ours(cluster: Checkout, host: Path) -> None:
    """`./cluster` has put them aside. A user's module of that name would end our own programs."""
    modules = host / "home" / "modules"
    modules.mkdir()
    (modules / "json.py").write_text("raise SystemExit('another json')")
    given = {"PYTHONPATH": str(modules), "PYTHONHOME": "/usr", "VIRTUAL_ENV": ""}
    show = "echo $PYTHONPATH $PYTHONHOME ${VIRTUAL_ENV+set} ${SLURM_STACKS_ASIDE_PYTHONPATH-none}"
    shown = cluster.cluster("exec", "--", "srun", "sh", "-c", show, check=True, env=given)
    assert shown.stdout == f"{modules} /usr set none\n"
    assert cluster.cluster("status", "--json", check=True, env=given).stdout.startswith("{")


def test_a_jobs_daemons_end_with_it_and_its_neighbours_do_not(cluster: Checkout, host: Path) -> None:
    """As cgroups have it on whole machines, whichever way the daemon has left its job."""
    marks = host / "home" / "daemons"
    marks.mkdir()
    daemons = (
        f"setsid nohup sh -c 'echo $$ >{marks}/setsid; exec sleep 600' >/dev/null 2>&1 & "
        f"( ( sh -c 'echo $$ >{marks}/forked; exec sleep 600' >/dev/null 2>&1 & ) & ) ; "
        f"while [ $(ls {marks} | grep -c -e setsid -e forked) -lt 2 ]; do sleep 0.1; done"
    )
    neighbour = f"(sh -c 'echo $$ >{marks}/neighbour; exec sleep 600' & ) ; sleep 600"
    words = ["sbatch", "--parsable", "--partition=wide", "--mem=10", "--output=/dev/null"]
    job = cluster.execute(*words, "--wrap", neighbour).strip()
    until((marks / "neighbour").exists, 60, "the neighbour")
    cluster.execute(*words, "--wait", "--wrap", daemons)
    pids = {file.name: int(file.read_text()) for file in marks.iterdir()}
    until(lambda: not any(map(alive, (pids["setsid"], pids["forked"]))), 30, "the end of the daemons")
    assert alive(pids["neighbour"])
    cluster.execute("scancel", job)
    until(lambda: not alive(pids["neighbour"]), 60, "the end of the neighbour's daemon")


def alive(pid: int) -> bool:
    process = ProcessId.of(pid)
    return process is not None and process.alive()


def test_a_job_may_ask_for_temporary_disk_as_far_as_there_is_some(cluster: Checkout) -> None:
    assert cluster.execute("srun", "--tmp=30G", "echo", "there") == "there\n"
    asked = cluster.cluster("exec", "--", "sbatch", "--tmp=38G", "--wrap", "true")
    assert asked.returncode != 0
    assert "Requested node configuration is not available" in asked.stderr


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ("--ntasks-per-socket=2 -n2", True),
        ("--threads-per-core=1 --sockets-per-node=1 --cores-per-socket=2", True),
        ("-B 1:2:1", True),
        ("--hint=nomultithread", True),
        ("--ntasks-per-core=1 -n2", True),
        ("--ntasks-per-socket=1 -n2 -N1", False),
        ("--sockets-per-node=2", False),
        ("--cores-per-socket=3", False),
        ("--threads-per-core=2", False),
    ],
)
def test_options_of_sockets_and_cores_count_a_nodes(cluster: Checkout, options: str, accepted: bool) -> None:
    assert could_run(cluster, options) is accepted


def could_run(cluster: Checkout, options: str) -> bool:
    """Submit a job and cancel it.

    `--test-only` refuses every job while all nodes of a partition go off, and `--hold` refuses none.
    """
    words = ["--parsable", "--partition=wide", "--mem=10", "--output=/dev/null", *options.split()]
    submitted = cluster.cluster("exec", "--", "sbatch", *words, "--wrap", "true")
    if submitted.returncode == 0:
        cluster.execute("scancel", submitted.stdout.strip())
        return True
    assert "Requested node configuration is not available" in submitted.stderr
    return False


def test_each_cpu_of_a_node_takes_a_job(cluster: Checkout) -> None:
    """As without sockets in slurm.conf: a script of one CPU is placed as before."""
    meet = "touch /tmp/at.$SLURM_JOB_ID; while [ $(ls /tmp | grep -c at.) -lt 2 ]; do sleep 0.1; done"
    words = ["sbatch", "--wait", "--partition=wide", "--mem=10", "--output=/dev/null", "--wrap", meet]
    # Each ends when the other one runs beside it.
    cluster.execute("sh", "-c", '"$@" & "$@"; wait $!', "sh", *words)


def test_a_file_of_the_login_machines_tmp_is_sent_to_the_nodes(cluster: Checkout, host: Path) -> None:
    source, target = host / "source", f"{host}-sent"
    source.write_text("sent\n")
    script = f"sbcast {source} {target} && srun cat {target}"
    assert cluster.execute("salloc", "-N2", "sh", "-c", script) == "sent\nsent\n"
    assert beside(host) == []
    # A script is sent along with its job.
    (host / "job.sh").write_text("#!/bin/sh\necho ran\n")
    out = host / "home" / "script.out"
    cluster.execute("sbatch", "--wait", f"--output={out}", str(host / "job.sh"))
    assert out.read_text() == "ran\n"


def test_logs_finds_a_jobs_output_in_its_nodes_tmp(cluster: Checkout, host: Path) -> None:
    ask = ["sbatch", "--wait", "--parsable", f"--output={host}-%j", "--wrap", "echo from $SLURMD_NODENAME"]
    job = cluster.execute(*ask).strip()
    shown = cluster.cluster("logs", job, check=True).stdout
    found = re.search(rf"==> output: (\S+)/{host.name}-{job} .*\nfrom (debug-\d)$", shown, re.MULTILINE)
    assert found is not None, shown
    folder = machine_tmp(cluster, found[2])
    assert Path(found[1]) == folder
    assert beside(host) == []

    cluster.chaos("kill", found[2])
    until(lambda: not folder.exists(), 60, "the end of the lost machine's files")
    shown = cluster.cluster("logs", job, check=True).stdout
    assert f"(not there: it was in the /tmp of {found[2]}, which ended with that machine)" in shown
    # Slurm would try the next test's job on the dead machine first, and repeat it only after half a minute.
    node = ("sinfo", "--noheader", f"--nodes={found[2]}", "--Node", "--format=%T")
    until(lambda: cluster.ask(*node).strip() == "idle~", 120, "a node that is off")


def test_a_job_from_a_folder_that_only_the_login_machine_has_is_explained(
    cluster: Checkout, host: Path
) -> None:
    (host / "elsewhere").mkdir()
    words = [f"--chdir={host}/elsewhere", f"--output={host}/home/where", "--wrap", "pwd"]
    job = cluster.execute("sbatch", "--wait", "--parsable", *words).strip()
    assert (host / "home" / "where").read_text().splitlines()[-1] == "/tmp"
    shown = cluster.cluster("logs", job, check=True).stdout
    assert "is not on the node, which has a /tmp of its own, so the job ran there" in shown


def test_a_node_that_is_idle_long_enough_takes_its_files_with_it(cluster: Checkout, host: Path) -> None:
    node = cluster.execute("srun", "-N1", "sh", "-c", f"touch {host}-last; echo $SLURMD_NODENAME").strip()
    folder = machine_tmp(cluster, node)
    assert (folder / f"{host.name}-last").exists()
    until(lambda: not folder.exists(), 120, "the end of an idle machine's files")
    assert cluster.execute("srun", f"--nodelist={node}", "find", "/tmp", "-name", f"{host.name}-*") == ""
