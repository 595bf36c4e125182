"""Usual multi-node scripts on process machines: nodes are reached by their names."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import addresses, hosts_namespace
from node.design.published import read_settings
from operations.local import namespaces, system_packages
from tests.support.checkout import ROOT, SMALL, Checkout, running, until
from tests.support.net_machines import need_net_machines
from tests.support.ordinary_user import OrdinaryUser

needs_views = pytest.mark.skipif(
    (_problem := namespaces.unsupported_reason("127.9.64.0")) is not None,
    reason=f"no hosts namespaces here: {_problem}",
)
REFUSED = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
"""Runs a command as the root of a container that may not make namespaces."""
PYTHON = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
FREE_PORT = "import socket, sys; s = socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1])"
HEAD = f"""\
#!/bin/bash
#SBATCH --ntasks-per-node=1
set -e
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
export MASTER_PORT=$({PYTHON} -c '{FREE_PORT}' $MASTER_ADDR)
"""
MEETING = f"{HEAD}srun {PYTHON} {{program}} 3\n"
TORCHRUN = f"""{HEAD}
srun {shlex.quote(sys.executable)} -m torch.distributed.run --nnodes=3 --nproc-per-node=1 \\
    --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT {{program}}
"""
TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
mine = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(mine)
print("sum", mine.item())
"""
ASK = "import json, socket, sys; print(json.dumps([socket.gethostbyname(n) for n in sys.argv[1:]]))"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    # Nodes stay for the next test: a boot costs as much CPU as all the test does.
    stack = SMALL.replace("suspend_time: 4", "suspend_time: 120")
    with running(tmp_path_factory.mktemp("cluster") / "a checkout", stack) as checkout:
        yield checkout


def batch(checkout: Checkout, folder: Path, script: str) -> str:
    """Run a script on three nodes and return its output."""
    job, output = folder / "job.sh", folder / "job.out"
    job.write_text(script)
    done = checkout.cluster("exec", "--", "sbatch", "-N3", "--wait", f"--output={output}", str(job))
    printed = output.read_text() if output.exists() else ""
    assert done.returncode == 0, done.stderr + printed
    return printed


def meet(checkout: Checkout, folder: Path) -> dict[str, str]:
    """Let three nodes meet at the first one. Returns node -> the address at which it was reached."""
    program = shutil.copy2(ROOT / "tests" / "support" / "meeting.py", folder)
    lines = batch(checkout, folder, MEETING.format(program=program)).splitlines()
    told = {line.split(" ", 1)[0]: json.loads(line.split(" ", 1)[1]) for line in lines if "{" in line}
    (met,) = {json.dumps(found, sort_keys=True) for found in told.values()}
    assert told.keys() == json.loads(met).keys()
    return dict(json.loads(met))


@needs_views
def test_a_batch_script_meets_at_its_first_node_by_name(cluster: Checkout, tmp_path: Path) -> None:
    met = meet(cluster, tmp_path)
    assert len(met) == 3
    (address,) = set(met.values())
    assert re.fullmatch(r"127\.(?!0\.)[\d.]+", address), "an address of its own"


@needs_views
def test_every_name_leads_to_one_node_from_everywhere(cluster: Checkout) -> None:
    every = ["controller", *(f"debug-{i}" for i in range(10))]
    ask = [os.path.realpath(sys.executable), "-I", "-S", "-c", ASK, *every]
    answer = json.loads(cluster.execute(*ask))
    assert len(set(answer)) == len(every)
    first = addresses.saved_block(cluster.run_directory)
    assert first is not None
    assert answer[:2] == [addresses.head_address(first, 0), addresses.first_node_address(first)]
    assert [json.loads(line) for line in cluster.execute("srun", "-N3", *ask).splitlines()] == [answer] * 3
    # The programs that scripts use and Slurm have the same addresses.
    assert cluster.execute("getent", "hosts", "debug-4").split() == [answer[5], "debug-4"]
    shown = cluster.execute("srun", "-N2", "getent", "hosts", "debug-4").splitlines()
    assert [line.split() for line in shown] == [[answer[5], "debug-4"]] * 2
    assert f"NodeAddr={answer[5]} " in cluster.execute("scontrol", "show", "node", "debug-4")


@needs_views
def test_a_nodes_host_name_is_its_name(cluster: Checkout) -> None:
    script = "echo $(hostname) $SLURMD_NODENAME"
    lines = cluster.execute("srun", "-N3", "sh", "-c", script).splitlines()
    assert len(lines) == 3
    for line in lines:
        host, node = line.split()
        assert host == node
        assert re.fullmatch(r"debug-\d", host)
    assert cluster.execute("hostname") == "controller\n"


@pytest.mark.skipif(bool(system_packages.missing_for_pmix()), reason="this host has no libpmix for Slurm")
def test_tasks_on_several_nodes_find_each_other_by_pmix(cluster: Checkout) -> None:
    """Slurm makes a folder of the step's name on each node."""
    ran = cluster.execute("srun", "-N3", "--mpi=pmix", "printenv", "PMIX_RANK", "PMIX_SERVER_TMPDIR")
    lines = ran.splitlines()
    assert {line for line in lines if line.isdigit()} == {"0", "1", "2"}
    folders = {Path(line) for line in lines if not line.isdigit()}
    assert len(folders) == 3
    assert all(cluster.run_directory in folder.parents for folder in folders), "they end with the cluster"


@needs_views
def test_the_documented_line_names_the_node_of_rank_0(cluster: Checkout) -> None:
    """Slurm sorts a step's nodes, also where the first component, which has rank 0, is on the last one."""
    (line,) = re.findall(r"^export MASTER_ADDR=.*$", (ROOT / "docs" / "local.md").read_text(), re.MULTILINE)
    script = f'{line}; echo "$SLURM_PROCID $MASTER_ADDR $SLURMD_NODENAME"'
    for parts in (("-wdebug-2", "-n1", ":", "-wdebug-0", "-n1"), ("-wdebug-[1-2]", "-n2")):
        ran = cluster.execute("srun", *parts, "bash", "-c", script).splitlines()
        ranks = {rank: (address, node) for rank, address, node in map(str.split, ran)}
        assert {address for address, _ in ranks.values()} == {ranks["0"][1]}


def test_a_job_knows_whose_it_is(cluster: Checkout) -> None:
    """As after a login, also where the caller's environment says nothing of it."""
    nothing = {"USER": "", "LOGNAME": ""}
    ran = cluster.cluster("exec", "--", "srun", "printenv", "USER", "LOGNAME", env=nothing, check=True)
    assert set(ran.stdout.split()) == {pwd.getpwuid(os.getuid()).pw_name}


def test_memory_counts_and_a_job_has_its_cores_share_of_it(cluster: Checkout) -> None:
    shown = "scontrol show node $SLURMD_NODENAME | grep -o AllocMem=[0-9]*"
    assert cluster.execute("srun", "-N1", "--mem=300", "sh", "-c", shown) == "AllocMem=300\n"
    assert cluster.execute("srun", "-N1", "sh", "-c", shown) == "AllocMem=1024\n"
    assert cluster.cluster("exec", "--", "srun", "-N1", "--mem=1025", "true").returncode == 1


@needs_views
@pytest.mark.skipif(not hosts_namespace.SLURM.is_dir(), reason="this host has no /etc/slurm")
def test_programs_that_clean_slurms_variables_keep_the_cluster(cluster: Checkout, tmp_path: Path) -> None:
    """Snakemake's executor does that (snakemake-executor-plugin-slurm-jobstep)."""
    clean = ["sh", "-c", 'for v in $(env | grep -o "^SLURM_[A-Z_]*"); do unset $v; done; exec "$@"', "sh"]
    conf = cluster.run_directory / "etc" / "slurm.conf"
    before = sorted(hosts_namespace.SLURM.iterdir())
    assert cluster.execute(*clean, "sinfo", "-ho", "%R") == "debug\n"
    script = (
        f"{shlex.join(clean)} srun --jobid=$SLURM_JOB_ID --overlap -n1 printenv SLURMD_NODENAME SLURM_CONF"
    )
    ran = cluster.execute("srun", "-N1", "sh", "-c", script)
    assert re.fullmatch(rf"debug-\d\n({conf}|/etc/slurm/slurm.conf)\n", ran)
    job = cluster.execute(
        *clean, "sbatch", "--parsable", "--wait", f"--output={tmp_path}/out", "--wrap=squeue -h"
    )
    assert job.strip() in (tmp_path / "out").read_text().split()
    assert sorted(hosts_namespace.SLURM.iterdir()) == before, "the host's stays as it is"


@needs_views
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_user_of_this_host_gets_nothing_from_the_cluster(cluster: Checkout) -> None:
    """This user knows all that slurm.conf says and has a munged, but not the cluster's key."""
    run = cluster.run_directory
    cluster.execute("srun", "-N1", "true")
    folder = Path(tempfile.mkdtemp(prefix="stranger-"))
    folder.chmod(0o755)
    text = (run / "etc" / "slurm.conf").read_text()
    (folder / "slurm.conf").write_text(text.replace(f"{run}/run/munge.sock", f"{folder}/munge.sock"))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    with contextlib.closing(OrdinaryUser(folder, "games")) as user:
        files = [f"--{part}={folder}/{part}" for part in ("key-file", "pid-file", "seed-file", "log-file")]
        (folder / "key").rename(folder / "key-file")
        munged = subprocess.Popen(
            user("munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *files),
            stderr=subprocess.DEVNULL,
        )
        try:
            until((folder / "munge.sock").exists, 60, "the stranger's munged")

            def asked(*command: str) -> subprocess.CompletedProcess[str]:
                env = {
                    "PATH": "/usr/bin:/bin",
                    "SLURM_CONF": f"{folder}/slurm.conf",
                    "SLURMD_NODENAME": "debug-0",
                }
                return subprocess.run(
                    user(*command),
                    env=env,
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )

            for command in (
                "squeue",
                "sinfo",
                "scontrol show config",
                "scontrol shutdown",
                "sbatch --wrap=id",
            ):
                done = asked(*command.split())
                assert (done.returncode, done.stdout) == (1, ""), command
                assert "Zero Bytes were transmitted or received" in done.stderr, command
            # slurmd itself.
            assert "Version" not in asked("scontrol", "show", "slurmd").stdout
            seen = {Path(path) for path in asked("find", str(run.parent)).stdout.splitlines()}
            assert run in seen
            assert not any(run in path.parents for path in seen)
        finally:
            munged.terminate()
            munged.wait()
    shutil.rmtree(folder)
    assert "Version" in cluster.execute("srun", "-N1", "--nodelist=debug-0", "scontrol", "show", "slurmd")
    site = read_settings(run / "code" / "settings.json").site
    assert listens(site.slurmctld_port) == {"127.0.0.1"}
    # What cluster there is anybody may see, and nobody can call it.
    with socket.socket(socket.AF_UNIX) as caller, pytest.raises(ConnectionRefusedError):
        caller.connect(f"\0slurm-stacks-{addresses.saved_block(run)}")


def listens(port: int) -> set[str]:
    """Return the addresses on which a program of this host listens on a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {socket.inet_ntoa(bytes.fromhex(place)[::-1]) for place, at in there if int(at, 16) == port}


@needs_views
def test_torchruns_rendezvous(cluster: Checkout, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed beside the tests")
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    assert batch(cluster, tmp_path, TORCHRUN.format(program=program)).count("sum 6.0") == 3


@needs_views
def test_an_ordinary_users_nodes_meet(tmp_path: Path) -> None:
    """Nodes run in user namespaces. The user is not `nobody`, who there seems to own root's files."""
    # pytest's own folders are root's alone.
    folder = Path(tempfile.mkdtemp(prefix="ordinary-user-"))
    folder.chmod(0o755)
    try:
        checkout = Checkout(folder / "a checkout", SMALL)
        user = OrdinaryUser(folder, "games")
        checkout._inside = user
        checkout.env["HOME"] = str(folder / "home")
        (folder / "home").mkdir()
        user.own(folder)
        try:
            up = checkout.cluster("up", check=True)
            if "by name" in up.stderr:
                pytest.skip(up.stderr)
            # The user's nodes write where they may.
            meeting = folder / "home" / "meeting"
            meeting.mkdir(mode=0o777)
            meeting.chmod(0o777)
            assert len(meet(checkout, meeting)) == 3
            file = f"{folder}-own"
            script = f"umask; echo $SLURMD_NODENAME >{file}; sleep 1; cat {file}; stat -c %U:%a /tmp"
            ran = checkout.cluster("exec", "--", "srun", "-N2", "sh", "-c", script, check=True).stdout
            nodes = [line for line in ran.splitlines() if line.startswith("debug-")]
            assert len(set(nodes)) == 2, "each reads what it has written to its own /tmp"
            assert ran.count("games:1777") == 2
            assert not Path(file).exists()
            assert checkout.cluster("down", check=True).returncode == 0
        finally:
            assert checkout.close() == []
            user.close()
    finally:
        shutil.rmtree(folder)


@pytest.mark.wide
def test_a_host_without_a_network_has_a_cluster(tmp_path: Path) -> None:
    """As in a container with `--network none`, or with the radio off."""
    need_net_machines()
    alone = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
    with subprocess.Popen(alone, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        there = ["nsenter", f"--target={host.pid}", "--net"]
        checkout = Checkout(tmp_path / "a checkout", SMALL, inside=lambda *command: [*there, *command])
        try:
            checkout.cluster("up", check=True)
            assert len(meet(checkout, tmp_path)) == 3
            assert checkout.cluster("doctor").returncode == 0
            assert checkout.cluster("down", check=True).returncode == 0
        finally:
            left = checkout.close()
            host.kill()
        assert left == []


@pytest.mark.wide
@pytest.mark.skipif(os.geteuid() != 0, reason="takes a right away from root")
def test_where_namespaces_are_refused_all_else_works(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "a checkout", SMALL, inside=lambda *command: [*REFUSED, *command])
    try:
        assert "nodes do not know each other by name here, they share this host's /tmp" in (
            checkout.cluster("up", check=True).stderr
        )
        nodes = checkout.execute("srun", "-N2", "printenv", "SLURMD_NODENAME").split()
        assert sorted(nodes) == ["debug-0", "debug-1"]
        with tempfile.NamedTemporaryFile(dir="/tmp") as file:
            checkout.execute("srun", "-N2", "test", "-e", file.name)
        plan = json.loads(checkout.cluster("plan", "--json", check=True).stdout)
        assert any("they share this host's /tmp" in text for text in plan["warnings"])
        assert checkout.cluster("exec", "--", "getent", "hosts", "debug-0").returncode == 2
        assert checkout.cluster("down", check=True).returncode == 0
    finally:
        assert checkout.close() == []
