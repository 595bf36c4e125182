"""A cluster of machines that boot: head, login machine and nodes as on a cloud, from zero and back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localcloud import volumes
from localcloud.containers import BootPlan, disk_folder, leftovers
from node.backup import archive
from node.system import rpc
from operations.access import TOOL
from operations.local import container_images, machine_access
from operations.local.run_directory import RunDirectory
from tests.support import published_script
from tests.support.checkout import Checkout, until
from tests.support.containers import cluster_image
from tests.support.mishaps import end, quick_benchmark, until_saved
from tests.support.off_clock import environment, library

# The first test makes the machines' image where there is none.
pytestmark = pytest.mark.timeout(1500)

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container}
        login: {count: 1}
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 4}, default: true}
        slurm: {suspend_time: 12, accounting: true, settings: {KillWait: 45}}
      slurm-stacks:benchmark: BENCHMARK
"""
# By default test_containers_cluster.py has `up` run a benchmark on two nodes.
PLAIN = STACK.replace("BENCHMARK", "{enabled: false}")
TRAINS = STACK.replace("BENCHMARK", "{nodes: 2, epochs: 2, data: synthetic, profile: sync}")
GREEDY = "x = bytearray(300 * 1024 * 1024)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    cluster_image(PLAIN)
    checkout = Checkout(tmp_path_factory.mktemp("containers") / "a checkout", PLAIN)
    quick_benchmark(checkout)
    # The checkout has a cache of its own; the machines' image is taken from this machine's cache.
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks" / "images").symlink_to(
        container_images.image_folder()
    )
    before = links()
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        with contextlib.suppress(OSError, ValueError):
            # The agent, which knew the machines, is gone; `down` finds them all the same.
            end(int((checkout.run_directory / "cloud" / "agent.lock").read_text()))
        left = checkout.close()
    assert left == []
    assert leftovers(checkout.run_directory) == []
    assert links() <= before, "a bridge or a cable of theirs is this host's"


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def recorded(checkout: Checkout) -> set[str]:
    """Return the states of a job according to sacct on the login machine."""
    return set(checkout.execute("sacct", "-X", "-a", "-n", "--format=State").split())


def states(checkout: Checkout) -> set[str]:
    return set(checkout.execute("sinfo", "--noheader", "--Node", "--format=%T").split())


def job(checkout: Checkout, number: str) -> str:
    text = checkout.execute("scontrol", "--oneliner", "show", "job", number)
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)["JobState"]


def living(checkout: Checkout) -> list[dict[str, Any]]:
    """Return the local cloud's records of living machines."""
    agent = RunDirectory(checkout.run_directory).agent_socket
    return list(rpc.call(str(agent), "inspect", 10.0)["machines"])


def cloud_states(checkout: Checkout) -> set[str]:
    return {str(machine["state"]) for machine in living(checkout)}


def machine(checkout: Checkout, node: str) -> dict[str, Any]:
    """Return the running machine of this name."""
    (found,) = [m for m in living(checkout) if (m["node"], m["state"]) == (node, "running")]
    return found


def test_jobs_run_on_machines_that_came_up_for_them_and_went_again(cluster: Checkout) -> None:
    until(lambda: states(cluster) == {"idle~"}, 120, "a cluster without nodes")
    assert cluster.execute("hostname").strip() == "login-0"

    # Every node finds every other one by its name, at an address that is not this host's.
    script = "hostname; for n in 0 1; do getent hosts debug-$n; done; while [ ! -e seen ]; do sleep 0.1; done"
    with ThreadPoolExecutor() as pool:
        # Also where tasks find each other by PMIx, as MPI's do.
        said = pool.submit(cluster.execute, "srun", "-N2", "--mpi=pmix", "sh", "-c", script)
        try:
            until(lambda: cluster.status()["machines"]["running"] == 2, 120, "two machines")
        finally:
            cluster.execute("touch", "seen")
        lines = said.result().splitlines()
    names = [f"debug-{number}" for number in range(2)]
    assert sorted(line for line in lines if " " not in line) == names
    # A node has its full name as well, and one line like all others.
    found = sorted((line.split()[0], line.split()[-1]) for line in lines if " " in line)
    assert found == sorted(len(names) * [(f"10.99.1.{number}", name) for number, name in enumerate(names)])
    assert socket.gethostname() not in names
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    until(lambda: cluster.status()["machines"]["running"] == 0, 120, "zero machines")
    # The controller has heard of each boot from the node itself.
    heard = disk_folder(cluster.run_directory, "controller") / "lib" / "reports"
    for number in range(2):
        said = json.loads((heard / f"10.99.1.{number}.json").read_text())
        assert (said["state"], said["failure"], said["notice"]) == ("ready", None, None)


def test_sacct_works_where_people_log_in(cluster: Checkout) -> None:
    cluster.execute("srun", "true")
    until(lambda: "COMPLETED" in recorded(cluster), 120, "the record")


def on(checkout: Checkout, *argv: str, controller: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command as root on the login machine or the controller, without a session of PAM's."""
    command = machine_access.command(RunDirectory(checkout.run_directory), argv, controller=controller)
    return subprocess.run(command.argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.wide
def test_who_comes_tomorrow_has_an_account_by_logging_in(cluster: Checkout) -> None:
    for controller in (True, False):
        words = ("useradd", "--uid=2101", "--no-create-home", "--home-dir=/tmp", "--shell=/bin/bash", "ada")
        assert on(cluster, *words, controller=controller).returncode == 0
    submits = ("sbatch", "--hold", "--parsable", "--chdir=/tmp", "--wrap", "true")
    as_ada = ("setpriv", "--reuid=2101", "--regid=2101", "--clear-groups")
    assert "Invalid account" in on(cluster, *as_ada, *submits).stderr, "no session, no account"
    # The PAM of sshd, su and sudo includes what the boot has changed.
    for service, part in (("sshd", ""), ("su", ""), ("sudo", "-noninteractive")):
        pam = Path("/etc/pam.d") / service
        assert f"@include common-session{part}" in on(cluster, "cat", str(pam)).stdout.split("\n"), service
    number = on(cluster, "su", "ada", "-c", " ".join(shlex.quote(word) for word in submits)).stdout.strip()
    try:
        assert number.isdigit()
        users = cluster.execute("sacctmgr", "-nP", "list", "association", "format=account,user").split()
        assert "users|ada" in users
        assert len(users) == len(set(users))
    finally:
        cluster.execute("scancel", number)


def test_an_option_of_the_stack_file_arrives_where_people_log_in(cluster: Checkout) -> None:
    """The controller has tried it as root, for a slurmctld of Slurm's user with a database."""
    assert re.search(r"^KillWait\s*= 45 sec", cluster.execute("scontrol", "show", "config"), re.MULTILINE)
    assert "KillWait=45" in cluster.execute("cat", "/etc/slurm/slurm.conf"), "the login machine's own file"


def test_all_machines_share_home_and_nothing_else(cluster: Checkout) -> None:
    # rsync has to be on both sides.
    wrap = "hostname; echo $PWD; touch /etc/of-a-node; rsync --version >/dev/null || echo no rsync"
    number = cluster.execute("sbatch", "--parsable", "--wrap", wrap).strip()
    until(lambda: job(cluster, number) == "COMPLETED", 120, "the batch job")
    host, folder = cluster.execute("cat", f"slurm-{number}.out").split()
    assert host.startswith("debug-")
    assert folder == cluster.execute("pwd").strip()
    assert cluster.execute("rsync", "--version").startswith("rsync")
    assert folder.startswith("/home/")
    cluster.execute("test", "!", "-e", "/etc/of-a-node")
    assert not Path("/etc/of-a-node").exists()


def test_a_job_runs_the_python_of_training_environments_by_any_of_its_names(cluster: Checkout) -> None:
    """An environment's link leads to one of them; on the machines only what is bound there exists."""
    names = ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    there = [path for name in names if (path := Path(sys.base_prefix).resolve() / "bin" / name).exists()]
    assert there
    for path in there:
        assert cluster.execute("srun", str(path), "-c", "import ctypes, json; print(6 * 7)").strip() == "42"


def test_exec_passes_input_output_and_status(cluster: Checkout) -> None:
    done = cluster.cluster("exec", "--", "sh", "-c", "cat; echo problem >&2; exit 7", stdin="some text")
    assert (done.stdout, done.returncode) == ("some text", 7)
    assert "problem" in done.stderr
    assert cluster.cluster("exec", "--", "no-such-command").returncode == 127
    assert "slurmctld" in cluster.cluster("logs", "--lines=5").stdout


def test_the_published_script_runs_as_the_page_says(cluster: Checkout) -> None:
    published_script.check(cluster, lambda number: job(cluster, number))


def test_files_go_to_the_shared_home_and_come_back(cluster: Checkout, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a file").write_text("content\n")
    cluster.cluster("cp", str(data), ":", check=True)
    assert cluster.execute("cat", "data/a file") == "content\n"
    cluster.execute("sh", "-c", "hostname >data/host; hostname >/etc/of-the-login-machine")
    cluster.cluster("cp", ":data/host", ":/etc/of-the-login-machine", str(tmp_path), check=True)
    assert (tmp_path / "host").read_text() == (tmp_path / "of-the-login-machine").read_text() == "login-0\n"
    # A user's link leads to the machine's own files, never to this host's.
    cluster.execute("sh", "-c", "ln -s /etc there; ln -s /etc/hostname name; mkdir many; touch many/1 many/2")
    cluster.cluster("cp", str(data / "a file"), ":there/of-slurm-stacks-cp", check=True)
    assert not Path("/etc/of-slurm-stacks-cp").exists()
    assert cluster.execute("cat", "/etc/of-slurm-stacks-cp") == "content\n"
    cluster.cluster("cp", ":there/hostname", ":many/[12]", ":name", str(tmp_path), check=True)
    assert (tmp_path / "hostname").read_text() == "login-0\n"
    assert (tmp_path / "1").is_file()
    assert (tmp_path / "name").is_symlink()
    told = cluster.cluster("cp", ":no-such", str(tmp_path))
    assert (told.returncode, told.stderr) == (
        1,
        ":no-such: there is no such file on the login machine [cp.no-remote-file]\n",
    )


def test_openssh_reaches_the_login_machine_by_the_stanza(cluster: Checkout, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(cluster.cluster("ssh-config", check=True).stdout)
    alias = f"slurm-stacks-{cluster.stack}"

    def works(*words: str) -> str:
        environment = {name: text for name, text in os.environ.items() if name != "SSH_AUTH_SOCK"}
        done = subprocess.run(
            words, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert works("ssh", "-F", str(config), alias, "hostname; sinfo -h -o %P") == "login-0\ndebug*\n"
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    works("scp", "-F", str(config), str(tmp_path / "big"), f"{alias}:by-scp")
    assert cluster.execute("stat", "-c", "%s", "by-scp") == "3000000\n", "it lies in the shared home"
    works("scp", "-F", str(config), f"{alias}:by-scp", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "big").read_bytes()


def test_a_job_learns_its_number_by_a_process_of_its_own(cluster: Checkout) -> None:
    """Slurm looks for the process's cgroup where /proc says it is."""
    line = "scontrol pidinfo $$; echo JobId=$SLURM_JOB_ID"
    said = cluster.execute("srun", "-N1", "sh", "-c", line, timeout=300)
    found = re.findall(r"JobId=(\d+)", said)
    assert (len(found), len(set(found))) == (2, 1), said


def test_a_job_over_its_memory_is_killed_by_its_cgroup(cluster: Checkout) -> None:
    line = f"srun -N1 --mem=50 python3 -c '{GREEDY}' 2>&1 || echo it failed"
    said = cluster.execute("sh", "-c", line, timeout=120)
    assert said.endswith("it failed\n"), said
    assert re.search("Out Of Memory|oom-kill", said), said


# By default test_aws_machines.py shows it of a controller of a cloud, and the next test of one that is lost.
@pytest.mark.wide
def test_a_head_that_boots_again_keeps_its_queue(cluster: Checkout) -> None:
    held = cluster.execute("sbatch", "--parsable", "--hold", "--wrap", "echo after the boot").strip()
    before = machine(cluster, "controller")
    first = machine_access.controller(RunDirectory(cluster.run_directory))
    reboot = machine_access.command(RunDirectory(cluster.run_directory), [TOOL])
    # The reboot is asked for in the way in which our own tool runs on the controller.
    subprocess.run([*reboot.argv[:-1], "systemctl", "reboot"], check=True)
    until(
        lambda: machine_access.controller(RunDirectory(cluster.run_directory)) not in (None, first),
        120,
        "a boot",
    )
    until(lambda: job(cluster, held) == "PENDING", 120, "slurmctld with the job")
    assert machine(cluster, "controller")["id"] == before["id"], "the same machine"
    cluster.execute("scontrol", "release", held)
    until(lambda: job(cluster, held) == "COMPLETED", 120, "the job")
    assert cluster.execute("cat", f"slurm-{held}.out").strip() == "after the boot"


def test_a_controller_that_is_lost_with_its_root_disk_has_a_successor_with_its_queue(
    cluster: Checkout,
) -> None:
    """In short what test_head_takeover.py shows of every kind of job and of loss."""
    waits = "while [ ! -e goes-on ]; do sleep 0.1; done; echo whole"
    number = cluster.execute("sbatch", "--parsable", "--wrap", waits).strip()
    until(lambda: job(cluster, number) == "RUNNING", 120, "the job")
    # A power cut loses what the machine has not written to its disk.
    until_saved(cluster)
    until(lambda: "RUNNING" in recorded(cluster), 120, "the job's record")
    end(machine(cluster, "controller")["process"]["pid"])
    until(lambda: volumes.attached(cluster.run_directory) == [], 60, "the disk, which nobody has")
    for part in ("root", "lib"):
        shutil.rmtree(disk_folder(cluster.run_directory, "controller") / part)
    told = cluster.cluster("exec", "--", "squeue")
    assert "starts it again" in told.stderr
    again = cluster.cluster("up", check=True)
    assert "the controller has ended" in again.stderr
    assert job(cluster, number) == "RUNNING"
    assert recorded(cluster) >= {"RUNNING"}, "its records are there as well"
    cluster.execute("touch", "goes-on")
    until(lambda: job(cluster, number) == "COMPLETED", 120, "the job")
    assert cluster.execute("cat", f"slurm-{number}.out").strip() == "whole"


def test_a_backup_is_taken_while_jobs_go_on(cluster: Checkout, tmp_path: Path) -> None:
    held = cluster.execute("sbatch", "--parsable", "--hold", "--wrap", "true").strip()
    file = tmp_path / "mine.backup.tar"
    answer = json.loads(cluster.cluster("backup", str(file), "--json", check=True).stdout)
    assert answer["file"] == str(file)
    content = tmp_path / "content"
    manifest = archive.read(file, content)
    assert (manifest.accounting, manifest.as_json()) == (True, answer["backup"])
    archive.unpack(content, tmp_path / "new")
    assert "CREATE TABLE `" in (tmp_path / "new" / "accounting.sql").read_text()
    script = tmp_path / "new" / "state" / f"hash.{int(held) % 10}" / f"job.{held}" / "script"
    assert "\ntrue\n" in script.read_text()
    assert (tmp_path / "new" / "state" / "clustername").read_text().split() == ["test"]
    assert job(cluster, held) == "PENDING"
    # It is no new cluster, so nothing is restored into it.
    refused = cluster.cluster("restore", str(file))
    assert (refused.returncode, "[restore.not-empty]" in refused.stderr) == (3, True)
    cluster.execute("scancel", held)


@pytest.mark.wide
def test_a_login_machine_that_died_is_made_anew(cluster: Checkout) -> None:
    end(machine(cluster, "login-0")["process"]["pid"])
    until(lambda: cluster.execute("hostname", check=False).strip() == "controller", 120, "another way in")
    assert "login-0 has ended" in cluster.cluster("up", check=True).stderr
    assert cluster.execute("hostname").strip() == "login-0"


@pytest.mark.wide
def test_machines_outlive_their_agent(cluster: Checkout) -> None:
    agent = int((cluster.run_directory / "cloud" / "agent.lock").read_text())
    controller = machine(cluster, "controller")["id"]
    end(agent)
    assert cluster.execute("hostname").strip() == "login-0"
    cluster.cluster("up", check=True)
    assert machine(cluster, "controller")["id"] == controller
    assert len(cluster.execute("srun", "-N3", "hostname").split()) == 3


# By default test_faults.py does the same to process machines.
@pytest.mark.wide
def test_nodes_that_are_lost_are_replaced_and_their_jobs_run_again(cluster: Checkout) -> None:
    actions = ("kill", "freeze", "cut")
    script = 'hostname; [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 600'
    words = ("sbatch", "--parsable", "--open-mode=append", "--exclusive", "--wrap", script)
    jobs = [cluster.execute(*words).strip() for _ in actions]

    def ran(number: str) -> list[str]:
        """Return the nodes where the job has run so far. Its output also has Slurm's complaints."""
        said = cluster.execute("cat", f"slurm-{number}.out", check=False)
        return re.findall(r"^debug-\d$", said, re.MULTILINE)

    # Once the jobs have told where they are, they are hit in the middle of their work.
    until(lambda: all(len(ran(number)) == 1 for number in jobs), 200, "their first words")
    first = [ran(number)[0] for number in jobs]
    assert len(set(first)) == len(actions)
    for action, node in zip(actions, first, strict=True):
        cluster.chaos(action, node)
    began = time.monotonic()
    until(lambda: all(job(cluster, number) == "COMPLETED" for number in jobs), 300, "their second runs")
    print(f"all done again after {time.monotonic() - began:.1f} s")
    assert [(len(ran(number)), ran(number)[0]) for number in jobs] == [(2, node) for node in first]


@pytest.mark.wide
def test_a_node_that_boots_slowly_is_waited_for(cluster: Checkout) -> None:
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    cluster.chaos("set", "boot_delay=4", "boot_spread=0")
    try:
        number = cluster.execute("sbatch", "--parsable", "--wrap", "hostname").strip()
        until(lambda: "pending" in cloud_states(cluster), 120, "a machine that is not on yet", 0.02)
        until(lambda: job(cluster, number) == "COMPLETED", 120, "the job")
    finally:
        cluster.chaos("clear")
    assert cluster.execute("cat", f"slurm-{number}.out").startswith("debug-")
    assert "Restarts=0 " in cluster.execute("scontrol", "--oneliner", "show", "job", number)


def test_a_node_that_is_taken_back_lets_its_job_save_its_work(cluster: Checkout) -> None:
    waits = "touch ready; while :; do sleep 600 & wait; done"
    script = f"[ -e saved ] && exit 0; trap 'touch saved; exit 0' TERM; {waits}"
    number = cluster.execute("sbatch", "--parsable", "--wrap", script).strip()
    home = cluster.run_directory / "shared" / "root"
    until((home / "ready").exists, 120, "the job")
    node = cluster.execute("squeue", "--noheader", "--format=%N", f"--job={number}").strip()
    before = machine(cluster, node)["id"]
    cluster.chaos("preempt", node, "--notice", "40")
    until((home / "saved").exists, 120, "SIGTERM to the job")
    until(lambda: job(cluster, number) == "COMPLETED", 200, "its second run")
    assert "Restarts=1 " in cluster.execute("scontrol", "--oneliner", "show", "job", number)
    until(lambda: before not in [m["id"] for m in living(cluster)], 120, "the end of the machine")


@pytest.mark.wide
def test_a_sweep_and_its_report(cluster: Checkout, tmp_path: Path) -> None:
    """`up` runs the benchmark on two nodes; the page has that, and the run on one."""
    cluster.write_stack(TRAINS)
    cluster.cluster("up", check=True)
    page, table = cluster.cluster("run", "--nodes", "1", check=True).stdout.splitlines()[-2:]
    assert "<html" in Path(page).read_text()[:500]
    runs = Path(table).read_text().splitlines()
    assert sum("local.small" in line for line in runs) == 2, runs
    again = cluster.cluster("report", check=True).stdout.splitlines()[-2:]
    assert [Path(path).exists() for path in again] == [True, True]


def test_a_disk_that_is_full_is_a_boot_that_fails_and_says_so(cluster: Checkout) -> None:
    run = RunDirectory(cluster.run_directory)
    # A node that is up keeps the size of its disk.
    off = ("sinfo", "--noheader", "--Node", "--nodes=debug-3", "--format=%T")
    until(lambda: cluster.execute(*off).strip() == "idle~", 120, "a node that is off")
    plan = BootPlan.read(run.path)
    dataclasses.replace(plan, disk_mib={"debug-3": 48}).write(run.path)
    try:
        number = cluster.execute("sbatch", "--parsable", "-w", "debug-3", "--wrap", "true").strip()

        why = "are free, 64 are needed; make room there"
        report = run.path / "bucket" / "boot" / "debug-3.json"
        until(lambda: report.exists() and why in report.read_text(), 200, "the reason")
        assert why in cluster.cluster("logs", "debug-3", "--lines=40").stdout
        cluster.execute("scancel", number)
    finally:
        plan.write(run.path)


@pytest.mark.wide
def test_a_clock_that_is_off_is_a_boot_that_fails_and_says_so(cluster: Checkout, tmp_path: Path) -> None:
    """It is behind: by its own clock its boot report would be older than its launch."""
    layer = tmp_path / "layer"
    preloaded = "/usr/lib/off-clock.so"
    (layer / "usr/lib").mkdir(parents=True)
    shutil.copy(library(), f"{layer}{preloaded}")
    (layer / "etc/systemd/system.conf.d").mkdir(parents=True)
    words = " ".join(f"{name}={value}" for name, value in environment(-600.0, preloaded).items())
    (layer / "etc/systemd/system.conf.d/off.conf").write_text(f"[Manager]\nDefaultEnvironment={words}\n")
    run = RunDirectory(cluster.run_directory)
    # A node that is up has the clock that it has.
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    plan = BootPlan.read(run.path)
    dataclasses.replace(plan, layers=(str(layer), *plan.layers)).write(run.path)
    try:
        number = cluster.execute("sbatch", "--parsable", "-w", "debug-2", "--wrap", "true").strip()

        def told() -> str:
            return cluster.execute("scontrol", "--oneliner", "show", "job", number)

        until(lambda: "clock is 600 s behind the controller's" in told(), 200, "the job's comment")
        output = cluster.cluster("logs", "debug-2", "--lines=40").stdout
        assert "munge refuses messages that are 300 s off" in output
        assert "chronyc tracking" in output
        cluster.execute("scancel", number)
    finally:
        plan.write(run.path)


class Users:
    """Users of the stack file, who all have one key.

    Args:
        folder: For the key and the configuration of OpenSSH.
    """

    def __init__(self, cluster: Checkout, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        public = key.with_suffix(".pub").read_text().strip()
        self.bob = f"{{name: bob, id: 2002, groups: ['research:3001'], ssh_keys: [{public}]}}"
        self.ada = self.bob.replace("bob", "ada").replace("2002", "2001").replace("}", ", sudo: true}")

    def settle(self, *users: str) -> str:
        """Bring up the cluster with these users. A login machine has new host keys then."""
        key = f"        users: [{', '.join(users)}]\n      slurm-stacks:benchmark"
        self._cluster.write_stack(PLAIN.replace("      slurm-stacks:benchmark", key))
        told = self._cluster.cluster("up", check=True).stderr
        stanza = self._cluster.cluster("ssh-config", check=True).stdout
        (self._folder / "config").write_text(stanza)
        return told

    def ssh(self, user: str, line: str) -> subprocess.CompletedProcess[str]:
        options = ("-F", str(self._folder / "config"), "-i", str(self._folder / "key"), "-l", user)
        words = ("ssh", *options, "-o", "IdentitiesOnly=yes", f"slurm-stacks-{self._cluster.stack}", line)
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=90)


def test_users_of_the_stack_file_log_in_and_run_jobs_on_a_node_that_was_up_before(
    cluster: Checkout, tmp_path: Path
) -> None:
    waits = "while [ ! -e all-seen ]; do sleep 0.2; done"
    number = cluster.execute("sbatch", "--parsable", "-w", "debug-0", "--wrap", waits).strip()
    until(lambda: job(cluster, number) == "RUNNING", 120, "a job that keeps its node up")
    before = machine(cluster, "debug-0")["id"]
    users = Users(cluster, tmp_path)
    users.settle(users.ada, users.bob)
    # They have their numbers, groups, homes and rights, where they log in and in a job on the node.
    line = "exec 2>&1; id -u; id -Gn; stat -c '%U %a' ~; sudo -n id -u; hostname"
    run = f"srun -w debug-0 sh -c '{line.replace(chr(39), chr(34))}'"
    for user, uid, root in (("ada", 2001, "0"), ("bob", 2002, "sudo: a password is required")):
        said = [str(uid), f"{user} research", f"{user} 700", root]
        done = users.ssh(user, line)
        assert done.stdout.splitlines()[-5:] == [*said, "login-0"], done
        # The node has one CPU, and goes when it is idle for a while: its first job has ended before ada's.
        cluster.execute("touch", "all-seen")
        done = users.ssh(user, run)
        assert done.stdout.splitlines()[-5:] == [*said, "debug-0"], done
        if user == "ada":
            assert machine(cluster, "debug-0")["id"] == before
    # And the way from machine to machine.
    assert users.ssh("ada", "srun -w debug-0 true && ssh debug-0 hostname").stdout == "debug-0\n"
    # A login machine has no elastic daemon, so the cluster's own command goes to the controller.
    for asked in ("status", "cost"):
        done = users.ssh("bob", f"slurm-stacks {asked}")
        assert done.stdout.startswith("{"), done
    done = users.ssh("bob", "slurm-stacks logs controller")
    assert "slurmctld" in done.stdout, done


# By default tests/node/test_boot_vm_cluster_users.py shows what is done to who leaves.
@pytest.mark.wide
def test_who_leaves_the_stack_file_is_locked_out_and_nobody_gets_the_number(
    cluster: Checkout, tmp_path: Path
) -> None:
    users = Users(cluster, tmp_path)
    users.settle(users.ada, users.bob)
    number = users.ssh(
        "bob", "echo mine >note; sbatch --parsable --wrap 'while [ ! -e end ]; do sleep 0.2; done'"
    )
    until(lambda: job(cluster, number.stdout.strip()) == "RUNNING", 120, "bob's job")
    left = "bob (id 2002) has left the stack file: the account is locked, /home/bob stays"
    assert left in users.settle(users.ada)
    assert "Permission denied" in users.ssh("bob", "true").stderr
    assert users.ssh("ada", "sudo cat /home/bob/note; sudo touch /home/bob/end").stdout == "mine\n"
    until(lambda: job(cluster, number.stdout.strip()) == "COMPLETED", 120, "bob's job, which goes on")
    with pytest.raises(AssertionError, match="the files of ada belong to 2001"):
        users.settle(users.ada.replace("2001", "2003"))
    left = "eve is not made: the id 2002 is that of bob, who has left the stack file"
    assert left in users.settle(users.ada, users.bob.replace("bob", "eve"))
