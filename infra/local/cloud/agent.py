"""The local cloud's agent: one process, its API on a Unix socket (`infra.node.rpc`).

Calls: launch, terminate, list (see `infra.local.cloud.cloud.Cloud`), limits (read and set), shutdown.
Run by `infra.local.operations`: `python -m infra.local.cloud.agent RUN`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from infra.local.cloud.cloud import Cloud, CloudError, Limits
from infra.local.cloud.init import become_subreaper
from infra.local.cloud.machines import ProcessMaker
from infra.node import rpc

WATCH_SECONDS = 0.5
LOCK_SECONDS = 1.0
"""How long the threads of an agent that was killed may take to end."""


class Agent:
    """Serves one cluster's cloud from `<run>/cloud` until `shutdown` is called."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "cloud"
        self._maker = ProcessMaker(run, str(run / "python3"))
        self._limits_file = self._folder / "limits.json"
        self._cloud = Cloud(self._folder, self._maker, _limits(self._limits_file))
        self._ended = threading.Event()
        self._closing = False

    def run(self, place: Place) -> None:
        server = rpc.Server(str(self._folder / "agent.sock"), self._handle)
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

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        self._ended.set()

    def _handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "launch":
            return self._cloud.launch(**params)
        if method == "terminate":
            return self._cloud.terminate(**params)
        if method == "list":
            return self._cloud.list(**params)
        if self._closing and method != "shutdown":
            raise CloudError("Unavailable", "the cloud is shutting down")
        if method == "limits":
            for key, value in params.items():
                if not hasattr(self._cloud.limits, key):
                    raise CloudError("InvalidRequest", f"no limit is called {key!r}")
                setattr(self._cloud.limits, key, value)
            if params:
                draft = self._limits_file.with_suffix(".new")
                draft.write_text(json.dumps(asdict(self._cloud.limits)))
                draft.replace(self._limits_file)
            return asdict(self._cloud.limits)
        if method == "shutdown":
            self._closing = True
            self._cloud.close()
            # The answer goes out first.
            threading.Timer(0.05, self.stop).start()
            return {"pid": os.getpid()}
        raise CloudError("InvalidRequest", f"no call is named {method!r}")


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
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
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


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _limits(file: Path) -> Limits:
    """What was set last; a file that is damaged is none."""
    try:
        return Limits(**json.loads(file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
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
