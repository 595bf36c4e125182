"""What a cluster promises, on each release of Slurm that there is: the same scenarios on one cluster each.

`here` is this machine's own Slurm, or that of `SLURM_STACKS_TEST_SLURM` (tests/support/other_slurm.py), on
machines that are processes. The others are machines that boot, from the packages of a suite, or from Debian
13's source package, which is built for that suite. The clouds' GPU nodes boot noble; docs/local.md says what
that needs here.
"""

from __future__ import annotations

import re
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcloud import images
from localcloud.containers import leftovers
from node.slurm import version
from operations.local import container_images, system_packages
from tests.cluster.container_site import image_script
from tests.support.checkout import Checkout, until
from tests.support.containers import need_containers

# The first test of a release makes the machines' image where there is none: with a build on a busy machine.
pytestmark = [pytest.mark.timeout(5400), pytest.mark.wide]

RELEASES = {
    "here": ("process", ""),
    "bookworm": ("container", ""),
    "bookworm-source": ("container", "source: debian-13"),
    "noble-source": ("container", "source: debian-13"),
    "trixie": ("container", ""),
    "forky": ("container", ""),
}
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{isolation: {isolation}{suite}}}
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: {nodes}}}, default: true}}
        slurm: {{suspend_time: 6, accounting: {accounting}{more}, settings: {settings}}}{containers}
      slurm-stacks:benchmark: {{enabled: false}}
"""
GPUS = """
          - name: gpu
            instance_type: local.medium
            accelerator: {type: v100, count: 1}
            nodes: {max: 2}
"""
SHARING = """
        accounts:
          - {name: research, shares: 50, qos: [low, urgent], default_qos: low}
          - {name: interactive, qos: [urgent], limits: {grp_tres: {gres/gpu: 1}}}
        users:
          - {name: grace, id: 2201, account: research, accounts: [interactive]}
          - {name: alan, id: 2202, account: interactive}
        qos: [{name: urgent, priority: 100, preempts: [low]}, {name: low}]
"""
RECONFIGURES = 200
READ = "scontrol reconfigure; until scontrol ping | grep -q UP; do sleep 0.1; done"
AWAY_SECONDS = 5.0
"""How long slurmctld may not answer while it reads its configuration."""
STARVED_SECONDS = 60.0

UNIT = "slurm-stacks-slurmctld.service"
CONTAINER_USER = "games"
"""An ordinary user that every machine has, of the same number."""


@dataclass(frozen=True, slots=True)
class Release:
    """A cluster of one release.

    Attributes:
        shared: the folder on which all of its machines write, as they name it.
        stack: makes the stack file with a number of nodes, and options of slurm.conf.
    """

    checkout: Checkout
    shared: Path
    stack: Callable[..., str]
    accounting: bool
    container: bool

    def run(self, *command: str, timeout: float = 300) -> str:
        return self.checkout.execute(*command, timeout=timeout)

    def submit(self, *options: str, script: str) -> str:
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()

    def submit_as(self, user: str, *options: str, script: str = "sleep 600") -> str:
        """Submit as a user who logs in, and return the job's number, or why Slurm refuses it."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script)
        return self.run("su", "-", user, "-c", f"{shlex.join(words)} 2>&1 || true").strip()

    def runs(self, number: str) -> None:
        until(lambda: self.job(number)["JobState"] == "RUNNING", 300, f"job {number}")

    def job(self, number: str) -> dict[str, str]:
        text = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)

    def ends(self, number: str, seconds: float = 300, state: str = "COMPLETED") -> dict[str, str]:
        """Return a job's fields when it has completed, or ended otherwise."""
        until(lambda: self.job(number)["JobState"] == state, seconds, f"the end of job {number}")
        return self.job(number)

    def logs(self, number: str) -> str:
        return self.checkout.cluster("logs", number, check=True).stdout

    def nodes_are_off(self) -> None:
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        until(lambda: set(self.run(*states).split()) == {"idle~"}, 300, "a cluster without nodes")

    def slurmctld_starts(self) -> int:
        """How often its supervisor has started slurmctld again."""
        if self.container:
            return int(self.run("systemctl", "show", "--property=NRestarts", "--value", UNIT))
        output = self.checkout.run_directory / "log" / "slurmctld.out"
        return output.read_text().count("it is started again")

    def log(self, name: str) -> str:
        if self.container:
            return self.run("cat", f"/var/log/slurm/{name}.log")
        return (self.checkout.run_directory / "log" / f"{name}.log").read_text()

    def logged(self, jobs: Sequence[str]) -> str:
        """Return the lines with jobs and nodes from the logs of slurmctld and the elastic daemon."""
        found = re.compile(rf"JobId=({'|'.join(jobs)})\b|debug-|reconfigur|error")
        lines = [*self.log("slurmctld").splitlines(), *self.log("elastic").splitlines()]
        return "\n".join([f"jobs {jobs} began again:", *(line for line in lines if found.search(line))])

    def nodes(self, state: str) -> list[str]:
        """Return the nodes that sinfo shows in a state."""
        found = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return [name for name, shown in map(str.split, found) if shown == state]

    def lines(self, file: str) -> list[str]:
        return self.run("sh", "-c", f"cat {self.shared / file} 2>/dev/null || true").split()


@pytest.fixture(scope="module", params=list(RELEASES))
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    isolation, more = RELEASES[request.param]
    container = isolation == "container"
    accounting = container or not system_packages.missing(system_packages.ACCOUNTING)
    suite = request.param.partition("-")[0]
    if suite == "noble" and images.recipe(suite).sources[0].uri == images.recipe().sources[0].uri:
        pytest.skip("apt on this machine has no source of Ubuntu's packages")

    def stack(nodes: int, settings: str = "{KillWait: 45}") -> str:
        return STACK.format(
            isolation=isolation,
            suite=f", suite: {suite}" if container else "",
            nodes=nodes,
            settings=settings,
            accounting=str(accounting).lower(),
            more=f", {more}" if more else "",
            containers="\n        containers: {runtime: oci}" if container else "",
        )

    if container:
        # `up` makes the image: one that cannot be made is a failure here.
        need_containers()
    checkout = Checkout(tmp_path_factory.mktemp(request.param) / "a checkout", stack(3))
    shared = Path("/home") if container else tmp_path_factory.mktemp("shared")
    try:
        if container:
            cache = tmp_path_factory.mktemp("cache") / "slurm-stacks"
            cache.mkdir()
            (cache / "images").symlink_to(container_images.image_folder())
            checkout.env["XDG_CACHE_HOME"] = str(cache.parent)
        up = checkout.cluster("up", check=True, timeout=4800)
        print(re.findall(r"slurm\S* \d+\.\d+\.\S+", up.stdout)[:1])
        yield Release(checkout, shared, stack, accounting, container)
    finally:
        left = checkout.close()
    assert left == []
    assert leftovers(checkout.run_directory) == []


def test_nodes_come_up_for_a_job_find_each_other_by_name_and_go(release: Release) -> None:
    script = "getent hosts debug-0 debug-1 >/dev/null && printenv SLURMD_NODENAME"
    assert sorted(release.run("srun", "-N2", "sh", "-c", script).split()) == ["debug-0", "debug-1"]
    release.nodes_are_off()


def test_options_that_slurmctld_refuses_leave_the_former_ones_in_force(release: Release) -> None:
    def kill_wait() -> list[str]:
        return re.findall(r"^KillWait\s*= (\d+)", release.run("scontrol", "show", "config"), re.MULTILINE)

    assert kill_wait() == ["45"]
    for settings, words in (
        ("{KillWait: 46, JobContainerType: job_container/tmpfs}", "PrologFlags=Contain is required"),
        ("{KillWait: 46, DebugFlags: nonsense}", "Invalid DebugFlag: nonsense"),
        ("{KillWait: 45}", ""),
    ):
        release.checkout.write_stack(release.stack(3, settings))
        up = release.checkout.cluster("up", check=True, timeout=600)
        said = up.stdout + up.stderr
        assert ("the former ones stay in force" in said) == bool(words), settings
        assert words in said
        assert kill_wait() == ["45"]


def test_a_job_whose_machine_dies_runs_again(release: Release) -> None:
    file = release.shared / "lost"
    script = f"echo $SLURMD_NODENAME >>{file}; while [ ! -e {release.shared}/go ]; do sleep 0.2; done"
    number = release.submit("--requeue", script=script)
    node = until(lambda: release.lines("lost"), 300, "the job")[0]
    release.checkout.chaos("kill", node)
    until(lambda: len(release.lines("lost")) == 2, 300, "its second start")
    release.run("touch", str(release.shared / "go"))
    assert release.ends(number)["Restarts"] == "1"


def test_a_job_that_is_queued_again_runs_again(release: Release) -> None:
    file = release.shared / "again"
    script = f"echo start >>{file}; [ $(wc -l <{file}) -gt 1 ] || sleep 300"
    number = release.submit("--requeue", script=script)
    until(lambda: release.lines("again"), 300, "the job")
    release.run("scontrol", "requeue", number)
    assert release.ends(number)["Restarts"] == "1"
    assert release.lines("again") == ["start", "start"]


def test_an_array_runs_each_of_its_tasks_once(release: Release) -> None:
    file = release.shared / "array"
    number = release.submit("--array=0-5%3", script=f"echo $SLURM_ARRAY_TASK_ID >>{file}")
    until(lambda: len(release.lines("array")) == 6, 300, "all tasks")
    assert sorted(release.lines("array")) == [str(task) for task in range(6)]
    until(lambda: not release.run("squeue", "--noheader", f"--job={number}").split(), 120, "their end")


def test_a_heterogeneous_job_gets_its_parts_together(release: Release) -> None:
    parts = ("salloc", "--quiet", "-N1", "-n1", ":", "-N1", "-n1", "srun", "--het-group=0,1")
    nodes = release.run(*parts, "printenv", "SLURMD_NODENAME").split()
    assert len(set(nodes)) == 2


def test_logs_shows_the_output_of_a_job_that_names_none(release: Release) -> None:
    batch = ("sbatch", "--parsable", f"--chdir={release.shared}")
    alone = release.run(*batch, "--wrap", "echo hello-from-$SLURM_JOB_ID").strip()
    array = release.run(*batch, "--array=3", "--wrap", "echo hello-from-task-$SLURM_ARRAY_TASK_ID").strip()
    relative = release.run(
        *batch, "--output=%x-%j.txt", "--job-name=mine", "--wrap", "echo hello-mine"
    ).strip()
    for number, file, words in (
        (alone, f"slurm-{alone}.out", f"hello-from-{alone}"),
        (array, f"slurm-{array}_3.out", "hello-from-task-3"),
        (relative, f"mine-{relative}.txt", "hello-mine"),
    ):
        release.ends(number)
        told = release.logs(number)
        assert f"{release.shared / file} (" in told, told
        assert words in told.splitlines(), told


def test_logs_tells_a_job_that_could_not_start_from_one_that_a_signal_ended(release: Release) -> None:
    file = release.shared / "afile"
    release.run("touch", str(file))
    failed = release.run("sbatch", "--parsable", f"--output={file}/x.out", "--wrap", "true").strip()
    signalled = release.submit(script="kill -SEGV $$")
    release.ends(failed, state="FAILED")
    release.ends(signalled, state="FAILED")
    told = release.logs(failed)
    assert "its node could not start it: slurmd of the node says why" in told
    # Machines that boot keep the log of their slurmd.
    why = f"grep -F '[{failed}.'" if release.container else "the folder of --output, --error or --input"
    assert why in " ".join(told.split())
    told = release.logs(signalled)
    assert "ended by signal 11 (SIGSEGV)" in told
    assert "could not start" not in told


def test_the_ranks_of_an_mpi_program_find_each_other(release: Release) -> None:
    """By PMIx; Debian's package of 26.05 has none, and starts ranks by PMI-2."""
    known = release.run("sh", "-c", "srun --mpi=list 2>&1").split()
    kind, variable = ("pmix", "PMIX_RANK") if "pmix" in known else ("pmi2", "PMI_RANK")
    ranks = release.run("srun", "-N2", f"--mpi={kind}", "printenv", variable).split()
    assert sorted(ranks) == ["0", "1"]


def test_a_job_whose_reservation_has_ended_is_said_with_what_frees_it(release: Release) -> None:
    at = ("starttime=now", "duration=60", "user=root", "nodes=debug-2", "flags=ignore_jobs")
    release.run("scontrol", "create", "reservation", "reservationname=ends", *at)
    number = release.submit("--reservation=ends", "--begin=now+1hour", script="true")
    release.run("scontrol", "update", "reservationname=ends", "endtime=now+1")
    until(lambda: release.job(number)["JobState"] == "RESV_DEL_HOLD", 120, "the reservation's end")
    told = release.logs(number)
    assert "Reservation ends was deleted: it is held: scontrol release lets it start without one" in told
    assert f"`scontrol release {number}`" in told
    status = " ".join(release.checkout.cluster("status", check=True).stdout.split())
    assert "resv_del_hold" in status
    release.run("scancel", number)


def test_slurmctlds_metrics_are_read_on_the_controller_and_from_a_node(release: Release) -> None:
    """By the form that Slurm's doc/html/metrics.shtml shows. No release before 25.11 has them."""
    text = release.run("scontrol", "--version")
    if not release.container or not version.traits(version.parse(text)).http:
        pytest.skip(f"{text.strip()} has no metrics here (node/slurm/conf.py)")
    held = release.submit("--hold", script="true")
    read = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=60).read().decode())"

    def metrics(host: str, page: str, *start: str) -> dict[str, float]:
        url = f"http://{host}:6817/metrics/{page}"
        lines = release.run(*start, "python3", "-c", read, url).splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    jobs = metrics("localhost", "jobs")
    assert (jobs["slurm_jobs_pending"], jobs["slurm_jobs_running"]) == (1.0, 0.0)
    job = ("srun", "-N1")
    assert metrics("controller", "jobs", *job)["slurm_jobs_running"] == 1.0, "the reading job runs"
    assert metrics("controller", "nodes", *job)["slurm_nodes"] == 3.0
    assert metrics("controller", "partitions", *job)['slurm_partition_nodes{partition="debug"}'] == 3.0
    release.run("scancel", held)


def test_the_database_has_what_ran(release: Release) -> None:
    if not release.accounting:
        pytest.skip("packages of accounting are missing")
    number = release.submit(script="true")
    release.ends(number)
    states = ("sacct", "-X", "-a", "-n", "-P", "-j", number, "--format=State")
    until(lambda: release.run(*states).split() == ["COMPLETED"], 120, "its row")


def test_accounts_and_limits_are_enforced(release: Release) -> None:
    if not release.accounting:
        pytest.skip("packages of accounting are missing")
    held = ("sbatch", "--hold", "--parsable", "--output=/dev/null", "--wrap", "true")

    def refused(*command: str) -> str:
        done = release.checkout.cluster("exec", "--", *command)
        assert done.returncode != 0, done.stdout
        return done.stderr

    assert "Invalid account" in refused(*held, "--account=nosuch")
    assert "Invalid qos" in refused(*held, "--qos=nosuch")
    if not release.container:
        return
    release.run("useradd", "--uid=2101", "--no-create-home", "--home-dir=/tmp", "--shell=/bin/sh", "ada")
    login = ("su", "ada", "-c", f"cd /tmp; {shlex.join(held)}")
    number = release.run(*login).strip()
    assert (release.job(number)["Account"], release.job(number)["QOS"]) == ("users", "normal")
    release.run("sacctmgr", "--immediate", "modify", "user", "ada", "set", "maxsubmitjobs=1")
    assert "Job violates accounting/QOS policy" in refused(*login)
    release.run("scancel", number)


def test_a_job_of_a_user_runs_in_its_container(release: Release) -> None:
    """On two nodes, by a batch job of an ordinary user, in an image that is unpacked as the page says."""
    if not release.container:
        pytest.skip("machines that are processes have no containers")
    folder = release.shared / "box"
    release.run("install", "-d", "-o", CONTAINER_USER, str(folder))
    # No login gives a system user an account.
    release.run("sacctmgr", "--immediate", "add", "user", CONTAINER_USER, "account=users")

    def user(command: str) -> str:
        return release.run("runuser", "-u", CONTAINER_USER, "--", "sh", "-c", f"cd {folder}; {command}")

    user(image_script(("sh", "cat", "id")))
    user("umoci unpack --rootless --image image:v1 bundle")
    inside = "cat /etc/image; id -un; echo $SLURM_PROCID in $PWD"
    step = shlex.join(["srun", "-l", f"--container={folder}/bundle", "sh", "-c", inside])
    number = user(f"sbatch --parsable -N2 --output=steps --wrap {shlex.quote(step)}").strip()
    release.ends(number)
    expected = [
        f"{rank}: {line}"
        for rank in "01"
        for line in ("made by a test", CONTAINER_USER, f"{rank} in {folder}")
    ]
    assert sorted(user("cat steps").splitlines()) == sorted(expected)


def test_a_live_change_adds_a_node_under_a_job(release: Release) -> None:
    go = release.shared / "changed"
    number = release.submit(script=f"while [ ! -e {go} ]; do sleep 0.2; done")
    until(lambda: release.job(number)["JobState"] == "RUNNING", 300, "the job")
    release.checkout.write_stack(release.stack(4))
    release.checkout.cluster("up", check=True, timeout=600)
    assert release.job(number)["JobState"] == "RUNNING"
    assert "debug-3" in release.run("srun", "--nodelist=debug-3", "printenv", "SLURMD_NODENAME")
    release.run("touch", str(go))
    assert release.ends(number)["Restarts"] == "0"


def test_slurmctld_reads_its_configuration_while_jobs_configure(release: Release) -> None:
    """200 times, while a job's nodes boot, and with a job that runs through it."""
    text = release.run("scontrol", "--version")
    if not version.reconfigure_survives_scripts(text):
        pytest.skip(f"{text.strip()}: nothing reads it then (node/elastic/reconfiguration.py)")
    release.nodes_are_off()
    release.checkout.chaos("set", "boot_delay=8")
    starts = release.slurmctld_starts()
    held = [release.submit("--hold", script="true") for _ in range(3)]
    hold = f"while [ ! -e {release.shared}/read ]; do sleep 0.2; done"
    through = release.submit("--exclusive", script=hold)
    until(lambda: release.job(through)["JobState"] == "RUNNING", 300, "the job that runs through")
    seconds: list[float] = []
    jobs: list[str] = []
    while len(seconds) < RECONFIGURES:
        off = until(lambda: release.nodes("idle~"), 120, "a node that is off")
        jobs.append(release.submit("--exclusive", f"--nodelist={off[-1]}", script="true"))
        until(lambda: release.job(jobs[-1])["JobState"] != "PENDING", 120, "its node's boot")
        # Each reconfigure has slurmctld's prolog begin anew, so one job could take them all.
        for _ in range(RECONFIGURES // 8):
            if release.job(jobs[-1])["JobState"] != "CONFIGURING":
                break
            began = time.monotonic()
            release.run("sh", "-c", READ)
            seconds.append(time.monotonic() - began)
    print(f"{len(seconds)} times over the boots of {len(jobs)} jobs; the slowest took {max(seconds):.1f} s")
    release.checkout.chaos("clear")
    release.run("touch", str(release.shared / "read"))
    again = [number for number in (through, *jobs) if release.ends(number)["Restarts"] != "0"]
    assert not again, release.logged(again)
    assert {release.job(number)["JobState"] for number in held} == {"PENDING"}
    release.run("scancel", *held)
    # Without a free core a single one takes longer.
    assert statistics.quantiles(seconds, n=20)[-1] < AWAY_SECONDS
    assert max(seconds) < STARVED_SECONDS
    assert release.slurmctld_starts() == starts
    assert "fatal" not in release.log("slurmctld")


def test_what_a_team_shares_is_the_stack_files_and_holds(release: Release) -> None:
    """After a change of a cluster that is up; test_sharing_cluster.py has it of processes."""
    if not release.container:
        pytest.skip("machines that are processes are one user's")
    text = release.stack(3)
    for before, more in (("        slurm: ", GPUS), ("      slurm-stacks:benchmark", SHARING)):
        head, found, tail = text.partition(before)
        assert found
        text = f"{head.rstrip()}{more}{found}{tail}"
    release.checkout.write_stack(text)
    release.checkout.cluster("up", check=True, timeout=600)

    def notes() -> list[str]:
        """Return what administrators have changed in the database, ever."""
        return release.run("sacctmgr", "-nP", "list", "transactions", "format=timestamp,action").splitlines()

    written = notes()
    release.checkout.cluster("up", check=True, timeout=600)
    assert notes() == written, "a second `up` writes nothing"

    assert "Invalid account" in release.submit_as("alan", "--account=research")
    assert "Invalid qos" in release.submit_as("alan", "--qos=low")
    gpus = ("--partition=gpu", "--gres=gpu:1", "--account=interactive")
    first, second = (release.submit_as(user, *gpus) for user in ("alan", "grace"))
    until(lambda: release.job(second)["Reason"] == "AssocGrpGRES", 300, "the account's limit of GPUs")
    status = " ".join(release.checkout.cluster("status", check=True).stdout.split())
    assert "AssocGrpGRES: a limit of Slurm's accounting" in status
    release.run("scancel", first, second)

    whole = ("--exclusive", "--partition=debug")
    low = [release.submit_as("grace", *whole) for _ in range(3)]
    for number in low:
        release.runs(number)
    urgent = release.submit_as("alan", *whole, script="sleep 5")
    release.ends(urgent)
    states = ("sacct", "-nXPD", "-a", f"--jobs={','.join(low)}", "--format=state")
    until(lambda: "PREEMPTED" in release.run(*states).split(), 120, "the record")
    assert sorted(release.run(*states).split()).count("PREEMPTED") == 1
    for number in low:
        release.runs(number)
    release.run("scancel", *low)
    table = release.checkout.cluster("cost", "--by", "account", check=True).stdout
    assert "interactive" in table
    assert "research" in table
