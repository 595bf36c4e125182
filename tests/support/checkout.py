"""A separate checkout for a test: the project's files, another stack file, its own user's state folder.

Its path distinguishes its clusters from all others, so tests never touch the user's own cluster. `close` ends
whatever a failed test has left, and returns what that was.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.program.stack import Stack
from tests.support import left_clusters

LONGEST_PAUSE = 1.0
"""Seconds between two looks of `until` at most."""
ROOT = Path(__file__).resolve().parents[2]
CODE = ("component", "infra", "operations", "cli", "node", "localcloud", "workload")
"""The folders of the project's code."""
PARTS = (*CODE, "__main__.py", "Pulumi.yaml", "cluster", "pyproject.toml", "uv.lock")

SMALL = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 10}, default: true}
        slurm: {suspend_time: 4}
"""


def sources() -> list[Path]:
    """Every Python file of the project's code."""
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


class Checkout:
    """A copy of the project with one stack file.

    Args:
        folder: where it is made; its name may contain spaces.
        stack_file: the text of Pulumi.<stack>.yaml; indentation is removed.
        inside: turns a command into the one that runs it on another machine, or in another root.
        source: the checkout that it is a copy of.
    """

    def __init__(
        self,
        folder: Path,
        stack_file: str = SMALL,
        stack: str = "test",
        inside: Callable[..., list[str]] | None = None,
        source: Path = ROOT,
    ) -> None:
        self.folder = folder
        self.stack = stack
        self._elsewhere = inside is not None
        self._inside = inside or (lambda *command: list(command))
        folder.mkdir(parents=True)
        for part in PARTS:
            if (source / part).is_dir():
                # Bytecode is copied, because compiling takes a second in every checkout. Temporary files of
                # another process that is just compiling are left out.
                shutil.copytree(source / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))
            else:
                shutil.copy2(source / part, folder / part)
        # The environment is shared: making another one would only test uv.
        (folder / ".venv").symlink_to(source / ".venv")
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PULUMI_", "VIRTUAL_ENV"))
        }
        self.env |= {"XDG_STATE_HOME": str(folder.parent / f"{folder.name}-state"), "COLUMNS": "160"}
        self.write_stack(stack_file)
        left_clusters.register(folder, stack)

    def write_stack(self, text: str) -> None:
        (self.folder / f"Pulumi.{self.stack}.yaml").write_text(textwrap.dedent(text))

    def shorten_training(self) -> None:
        """Replace the training by one of a second, without TensorFlow, for tests of what is around it.

        Its environment is this machine's Python, in a cache folder of this checkout.
        """
        from infra.environments import lock_digest
        from node.bootstrap.vm.training import COMPLETE

        shutil.copy2(Path(__file__).with_name("short_training.py"), self.folder / "workload" / "train.py")
        cache = self.folder.parent / f"{self.folder.name}-cache"
        self.env["XDG_CACHE_HOME"] = str(cache)
        environment = cache / "slurm-stacks" / "apps" / "envs" / lock_digest(self.folder, "cpu")
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        (environment / COMPLETE).touch()

    def cluster(
        self,
        *arguments: str,
        timeout: float = 300,
        check: bool = False,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `./cluster` with this stack's name."""
        words = 2 if arguments[0] in ("chaos", "env") else 1
        command = [*arguments[:words], "--stack", self.stack, *arguments[words:]]
        result = subprocess.run(
            self._inside(str(self.folder / "cluster"), *command),
            env={**self.env, **(env or {})},
            cwd=self.folder,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and result.returncode:
            raise AssertionError(f"./cluster {' '.join(arguments)}: {result.returncode}\n{result.stderr}")
        return result

    def execute(self, *command: str, timeout: float = 240, check: bool = True) -> str:
        """Run a command on the login machine, and return what it printed.

        This runs the process that `./cluster exec` becomes, without the second of CPU that its start takes.
        Tests of the command itself use `cluster("exec", …)`.
        """
        if self._elsewhere:
            return self.cluster("exec", "--", *command, timeout=timeout, check=check).stdout
        from cli.providers import provider
        from infra.errors import UserError
        from operations.access import StackUp

        up = StackUp(Stack(self.folder, self.stack), "local")
        try:
            found = provider.machine(up, "exec").access(up, command, tty=False)
        except UserError as error:
            if check:
                raise AssertionError(f"{' '.join(command)}: {error}") from None
            return ""
        done = subprocess.run(
            found.argv,
            env={**self.env, **found.env},
            cwd=self.folder.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
        return done.stdout

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands here and return its output, because `./cluster exec` costs far more.

        This works only if machines are processes: others have a network of their own.
        """
        from node.slurm.control import Control

        return Control(self.run_directory / "etc" / "slurm.conf").run(*command)

    def status(self) -> dict[str, Any]:
        """Return what `./cluster status --json` prints.

        If machines are processes, this process asks the daemon, as the cluster's own tool does. Tests ask
        very often, and each start of the tool takes a fifth of a second of CPU.
        """
        from operations.access import TOOL
        from operations.local.run_directory import RunDirectory

        if self._elsewhere:
            printed = self.cluster("status", "--json", check=True).stdout
        elif (run := RunDirectory(self.run_directory)).containers:
            printed = self.execute(TOOL, "status")
        else:
            printed = self._asked_here(run.path / "code" / "settings.json")
        found: dict[str, Any] = json.loads(printed)
        return found

    @staticmethod
    def _asked_here(settings: Path) -> str:
        from node import cluster_status
        from node.design.folders import Folders
        from node.design.published import read_settings

        try:
            return json.dumps(cluster_status.status(Folders(read_settings(settings))))
        except cluster_status.SilentError as error:
            raise AssertionError(f"status: {error}") from None

    def chaos(self, *words: str) -> None:
        """Do what `./cluster chaos` does: `set KEY=VALUE …`, `clear`, or an action and its node."""
        from cli.providers.local import chaos
        from infra.config import load_file

        config = load_file(self.folder / f"Pulumi.{self.stack}.yaml")
        match words:
            case ("set", *changes):
                chaos.change(Stack(self.folder, config.stack), config, changes)
            case ("clear",):
                chaos.clear(Stack(self.folder, config.stack), config)
            case ("preempt", node, "--notice", seconds):
                chaos.act(Stack(self.folder, config.stack), config, "preempt", node, float(seconds))
            case (action, node):
                chaos.act(Stack(self.folder, config.stack), config, action, node, None)
            case _:
                raise ValueError(f"chaos {' '.join(words)}")

    @property
    def run_directory(self) -> Path:
        """The cluster's run directory, whether or not the cluster is up."""
        from infra.program import locations

        return locations.run_dir(Stack(self.folder, self.stack))

    @property
    def state(self) -> Path:
        """The folder of the stack's state, which is there while the cluster is up."""
        from infra.program import locations

        return locations.state_dir(Stack(self.folder, self.stack))

    def results(self) -> list[dict[str, Any]]:
        """Return the kept results of this checkout's user, oldest first."""
        found = Path(self.env["XDG_STATE_HOME"]).glob("slurm-stacks/results/test/*.json")
        return [json.loads(path.read_text())["result"] for path in sorted(found)]

    def processes(self) -> list[int]:
        """Return the pids of everything that belongs to this checkout's cluster."""
        from operations.local.run_directory import RunDirectory

        return RunDirectory(self.run_directory).pids()

    def close(self) -> list[str]:
        """Take the cluster down by all means, and return what was not removed in the usual way.

        This process does what the engine has done for `./cluster down`, a command of a second of CPU that has
        its own tests. The daemons' logs stay beside the checkout, to find out why a test failed.
        """
        for log in [*self.run_directory.glob("log/*"), *self.run_directory.glob("cloud/*.log")]:
            kept = self.folder.with_name(f"{self.folder.name} logs") / log.name
            kept.parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copyfile(log, kept)
        from operations.local.cluster import cloud_down

        if not (self.run_directory.exists() or self.processes()):
            return []  # the test has taken it down
        text = self._down()
        left = [f"process {pid}" for pid in self.processes()]
        if left or self.run_directory.exists():
            left.append(f"down said: {text}")
            cloud_down(Stack(self.folder, self.stack))
        return left

    def _down(self) -> str:
        """Take the cluster down, and return what was said of that."""
        from infra.errors import UserError
        from operations.local.cluster import cloud_down, head_down, terminate_nodes

        if self._elsewhere:
            return self.cluster("down").stderr
        try:
            for end in (head_down, terminate_nodes, cloud_down):
                end(Stack(self.folder, self.stack))
        except UserError as error:
            return str(error)
        return ""


@contextlib.contextmanager
def running(folder: Path, stack_file: str) -> Iterator[Checkout]:
    """Yield a checkout whose cluster is up, for the tests of a module. A leftover is a failure."""
    checkout = Checkout(folder, stack_file)
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []


def until(there: Callable[[], Any], seconds: float, what: str, pause: float | None = None) -> Any:
    """Return the first true value of `there`.

    The pauses between two looks are a tenth of the time that has passed, or four times as long as a look
    takes, but at most a second: many looks start a program, and many tests wait at the same time.

    Args:
        there: Returns what is waited for; false as long as it is not there.
        seconds: at least a minute for what takes a second on an idle machine, because machines may be busy.
        what: The name of what is waited for, in the error.
        pause: Fixed seconds between two looks, where the test must act at once, or a look is very dear.

    Raises:
        AssertionError: There was none in time.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if value := there():
            return value
        now = time.monotonic()
        assert now < began + seconds, f"waited {seconds:g} s for {what}"
        time.sleep(pause or min(LONGEST_PAUSE, max(0.1, (now - began) / 10, 4 * (now - looked))))
