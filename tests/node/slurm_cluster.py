"""A real Slurm for the tests: munged, slurmctld and slurmds of a rendered process-mode configuration.

Power saving works: the programs that Slurm calls write requests into a folder, and a thread starts and ends
the slurmds, outside of slurmctld, as a cloud would. The test decides what a machine does.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from node.bootstrap.services import Service, Services
from node.bootstrap.slurmd import start_slurmd
from node.design.accelerators import Accelerator
from node.design.folders import Folders
from node.design.model import ClusterDesign, Host, Partition, Settings, Site, SlurmSettings
from node.slurm import topology, version
from node.slurm.addressing import ports_needed
from node.slurm.conf import render
from node.slurm.control import Control
from node.slurm.hostlist import expand
from operations.local.run_directory import FIRST_PORT, free_range

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OWN_PORTS = range(FIRST_PORT - 4000, FIRST_PORT)
SLOT = 64
MISSING = [
    tool for tool in ("munged", "slurmctld", "slurmd", "scontrol") if not shutil.which(tool, path=PATH)
]
needs_slurm = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

# A prolog that waits for the job's nodes, like the product's.
WAIT_FOR_NODES = """
while scontrol --oneliner show node "$SLURM_JOB_NODELIST" | grep -q 'State=.*POWER'; do sleep 0.2; done
"""

# Slurm's programs have no PATH and a closed standard input.
_PROGRAM = """#!/bin/sh
PATH={path}
exec </dev/null
f={requests}/{kind}.$$
echo "$1" >$f.part
[ -z "$SLURM_RESUME_FILE" ] || cat "$SLURM_RESUME_FILE" >$f.json
mv $f.part $f
"""


def reserved_range(count: int, seed: int, within: range = OWN_PORTS) -> tuple[int, list[socket.socket]]:
    """Return the first of `count` ports in a row that no other test's cluster has, and what reserves them.

    Nodes that are off have no listener, so ports that look free may be another cluster's. UDP sockets, one
    for each SLOT of ports, reserve them: Slurm uses none, and the kernel closes them however a process ends.
    """
    taken: list[range] = []
    while True:
        first, held = free_range(count, seed, taken, within=within), []
        for slot in range(first // SLOT * SLOT, first + count, SLOT):
            held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                held[-1].bind(("127.0.0.1", slot))
            except OSError:
                taken.append(range(slot, slot + SLOT))
                break
        else:
            return first, held
        for one in held:
            one.close()


def partition(name: str = "debug", *, nodes: int = 2, static: int = 0, gpus: int = 0) -> Partition:
    accelerator = Accelerator("v100", gpus, simulated=True) if gpus else None
    return Partition(name, "tiny", 2, 1000, static, nodes, accelerator=accelerator, default=name == "debug")


def design(
    *partitions: Partition, slurm: SlurmSettings | None = None, isolation: str = "process"
) -> ClusterDesign:
    return ClusterDesign(
        name="test",
        stack="test",
        provider="local",
        isolation=isolation,
        hosts=(Host("localhost", "controller", ("controller", "login"), "tiny", 10),),
        partitions=partitions or (partition(),),
        mounts=(),
        slurm=slurm
        or SlurmSettings(suspend_time=2, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60),
    )


class SlurmCluster:
    """A real Slurm cluster.

    Attributes:
        root: the run directory.
        conf: the path of slurm.conf.
        boot: is called for each requested node. If it returns true, the node's slurmd starts.
        resumes: the host lists of the calls of ResumeProgram.
        suspends: the host lists of the calls of SuspendProgram.
    """

    def __init__(
        self,
        plan: ClusterDesign,
        prolog: str = "exit 0",
        edit: Callable[[str], str] = lambda text: text,
        sbin: str = "/usr/sbin",
        ports: range = OWN_PORTS,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="slurm-test-", dir="/tmp"))
        self.root.chmod(0o711)
        count = ports_needed(plan)
        # The ports are not in the range of stacks' clusters: most of theirs have no listener to be found.
        first, self._reserved = reserved_range(count + 1, zlib.crc32(self.root.name.encode()), ports)
        self.site = Site(
            root=str(self.root),
            user=pwd.getpwuid(os.getuid()).pw_name,
            controller_host="localhost",
            controller_address="127.0.0.1",
            slurmctld_port=first,
            slurmd_port=first + 1,
        )
        self.settings = Settings(plan, self.site)
        self.folders = Folders(self.settings)
        self.boot: Callable[[str], bool] = lambda node: True
        self.resumes: list[str] = []
        self.suspends: list[str] = []
        self.resume_files: list[str] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._agent = threading.Thread(target=self._serve, name="machines", daemon=True)
        self._prolog, self._edit, self._sbin = prolog, edit, sbin
        self.release = version.parse(self._version())

    @property
    def conf(self) -> Path:
        return Path(self.folders.slurm_conf)

    @property
    def control(self) -> Control:
        return Control(str(self.conf))

    def log(self, name: str = "slurmctld") -> str:
        return Path(self.folders.log / f"{name}.log").read_text(errors="replace")

    def has_log(self, name: str) -> bool:
        return (Path(self.folders.log) / f"{name}.log").exists()

    def environment(self) -> dict[str, str]:
        return {"PATH": PATH, "SLURM_CONF": str(self.conf), "HOME": str(self.root)}

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=check,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_controller(self) -> None:
        """Starts slurmctld, which continues with its saved state, and waits for its answer."""
        self._spawn("slurmctld", f"{self._sbin}/slurmctld", "-D")
        self._wait_for(self.control.ping, "slurmctld")

    def kill_controller(self) -> None:
        """Kills slurmctld with SIGKILL, so that it saves nothing any more."""
        process = self._processes.pop("slurmctld")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def start_node(self, node: str) -> None:
        (Path(self.folders.spool) / node).mkdir(exist_ok=True)
        # Without -b the boot time would be the machine's, which is older than the request.
        argv = (f"{self._sbin}/slurmd", "-D", "-b", "-N", node)
        service = Service(node, argv, Path(self.folders.log) / f"{node}.out")
        # As on a machine, the registration is checked, because on a busy machine the first one may be lost.
        start_slurmd(_Spawned(self), service, node, self.folders, self.release)

    def spawn(self, service: Service) -> int:
        """Starts a service's process and returns its pid."""
        self._spawn(service.name, *service.argv)
        return self._processes[service.name].pid

    def stop_node(self, node: str) -> None:
        if process := self._processes.pop(node, None):
            _end(process)

    @contextlib.contextmanager
    def stopped(self, node: str) -> Iterator[None]:
        """Have a node's slurmd answer nobody for a while."""
        pid = self._processes[node].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait(self, what: str, condition: Callable[[], object], seconds: float = 120) -> None:
        """Wait until a condition holds. Most look at the answer of a program, so the looks become rarer."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert waited < seconds, f"not within {seconds} s: {what}\n{self._story()}"
            time.sleep(min(0.2, max(0.05, waited / 8)))

    def close(self) -> None:
        self._stop.set()
        if self._agent.is_alive():
            self._agent.join()
        # slurmctld ends first, because it would request nodes again.
        for name in ["slurmctld", *(n for n in list(self._processes) if n != "munged"), "munged"]:
            self.stop_node(name)
        # Jobs outlive their slurmd, which is intended.
        for process in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
        for held in self._reserved:
            held.close()

    def _story(self) -> str:
        """What a failed wait shows: the programs' calls, the processes and the ends of the logs."""
        running = [name for name, process in list(self._processes.items()) if process.poll() is None]
        logs = [f"{file.name}:\n{file.read_text(errors='replace')[-2000:]}" for file in self._logs()]
        calls = f"resumes {self.resumes}, suspends {self.suspends}, agent alive: {self._agent.is_alive()}"
        nodes = self.run("scontrol", "--oneliner", "show", "node", check=False).stdout
        return "\n".join([calls, f"running: {running}", nodes, *logs])

    def _logs(self) -> list[Path]:
        return sorted(file for file in Path(self.folders.log).iterdir() if file.stat().st_size)

    def _left(self) -> list[int]:
        """The processes of jobs, whose command or environment has this run directory."""
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                if str(self.root).encode() in text and int(folder.name) != os.getpid():
                    left.append(int(folder.name))
        return left

    def _start(self) -> None:
        folders = self.folders
        requests = self.root / "requests"
        programs = Path(folders.code) / "bin"
        needed = [folders.etc, folders.run, folders.log, folders.state, folders.spool]
        needed += [folders.munge_socket.parent, folders.munge_key.parent]
        for folder in (*needed, programs, requests):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for kind in ("resume", "suspend", "resume-fail"):
            text = _PROGRAM.format(path=PATH, requests=requests, kind=kind)
            _script(programs / kind, text)
        surroundings = f"export PATH={PATH} SLURM_CONF={self.conf}"
        _script(programs / "prolog-slurmctld", f"#!/bin/sh\n{surroundings}\n{self._prolog}\n")
        _script(programs / "epilog-slurmctld", "#!/bin/sh\n")
        for name, text in render(self.settings, self.release).items():
            (Path(folders.etc) / name).write_text(self._edit(text) if name == "slurm.conf" else text)
        if (tree := Path(folders.etc) / topology.FILE).exists():
            # As `configure` has it: the elastic daemon writes this file.
            Path(folders.elastic).mkdir(parents=True, exist_ok=True)
            tree.rename(Path(folders.elastic) / topology.FILE)
            tree.symlink_to(Path(folders.elastic) / topology.FILE)
        key = Path(folders.munge_key)
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        run, log = folders.run, folders.log
        self._spawn(
            "munged",
            "/usr/sbin/munged",
            "--foreground",
            f"--socket={folders.munge_socket}",
            f"--key-file={key}",
            f"--pid-file={run}/munged.pid",
            f"--seed-file={run}/munged.seed",
            f"--log-file={log}/munged.log",
        )
        self._wait_for(lambda: Path(folders.munge_socket).exists(), "munged")
        self.start_controller()
        self._agent.start()

    def _version(self) -> str:
        command = [f"{self._sbin}/slurmctld", "-V"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def _spawn(self, name: str, *command: str) -> None:
        with (Path(self.folders.log) / f"{name}.out").open("wb") as out:
            self._processes[name] = subprocess.Popen(
                # It ends with this process, also where nothing is left to end it: after a second Ctrl-C.
                ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--", *command],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _wait_for(self, condition: Callable[[], object], name: str) -> None:
        end = time.monotonic() + 120
        while not condition():
            if self._processes[name].poll() is not None or time.monotonic() > end:
                out = (Path(self.folders.log) / f"{name}.out").read_text()
                raise AssertionError(f"{name} did not start: {out[-3000:]}")
            time.sleep(0.02)

    def _serve(self) -> None:
        requests = self.root / "requests"
        while not self._stop.wait(0.02):
            for file in sorted(requests.iterdir()):
                kind = file.name.partition(".")[0]
                if file.suffix in (".part", ".json"):
                    continue
                hosts = file.read_text().strip()
                resume_file = file.with_name(file.name + ".json")
                if resume_file.exists():
                    self.resume_files.append(resume_file.read_text())
                    resume_file.unlink()
                file.unlink()
                if kind == "resume":
                    self.resumes.append(hosts)
                    for node in filter(self.boot, expand(hosts)):
                        self.start_node(node)
                elif kind == "suspend":
                    self.suspends.append(hosts)
                    for node in expand(hosts):
                        self.stop_node(node)


class _Spawned(Services):
    """The service manager of a machine whose processes belong to the test's cluster."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def start(self, service: Service) -> int:
        return self._cluster.spawn(service)

    def stop(self, name: str) -> None:
        self._cluster.stop_node(name)

    def tend(self) -> None:
        """Does nothing: a service that ends in a test is not restarted."""

    def keep(self) -> None:
        raise AssertionError("the test is the services' life")


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and the rest of its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
            return
