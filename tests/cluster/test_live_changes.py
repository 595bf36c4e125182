"""Changes of a cluster that is up, with jobs on it: no job ends and nothing is deleted unasked."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from infra.errors import EXIT_REFUSED
from node.system import locks
from tests.support import killed_command
from tests.support.checkout import Checkout, until

FILE = """
    config:
      slurm-stacks:cluster:
        name: {name}
        provider: local
        partitions:
          - {{name: {first}, instance_type: local.small, nodes: {{max: 2}}}}
          - {{name: debug, instance_type: {machine}, nodes: {{max: {most}}}, default: true}}
        slurm: {{suspend_time: 4, settings: {{KillWait: {kill_wait}}}}}
"""
MINE = "local.small,ondemand,mine"
"""The features of a node to which an administrator has added one."""


def text(
    name: str = "one",
    first: str = "first",
    machine: str = "local.small",
    most: int = 3,
    kill_wait: str = "45",
) -> str:
    return FILE.format(name=name, first=first, machine=machine, most=most, kill_wait=kill_wait)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """One cluster for all tests, which run in order: each leaves it as the next one needs it."""
    checkout = Checkout(tmp_path_factory.mktemp("changes") / "a checkout", text())
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []


def begin(checkout: Checkout, *options: str, script: str = "sleep 3600") -> str:
    job = checkout.execute("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()
    if "--hold" not in options:
        until(lambda: state(checkout, job) == "RUNNING", 180, f"job {job}")
    return job


def special(checkout: Checkout, *options: str) -> str:
    """Return a job that waits to be released, in a state that squeue does not list as PENDING."""
    job = begin(checkout, *options)
    checkout.execute("scontrol", "requeuehold", "state=SpecialExit", job)
    until(lambda: state(checkout, job) == "SPECIAL_EXIT", 60, "its hold")
    return job


def saves(begun: Path, saved: Path) -> str:
    """Return a script that saves its work at SIGTERM. Its `sleep` gets the signal before the shell."""
    ready = f"trap 'sleep 1; echo done >>{saved}; exit' TERM; touch {begun}"
    return f"{ready}; while :; do sleep 600 & wait; done"


def state(checkout: Checkout, job: str) -> str:
    shown = checkout.ask("scontrol", "--oneliner", "show", "job", job)
    return dict(pair.split("=", 1) for pair in shown.split() if "=" in pair)["JobState"]


def restarts(checkout: Checkout, job: str) -> str:
    shown = checkout.ask("scontrol", "--oneliner", "show", "job", job)
    return dict(pair.split("=", 1) for pair in shown.split() if "=" in pair)["Restarts"]


def nodes(checkout: Checkout) -> dict[str, str]:
    """Return node -> state and CPUs."""
    lines = checkout.ask("sinfo", "--noheader", "--all", "--Node", "--format=%N %T %c").splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}


def planned(checkout: Checkout) -> list[tuple[str, str, list[str]]]:
    """Return each change in the plan: its key, its kind, and what becomes of which jobs."""
    answer = json.loads(checkout.cluster("plan", "--json", check=True).stdout)
    return [
        (c["key"], c["kind"], [f"{job['id']} {job['consequence']}" for job in c["jobs"]])
        for c in answer["changes"]
    ]


def test_a_running_job_survives_another_machine_and_new_nodes_have_it(cluster: Checkout) -> None:
    assert planned(cluster) == []
    job, other = begin(cluster, "--nodelist=debug-0"), begin(cluster, "--partition=first")
    # An administrator's own partition, which the stack file does not know.
    cluster.execute("scontrol", "create", "PartitionName=urgent", "Nodes=first-1,debug-1", "MaxTime=60")
    cluster.execute("scontrol", "update", "PartitionName=first", "MaxTime=120", "AllowGroups=ALL")
    cluster.execute("scontrol", "update", "NodeName=first-1", "Weight=77", f"AvailableFeatures={MINE}")
    urgent = begin(cluster, "--partition=urgent", "--nodelist=first-1")
    after = begin(cluster, "--partition=urgent", f"--dependency=afterok:{urgent}", "--hold")
    cluster.write_stack(text(machine="local.medium"))
    assert planned(cluster) == [
        ("partitions.instance_type", "renewed", [f"{job} goes on; its nodes are removed when it is over"])
    ]

    output = cluster.cluster("up", check=True).stderr
    assert "instance_type local.small → local.medium: new nodes have it" in output
    assert [state(cluster, j) for j in (job, other)] == ["RUNNING", "RUNNING"]
    assert_own_is_kept(cluster, urgent, after)
    before = nodes(cluster)
    assert before["debug-0"].endswith(" 1"), "Slurm would end its job otherwise"
    assert before["debug-0"].startswith("drain"), "it takes no further job"
    assert {before[f"debug-{i}"] for i in (1, 2)} == {"idle~ 2"}
    # It needs a new node: the old ones do not have two CPUs.
    assert (
        cluster.execute("srun", "-N1", "-n2", "sh", "-c", "echo $SLURMD_NODENAME").split() == ["debug-1"] * 2
    )

    # slurmctld saves within seconds that srun's job is over. Killed before, it would never know.
    asked = time.time()
    cluster.execute("scontrol", "update", f"JobId={other}", "Comment=saved")
    until(lambda: _saved(cluster) > asked, 60, "slurmctld's save")
    # The old nodes' lines outlive slurmctld and the elastic daemon.
    for name in ("slurmctld", "elastic.daemon"):
        (pid,) = [p for p in cluster.processes() if _runs(p, name)]
        os.kill(pid, signal.SIGKILL)
        until(partial(_another, cluster, name, pid), 60, name)
    until(lambda: _answers(cluster), 60, "slurmctld")
    assert [state(cluster, j) for j in (job, other)] == ["RUNNING", "RUNNING"]
    assert nodes(cluster)["debug-0"].endswith(" 1")
    assert_own_is_kept(cluster, urgent, after)

    cluster.execute("scancel", job)
    until(lambda: _answers(cluster) and nodes(cluster)["debug-0"] == "idle~ 2", 180, "the new line")
    assert [restarts(cluster, j) for j in (job, other)] == ["0", "0"]
    assert state(cluster, other) == "RUNNING"
    assert_own_is_kept(cluster, urgent, after)
    cluster.execute("scancel", urgent, after)
    until(lambda: not cluster.ask("squeue", "--noheader", "--all", "--partition=urgent"), 60, "their end")
    cluster.execute("scontrol", "delete", "PartitionName=urgent")
    cluster.execute("scontrol", "update", "PartitionName=first", "MaxTime=INFINITE")


def kill_wait(checkout: Checkout) -> str:
    """Return what slurmctld has of the option that the stack file gives."""
    shown = checkout.ask("scontrol", "show", "config")
    return "".join(re.findall(r"^KillWait\s*= (\d+)", shown, re.MULTILINE))


def test_own_options_that_slurmctld_refuses_leave_the_former_ones_in_force(cluster: Checkout) -> None:
    assert kill_wait(cluster) == "45"
    (job,) = cluster.ask("squeue", "--noheader", "--states=RUNNING", "--format=%i").split()
    cluster.write_stack(text(machine="local.medium", kill_wait="46, JobContainerType: job_container/tmpfs"))
    assert planned(cluster) == [("slurm.settings", "live", [])]
    output = cluster.cluster("up", check=True)
    assert "the former ones stay in force" in (said := output.stdout + output.stderr)
    assert "PrologFlags=Contain is required" in said, "Slurm's own words"
    until(lambda: _answers(cluster), 60, "slurmctld")
    assert kill_wait(cluster) == "45"
    assert state(cluster, job) == "RUNNING"

    cluster.write_stack(text(machine="local.medium", kill_wait="46"))
    output = cluster.cluster("up", check=True)
    assert "in force" not in output.stdout + output.stderr
    assert kill_wait(cluster) == "46"
    cluster.write_stack(text(machine="local.medium"))
    cluster.cluster("up", check=True)
    assert (kill_wait(cluster), state(cluster, job), restarts(cluster, job)) == ("45", "RUNNING", "0")


def assert_own_is_kept(cluster: Checkout, urgent: str, after: str) -> None:
    """Assert that what people have made with scontrol is as they made it, and that their jobs go on."""
    assert [state(cluster, j) for j in (urgent, after)] == ["RUNNING", "PENDING"]
    assert restarts(cluster, urgent) == "0"
    shown = cluster.ask("scontrol", "--oneliner", "show", "partition")
    options = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert {"MaxTime=01:00:00", "State=UP"} <= set(options["PartitionName=urgent"])
    assert {"MaxTime=02:00:00", "State=UP"} <= set(options["PartitionName=first"])
    assert {"State=UP"} <= set(options["PartitionName=debug"])
    node = cluster.ask("scontrol", "--oneliner", "show", "node", "first-1").split()
    assert {"Weight=77", f"AvailableFeatures={MINE}"} <= set(node)


def _another(cluster: Checkout, name: str, pid: int) -> list[int]:
    """Return the processes of this name except one."""
    return [p for p in cluster.processes() if p != pid and _runs(p, name)]


def _runs(pid: int, name: str) -> bool:
    """Return whether the process is this daemon, and not the one that started it."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[0].endswith(name) or ("-c" in words and name in " ".join(words))
    return False


def _saved(cluster: Checkout) -> float:
    """Return when slurmctld last saved its jobs."""
    return (cluster.run_directory / "state" / "job_state").stat().st_mtime


def _answers(cluster: Checkout) -> bool:
    return "is UP" in cluster.execute("scontrol", "ping", check=False)


def test_what_would_end_jobs_is_refused_with_their_list_and_they_go_on(cluster: Checkout) -> None:
    (runs,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=first").split()
    waits = begin(cluster, "--partition=first", "--hold")
    held = special(cluster, "--partition=first")
    shown = cluster.cluster("status", check=True).stdout
    assert "special_exit" in shown
    assert f"scontrol release {held}`" in " ".join(shown.split())
    assert f"`scontrol release {held}`" in cluster.cluster("logs", held, check=True).stdout
    cluster.write_stack(text(first="renamed", machine="local.medium"))
    assert planned(cluster)[0] == (
        "partitions.name",
        "ends",
        [f"{runs} ends", f"{waits} is lost", f"{held} is lost"],
    )
    refused = cluster.cluster("up")
    assert refused.returncode == EXIT_REFUSED
    assert f"\n  job {runs} wrap" in refused.stderr
    assert f"\n  job {waits} wrap" in refused.stderr
    assert f"\n  job {held} wrap" in refused.stderr
    assert [state(cluster, job) for job in (runs, waits, held)] == ["RUNNING", "PENDING", "SPECIAL_EXIT"]
    # The refused change does not keep jobs from starting.
    assert cluster.ask("sinfo", "--noheader", "--format=%a", "--partition=first").split() == ["up"]

    busy = begin(cluster, "--nodelist=debug-2")
    cluster.write_stack(text(machine="local.medium", most=2))
    assert cluster.cluster("up").returncode == EXIT_REFUSED
    cluster.execute("scancel", busy)
    # While it is completing, an `up` would be refused once more.
    listed = ("squeue", "--noheader", "--format=%i", f"--jobs={busy}")
    until(lambda: state(cluster, busy) == "CANCELLED" and not cluster.ask(*listed), 60, "its end")
    kept = begin(cluster, "--nodelist=debug-1")
    until(lambda: cluster.cluster("up").returncode == 0, 180, "a refusal's end")
    assert state(cluster, kept) == "RUNNING", "on a node that stays"
    assert "debug-2" not in nodes(cluster)


def test_jobs_that_a_change_ends_on_purpose_are_named_save_their_work_and_run_on_other_nodes(
    cluster: Checkout, tmp_path: Path
) -> None:
    (kept,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=debug").split()
    cluster.write_stack(text(machine="local.medium"))
    cluster.cluster("up", check=True)
    saved = tmp_path / "saved"
    begun = tmp_path / "begun"
    script = saves(begun, saved)
    first = begin(cluster, "--nodelist=debug-0", "--exclusive")
    again = begin(cluster, "--exclusive", script=script)
    until(begun.exists, 120, "the script, which waits for its signal")
    cluster.execute("scancel", first)
    assert "debug-2" in cluster.ask("squeue", "--noheader", "--format=%N", f"--jobs={again}")
    cluster.write_stack(text(machine="local.medium", most=2))
    output = cluster.cluster("up", "--replace", check=True).stderr
    assert f"\n  job {again} wrap" in output
    assert f"job {kept} wrap" not in output
    assert saved.read_text() == "done\n", "before its node went"
    cluster.execute("scontrol", "update", f"JobId={again}", "StartTime=now")
    until(lambda: state(cluster, again) == "RUNNING", 180, "its next run")
    assert (restarts(cluster, again), state(cluster, kept), restarts(cluster, kept)) == ("1", "RUNNING", "0")
    cluster.execute("scancel", again)
    listed = ("squeue", "--noheader", "--format=%i", "--partition=debug")
    until(lambda: cluster.ask(*listed).split() == [kept], 60, "its end")


def test_a_busy_partition_that_is_taken_away_on_purpose_leaves_its_ports_at_once(cluster: Checkout) -> None:
    (kept,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=debug").split()
    cluster.write_stack(text(first="renamed", machine="local.medium", most=2))
    cluster.cluster("up", "--replace", check=True)
    assert [p for p in cluster.processes() if _node(p).startswith("first-")] == []
    assert len(cluster.execute("srun", "--partition=renamed", "-N2", "hostname").split()) == 2
    assert "drain" not in " ".join(nodes(cluster).values())
    assert (state(cluster, kept), restarts(cluster, kept)) == ("RUNNING", "0"), "the other partition's"


def test_a_partition_with_the_nodes_of_another_comes_moves_and_goes_and_no_job_that_runs_ends(
    cluster: Checkout,
) -> None:
    (kept,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=debug").split()
    alone = text(first="renamed", machine="local.medium", most=2)

    def shared(owner: str) -> str:
        urgent = f"          - {{name: urgent, nodes_of: {owner}, settings: {{PriorityTier: 9}}}}\n"
        of_nodes = alone.replace("default: true", "default: true, features: [scratch], weight: 30")
        return of_nodes.replace("        slurm:", f"{urgent}        slurm:")

    def place(job: str) -> str:
        return cluster.ask("squeue", "--noheader", "--format=%N", f"--jobs={job}").strip()

    cluster.write_stack(shared("debug"))
    assert {kind for _, kind, _ in planned(cluster)} == {"live"}
    cluster.cluster("up", check=True)
    assert "PriorityTier=9" in cluster.ask("scontrol", "show", "partition", "urgent")
    shown = cluster.ask("scontrol", "--oneliner", "show", "node", place(kept)).split()
    assert {f"{word}Features=local.medium,ondemand,scratch" for word in ("Available", "Active")} <= set(shown)
    assert "Weight=30" in shown
    job = begin(cluster, "--partition=urgent")
    node = place(job)
    assert node.startswith("debug-")
    cluster.write_stack(shared("renamed"))
    assert planned(cluster) == [("partitions.nodes_of", "live", [])]
    cluster.cluster("up", check=True)
    later = begin(cluster, "--partition=urgent")
    assert place(later).startswith("renamed-")
    assert (place(job), state(cluster, job), restarts(cluster, job)) == (node, "RUNNING", "0")
    cluster.write_stack(alone)
    refused = cluster.cluster("up")
    assert refused.returncode == EXIT_REFUSED
    assert f"job {job} wrap" in refused.stderr
    assert f"job {kept} wrap" not in refused.stderr
    cluster.execute("scancel", job, later)
    listed = ("squeue", "--noheader", "--format=%i", f"--jobs={job},{later}")
    until(lambda: not cluster.ask(*listed).split(), 60, "their end")
    cluster.cluster("up", check=True)
    assert "urgent" not in cluster.ask("sinfo", "--noheader", "--all", "--format=%P")
    assert (state(cluster, kept), restarts(cluster, kept)) == ("RUNNING", "0")


def _node(pid: int) -> str:
    """Return the node of a slurmd."""
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[words.index("-N") + 1]
    return ""


def test_another_name_is_another_cluster_and_destroys_nothing_unasked(cluster: Checkout) -> None:
    (kept,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=debug").split()
    cluster.write_stack(text(name="two", first="renamed", machine="local.medium", most=2))
    refused = cluster.cluster("up")
    assert refused.returncode == EXIT_REFUSED
    assert "name one → two" in refused.stderr
    assert f"job {kept} wrap" in refused.stderr
    assert state(cluster, kept) == "RUNNING"
    cluster.write_stack(text(first="renamed", machine="local.medium", most=2))


# By default the test above refuses the name, and tests/operations/local/test_local_cluster.py runs the
# commands of another cluster's resources.
@pytest.mark.wide
def test_another_name_is_seen_by_doctor_and_by_the_engine_and_replaces_the_cluster_if_asked(
    cluster: Checkout,
) -> None:
    (kept,) = cluster.ask("squeue", "--noheader", "--format=%i", "--partition=debug").split()
    mark = cluster.run_directory / "shared" / "a file"
    mark.touch()
    cluster.write_stack(text(name="two", first="renamed", machine="local.medium", most=2))
    doctor = cluster.cluster("doctor").stdout
    assert "cluster one is up" in doctor
    assert "--replace" in doctor
    # The cluster's own commands refuse it if somebody runs the engine by hand, and nothing is deleted.
    verb = [".venv/bin/python", "operations", "operations.local", "cloud-up", "--stack", "test"]
    by_hand = subprocess.run(
        [*verb, "--cluster", "two"],
        cwd=cluster.folder, env={**cluster.env, "PYTHONPATH": str(cluster.folder)},
        input="{}", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert by_hand.returncode == EXIT_REFUSED
    assert "cluster one of stack test is up" in by_hand.stderr

    cluster.write_stack(text(first="renamed", machine="local.medium", most=2))
    assert "nothing to do" in cluster.cluster("up", check=True).stderr
    assert (state(cluster, kept), mark.exists()) == ("RUNNING", True)

    cluster.write_stack(text(name="two", first="renamed", machine="local.medium", most=2))
    cluster.cluster("up", "--replace", check=True)
    assert not mark.exists()
    assert "two" in cluster.ask("scontrol", "show", "config").partition("ClusterName")[2].splitlines()[0]


def partitions(checkout: Checkout) -> set[str]:
    return set(checkout.ask("sinfo", "--noheader", "--all", "--format=%a").split())


def test_a_refused_down_and_up_touch_nothing(cluster: Checkout) -> None:
    job = begin(cluster)
    cluster.write_stack(present(cluster, most=1))
    with (cluster.state / "lock").open("w") as lock:
        assert locks.acquire(lock.fileno())
        for words in (("down", "--yes"), ("up", "--replace"), ("up",)):
            done = cluster.cluster(*words)
            assert (done.returncode, "[state.busy]" in done.stderr) == (EXIT_REFUSED, True), done.stderr
    assert (state(cluster, job), partitions(cluster)) == ("RUNNING", {"up"})
    cluster.write_stack(present(cluster))
    cluster.execute("scancel", job)


def present(checkout: Checkout, most: int = 2) -> str:
    """The stack file of the cluster that is up: its name is another one after the wide test above."""
    config = checkout.ask("scontrol", "show", "config").partition("ClusterName")[2].splitlines()[0]
    return text(name=config.partition("=")[2].strip(), first="renamed", machine="local.medium", most=most)


def without_a_partition(checkout: Checkout) -> str:
    return present(checkout).replace("name: debug", "name: other")


ENGINE = "cli.engine.embedded.EmbeddedRunner.up"


@pytest.mark.parametrize(
    ("words", "file", "place", "closed"),
    [
        (("down", "--yes"), present, killed_command.CLOSED, "down"),
        (("up", "--replace"), without_a_partition, ENGINE, "inactive"),
        # By default `down` shows partitions that are DOWN, `up --replace` shows the death in the engine,
        # and tests/cli/test_closing.py kills an `up` anywhere.
        pytest.param(("up",), partial(present, most=1), ENGINE, "down", marks=pytest.mark.wide),
    ],
    ids=["down", "up --replace", "up"],
)
def test_what_a_killed_command_has_closed_is_named_and_the_next_up_opens_it(
    cluster: Checkout,
    words: tuple[str, ...],
    file: Callable[[Checkout], str],
    place: str,
    closed: str,
) -> None:
    job, whole = begin(cluster, "--partition=renamed"), present(cluster)
    cluster.write_stack(file(cluster))
    done = killed_command.run(cluster, (place,), *words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cluster.write_stack(whole)
    assert closed in partitions(cluster)
    found = json.loads(cluster.cluster("status", "--json", check=True).stdout)["closed"]
    assert (found["command"], found["works"]) == (" ".join(words).removesuffix(" --yes"), False)
    assert found["opened_by"] == "./cluster up --stack test"
    shown = " ".join(cluster.cluster("status", check=True).stdout.split())
    assert "it was interrupted. `./cluster up --stack test` opens what it has closed" in shown
    up = cluster.cluster("up", check=True)
    assert "was interrupted when it had closed partitions" in up.stderr
    assert (partitions(cluster), state(cluster, job)) == ({"up"}, "RUNNING")
    assert json.loads(cluster.cluster("status", "--json", check=True).stdout)["closed"] is None
    cluster.execute("scancel", job)


def test_down_asks_for_jobs_on_a_terminal_and_gives_them_time_to_save(
    cluster: Checkout, tmp_path: Path
) -> None:
    saved, begun = tmp_path / "saved", tmp_path / "begun"
    script = saves(begun, saved)
    job = begin(cluster, script=script)
    until(begun.exists, 120, "the script, which waits for its signal")
    held = special(cluster)
    code, said = on_terminal(cluster, "down", answer="n\n")
    assert code == EXIT_REFUSED, said
    assert f"job {job} wrap" in said
    assert f"job {held} wrap" in said
    assert state(cluster, job) == "RUNNING"
    assert set(cluster.ask("sinfo", "--noheader", "--format=%a").split()) == {"up"}
    # Without a terminal there is no question.
    done = cluster.cluster("down", check=True)
    assert f"job {job} wrap" in done.stderr
    assert saved.exists(), done.stderr
    assert saved.read_text() == "done\n"


def on_terminal(checkout: Checkout, *arguments: str, answer: str) -> tuple[int, str]:
    """Run `./cluster` on a terminal of its own, and answer the first question."""
    here, there = pty.openpty()
    command = [str(checkout.folder / "cluster"), *arguments, "--stack", checkout.stack]
    process = subprocess.Popen(
        command, stdin=there, stdout=there, stderr=there, env=checkout.env, start_new_session=True
    )
    os.close(there)
    said = b""
    answered = False
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            more = os.read(here, 4096)
        except OSError:  # the terminal's last reader has gone
            break
        said += more
        if not answered and b"[y/N]" in said:
            os.write(here, answer.encode())
            answered = True
        if not more:
            break
    code = process.wait(60)
    os.close(here)
    return code, said.decode(errors="replace")
