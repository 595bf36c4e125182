"""The local stack's resources: the local cloud, the bundle in its bucket, the sweep, the head."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_command as command

from infra import bundle
from infra.benchmark import BenchmarkRun
from infra.bundle import lock_digest
from infra.local.cloud import kind
from infra.local.cloud.containers import APPS, SHARED
from infra.local.site import RunDirectory
from infra.node.codec import to_json
from infra.node.model import ClusterDesign
from infra.provider import Inventory

# Relative, so that moving the checkout is no change; the commands run in the project's folder.
OPERATIONS = ".venv/bin/python -m infra.local.operations"


def operation(verb: str, stack: str, *rest: str) -> str:
    """A command line of `infra.local.operations`."""
    return " ".join([OPERATIONS, verb, "--stack", stack, *rest])


class LocalCluster(pulumi.ComponentResource):
    """A cluster on this machine.

    The order of destruction is that of the clouds: the head goes first, so that nobody launches behind the
    sweep; the sweep ends what the head launched; the cloud itself goes last.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:LocalCluster", name, None, opts)
        self._name = name
        self._stack = design.stack
        cloud = self._command(
            "cloud",
            "cloud-up",
            rest=[
                *([] if design.machines == kind.PROCESS else ["--machines", design.machines]),
                *("--cluster", name),
            ],
            delete="cloud-down",
            stdin=json.dumps(to_json(design.local), sort_keys=True),
        )
        published = self._command(
            "bundle",
            "publish",
            stdin=json.dumps(to_json(design), sort_keys=True),
            # The node code is not in the command's inputs: its digest makes a change of it a change.
            environment={"NODE_CODE": bundle.digest(bundle.node_archive(design))},
            after=[cloud],
        )
        sweep = self._command("sweep", None, delete="sweep", after=[cloud])
        self.head = self._command(
            "head",
            "head-up",
            delete="head-down",
            environment={"PUBLISHED": published.stdout},
            after=[published, sweep],
        )
        facts = self.head.stdout.apply(_facts)
        way_in = shlex.join([str(bundle.ROOT / "cluster"), "ssh", "--stack", design.stack])
        self.inventory: Inventory = {
            "id": cloud.id,
            "login_address": facts["login"],
            "controller_address": facts["controller"],
            "login_ssh": pulumi.Output.from_input(way_in),
            "scheduler_version": facts["scheduler_version"],
            "host_keys": pulumi.Output.from_input([]),
            "shared": facts["shared"],
            "sweep": pulumi.Output.from_input({"cluster": design.name}),
        }
        self.register_outputs({"login": facts["login"]})

    def _command(
        self,
        part: str,
        verb: str | None,
        *,
        rest: Sequence[str] = (),
        delete: str | None = None,
        stdin: str | None = None,
        environment: Mapping[str, pulumi.Input[str]] | None = None,
        after: Sequence[pulumi.Resource] = (),
    ) -> command.local.Command:
        """A local command whose update is its create: every verb is idempotent."""
        # Two names of one stack would share its run directory.
        named = ["--cluster", self._name]
        line = operation(verb, self._stack, *rest) if verb else "true"
        return command.local.Command(
            f"{self._name}-{part}",
            create=line,
            update=line,
            delete=operation(delete, self._stack, *named) if delete else None,
            stdin=stdin,
            environment=environment,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )


def _facts(printed: str) -> dict[str, str]:
    """What the head's command printed; in a plan, which runs nothing, a placeholder for each fact of it."""
    try:
        facts: dict[str, str] = json.loads(printed)
    except ValueError:
        if not printed.startswith("<"):
            raise
        names = ("login", "controller", "scheduler_version", "shared")
        facts = {name: f"{printed[:-1]}.{name}>" for name in names}
    return facts


class LocalShell:
    """The login machine is this machine, or a container on it.

    Args:
        machines: process | container.
    """

    def __init__(self, stack: str, machines: str = kind.PROCESS) -> None:
        self._stack = stack
        run = RunDirectory.of(bundle.ROOT, stack)
        own = machines == kind.CONTAINER
        self.apps = APPS if own else str(run.apps)
        self.shared = SHARED if own else str(run.shared)
        self.environment = lock_digest(bundle.ROOT, "cpu")

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name,
            create=operation("environment", self._stack),
            triggers=[self.environment],
            opts=opts,
        )

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name, create=operation("stage", self._stack), triggers=[run.workload_digest], opts=opts
        )

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        line = operation("tool", self._stack, "submit", "--run", run.folder)
        job = command.local.Command(
            name,
            create=line,
            update=line,
            delete=operation("cancel", self._stack, "--run", run.folder),
            stdin=run.script,
            triggers=[run.workload_digest, run.folder],
            opts=opts,
        )
        return job, job.stdout
