"""Make tests/node/data/slurm-outputs.json, what Slurm's releases print of jobs and nodes in each condition:

    PYTHONPATH=. .venv/bin/python tools/slurm_outputs.py
    PYTHONPATH=. .venv/bin/python tools/slurm_outputs.py --source CLONE

The first line runs this machine's own Slurm, as root, in a cluster of its own, for four minutes. It replaces
what the file has of that release; for another one run it in a root folder of a distribution that has it. The
second reads the texts of log lines and errors from a clone of https://github.com/SchedMD/slurm with the
branches slurm-22.05 to slurm-26.05: no more is known here of the releases between those that were run.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from node.design.model import SlurmSettings
from node.slurm.control import ALL_JOBS, TASKS
from node.slurm.fields import JOB, JOB_DETAILS, JOB_TEXTS, OUTPUT, Fields
from node.slurm.version import short
from tests.node.slurm_cluster import WAIT_FOR_NODES, SlurmCluster, design, partition

FILE = Path(__file__).parents[1] / "tests" / "node" / "data" / "slurm-outputs.json"
MARK = "m§"
"""The mark of all records, which is another one in each real reading."""
ROOT, HOST = "/cluster", "controller"
"""What stands for the folder of the cluster, and for this machine."""
USER = "games"
"""An ordinary user that every machine has."""
SECONDS = 180
"""The longest wait: Slurm looks at time limits and deadlines once in half a minute."""


class Recorder:
    """A cluster, and what its Slurm has printed."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.control = cluster.control
        self.jobs: dict[str, dict[str, str]] = {}
        self.nodes: dict[str, str] = {}
        self.names: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def submit(self, name: str, *options: str, script: str = "true", user: str = "") -> int:
        """Submit a batch job, and return its number."""
        as_user = ("runuser", "-u", user, "--") if user else ()
        command = [*as_user, "sbatch", "--parsable", "-J", name, *options, "--wrap", script]
        done = self.cluster.run(*command, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        self.names[name] = int(done.stdout)
        return self.names[name]

    def see_job(self, name: str, number: int | None = None) -> None:
        """Record what squeue tells of a job, as `Control` asks for it."""
        number = number or self.names[name]
        one = f"--jobs={number}"
        fields = {**JOB, **JOB_TEXTS, **JOB_DETAILS}
        self.jobs[name] = {
            "squeue": self._record(fields, *ALL_JOBS, TASKS, one),
            "outputs": self._record(OUTPUT, *ALL_JOBS, one),
        }

    def _record(self, fields: Fields, *options: str) -> str:
        _, mark, answer = self.control._squeue(fields, *options)
        return answer.decode(errors="replace").replace(mark, MARK)

    def see_node(self, name: str, node: str) -> None:
        self.nodes[name] = self.control.run("scontrol", "show", "node", node, "--oneliner").rstrip("\n")

    def state(self, name: str) -> str:
        job = self.control.jobs().get(self.names[name])
        return job.state if job else ""

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        self.cluster.wait(what, condition, SECONDS)

    def becomes(self, name: str, *states: str) -> None:
        """Wait for a state of a job, and record it."""
        self.wait(f"{name} is {states}", lambda: self.state(name) in states)
        self.see_job(name)

    def waits(self, name: str, *reasons: str) -> None:
        """Wait for a reason of a pending job, and record it."""

        def told() -> bool:
            job = self.control.jobs()[self.names[name]]
            return any(word in f"{job.reason},{job.explanation}" for word in reasons)

        self.wait(f"{name} waits for {reasons}", told)
        self.see_job(name)

    def flag(self, name: str, node: str, *flags: str) -> None:
        """Wait for flags, or a base state, of a node, and record it."""
        state = self.control.nodes
        self.wait(f"{node} is {flags}", lambda: set(flags) <= {state()[node].base, *state()[node].flags})
        self.see_node(name, node)

    def refuses(self, name: str, *command: str) -> None:
        done = self.cluster.run(*command, check=False)
        self.refused[name] = f"{done.returncode} {done.stderr.strip()}"


def ends(r: Recorder) -> None:
    """Jobs that end, each in its way. Those that take a minute have begun before."""
    afile = r.cluster.root / "afile"
    afile.touch()
    r.submit("failed launch", "-o", f"{afile}/x.out", "-w", "debug-0")
    r.submit("signal", "-o", "/dev/null", "-w", "debug-0", script="kill -SEGV $$")
    r.submit("exit code", "-o", "/dev/null", "-w", "debug-0", script="exit 3")
    r.submit("completed", "-w", "debug-0", script="echo done")
    r.submit("relative output", "-o", "out-%j-%x", "-e", "err-%j", "-w", "debug-0", script="echo done")
    r.submit(
        "pattern", "-o", f"{r.cluster.root}/p-%A_%a-%b", "--array=13", "-w", "debug-0", script="echo done"
    )
    r.submit("default output of an array", "--array=13", "-w", "debug-0", script="echo done")
    r.submit("another user's", "-o", "/dev/null", "-D", "/", "-w", "debug-0", user=USER)
    r.submit("no such folder", "-D", "/nowhere", "-o", "/dev/null", "-w", "debug-0")
    r.submit("cancelled while it ran", "-o", "/dev/null", "-w", "debug-1", script="sleep 600")
    r.becomes("failed launch", "FAILED")
    for name, state in (
        ("signal", "FAILED"), ("exit code", "FAILED"), ("completed", "COMPLETED"),
        ("relative output", "COMPLETED"), ("pattern", "COMPLETED"),
        ("default output of an array", "COMPLETED"), ("another user's", "COMPLETED"),
        ("no such folder", "COMPLETED"), ("cancelled while it ran", "RUNNING"),
    ):  # fmt: skip
        r.becomes(name, state)
    r.jobs["running"] = r.jobs["cancelled while it ran"]
    r.submit("cancelled before it began", "--hold")
    r.control.cancel([r.names["cancelled while it ran"], r.names["cancelled before it began"]])
    r.becomes("cancelled while it ran", "CANCELLED")
    r.becomes("cancelled before it began", "CANCELLED")


def lost(r: Recorder) -> None:
    """Jobs whose node does not boot, or is lost."""
    r.cluster.boot = lambda node: node != "debug-5"
    r.submit("starting", "-o", "/dev/null", "-w", "debug-5")
    r.becomes("starting", "CONFIGURING")
    r.flag("starting", "debug-5", "POWERING_UP")
    r.control.cancel([r.names["starting"]])
    r.wait("its end", lambda: r.state("starting") == "CANCELLED")
    r.see_job("cancelled while its nodes started", r.names["starting"])
    r.submit("node lost", "--no-requeue", "-o", "/dev/null", "-w", "debug-1", script="sleep 600")
    r.becomes("node lost", "RUNNING")
    r.see_node("busy", "debug-1")
    r.cluster.stop_node("debug-1")  # otherwise Slurm takes it back at once
    r.control.update_node(["debug-1"], state="DOWN", reason="lost")
    r.becomes("node lost", "NODE_FAIL")
    r.flag("down", "debug-1", "DOWN")


LONG = ("reservation ended", "time limit", "deadline")


def long(r: Recorder) -> None:
    """Begin what takes a minute: a time limit, a deadline, a reservation that ends."""
    at = ("starttime=now", "duration=60", "user=root", "nodes=debug-6", "flags=ignore_jobs")
    r.control.run("scontrol", "create", "reservation", "reservationname=ends", *at)
    r.submit("reservation ended", "--reservation=ends", "--begin=now+1hour")
    r.control.run("scontrol", "update", "reservationname=ends", "endtime=now+1")
    r.submit("time limit", "-t1", "-o", "/dev/null", "-w", "debug-2", script="sleep 600")
    # Slurm looks at the deadline of a job as often as it could start it.
    r.submit("deadline", "-t1", "--deadline=now+62", "--exclusive", "-w", "debug-2")


def long_ends(r: Recorder) -> None:
    r.becomes("reservation ended", "RESV_DEL_HOLD")
    r.becomes("deadline", "DEADLINE")
    r.becomes("time limit", "TIMEOUT")


def waiting(r: Recorder) -> None:
    """Jobs that wait, each for its reason."""
    control = r.control
    r.submit("held", "--hold")
    r.waits("held", "JobHeldUser")
    r.submit("begin time", "--begin=now+1hour")
    r.waits("begin time", "BeginTime")
    r.submit("dependency", f"--dependency=afterok:{r.names['held']}")
    r.waits("dependency", "Dependency")
    failed = r.names["exit code"]
    r.submit("dependency that never is", f"--dependency=afterok:{failed}")
    r.waits("dependency that never is", "DependencyNeverSatisfied")
    # Slurm refuses what is too much for a partition that it has. So it becomes smaller afterwards.
    r.submit("too many nodes", "--hold", "-N2", "-p", "small")
    r.submit("too much time", "--hold", "-t99", "-p", "small")
    control.run("scontrol", "update", "PartitionName=small", "MaxTime=60", "MaxNodes=1")
    control.release(r.names["too many nodes"])
    control.release(r.names["too much time"])
    r.waits("too many nodes", "PartitionConfig", "PartitionNodeLimit")
    r.waits("too much time", "PartitionTimeLimit")
    control.close_partition("small")
    r.submit("closed partition", "-p", "small")
    r.waits("closed partition", "PartitionDown")
    control.open_partition("small")
    control.run("scontrol", "update", "PartitionName=small", "State=INACTIVE")
    control.update_node(["debug-6"], state="DRAIN", reason="bad fan")
    r.submit("node out of service", "-w", "debug-6")
    r.waits("node out of service", "ReqNodeNotAvail", "DOWN, DRAINED")
    r.see_node("drained", "debug-6")
    r.submit("special exit", "-o", "/dev/null", "-w", "debug-0", script="sleep 600")
    r.becomes("special exit", "RUNNING")
    control.run("scontrol", "requeuehold", "state=SpecialExit", str(r.names["special exit"]))
    r.becomes("special exit", "SPECIAL_EXIT")
    r.submit("requeued", "-o", "/dev/null", "--requeue", "-w", "debug-0", script="sleep 600")
    r.becomes("requeued", "RUNNING")
    control.requeue(r.names["requeued"])
    r.waits("requeued", "BeginTime")
    r.submit("array", "--array=0-3%1", "-o", "/dev/null", "-w", "debug-0", script="sleep 600")
    r.waits("array", "JobArrayTaskLimit")
    r.submit("resources", "--exclusive", "-w", "debug-0")
    r.waits("resources", "Resources", "Priority")
    r.submit("priority", "--exclusive", "-w", "debug-0")
    r.waits("priority", "Priority", "Resources")
    # One that must start at once, and one that no node can serve any more.
    r.cluster.run(
        "salloc", "-I", "-J", "refused at once", "--exclusive", "-w", "debug-0", "true", check=False
    )
    r.names["refused at once"] = next(j.id for j in control.jobs().values() if j.name == "refused at once")
    r.see_job("refused at once")
    control.run("scontrol", "update", "NodeName=debug-7", "AvailableFeatures=tiny,ondemand,gone")
    control.run("scontrol", "update", "NodeName=debug-7", "ActiveFeatures=tiny,ondemand,gone")
    r.submit("no node for it", "--hold", "-C", "gone")
    control.run("scontrol", "update", "NodeName=debug-7", "ActiveFeatures=tiny,ondemand")
    control.run("scontrol", "update", "NodeName=debug-7", "AvailableFeatures=tiny,ondemand")
    control.release(r.names["no node for it"])
    r.waits("no node for it", "BadConstraints")
    control.cancel(number for name, number in r.names.items() if name not in LONG)


def nodes(r: Recorder) -> None:
    """Nodes, each in a state."""
    control = r.control
    r.see_node("off", "debug-4")
    control.undrain({"debug-6": control.nodes()["debug-6"]})
    r.wait("a free node", lambda: not control.nodes()["debug-0"].has_job and control.nodes()["debug-0"].is_up)
    r.see_node("idle", "debug-0")
    for name, node, state in (("drains", "debug-0", "DRAIN"), ("fails", "debug-3", "FAIL")):
        r.submit(name, "-o", "/dev/null", "-w", node, script="sleep 600")
        r.becomes(name, "RUNNING")
        control.update_node([node], state=state, reason="bad fan")
        r.see_node(name, node)
        control.cancel([r.names[name]])
        r.wait("its end", lambda node=node: not control.nodes()[node].has_job)  # type: ignore[misc]
        control.update_node([node], state="RESUME")
    r.submit("leaves", "-o", "/dev/null", "-w", "debug-0", script="sleep 600")
    r.becomes("leaves", "RUNNING")
    control.run("scontrol", "reboot", "ASAP", "debug-0")
    r.see_node("reboot requested", "debug-0")
    control.cancel([r.names["leaves"]])
    r.flag("reboot issued", "debug-0", "REBOOT_ISSUED")
    control.update_node(["debug-0"], state="POWER_DOWN_FORCE", reason="slurm-stacks reboot")
    r.see_node("given back", "debug-0")
    r.submit("asap", "-o", "/dev/null", "-w", "debug-3", script="sleep 600")
    r.becomes("asap", "RUNNING")
    control.update_node(["debug-3"], state="POWER_DOWN_ASAP", reason="slurm-stacks new line")
    r.see_node("to be powered down after its job", "debug-3")
    control.cancel([r.names["asap"]])
    r.flag("going back", "debug-3", "POWERING_DOWN")
    at = ("starttime=now", "duration=60", "user=root", "flags=ignore_jobs,maint")
    control.run("scontrol", "create", "reservation", "reservationname=fix", "nodes=debug-4", *at)
    r.flag("in maintenance", "debug-4", "MAINTENANCE")
    r.wait("it is off", lambda: control.nodes()["debug-3"].is_powered_down)
    r.see_node("off again", "debug-3")
    control.avoid(["debug-3"])
    r.see_node("off, and chosen last", "debug-3")


def silence(r: Recorder) -> None:
    """What Slurm's clients say where nobody answers."""
    r.cluster.kill_controller()
    for command in (
        ("squeue",), ("scontrol", "show", "nodes"), ("scontrol", "ping"), ("scancel", "1"),
        ("sbatch", "--wrap", "true"), ("scontrol", "reconfigure"),
    ):  # fmt: skip
        r.refuses(f"silence: {' '.join(command)}", *command)


def refusals(r: Recorder) -> None:
    over = str(r.names["exit code"])
    r.refuses("a job that is over", "scontrol", "update", f"JobId={over}", "AdminComment=x")
    r.refuses("an unknown job", "scontrol", "update", "JobId=99999", "AdminComment=x")
    r.refuses("an unknown node", "scontrol", "update", "NodeName=nobody-1", "State=DRAIN", "Reason=x")
    r.refuses("a node that is well", "scontrol", "update", "NodeName=debug-4", "State=RESUME")


# --- what only the source tells ----------------------------------------------------------------------------

RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
TEXTS = {
    # What of it we search for -> the folders of Slurm's source that have it, and how it begins or ends there.
    "slurmd on a job": (
        ("src/slurmd",),
        (
            "Launching batch ", "launch task %", " already killed, do not launch", " prolog failed status=",
            " epilog failed status=", "Could not launch ",
        ),
    ),
    "slurmd on a start that failed": (
        ("src/slurmd",),
        ("Could not open std", "couldn't chdir to `", "execve(): ", "] prolog failed status=",
         "%pI prolog failed"),
    ),
    "clients without a controller": (
        ("src/common", "src/srun"),
        (
            "Unable to contact slurm controller", "controller not responding", "Zero Bytes were transmitted",
            "Slurm backup controller in standby", "Unable to establish controller machine",
            "Socket timed out on send/recv",
        ),
    ),
    "reasons of ended jobs": (("src/slurmctld",), ("RaisedSignal:%",)),
    "reasons of held jobs": (
        ("src/slurmctld/reservation.c",), ("Reservation %s was deleted", "Reservation %s is invalid"),
    ),
    "reasons of nodes": (
        ("src/slurmctld", "src/slurmd", "src/common/slurm_errno.c"),
        ("Reboot ASAP", "reboot requested", "reboot issued", "reboot timed out", "ResumeTimeout reached",
         "Not responding", "Node unexpectedly rebooted", "NO NETWORK ADDRESS FOUND", "Duplicate jobid",
         "Kill task failed", "batch job complete failure", "Prolog error", "Epilog error"),
    ),
}  # fmt: skip
NUMBERS = ("ESLURMD_SETUP_ENVIRONMENT_ERROR", "ESLURMD_IO_ERROR", "ESLURMD_PROLOG_FAILED")
"""Errors of slurmd's whose numbers Slurm takes for signals."""
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')


def literals(source: str, wanted: Iterable[str]) -> set[str]:
    """Return the string literals of a C source that hold one of the texts."""
    strings = ("".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0])) for match in _LITERAL.finditer(source))
    return {text for text in strings if any(part in text for part in wanted)}


def of_source(clone: str, release: str) -> dict[str, Any]:
    """Return a release's texts, its numbers, and the commit that they are from."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", clone, *command], capture_output=True, text=True, check=False)
        return done.stdout

    branch = f"slurm-{release}"
    facts: dict[str, Any] = {"commit": git("rev-parse", branch).strip(), "texts": {}}
    for name, (folders, wanted) in TEXTS.items():
        parts = [word for part in wanted for word in ("-e", part)]
        files = git("grep", "-lF", *parts, branch, "--", *folders).split()
        facts["texts"][name] = sorted(
            {text for file in files for text in literals(git("show", file), wanted)}
        )
    number, numbers = 0, {}
    for row in re.finditer(
        r"^\s*(ESLURM[A-Z_]*)\s*(?:=\s*(\d+))?,", git("show", f"{branch}:slurm/slurm_errno.h"), re.M
    ):
        number = int(row[2]) if row[2] else number + 1
        numbers[row[1]] = number
    facts["numbers"] = {name: numbers[name] for name in NUMBERS}
    return facts


# --- the file -----------------------------------------------------------------------------------------------


def clean(text: str, root: Path) -> str:
    """Return a text without the names of this machine."""
    text = text.replace(str(root), ROOT)
    for name in (socket.getfqdn(), socket.gethostname()):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", HOST, text)
    return re.sub(r"OS=Linux .*? RealMemory=", "OS=Linux RealMemory=", text)


def cleaned(value: Any, root: Path) -> Any:
    if isinstance(value, dict):
        return {key: cleaned(inner, root) for key, inner in value.items()}
    return [cleaned(inner, root) for inner in value] if isinstance(value, list) else clean(value, root)


def record() -> tuple[str, dict[str, Any]]:
    """Run this machine's Slurm, and return its release and what it has printed."""
    timers = SlurmSettings(suspend_time=600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60)

    def edit(text: str) -> str:
        return f"{text}PartitionName=small Nodes=debug-[0-1]\n"

    with SlurmCluster(design(partition(nodes=8), slurm=timers), prolog=WAIT_FOR_NODES, edit=edit) as cluster:
        r = Recorder(cluster)
        for scenario in (long, ends, lost, waiting, nodes, long_ends, refusals):
            scenario(r)
        logs = {
            name: [
                line
                for line in cluster.log(name).splitlines()
                if re.search(r"[Jj]ob|Step|UID|\] \[\d+\.", line)
            ]
            for name in ("slurmctld", *sorted(f"slurmd-debug-{n}" for n in range(4)))
        }
        config = re.findall(r"^(?:NEXT_JOB_ID|FirstJobId|SLURM_VERSION) .*$", r.control.show_config(), re.M)
        printed = {
            "jobs": r.jobs,
            "nodes": r.nodes,
            "partitions": r.control.show_partitions(),
            "reservations": r.control.run("scontrol", "show", "reservations", "--oneliner"),
            "config": "\n".join(config),
            "logs": logs,
        }
        silence(r)
        release = short(cluster._version())
        return release, {"numbers": r.names, **cleaned({**printed, "refused": r.refused}, cluster.root)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", metavar="CLONE")
    clone = parser.parse_args().source
    made = (
        {"source": {release: of_source(clone, release) for release in RELEASES}}
        if clone
        else {"run": dict([record()])}
    )
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for kind, found in made.items():
        known[kind] = {**known.get(kind, {}), **found}
    FILE.write_text(json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
