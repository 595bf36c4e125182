"""A project whose machines' boots do nothing: the local cloud and its operations without Slurm.

The loader, which is the first code of a machine, is replaced: it writes the boot report that the test asks
for and then keeps running. Everything else (the agent, init, the process trees) is real.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.program import locations
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.system import rpc
from node.system.codec import to_json
from node.system.processes import ProcessId
from operations.local.__main__ import VERBS
from operations.local.agent import agent_process
from operations.local.cluster import cloud_down
from operations.local.run_directory import RunDirectory
from tests.support.checkout import CODE, ROOT, until

CHANGED = ("node", "localcloud", "workload")
"""The folders in which tests change files: each test has a copy of them, and links to the others."""
LOADER = """
import json, os, sys, time
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
bucket, host = Path(given["--bucket"]), given["--host"]
wish = bucket.parent / "outcome"
state = wish.read_text() if wish.exists() else "ready"
if state == "mute":
    raise SystemExit("the loader cannot start")
step = {"name": "hooks", "note": "driver.sh ended with status 3", "tail": ["no driver"]}
report = {"state": state, "steps": [step], "facts": {"slurm": "slurm-wlm 22.05.8"}, "args": given}
sys.path.insert(0, str(bucket / json.loads((bucket / "current.json").read_text())["code"]["key"]))
from node.bootstrap.services import InitServices
services = InitServices()
if os.fork() == 0:
    os.setsid()  # what a job leaves behind
    time.sleep(300)
(bucket / "boot").mkdir(exist_ok=True)
draft = bucket / "boot" / f".{host}"
draft.write_text(json.dumps(report))
draft.replace(bucket / "boot" / f"{host}.json")
services.keep()
"""


class FakeMachines:
    """A project and its cluster's run directory. `close` ends all processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = folder / "a project"
        self._monkeypatch = monkeypatch
        self._runs = folder / "runs"
        monkeypatch.setattr(locations, "run_root", lambda: self._runs)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        self.project.mkdir(exist_ok=True)  # a test may have put stack files there
        for part in CODE:
            if part in CHANGED:
                ignored = shutil.ignore_patterns("__pycache__", "uv.lock")
                shutil.copytree(ROOT / part, self.project / part, ignore=ignored)
            else:
                (self.project / part).symlink_to(ROOT / part)
        (self.project / "node" / "loader.py").write_text(LOADER)
        self.run = RunDirectory.of(Stack(self.project, "test"))

    def do(self, verb: str, stdin: str = "", **options: str) -> dict[str, Any]:
        """Run one of the verbs of `operations.local`."""
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return VERBS[verb](Stack(self.project, "test"), **options)

    def publish(self, design: ClusterDesign) -> dict[str, Any]:
        return self.do("publish", json.dumps(to_json(design)))

    def outcome(self, state: str) -> None:
        """Set how the next boots end: ready, failed, booting, or mute (no report at all)."""
        (self.run.path / "outcome").write_text(state)

    def call(self, method: str, **params: Any) -> Any:
        return rpc.call(str(self.run.agent_socket), method, 120.0, **params)

    def launch(self, *hosts: str, role: str = "compute") -> list[dict[str, Any]]:
        names = {host: f"t-{host}" for host in hosts}
        tags = {"cluster": "t", "role": role}
        answer = self.call(
            "launch", token="-".join(hosts), names=names, min_count=1, machine="local.small", tags=tags
        )
        return list(answer["machines"])

    def machines(self, **tags: str) -> dict[str, str]:
        """Return the living machines: node -> id."""
        found = self.call("list", tags=tags)["machines"]
        return {m["node"]: m["id"] for m in found if m["state"] in ("pending", "running")}

    def process(self, host: str) -> ProcessId:
        """Return the first process of a host's machine, which runs or is about to."""

        def found() -> dict[str, Any] | None:
            # The machine may boot before the cloud has saved that it runs.
            records = json.loads((self.run.cloud / "machines.json").read_text())["machines"]
            running = [r for r in records if r["node"] == host and r["state"] == "running"]
            return running[0]["process"] if running else None

        return ProcessId(**until(found, 60, f"{host}'s process"))

    def agent(self) -> ProcessId:
        """Return the pid of the agent that serves, or will soon."""
        process: ProcessId = until(lambda: agent_process(self.run), 60, "the agent")
        return process

    def booted(self, host: str) -> bool:
        return (self.run.bucket / "boot" / f"{host}.json").exists()

    def processes(self) -> list[int]:
        return self.run.pids()

    def close(self) -> list[int]:
        """End everything by all means. Returns the pids that survived it."""
        # The test may have set another folder for clusters in the meantime.
        self._monkeypatch.setattr(locations, "run_root", lambda: self._runs)
        cloud_down(Stack(self.project, "test"))
        return self.processes()
