"""The local cloud's agent: one process that serves the cloud's API on a Unix socket (`node.system.rpc`).

The calls `launch`, `terminate`, `list` and `available_capacity` obey the limits and the injected API errors;
`fault`, `inspect`, `limits` (read and set) and `shutdown` always work. See `localcloud.cloud.Cloud`.
`operations.local.agent` starts it: `python -m localcloud.agent RUN`.
"""

from __future__ import annotations

import contextlib
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

from localcloud import addresses, isolation
from localcloud.behaviour import changed, refusal
from localcloud.cloud import Cloud
from localcloud.init import become_subreaper
from localcloud.machines import COMPUTE, CloudError
from localcloud.network import read_hosts
from node.design.local_cloud import CloudBehaviour
from node.design.model import CONTAINER
from node.system import files, foreign, rpc
from node.system.accounts import IDS
from node.system.codec import to_json
from node.system.locks import acquire
from node.system.waiting import wait_at_most

WATCH_SECONDS = 0.5
LATENCY_STEP_SECONDS = 0.1
RENEW_SECONDS = 3600.0
PID_DIGITS = 10
LOCK_SECONDS = 5.0
"""How long to wait for the lock: on a busy machine the threads of a killed agent take a while to end."""


class Agent:
    """The server of one cluster's cloud in `<run>/cloud` until `shutdown` is called."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "cloud"
        self._runtime = isolation.runtime(run)
        self._run = run
        self._limits_file = self._folder / "limits.json"
        self._limits_lock = threading.Lock()
        self._cloud = Cloud(self._folder, self._runtime, _limits(self._limits_file))
        self._ended = threading.Event()
        self._closing = False

    def run(self, lock: AgentLock) -> None:
        claim = self._claim_addresses()
        socket_file = isolation.agent_socket(self._run)
        socket_file.parent.mkdir(exist_ok=True)
        server = rpc.Server(str(socket_file), self._handle)
        if isolation.read_isolation(self._run) == CONTAINER:
            # The users of machines read what is made for them here, whatever the caller's umask is.
            os.umask(0o022)
            # On container machines the elastic daemon, which calls the agent, runs as Slurm's user.
            os.chown(socket_file, IDS["slurm"], IDS["slurm"])
        threading.Thread(target=server.serve, daemon=True).start()
        while not self._ended.wait(WATCH_SECONDS):
            # If the run directory is gone (an rm -r), nobody can call this agent again.
            if not lock.ours():
                self._cloud.close(write=False)
                return
            lock.keep()
            try:
                self._runtime.reap()
                self._cloud.watch()
            except Exception:  # without an agent there are no machines at all; the next round may succeed
                traceback.print_exc()
        self._cloud.close()
        server.close()
        if claim is not None:
            claim.close()

    def _claim_addresses(self) -> socket.socket | None:
        """Claim the block of addresses of process machines; running machines keep their addresses."""
        if isolation.read_isolation(self._run) == CONTAINER:
            return None
        machines = self._cloud.list({})["machines"]
        claim = addresses.claim(self._run, movable=not any(m["state"] != "terminated" for m in machines))
        if claim is None:
            print("the cluster's addresses are not claimed: another one may have the same", flush=True)
        return claim

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        self._ended.set()

    def _handle(self, method: str, params: dict[str, Any]) -> Any:
        if method in ("launch", "terminate", "list", "available_capacity"):
            if self._concerns_compute(method, params):
                self._delay_or_refuse(method)
            answer = getattr(self._cloud, method)(**params)
            return self._with_addresses(answer) if method == "list" else answer
        if self._closing and method != "shutdown":
            raise CloudError("Unavailable", "the cloud is shutting down")
        if method in ("fault", "inspect"):
            return getattr(self._cloud, method)(**params)
        if method == "limits":
            return self._set_limits(params)
        if method == "shutdown":
            self._closing = True
            self._cloud.close()
            # The delay lets the answer go out first.
            threading.Timer(0.05, self.stop).start()
            return {"pid": os.getpid()}
        raise CloudError("InvalidRequest", f"no call is named {method!r}")

    def _with_addresses(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the addresses of container machines. Process machines have those of this host."""
        if isolation.read_isolation(self._run) != CONTAINER:
            return answer
        given = read_hosts(self._run / "cloud" / "hosts")
        machines = [
            record | {"addresses": [given[record["node"]]] if record["node"] in given else []}
            for record in answer["machines"]
        ]
        return answer | {"machines": machines}

    def _concerns_compute(self, method: str, params: dict[str, Any]) -> bool:
        """Return whether a call is about nodes.

        Calls about the cluster's head never get an injected error.
        """
        if method == "terminate":
            roles = self._cloud.roles(params.get("ids", []))
            return not roles or COMPUTE in roles
        return bool(params.get("tags", {}).get("role", COMPUTE) == COMPUTE)

    def _delay_or_refuse(self, method: str) -> None:
        """Simulate a slow or failing API. The settings are read again while a call waits."""
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
                files.write(self._limits_file, json.dumps(to_json(limits)).encode())
                self._cloud.limits = limits
        answer: dict[str, Any] = to_json(self._cloud.limits)
        return answer


class AgentLock:
    """The agent's lock on its run directory: one agent per cluster, and no cleanup of `/tmp` removes it.

    Raises:
        SystemExit: Another agent holds the lock.
    """

    def __init__(self, run: Path) -> None:
        self._file = run / "cloud" / "agent.lock"
        self._lock = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        if not wait_at_most(lambda: acquire(self._lock, wait=False), LOCK_SECONDS):
            raise SystemExit(f"another agent serves {run}")
        # One write of a fixed length: a reader always finds a whole pid, of an earlier agent or of this one.
        os.pwrite(self._lock, f"{os.getpid():<{PID_DIGITS}}\n".encode(), 0)
        self._folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        self._kept = False
        self._note = addresses.public_note(run)
        self._renewed = -RENEW_SECONDS
        self.keep()

    def ours(self) -> bool:
        """Return False once the directory was removed, even if it was made again since."""
        try:
            return os.path.samestat(os.fstat(self._lock), self._file.stat())
        except FileNotFoundError:
            return False

    def keep(self) -> None:
        """Lock the directory itself.

        Many systems remove files in /tmp that were not used for days. systemd-tmpfiles skips everything below
        a locked directory; while it inspects this one, it holds the lock itself.
        """
        self._kept = self._kept or acquire(self._folder, wait=False)
        # The public note lies outside, so it stays as long as it is new.
        if (now := time.monotonic()) > self._renewed + RENEW_SECONDS:
            self._renewed = now
            with contextlib.suppress(OSError):
                os.utime(self._note)


def _limits(file: Path) -> CloudBehaviour:
    """Return the limits that were set last, or the defaults if the file is missing or damaged."""
    try:
        return changed(CloudBehaviour(), foreign.record(file))
    except (FileNotFoundError, ValueError, TypeError, AttributeError, CloudError):
        return CloudBehaviour()


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    become_subreaper()
    run = Path(sys.argv[1])
    lock = AgentLock(run)
    agent = Agent(run)
    # Machines outlive their agent, as they outlive an outage of a cloud's API. Only `shutdown` ends them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    print(f"{time.strftime('%FT%TZ', time.gmtime())} the local cloud's agent serves {run}", flush=True)
    agent.run(lock)


if __name__ == "__main__":
    main()
