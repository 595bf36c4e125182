"""The local cloud's agent: one process, its API on a Unix socket (`infra.node.rpc`).

Calls: launch, terminate, list, room, which limits and faults apply to, and fault, inspect (see
`infra.local.cloud.cloud.Cloud`); limits (read and set); shutdown.
Run by `infra.local.operations`: `python -m infra.local.cloud.agent RUN`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from infra.local.cloud import addresses, containers, kind
from infra.local.cloud.cloud import Cloud
from infra.local.cloud.errors import CloudError
from infra.local.cloud.init import become_subreaper
from infra.local.cloud.limits import COMPUTE, Limits, changed, refusal
from infra.node import rpc
from infra.node.bootstrap import files
from infra.node.bootstrap.accounts import IDS
from infra.node.codec import to_json

WATCH_SECONDS = 0.5
LATENCY_STEP_SECONDS = 0.1
PID_DIGITS = 10
LOCK_SECONDS = 5.0
"""How long the threads of an agent that was killed may take to end, on a machine that is busy."""


class Agent:
    """Serves one cluster's cloud from `<run>/cloud` until `shutdown` is called."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "cloud"
        self._maker = kind.maker(run)
        self._run = run
        self._limits_file = self._folder / "limits.json"
        self._limits_lock = threading.Lock()
        self._cloud = Cloud(self._folder, self._maker, _limits(self._limits_file))
        self._ended = threading.Event()
        self._closing = False

    def run(self, place: Place) -> None:
        claim = self._claim_addresses()
        server = rpc.Server(str(_socket(self._run)), self._handle)
        _admit_slurm(self._run)
        threading.Thread(target=server.serve, daemon=True).start()
        while not self._ended.wait(WATCH_SECONDS):
            # A run directory that is gone (an rm -r) leaves nobody who could ever ask again.
            if not place.ours():
                self._cloud.close(write=False)
                return
            place.keep()
            try:
                self._maker.reap()
                self._cloud.watch()
            except Exception:  # machines without their agent cannot be asked for: the next look may be better
                traceback.print_exc()
        self._cloud.close()
        server.close()
        if claim is not None:
            claim.close()

    def _claim_addresses(self) -> socket.socket | None:
        """Hold the block of addresses that process machines have; machines that run keep theirs."""
        if kind.read(self._run) == kind.CONTAINER:
            return None
        there = self._cloud.list({})["machines"]
        claim = addresses.claim(self._run, movable=not any(m["state"] != "terminated" for m in there))
        if claim is None:
            print("the cluster's addresses are not claimed: another one may have the same", flush=True)
        return claim

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        self._ended.set()

    def _handle(self, method: str, params: dict[str, Any]) -> Any:
        if method in ("launch", "terminate", "list", "room"):
            if self._is_of_compute(method, params):
                self._hinder(method)
            return getattr(self._cloud, method)(**params)
        if self._closing and method != "shutdown":
            raise CloudError("Unavailable", "the cloud is shutting down")
        if method in ("fault", "inspect"):
            return getattr(self._cloud, method)(**params)
        if method == "limits":
            return self._set_limits(params)
        if method == "shutdown":
            self._closing = True
            self._cloud.close()
            # The answer goes out first.
            threading.Timer(0.05, self.stop).start()
            return {"pid": os.getpid()}
        raise CloudError("InvalidRequest", f"no call is named {method!r}")

    def _is_of_compute(self, method: str, params: dict[str, Any]) -> bool:
        """Whether a call is about nodes. What makes and keeps the cluster's head is never hindered."""
        if method == "terminate":
            roles = self._cloud.roles(params.get("ids", []))
            return not roles or COMPUTE in roles
        return bool(params.get("tags", {}).get("role", COMPUTE) == COMPUTE)

    def _hinder(self, method: str) -> None:
        """A slow API, and one that refuses; both may be over while a call waits."""
        began = time.monotonic()
        while (left := began + self._cloud.limits.api_latency - time.monotonic()) > 0:
            if self._ended.wait(min(left, LATENCY_STEP_SECONDS)):
                break
        if (error := refusal(self._cloud.limits, method)) is not None:
            raise error

    def _set_limits(self, changes: dict[str, Any]) -> dict[str, Any]:
        if changes:
            with self._limits_lock:
                limits = changed(self._cloud.limits, changes)
                files.place(self._limits_file, json.dumps(to_json(limits)).encode())
                self._cloud.limits = limits
        answer: dict[str, Any] = to_json(self._cloud.limits)
        return answer


class Place:
    """The agent's hold on its run directory: one agent a cluster, and nobody tidies it away.

    Raises:
        SystemExit: another agent has it.
    """

    def __init__(self, run: Path) -> None:
        self._file = run / "cloud" / "agent.lock"
        self._lock = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(self._lock):
            if time.monotonic() > deadline:
                raise SystemExit(f"another agent serves {run}")
            time.sleep(0.02)
        # In one write and always as long: whoever reads it finds a whole pid, an earlier agent's or ours.
        os.pwrite(self._lock, f"{os.getpid():<{PID_DIGITS}}\n".encode(), 0)
        self._folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        self._kept = False
        self.keep()

    def ours(self) -> bool:
        """False once the directory was removed, or removed and made again by somebody else."""
        try:
            return os.path.samestat(os.fstat(self._lock), self._file.stat())
        except FileNotFoundError:
            return False

    def keep(self) -> None:
        """Lock the directory itself.

        On many systems files in /tmp that nobody has touched for days are removed. systemd-tmpfiles leaves
        alone what lies below a locked directory; while it looks at this one, it has the lock itself.
        """
        self._kept = self._kept or _locked(self._folder)


def _admit_slurm(run: Path) -> None:
    """On machines with users of their own the elastic daemon is Slurm's user, and it asks for machines."""
    if kind.read(run) == kind.CONTAINER:
        os.chown(_socket(run), IDS["slurm"], IDS["slurm"])


def _socket(run: Path) -> Path:
    if kind.read(run) != kind.CONTAINER:
        return run / "cloud" / "agent.sock"
    own = containers.socket(run)
    own.parent.mkdir(exist_ok=True)
    return own


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _limits(file: Path) -> Limits:
    """What was set last; a file that is damaged is none."""
    try:
        return changed(Limits(), json.loads(file.read_text()))
    except (FileNotFoundError, ValueError, TypeError, AttributeError, CloudError):
        return Limits()


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    become_subreaper()
    run = Path(sys.argv[1])
    place = Place(run)
    agent = Agent(run)
    # Machines outlive their agent, as they outlive a cloud's API; only `shutdown` ends them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    print(f"{time.strftime('%FT%TZ', time.gmtime())} the local cloud's agent serves {run}", flush=True)
    agent.run(place)


if __name__ == "__main__":
    main()
