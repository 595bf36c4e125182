"""Machines that a fork server starts are as those started afresh, and none is lost with its server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud import machines
from localcloud.machines import CLUSTER_VARIABLE, MACHINE_VARIABLE, pids_of_cluster
from node.system.codec import to_json
from node.system.processes import ProcessId, descendants, end_all, with_environment
from operations.local import namespaces
from tests.support.checkout import ROOT, until
from tests.support.doubles import settings
from tests.support.processes import command_line

LOADER = """
import ctypes, gc, json, locale, os, random, resource, signal, sys, threading
from pathlib import Path

def status(*names):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: lines[name].split() for name in names}

def handles():
    found = {}
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            found[number] = [os.readlink(f"/proc/self/fd/{number}"), os.get_inheritable(number)]
        except OSError:
            pass  # that of the folder itself
    return found

subreaper = ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
dying = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(2, ctypes.byref(dying), 0, 0, 0)
host = sys.argv[sys.argv.index("--host") + 1]
facts = {
    "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "parent": os.getppid(),
    "folder": os.getcwd(),
    "mask": os.umask(0o22),
    "environment": dict(os.environ),
    "environment in C": ctypes.CDLL(None).getenv(b"SLURM_STACKS_MACHINE_ID") != 0,
    "environment in /proc": Path("/proc/self/environ").read_text(),
    "command line": Path("/proc/self/cmdline").read_text(),
    "name": Path("/proc/self/comm").read_text(),
    "program": os.readlink("/proc/self/exe"),
    "sys": [sys.argv, sys.orig_argv, sys.path, sys.executable, str(sys.flags), sys.prefix],
    "descriptors": handles(),
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.Signals if s.name not in ("SIGTERM",)},
    "status": status(
        "Umask", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapEff", "CapBnd",
        "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups", "Cpus_allowed_list",
    ),
    "limits": [resource.getrlimit(n) for n in range(16)],
    "priority": [os.nice(0), Path("/proc/self/oom_score_adj").read_text()],
    "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in sorted(os.listdir("/proc/self/ns"))},
    "groups": Path("/proc/self/cgroup").read_text(),
    "subreaper": subreaper.value,
    "signal of a parent's end": dying.value,
    "texts": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.getfilesystemencoding(),
              sys.stdout.line_buffering, locale.setlocale(locale.LC_CTYPE)],
    "collector": [gc.isenabled(), gc.get_threshold()],
    "threads": [t.name for t in threading.enumerate()],
    "first thread": threading.main_thread() is threading.current_thread(),
    "main": [__name__, __file__, sys.modules["__main__"].__dict__ is globals()],
    "timers": [signal.getitimer(n) for n in range(3)],
}
draft = Path(__file__).with_name(f".{host}")
draft.write_text(json.dumps({"facts": facts, "random": random.random()}))
draft.replace(draft.with_name(f"{host}.json"))
print(f"the log of {host}", flush=True)
if host == "fails":
    raise SystemExit("it cannot boot")
signal.pause()
"""
AGENT = """
import os, sys
from pathlib import Path
from localcloud import forked_machines
from localcloud.init import become_subreaper
from localcloud.machines import Boot, ProcessRuntime
become_subreaper()
runtime = ProcessRuntime(Path(sys.argv[1]), sys.argv[1] + "/python3")
print(os.getpid(), flush=True)
for line in sys.stdin:
    word, host = line.split()
    if word == "reap":
        runtime.reap()
        print(len(runtime._children), flush=True)
        continue
    forked_machines.ANSWER_SECONDS = 0.2 if word == "hurry" else 60.0
    if word == "afresh":
        runtime._fork_server._not_before = float("inf")
    cores = (min(os.sched_getaffinity(0)),)
    print(runtime.start(Boot(f"m-{host}", "compute", host, cores=cores)).pid, flush=True)
    if word == "afresh":
        runtime._fork_server._not_before = 0.0
"""


BOOT = """
import importlib, json, os, sys
root, run = sys.argv[1:]
sys.path.insert(0, os.path.join(root, "localcloud"))
import fork_server
sys.path[0] = root
for name in (*fork_server.STANDARD, *fork_server.BOOT):
    importlib.import_module(name)
from pathlib import Path
before = set(sys.modules)
exec(compile(Path(root, "node", "loader.py").read_text(), "loader.py", "exec"), {"__name__": "loader"})
for name in ("hosts_namespace", "init"):
    sys.path.insert(0, os.path.join(root, "localcloud"))
    importlib.import_module(name)
from node.bootstrap.services import InitServices
from node.system import subprocesses
start = subprocesses.start
subprocesses.start = lambda argv, *others, **named: start(["/bin/true"], *others, **named)
InitServices.keep = lambda self: None
from node.bootstrap.main import bootstrap
bootstrap(Path(run, "settings.json"), "compute", "debug-0", run + "/bucket")
report = json.loads(Path(run, "bucket", "boot", "debug-0.json").read_text())
if report["state"] != "ready":
    raise SystemExit(str(report))
print(*set(sys.modules) - before - {"hosts_namespace", "init"})
"""
LEAVES_A_CHILD = """
import os, signal
def bootstrap(*arguments, **options):
    if os.fork() == 0:
        os.setsid()
    signal.pause()
"""
VERSION = """
import os, signal
importer = os.getpid()
def bootstrap(*arguments, **options):
    print("VERSION", importer, flush=True)
    signal.pause()
"""
needs_namespaces = pytest.mark.skipif(
    namespaces.unsupported_reason("127.9.64.0") is not None, reason="no namespaces here"
)


class Agent:
    """A process that starts machines as the agent does, in a run directory without a cluster."""

    def __init__(self, run: Path) -> None:
        self.run = run
        for folder in ("bucket", "cloud", "code", "etc"):
            (run / folder).mkdir(parents=True, exist_ok=True)
        (run / "bucket" / "loader.py").write_text(LOADER)
        (run / "python3").symlink_to(machines.base_python())
        self.child = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(run)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_STACKS_RUN": str(run)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said: list[str] = []
        self.pid = self.answer()

    def answer(self) -> int:
        assert self.child.stdout is not None
        while not (line := self.child.stdout.readline().strip()).isdigit():
            assert line or self.child.poll() is None, self.said
            self.said.append(line)
        return int(line)

    def ask(self, word: str, host: str = "-") -> int:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{word} {host}\n")
        self.child.stdin.flush()
        return self.answer()

    def start(self, host: str, word: str = "start") -> ProcessId:
        process = ProcessId.of(self.ask(word, host))
        assert process is not None
        return process

    def tells(self, host: str) -> dict[str, Any]:
        """Return what a machine's loader has found."""
        file = self.run / "bucket" / f"{host}.json"
        until(file.exists, 60, f"the loader of {host}")
        told: dict[str, Any] = json.loads(file.read_text().replace(host, "HOST"))
        return told

    def server(self) -> int:
        """Return the pid of the fork server, or 0."""
        found = [
            pid for pid in descendants(self.pid) if any("fork_server.py" in w for w in command_line(pid))
        ]
        assert len(found) < 2
        return found[0] if found else 0

    def publish(self, main: str) -> None:
        """Publish code whose boot is this text, with the project's loader."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            for name, text in (("__init__", ""), ("bootstrap/__init__", ""), ("bootstrap/main", main)):
                file.writestr(f"node/{name}.py", text)
        current = {}
        for name, content in (("code", archive.getvalue()), ("settings", b"{}")):
            (self.run / "bucket" / name).write_bytes(content)
            current[name] = {"key": name, "sha256": hashlib.sha256(content).hexdigest()}
        (self.run / "bucket" / "current.json").write_text(json.dumps(current))
        shutil.copyfile(ROOT / "node" / "loader.py", self.run / "bucket" / "loader.py")

    def close(self) -> list[int]:
        self.child.kill()
        self.child.communicate()
        return end_all(lambda: pids_of_cluster(self.run))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "a run")
    yield made
    assert made.close() == []


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=needs_namespaces)])
def test_a_forked_machine_is_as_one_that_was_started_afresh(agent: Agent, apart: bool) -> None:
    if apart:
        (agent.run / "cloud" / "hosts").write_text("127.9.65.0 debug-0\n127.9.65.1 debug-1\n")
        (agent.run / "cloud" / "shared_in_tmp.json").write_text("[]")
        machines.set_hosts_namespace(agent.run, possible=True)
    started = {
        host: agent.start(host, word)
        for host, word in (("debug-0", "afresh"), ("debug-1", "start"), ("debug-2", "start"))
    }
    told = [agent.tells(host) for host in started]
    afresh, *forked = (one["facts"] for one in told)
    for facts in (afresh, *forked):
        inside = {kind: facts["namespaces"].pop(kind) for kind in ("mnt", "uts")}
        own = {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in inside}
        assert (set(inside.values()).isdisjoint(own.values()), inside == own) == (apart, not apart)
    for fact, value in afresh.items():
        assert [facts[fact] for facts in forked] == [value, value], fact
    assert afresh["parent"] == agent.pid
    assert told[1]["random"] != told[2]["random"]
    for host, process in started.items():
        assert (agent.run / "log" / f"boot-{host}.log").read_text() == f"the log of {host}\n"
        assert with_environment(MACHINE_VARIABLE, f"m-{host}") == [process.pid]
        assert command_line(process.pid)[-1] == host
    assert afresh["status"]["Cpus_allowed_list"] == [str(min(os.sched_getaffinity(0)))]
    assert agent.server(), "they were forked"
    assert os.sched_getaffinity(agent.server()) == os.sched_getaffinity(0), "a machine's cores are its own"


def test_a_machine_that_ends_is_collected_with_what_it_leaves(agent: Agent) -> None:
    """The fork server, which is a child of the agent too, is not taken for an orphan."""
    agent.publish(LEAVES_A_CHILD)
    first, second = agent.start("debug-0"), agent.start("debug-1")
    until(lambda: len(descendants(first.pid)) == len(descendants(second.pid)) == 1, 60, "their children")
    (left,) = descendants(first.pid)
    server = agent.server()
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: agent.ask("reap") == 1, 60, "the end of one")
    until(lambda: not Path(f"/proc/{left}").exists(), 60, "the end of its child")
    assert agent.ask("reap") == 1
    assert second.alive()
    assert agent.server() == server
    assert not Path(f"/proc/{first.pid}").exists(), "no zombie"


def test_a_server_that_was_killed_is_replaced_and_its_machines_go_on(agent: Agent) -> None:
    first = agent.start("debug-0")
    killed = agent.server()
    server = ProcessId.of(killed)
    os.kill(killed, signal.SIGKILL)
    until(lambda: server is not None and not server.alive(), 60, "its end")
    second = agent.start("debug-1")
    assert agent.server() not in (0, killed)
    assert agent.ask("reap") == 2
    assert first.alive()
    assert second.alive()
    assert not Path(f"/proc/{killed}").exists()


def test_a_server_that_hangs_is_ended_and_starts_no_second_machine(agent: Agent) -> None:
    agent.start("debug-0")
    hung = agent.server()
    os.kill(hung, signal.SIGSTOP)
    process = agent.start("debug-1", "hurry")
    agent.tells("debug-1")
    assert with_environment(MACHINE_VARIABLE, "m-debug-1") == [process.pid]
    assert agent.server() == 0
    assert "the fork server does not start a machine: timed out" in agent.said[0]
    agent.start("debug-2")
    assert agent.server() not in (0, hung), "the next machine is forked again"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cloud/fork_server.py", "raise SystemExit('not here')"),
        ("cloud/fork_server.py", "import time\ntime.sleep(300)"),
        (
            None,
            "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()",
        ),
    ],
    ids=["cannot start", "does not answer", "has threads"],
)
def test_without_a_server_machines_start_afresh(agent: Agent, file: str | None, text: str) -> None:
    if file is None:
        agent.publish(text)
        agent.start("debug-0", "afresh")  # which unpacks the code
        until(lambda: [*(agent.run / "code").glob("*/node")], 60, "the code")
        (agent.run / "bucket" / "loader.py").write_text(LOADER)
    else:
        (agent.run / file).write_text(text)
    for host in ("debug-1", "debug-2"):
        process = agent.start(host, "hurry")
        agent.tells(host)
        assert with_environment(MACHINE_VARIABLE, f"m-{host}") == [process.pid]
    assert agent.server() == 0
    assert len(agent.said) == 1, "for a while there is no further attempt"


def test_the_server_ends_with_its_agent_and_machines_go_on(agent: Agent) -> None:
    machine = agent.start("debug-0")
    server = ProcessId.of(agent.server())
    agent.child.kill()
    until(lambda: server is not None and not server.alive(), 60, "the server's end")
    assert machine.alive()


def test_a_machine_that_the_agent_does_not_know_never_runs(agent: Agent) -> None:
    """The agent was killed, or has started this machine in another way."""
    channel, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [str(agent.run / "python3"), "-I", "-S"]
    program = [
        str(agent.run / "cloud" / "fork_server.py"),
        str(agent.run / "bucket"),
        str(agent.run / "code"),
    ]
    loader = [str(agent.run / "bucket" / "loader.py"), "--host", "debug-0"]
    environment = {CLUSTER_VARIABLE: str(agent.run)}
    log = (agent.run / "log").open("wb")
    with (
        channel,
        log,
        subprocess.Popen([*command, *program], stdin=servers.fileno(), env=environment) as server,
    ):
        servers.close()
        gate, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"argv": [*command, *loader], "env": environment}).encode()
        with end:
            socket.send_fds(channel, [request], [log.fileno(), end.fileno()])
        machine = ProcessId.of(int(gate.recv(32)))
        assert machine is not None
        assert command_line(machine.pid) == [*command, *loader], "it is all that a machine is"
        gate.close()
        until(lambda: not machine.alive(), 60, "its end")
        channel.close()
        assert server.wait(60) == 0
    assert not (agent.run / "bucket" / "debug-0.json").exists()
    assert (agent.run / "log").read_text() == ""


def test_a_forked_machine_boots_with_the_published_code(agent: Agent) -> None:
    def boots(host: str) -> tuple[str, bool]:
        """Return the version of the code, and whether the server had imported it."""
        process = agent.start(host)
        version, importer = until(
            lambda: (agent.run / "log" / f"boot-{host}.log").read_text().split(), 60, host
        )
        assert int(importer) in (process.pid, agent.server())
        return version, int(importer) != process.pid

    agent.publish(VERSION.replace("VERSION", "first"))
    assert boots("debug-0") == ("first", False), "the first machine unpacks it"
    server = agent.server()
    assert boots("debug-1") == ("first", True)
    agent.publish(VERSION.replace("VERSION", "second"))
    assert boots("debug-2") == ("second", False)
    assert boots("debug-3") == ("second", True)
    assert agent.server() == server
    (agent.run / "bucket" / "loader.py").write_text("print('another', 0)")
    assert agent.start("debug-4")
    until(lambda: (agent.run / "log" / "boot-debug-4.log").read_text() == "another 0\n", 60, "its loader")


def test_a_boot_imports_only_what_the_server_has_imported(tmp_path: Path) -> None:
    """Each import of a node's boot takes time of every boot, and memory that machines do not share."""
    its = settings(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps(to_json(its)))
    for file in ("etc/slurm.conf", "etc/version", "munge.key", "bucket/boot/none"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("slurm 25.11.4" * 10)
    (tmp_path / "boot.py").write_text(BOOT)
    command = [machines.base_python(), "-I", "-S", str(tmp_path / "boot.py"), str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
