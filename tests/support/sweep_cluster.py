"""A user of sweeps and a cluster: the real node code over a queue that advances whenever it is asked."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli import main as cli
from cli import results
from cli.commands import report
from cli.commands.report import Made
from cli.commands.sweep import watch
from cli.providers import login_machine
from infra.errors import NotUpError, UserError
from infra.program import locations
from node.slurm.control import SlurmError
from node.sweep import Sweep
from node.system import foreign, subprocesses
from node.system.subprocesses import Ran
from operations import packages
from operations.access import StackUp
from tests.support.doubles import FakeControl, job, settings

Hook = Callable[[str], None]

STACK = """
config:
  slurm-stacks:cluster:
    provider: local
    partitions: [{name: debug, instance_type: local.small, nodes: {max: 8}}]
  slurm-stacks:benchmark: {epochs: 1}
"""


AFTER = {
    "open": "opened", "prepare": "prepared", "submit": "submitted", "show": "shown", "cancel": "cancelled",
    "close": "closed",
}  # fmt: skip


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def die(_stage: str) -> None:
    raise Killed


def interrupt(_stage: str) -> None:
    raise KeyboardInterrupt


@dataclass
class Ended:
    """The result of a command. The code is -9 if it was killed."""

    code: int
    out: str
    err: str


def record(nodes: int, job_id: int, **changes: Any) -> dict[str, Any]:
    """A valid result."""
    history = [{"epoch": 1, "loss": 0.5, "accuracy": 0.9, "seconds": 60.0 / nodes}]
    made = {
        "apiVersion": "slurm-stacks/result/v1", "stack": "test", "job_id": str(job_id), "partition": "debug",
        "machine": "local.small", "nodes": nodes, "workers": nodes, "gpus_per_node": 0, "devices": ["CPU:0"],
        "profile": "sync", "data": "digits-synthetic", "epochs": 1, "global_batch": 64 * nodes,
        "seconds_total": 70.0 / nodes, "seconds_train": 60.0 / nodes, "images_per_second": 1000.0 * nodes,
        "loss": 0.5, "accuracy": 0.9, "test_accuracy": 0.88, "history": history,
        "start_latency_seconds": 1.0, "restarts": 0, "digest": None, "versions": {}, "cost_usd": None,
        "seed": 0, "learning_rate": 0.2, "average_every": None, "cores": nodes, "cores_shared": False,
        "cores_others": None, "step_seconds": None, "exchange_seconds": None, "phases": {},
    }  # fmt: skip
    return {**made, **changes}


class SweepCluster:
    """Stands for what `login_machine.tool` reaches. Jobs run in order, one at a time, one step for each call.

    Attributes:
        up: whether there is a cluster.
        broken: numbers of jobs that fail.
        stuck: whether jobs stay as they are.
        hooks: for each action, called before (`open`, `prepare`, `submit`, `sbatch`, `show`, `cancel`,
            `close`) and after (those of AFTER, `sbatched`) it; what they raise happens there.
        submitted: the folder of every job, in order: each of them once is what a sweep owes its user.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings = settings(root)
        self.bench = Path(self._settings.site.shared) / "bench"
        self.up = True
        self.stuck = False
        self.broken: set[int] = set()
        self.hooks: dict[str, Hook] = {}
        self.control = FakeControl()
        self.sweep = Sweep(self._settings, self.control)
        self.submitted: list[str] = []
        self.waits: dict[int, str] = {}
        self.looks = 0
        self.needed = True
        """Whether the cluster has what runs need (workload, environment)."""
        monkeypatch.setattr(login_machine, "tool", self._tool)
        monkeypatch.setattr(subprocesses, "run", self._sbatch)

    def renew(self) -> None:
        """Put another cluster in its place: it has no folder or job of the old one; job ids begin at 1."""
        self.control.queue.clear()
        for file in sorted(self.bench.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()

    def jobs(self, *states: str) -> list[int]:
        return [number for number, its in self.control.queue.items() if its.state in states]

    def _tool(self, _machine: object, _up: StackUp, verb: str, action: str, *, text: str = "") -> str:
        assert verb == "sweep"
        self._hook(action)
        if not self.up:
            raise NotUpError(
                "stack test is not up: bring it up with `./cluster up --stack test`", code="cluster.not-up"
            )
        if action == "show":
            self.looks += 1
            if not self.stuck:
                self._go_on()
        question = json.loads(text)
        if action == "prepare" and self.needed:
            question["needs"] = []
        try:
            answer = getattr(self.sweep, action)(question)
        except (SlurmError, RuntimeError) as error:
            raise UserError(str(error), code="test.cause") from None
        self._cancelled()
        self._hook(AFTER[action])
        return json.dumps(answer)

    def _hook(self, name: str) -> None:
        if name in self.hooks:
            self.hooks[name](name)

    def _sbatch(self, command: list[str], env: dict[str, str], **options: Any) -> Ran:
        self._hook("sbatch")
        given = dict(item.lstrip("-").split("=", 1) for item in command if "=" in item)
        number = max(self.control.queue, default=0) + 1
        self.waits[number] = given.get("dependency", "")
        reason = "Dependency" if self.waits[number] else "None"
        self.control.queue[number] = job(
            number, "PENDING", comment=given["comment"], reason=reason, user=foreign.name(os.geteuid())
        )
        self.submitted.append(str(Path(options["folder"]).relative_to(self.bench)))
        self._hook("sbatched")
        return Ran(0, f"{number}\n", "")

    def _go_on(self) -> None:
        """End the running job, or start the first one that waits."""
        if running := self.jobs("RUNNING"):
            return self._end(running[0])
        if waiting := self.jobs("PENDING"):
            self._change(waiting[0], state="RUNNING", nodes=("debug-0",), reason="None")
        return None

    def _end(self, number: int) -> None:
        folder = self.bench / (self.control.queue[number].comment or "").removeprefix("slurm-stacks:")
        (folder / "out-keras.txt").write_text(f"words of job {number}\n")
        if number in self.broken:
            return self._change(number, state="FAILED")
        script = (folder / "run_keras").read_text()
        nodes = int(script.partition("#SBATCH --nodes=")[2].split()[0])
        (folder / "result.json").write_text(json.dumps(record(nodes, number)))
        return self._change(number, state="COMPLETED")

    def _cancelled(self) -> None:
        for call in self.control.calls:
            for number in call[1:] if call[0] == "cancel" else ():
                self._change(number, state="CANCELLED")
        self.control.calls.clear()

    def _change(self, number: int, **changes: Any) -> None:
        self.control.queue[number] = dataclasses.replace(self.control.queue[number], **changes)


class SweepUser:
    """Runs `./cluster run --stack test …` in this process, in a checkout with only a stack file and workload.

    Attributes:
        reports: the stacks of each report that was made.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.project = folder / "a checkout"
        (self.project / "workload").mkdir(parents=True)
        (self.project / "workload" / "train.py").write_text("")
        (self.project / "Pulumi.test.yaml").write_text(STACK)
        monkeypatch.setenv("SLURM_STACKS_PROJECT", str(self.project))
        monkeypatch.setattr(packages, "provide", lambda _group: None)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(locations, "run_root", lambda: folder / "runs")
        monkeypatch.setattr(watch, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(report, "make", self._report)
        self.reports: list[list[str]] = []
        self.slurm = SweepCluster(folder / "cluster", monkeypatch)

    def run(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["cluster", "run", "--stack", "test", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except Killed:
            code = -9
        output = self._capsys.readouterr()
        assert "Traceback" not in output.err
        return Ended(code, output.out, output.err)

    def cut_off(self, *arguments: str) -> None:
        """Begin a sweep and stop watching it."""
        self.slurm.hooks = {"show": die}
        assert self.run(*arguments).code == -9
        self.slurm.hooks = {}

    def kept(self) -> list[tuple[int, int]]:
        """Return (nodes, job) of the kept results."""
        found, wrong = results.load("test")
        assert wrong == []
        return sorted((one.record["nodes"], int(one.record["job_id"])) for one in found)

    def left(self) -> list[str]:
        """Return the folders of the runs under way; the checkout never has a file of a sweep."""
        assert sorted(self.project.glob(f"{locations.STATE_FOLDER}/**/*")) == []
        return [run["folder"] for run in self.slurm.sweep.open()["runs"]]

    def _report(self, stacks: list[str], *, project: Path) -> Made:
        assert project == self.project
        self.reports.append(stacks)
        return Made(Path("/reports/report.html"), Path("/reports/report.csv"))
