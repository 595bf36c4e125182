"""Starts a program by mpirun over SSH, as the published `mpi-run.sh` does.

Each node except the main one runs an sshd with a host key that it makes at its start. The main node makes a
client key, which the other nodes accept, and learns their host keys when they register. So no key is in the
image, and none outlives the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload.batch.program import Process
from workload.batch.protocol import interface
from workload.batch.settings import Settings
from workload.errors import WorkloadError

SBIN = "/usr/sbin:/sbin"
START_SECONDS = 60.0
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "JOB_DIR", "SCRATCH_DIR", "BATCH_SIZE", "MPI_GPUS")
PASSED_ON_PREFIXES = ("AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT", "CUDA_", "FI_", "NCCL_", "OMP_", "TF_")
"""The main node's variables that ranks get, besides those that start with SLURM_STACKS_."""
_PRIVILEGE_SEPARATION = Path("/run/sshd")


def program(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        WorkloadError: It is not installed.
    """
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/opt/openmpi/bin:{SBIN}")
    if path is None:
        raise WorkloadError(f"SLURM_STACKS_LAUNCH is mpi, and the image has no {name} (package {package})")
    return path


def make_key(path: Path) -> str:
    """Make a key without a password, and return its public half."""
    command = [program("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]
    done = subprocess.run(
        [*command, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WorkloadError(f"ssh-keygen failed: {done.stderr.strip()}")
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii").strip()


class Sshd:
    """A node's SSH server, which lets in nobody until `authorize` is called."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self._folder, self._address, self._port = folder, address, port
        self._keys = folder / "authorized_keys"
        self._process: Process | None = None
        self.host_key = make_key(folder / "host_key")

    async def start(self) -> None:
        """Start the server, and return when it answers.

        Raises:
            WorkloadError: It does not start.
        """
        self._keys.touch(mode=0o600)
        config = self._folder / "sshd_config"
        config.write_text(
            f"Port {self._port}\n"
            f"ListenAddress {self._address}\n"
            f"HostKey {self._folder / 'host_key'}\n"
            f"AuthorizedKeysFile {self._keys}\n"
            f"AllowUsers {getpass.getuser()}\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            # The folder is below /tmp, which everybody may write; the files are ours alone.
            "StrictModes no\nUsePAM no\nPidFile none\nLogLevel FATAL\nMaxStartups 1000\n",
            encoding="utf-8",
        )
        if os.geteuid() == 0:
            _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        command = [program("sshd", "openssh-server"), "-D", "-e", "-f", str(config)]
        self._process = await Process.start(command, os.environ, self._folder)
        ended = asyncio.create_task(self._process.wait())
        try:
            async with asyncio.timeout(START_SECONDS):
                while not _answers(self._address, self._port):
                    if ended.done():
                        raise WorkloadError(f"sshd ended with status {ended.result()}; its message is above")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise WorkloadError(f"sshd does not answer within {START_SECONDS:.0f} s") from None
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended

    def authorize(self, key: str) -> None:
        """Accept logins with this public key."""
        self._keys.write_text(f"restrict {key}\n", encoding="ascii")

    async def end(self) -> None:
        if self._process is not None:
            await self._process.end()


def _answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def client_config(folder: Path, hosts: Mapping[str, str], port: int) -> Path:
    """Write the SSH client's configuration, which knows the nodes' host keys, and return its path.

    Args:
        folder: A folder with the client's key, `key`.
        hosts: Address -> host key.
        port: The port of each node's sshd.
    """
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(
        "".join(f"[{address}]:{port} {key}\n" for address, key in hosts.items()), encoding="ascii"
    )
    config = folder / "ssh_config"
    config.write_text(
        f"Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder / 'key'}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 30\n  LogLevel ERROR\n",
        encoding="utf-8",
    )
    return config


def ranks(settings: Settings, slots: Mapping[str, int]) -> int:
    """Return the number of MPI's ranks.

    Raises:
        WorkloadError: MPI_GPUS asks for more than the nodes have.
    """
    available = sum(slots.values())
    count = settings.mpi_ranks or available
    if count > available:
        raise WorkloadError(
            f"MPI_GPUS is {count}, and the nodes have {available} together: GPUs, or cores where there is no "
            f"GPU. Set MPI_GPUS to {available} at most, or leave it out to use all"
        )
    return count


def command(
    settings: Settings,
    slots: Mapping[str, int],
    folder: Path,
    config: Path,
    env: Mapping[str, str],
    rest: Sequence[str],
) -> list[str]:
    """Return mpirun's command, and write its host list.

    Args:
        settings: The main node's.
        slots: Address -> the ranks that its node takes. The first is the main node.
        folder: Where the host list goes.
        config: The SSH client's configuration.
        env: The environment of mpirun, of which the ranks get a part.
        rest: The program and its arguments.
    """
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{address} slots={count}\n" for address, count in slots.items()))
    extra = list(settings.extra_mpi)
    network = interface(next(iter(slots)))
    words = [program("mpirun", "openmpi-bin"), "-np", str(ranks(settings, slots)), "--hostfile", str(hosts)]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    pairs = list(itertools.pairwise(extra))
    chosen = {after for before, after in pairs if before in ("-mca", "--mca")}
    defaults = {"plm_rsh_no_tree_spawn": "1", "plm_rsh_agent": f"ssh -F {config}"}
    defaults |= {"pml": "ob1", "btl": "^openib"}
    if network:
        defaults |= {"btl_tcp_if_include": network, "oob_tcp_if_include": network}
    for name, value in defaults.items():
        if name not in chosen:  # mpirun refuses two values of one parameter
            words += ["-mca", name, value]
    if not any(word.lstrip("-") in ("bind-to", "cpus-per-proc") for word in extra):
        words += ["-bind-to", "socket"]
    if not any(word.lstrip("-") in ("map-by", "bynode", "npernode", "N") for word in extra):
        words += ["-map-by", "slot"]
    exported = {after.partition("=")[0] for before, after in pairs if before == "-x"}
    for name in sorted(env):
        passed = name in PASSED_ON or name.startswith((*PASSED_ON_PREFIXES, "SLURM_STACKS_"))
        if passed and name not in exported:
            words += ["-x", name]
    return [*words, *extra, "-wdir", str(settings.scratch), *rest]
