"""Tests that a machine's init keeps its services running, with the real init in its own process."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcloud import init
from node.system.processes import ProcessId, descendants, end_tree
from tests.support.checkout import ROOT, until

PRELUDE = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from node.bootstrap.services import InitServices, Service
import node.bootstrap.services as module
module.RESTART_PAUSE_SECONDS = 0.2
module.STOP_SECONDS = 600
out = Path({out!r})

def service(name, script, **env):
    return Service(name, ("/bin/sh", "-c", script), out / "log" / f"{{name}}.out", env)

services = InitServices()
"""


class Machine:
    """A machine whose boot is a script of the test."""

    def __init__(self, folder: Path, script: str) -> None:
        loader = folder / "loader.py"
        loader.write_text(PRELUDE.format(root=str(ROOT), out=str(folder)) + textwrap.dedent(script))
        self.folder = folder
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", init.__file__, str(loader)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def below(self) -> list[int]:
        return descendants(self.child.pid)

    def term(self) -> float:
        """Ends the machine and returns how long it took. It takes longer if a service must be killed."""
        started = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(120)
        return time.monotonic() - started


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made: list[Machine] = []

    def start(script: str) -> Machine:
        made.append(Machine(tmp_path, script))
        return made[-1]

    yield start
    for machine in made:
        if machine.child.poll() is None:
            root = ProcessId.of(machine.child.pid)
            assert root is not None
            end_tree(root, 0)
            machine.child.wait()


def test_a_dead_service_is_started_again_and_its_end_is_logged(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        services.start(service("one", f"echo $$ >> {out}/one; sleep 300"))
        services.start(service("two", f"echo $$ >> {out}/two; [ $(wc -l < {out}/two) = 3 ] && sleep 300"))
        services.keep()
        """
    )
    until(lambda: len(machine.lines("two")) == 3, 60, "two restarts")
    until(lambda: machine.lines("one"), 60, "the other service")
    assert len(machine.lines("one")) == 1, "a service that lives is left alone"
    log = machine.lines("log/two.out")
    assert log == ["two ended with status 256; it is started again"] * 2
    machine.term()


def test_what_an_ended_job_has_left_is_ended_and_nothing_else(boot: Callable[[str], Machine]) -> None:
    """The init's children are the services, slurmstepds, and orphans: what each is, its variables say."""
    machine = boot(
        """
        import shutil, subprocess
        shutil.copy("/bin/sleep", out / "slurmstepd")

        def child(name, *words, program="/bin/sleep", **variables):
            argv = [*(words or ("sleep",)), "300"]
            subprocess.Popen(argv, executable=program, env={"NAME": name, **variables})

        services = InitServices("debug-0")
        services.start(service("slurmd", "exec sleep 300", NAME="service", SLURM_JOB_ID="8"))
        stepd = str(out / "slurmstepd")
        here = {"SLURMD_NODENAME": "debug-0"}
        child("stepd", "slurmstepd: [7.batch]", program=stepd)
        child("running", SLURM_JOB_ID="7", **here)
        child("left", SLURM_JOB_ID="8", **here)
        child("longer", SLURM_JOB_ID="77", **here)
        child("of another node", SLURM_JOB_ID="8", SLURMD_NODENAME="debug-1")
        child("of the prolog", SLURM_JOB_ID="8", SLURM_SCRIPT_CONTEXT="prolog_slurmd", **here)
        child("a part", SLURM_JOB_ID="8", SLURM_HET_SIZE="2", **here)
        child("anybody's")
        services.keep()
        """
    )

    def names() -> dict[str, int]:
        found = {}
        for pid in machine.below():
            with contextlib.suppress(OSError):
                entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
                found.update({e.removeprefix("NAME="): pid for e in entries if e.startswith("NAME=")})
        return found

    stay = {"service", "stepd", "of another node", "of the prolog", "anybody's"}
    until(lambda: names().keys() == stay | {"running", "a part"}, 60, "the ends of two jobs' processes")
    os.kill(names()["stepd"], signal.SIGKILL)
    until(lambda: names().keys() == stay - {"stepd"}, 60, "the ends of the other jobs' processes")
    machine.term()


def test_a_service_that_ends_as_it_starts_is_started_again(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        start = module.subprocesses.subprocess.Popen

        def slow(*arguments, **options):
            child = start(*arguments, **options)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            return child

        module.subprocesses.subprocess.Popen = slow
        services.start(service("brief", f"echo $$ >> {out}/brief"))
        services.keep()
        """
    )
    until(lambda: len(machine.lines("brief")) >= 3, 60, "two restarts")


def test_a_service_has_its_variables_and_a_session_of_its_own(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        os.environ["KEPT"] = "yes"
        text = f"echo $KEPT $SLURM_CONF $(cut -d' ' -f6 /proc/$$/stat) $$ > {out}/b; mv {out}/b {out}/a; "
        services.start(service("a", text + "echo said; sleep 300", SLURM_CONF="/x"))
        services.keep()
        """
    )
    until(lambda: machine.lines("a"), 60, "the service")
    kept, conf, session, pid = machine.lines("a")[0].split()
    assert (kept, conf, session) == ("yes", "/x", pid)
    until(lambda: machine.lines("log/a.out") == ["said"], 60, "its output")


def test_a_service_that_was_started_again_keeps_its_place_in_the_order_of_ends(
    boot: Callable[[str], Machine],
) -> None:
    """A database that was restarted still ends after the daemon that writes to it."""
    machine = boot(
        """
        for name in ("below", "above"):
            tell = f"trap 'echo {name} >> {out}/ends; exit' TERM; echo $$ >> {out}/{name}; "
            services.start(service(name, tell + "while :; do sleep 0.05; done"))
        services.keep()
        """
    )
    until(lambda: machine.lines("below") and machine.lines("above"), 60, "both services")
    os.kill(int(machine.lines("below")[0]), signal.SIGKILL)
    until(lambda: len(machine.lines("below")) == 2, 60, "the restart")
    machine.term()
    assert machine.lines("ends") == ["above", "below"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts what others run")
def test_a_service_runs_as_its_user_and_no_more(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        script = ("/bin/sh", "-c", "id -u; id -g; id -G; sleep 300")
        services.start(Service("a", script, out / "log" / "a.out", user="nobody"))
        services.keep()
        """
    )
    entry = pwd.getpwnam("nobody")
    groups = " ".join(map(str, os.getgrouplist("nobody", entry.pw_gid)))
    said = [str(entry.pw_uid), str(entry.pw_gid), groups]
    until(lambda: machine.lines("log/a.out") == said, 60, "its user and groups, none of root's")


def test_services_end_in_reverse_order_and_stubborn_ones_too(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        module.STOP_SECONDS = 6
        for name in ("first", "second"):
            text = f"trap 'sleep 0.1; echo {name} >> {out}/ends; exit' TERM; echo {name} >> {out}/up; "
            services.start(service(name, text + "while :; do sleep 0.02; done"))
        text = f"trap '' TERM; setsid sleep 300 & echo deaf >> {out}/up; while :; do sleep 0.02; done"
        services.start(service("deaf", text))
        services.keep()
        """
    )
    until(lambda: len(machine.lines("up")) == 3, 60, "the services")
    below = machine.below()
    assert len(below) >= 4
    seconds = machine.term()
    assert machine.lines("ends") == ["second", "first"]
    assert seconds >= 6, "the deaf one had its time"
    assert [pid for pid in below if ProcessId.of(pid) is not None] == []


def test_what_a_service_does_last_is_done_while_it_works(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        last = out / "last"
        last.write_text(f"#!/bin/sh\\nkill -0 $MAINPID && echo last >> {out}/ends\\n")
        last.chmod(0o755)
        text = f"trap 'echo end >> {out}/ends; exit' TERM; echo up >> {out}/up; while :; do sleep 0.02; done"
        services.start(Service("one", ("/bin/sh", "-c", text), out / "log" / "one.out", last=str(last)))
        services.keep()
        """
    )
    until(lambda: machine.lines("up"), 60, "the service")
    machine.term()
    assert machine.lines("ends") == ["last", "end"]


def test_a_service_that_is_just_starting_is_asked_to_end_too(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        import signal
        start = module.subprocesses.subprocess.Popen

        def told_meanwhile(*arguments, **options):
            child = start(*arguments, **options)
            while not (out / "up").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            return child

        module.subprocesses.subprocess.Popen = told_meanwhile
        text = f"trap 'echo well > {out}/ends; exit' TERM; echo up > {out}/up; while :; do sleep 0.02; done"
        services.start(service("a", text))
        services.keep()
        """
    )
    assert machine.child.wait(60) == 0
    assert machine.lines("ends") == ["well"]


def test_a_service_that_ended_meanwhile_gets_no_signal(boot: Callable[[str], Machine]) -> None:
    """Its pid may be another process's by then, on this host also one that is not the machine's."""
    machine = boot(
        """
        def kill(pid, number, really=os.kill):
            with (out / "asked").open("a") as asked:
                asked.write(f"{pid}\\n")
            really(pid, number)

        os.kill = kill
        first = services.start(service("first", f"until [ -e {out}/going ]; do sleep 0.02; done"))
        told = f"touch {out}/going; while kill -0 {first} 2>/dev/null; do sleep 0.02; done; exit"
        forever = "while :; do sleep 0.02; done"
        last = services.start(service("last", f"trap '{told}' TERM; touch {out}/up; {forever}"))
        (out / "pids").write_text(f"{first}\\n{last}\\n")
        services.keep()
        """
    )
    until(lambda: (machine.folder / "up").exists() and len(machine.lines("pids")) == 2, 60, "the services")
    machine.term()
    first, last = machine.lines("pids")
    assert last in machine.lines("asked")
    assert first not in machine.lines("asked")


def test_a_machine_that_is_ended_during_its_boot_takes_its_services_along(
    boot: Callable[[str], Machine],
) -> None:
    machine = boot(
        """
        services.start(service("a", f"echo up > {out}/up; sleep 300"))
        time.sleep(300)
        """
    )
    until(lambda: machine.lines("up"), 60, "the service")
    below = machine.below()
    machine.term()
    assert machine.child.returncode == 0
    assert [pid for pid in below if ProcessId.of(pid) is not None] == []


def test_orphans_come_to_the_init_and_are_reaped(boot: Callable[[str], Machine]) -> None:
    machine = boot(
        """
        services.start(service("a", f"(setsid sh -c 'echo $$ > {out}/orphan; sleep 0.2' &); sleep 300"))
        services.keep()
        """
    )
    until(lambda: machine.lines("orphan"), 60, "the orphan")
    pid = int(machine.lines("orphan")[0])
    until(lambda: ProcessId.of(pid) is None, 60, "its end, reaped")
    assert machine.child.poll() is None


def test_init_ignores_what_a_terminal_sends(boot: Callable[[str], Machine]) -> None:
    machine = boot("(out / 'up').touch(); services.keep()")
    until((machine.folder / "up").exists, 60, "the machine")
    for number in (signal.SIGINT, signal.SIGHUP):
        machine.child.send_signal(number)
    time.sleep(0.1)
    assert machine.child.poll() is None
    machine.term()
