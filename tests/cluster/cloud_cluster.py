"""A whole cluster on a cloud, on one machine.

Real Slurm and the programs that it calls, the real elastic daemon with the cloud's driver and its real
client, and a fake of the cloud whose machines are slurmds here.
"""

from __future__ import annotations

import contextlib
import json
import threading
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.design.model import Partition, Settings, SlurmSettings
from node.elastic import programs
from node.system import rpc
from node.system.codec import to_json
from tests.node.slurm_cluster import SlurmCluster, design
from tests.support.checkout import ROOT, until

TIMERS = SlurmSettings(
    suspend_time=3, suspend_timeout=4, resume_timeout=120, slurmd_timeout=60, reconcile_interval=1.0
)


class CloudCluster(SlurmCluster):
    """The head's part of the cluster: Slurm with the programs that it calls, and the daemon that they ask.

    Nodes are processes, as their slurm.conf says. Machines are the fake's: a thread starts a slurmd for each
    running machine, and ends it with its machine.

    Args:
        site: the fields of `Site` that lead to the fake.
    """

    def __init__(self, provider: str, compute: Partition, site: dict[str, Any]) -> None:
        plan = replace(design(compute, slurm=TIMERS), name="t", provider=provider)
        super().__init__(plan)
        self.site = replace(self.site, python="/usr/bin/python3", **site)
        self.settings = Settings(plan, self.site)
        self._machines: dict[str, str] = {}
        self._over = threading.Event()
        self._datacenter = threading.Thread(target=self._follow, daemon=True, name="datacenter")

    @abstractmethod
    def running(self) -> dict[str, str]:
        """Return the fake's running machines: id -> node."""

    @abstractmethod
    def daemon_command(self, file: Path) -> list[str]:
        """Return the command of the elastic daemon, whose cloud client asks the fake."""

    def _start(self) -> None:
        super()._start()
        (Path(self.folders.code) / "node").symlink_to(ROOT / "node")
        file = self.root / "settings.json"
        file.write_text(json.dumps(to_json(self.settings)))
        # These programs ask the daemon. The ones that they replace only leave a request.
        programs.write(self.settings, file)
        self._spawn("elastic", *self.daemon_command(file))
        self._wait_for(self._daemon_answers, "elastic")
        self._datacenter.start()

    def close(self) -> None:
        self._over.set()
        if self._datacenter.is_alive():
            self._datacenter.join()
        self.stop_node("elastic")
        super().close()

    def _daemon_answers(self) -> bool:
        with contextlib.suppress(rpc.RpcUnavailableError):
            return bool(rpc.call(str(self.folders.daemon_socket), "ping", 1.0))
        return False

    def _follow(self) -> None:
        while not self._over.wait(0.1):
            running = self.running()
            for identity in self._machines.keys() - running.keys():
                self.stop_node(self._machines.pop(identity))
            for identity in running.keys() - self._machines.keys():
                self._machines[identity] = running[identity]
                self.start_node(running[identity])

    # --- what a user sees ----------------------------------------------------------------------------------

    def shown(self, number: str) -> str:
        """Return all that Slurm shows of a job, including its comment."""
        return self.run("scontrol", "--oneliner", "show", "job", number).stdout

    def job(self, number: str) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.shown(number).split() if "=" in pair)

    def states(self) -> set[str]:
        return set(self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split())

    def submit(self, *options: str, script: str) -> str:
        return self.run("sbatch", "--parsable", *options, "--wrap", script).stdout.strip()

    def runs_on_four_nodes(self, out: Path) -> None:
        """Run a job on four nodes to its end."""
        job = self.submit("-N4", f"--output={out}", script="srun sh -c 'echo $SLURMD_NODENAME'")
        until(lambda: self.job(job)["JobState"] == "COMPLETED", 120, "the job")
        assert sorted(out.read_text().split()) == [f"compute-{n}" for n in range(4)]

    def starts_once(self, starts: Path) -> str:
        """Submit a job that records its starts and ends only at its second start. Returns its id."""
        script = f'echo $SLURM_RESTART_COUNT >> {starts}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
        job = self.submit("--output=/dev/null", script=script)
        until(starts.exists, 120, "the first start")
        return job

    def starts_again(self, job: str, starts: Path) -> None:
        until(lambda: self.job(job)["JobState"] == "COMPLETED", 150, "the second start")
        assert len(starts.read_text().splitlines()) == 2
