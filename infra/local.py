"""The local stack: the local cloud, the bundle in its bucket, the termination of nodes, and the head."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_command as command

from infra import bundle, environments
from infra.benchmark import BenchmarkRun
from infra.errors import UserError
from infra.inventory import Inventory
from infra.program import folders, mode, owner
from infra.program.launcher import INTERPRETER
from infra.program.stack import Stack
from node.design.model import APPS, CONTAINER, PROCESS, SHARED, ClusterDesign
from node.system.codec import to_json

MODULE = "operations.local"


def operation(verb: str, stack: str, *rest: str) -> str:
    """Return a command line of `operations.local`."""
    return " ".join([MODULE, verb, "--stack", stack, *(shlex.quote(word) for word in rest)])


def create(name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> LocalCluster:
    """Declare the resources, and claim the cluster for the engine that runs the program.

    Raises:
        UserError: Exit 3. Another engine has the cluster, or this user may not install what it needs.
    """
    for text in warnings(design):
        pulumi.warn(text)
    owner.claim_in_program(Stack(mode.folder(), design.stack))
    return LocalCluster(name, design, opts)


def warnings(design: ClusterDesign) -> list[str]:
    """Return what on this machine hinders such a cluster, in one sentence each.

    A command checks it, as commands do everything that the stack does on this machine.

    Raises:
        UserError: Exit 3. This user may not install what the cluster needs.
    """
    if design.isolation != CONTAINER and not design.slurm.accounting:
        return []
    done = subprocess.run(
        [sys.executable, str(bundle.ROOT / "operations"), MODULE, "look", "--stack", design.stack],
        input=json.dumps(to_json(design)),
        cwd=mode.folder(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(done.stderr.strip(), done.returncode, code="local.failed")
    hindrances: list[str] = json.loads(done.stdout)["warnings"]
    return hindrances


class LocalCluster(pulumi.ComponentResource):
    """A cluster on this machine.

    A destroy has the same order as on a cloud. The head is deleted first, so that nothing launches nodes any
    more. Then the nodes that the head has launched are ended, and the local cloud itself is deleted last.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:LocalCluster", name, None, opts)
        self._name = name
        self._design = design
        cloud = self._command(
            "cloud",
            "cloud-up",
            rest=["--isolation", design.isolation, "--cluster", name],
            delete="cloud-down",
            stdin=json.dumps(to_json(design.local), sort_keys=True),
        )
        published = self._command(
            "bundle",
            "publish",
            stdin=json.dumps(to_json(design), sort_keys=True),
            # The node code is not an input of the command. With its digest a change of the code changes the
            # resource.
            environment={"NODE_CODE": bundle.digest(bundle.node_archive(design))},
            after=[cloud],
        )
        termination = self._command("termination", None, delete="terminate-nodes", after=[cloud])
        self.head = self._command(
            "head",
            "head-up",
            delete="head-down",
            environment={
                "PUBLISHED": published.stdout,
                # The command then writes the cluster's outputs, which take the place of a stack file.
                **({} if _has_stack_file() else {"CLUSTER_ID": cloud.id}),
            },
            after=[published, termination],
        )
        facts = self.head.stdout.apply(_facts)
        self.inventory: Inventory = {
            "id": cloud.id,
            "login_address": facts["login"],
            "login_machine": facts["id"],
            "controller_address": facts["controller"],
            "login_ssh": self._login_ssh(facts),
            "scheduler_version": facts["scheduler_version"],
            "host_keys": pulumi.Output.from_input([]),
            "shared": facts["shared"],
        }
        self.register_outputs({"login": facts["login"]})

    def _login_ssh(self, facts: pulumi.Output[dict[str, str]]) -> pulumi.Output[str]:
        """Return the command for a shell: by the stack file, or by the head's outputs where there is none."""
        if not _has_stack_file():
            return facts["login_ssh"]
        command_line = [str(bundle.ROOT / "cluster"), "ssh", "--stack", self._design.stack]
        return pulumi.Output.from_input(shlex.join(command_line))

    @property
    def shell(self) -> LocalShell:
        return LocalShell(self._design.stack, self._design.isolation, self._design.requirements)

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
        """Declare a local command with one line to create and to update, because every verb can run again."""
        # The cluster is named, because two names of one stack would share its run directory.
        named = ["--cluster", self._name]
        stack = self._design.stack
        line = operation(verb, stack, *rest) if verb else None
        return command.local.Command(
            f"{self._name}-{part}",
            create=line,
            update=line,
            delete=operation(delete, stack, *named) if delete else None,
            interpreter=INTERPRETER,
            stdin=stdin,
            environment=environment,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )


def _has_stack_file() -> bool:
    """Whether the program is this project's own, whose stacks `./cluster` finds by their files."""
    return environments.code_of(mode.folder()) == mode.folder()


def _facts(printed: str) -> dict[str, str]:
    """Return what the head's command printed, as values.

    A plan runs nothing and gets a placeholder for each value.
    """
    try:
        facts: dict[str, str] = json.loads(printed)
    except ValueError:
        if not printed.startswith("<"):
            raise
        names = ("id", "login_ssh", "login", "controller", "scheduler_version", "shared")
        facts = {name: f"{printed[:-1]}.{name}>" for name in names}
    return facts


class LocalShell:
    """The way to the login machine, which is this machine or a container on it.

    Args:
        isolation: process | container.
        requirements: A user's requirements file, relative to the project; `None` means the locked
            environment.

    Raises:
        UserError: The requirements file is missing, or names what the cluster cannot install.
    """

    def __init__(self, stack: str, isolation: str = PROCESS, requirements: str | None = None) -> None:
        self._stack = stack
        self._requirements = requirements
        run = folders.check_run_dir(Stack(mode.folder(), stack))
        in_container = isolation == CONTAINER
        self.apps = APPS if in_container else str(run / "apps")
        self.shared = SHARED if in_container else str(run / "shared")
        self.environment = environments.digest("cpu", requirements, mode.folder())

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name,
            create=operation(
                "environment",
                self._stack,
                *([] if self._requirements is None else ["--requirements", self._requirements]),
            ),
            interpreter=INTERPRETER,
            triggers=[self.environment],
            opts=opts,
        )

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name,
            create=operation("stage", self._stack, *run.own),
            interpreter=INTERPRETER,
            triggers=[run.workload_digest],
            opts=opts,
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
            interpreter=INTERPRETER,
            stdin=run.script,
            triggers=[run.workload_digest, run.folder],
            opts=opts,
        )
        return job, job.stdout

    def guard(self, name: str, queue: pulumi.Input[str], opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return command.local.Command(
            name,
            delete=operation("guard", self._stack),
            interpreter=INTERPRETER,
            triggers=[queue],
            opts=opts,
        )
