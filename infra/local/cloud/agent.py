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
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from infra.local.cloud.cloud import Cloud, CloudError, Limits
from infra.local.cloud.init import become_subreaper
from infra.local.cloud.machines import ProcessMaker
from infra.node import rpc

WATCH_SECONDS = 0.5


class Agent:
    """Serves one cluster's cloud from `<run>/cloud` until `shutdown` is called."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / "cloud"
        maker = ProcessMaker(run, str(run / "python3"))
        limits_file = self._folder / "limits.json"
        limits = Limits(**json.loads(limits_file.read_text())) if limits_file.exists() else Limits()
        self._maker = maker
        self._cloud = Cloud(self._folder, maker, limits)
        self._ended = threading.Event()

    def run(self) -> None:
        server = rpc.Server(str(self._folder / "agent.sock"), self._handle)
        threading.Thread(target=server.serve, daemon=True).start()
        while not self._ended.wait(WATCH_SECONDS):
            self._maker.reap()
            self._cloud.watch()
            # A run directory that is gone (a reboot, an rm -r) leaves nobody who could ever ask again.
            if not self._folder.exists():
                break
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
        if method == "limits":
            for key, value in params.items():
                if not hasattr(self._cloud.limits, key):
                    raise CloudError("InvalidRequest", f"no limit is called {key!r}")
                setattr(self._cloud.limits, key, value)
            (self._folder / "limits.json").write_text(json.dumps(asdict(self._cloud.limits)))
            return asdict(self._cloud.limits)
        if method == "shutdown":
            self._cloud.close()
            # The answer goes out first.
            threading.Timer(0.05, self.stop).start()
            return {"pid": os.getpid()}
        raise CloudError("InvalidRequest", f"no call is named {method!r}")


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    become_subreaper()
    run = Path(sys.argv[1])
    lock = (run / "cloud" / "agent.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"another agent serves {run}") from None
    agent = Agent(run)
    # Machines outlive their agent, as they outlive a cloud's API; only `shutdown` ends them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    print(f"{time.strftime('%FT%TZ', time.gmtime())} the local cloud's agent serves {run}", flush=True)
    agent.run()


if __name__ == "__main__":
    main()
