"""Asks on a terminal what the options of `./cluster init` leave open.

Each answer is checked by the stack file's own checks as soon as it is given, and asked again if it is wrong.
What may be answered comes from the tables that those checks use.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from cli.commands.init.choices import Choices, for_new_stack
from cli.console.progress import Console
from infra.config import ConfigError, Mistake, parse
from infra.config.load import BENCHMARK, CLUSTER
from infra.config.placeholders import EXAMPLE_PROJECT
from infra.config.rules.network import MODES
from infra.config.rules.storage import KINDS
from infra.design import ACCESS_MODE, DEFAULT_MACHINE
from infra.errors import UserError
from infra.instance_types.catalog import Catalog, InstanceType, catalog
from node.system import plurals

NONE = "none"
NEW = "new"
MOST_OFFERS = 8
"""The most instance types that are shown before a question."""
MODE_WORDS = {"ssm": "Session Manager", "iap": "Identity-Aware Proxy", "ssh": "a public address, port 22"}
SIZES = {"fsx_lustre": "1200", "filestore": "1024"}
"""Kind of scratch -> its smallest size in GiB, which is the default."""
ENVIRONMENT = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "zone": ("CLOUDSDK_COMPUTE_ZONE",),
    "project": ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
}
"""Field -> variables of the clouds' own tools that have its value."""
NETWORKS = {
    "aws": (
        ("aws.vpc", "VPC (new, or the id of yours)"),
        ("aws.public_subnet", "Its public subnet, for the controller"),
        ("aws.private_subnets", "Its private subnet, for nodes"),
    ),
    "gcp": (
        ("gcp.network", "VPC network (new, or the name of yours)"),
        ("gcp.subnetwork", "Its subnetwork, with private Google access and Cloud NAT"),
    ),
}
"""Provider -> the keys of an existing network, and the questions: the first is whether there is one."""


def ask(choices: Choices, check_name: Callable[[str], object]) -> Choices:
    """Ask for everything that was not given, and return all choices.

    Args:
        choices: What the options gave.
        check_name: Raises `UserError` for a stack's name that cannot be taken.

    Raises:
        ConfigError: An option's value is wrong already, so that no answer would help.
        typer.Abort: The user pressed Ctrl-C or Ctrl-D.
    """
    wrong = [
        mistake
        for mistake in _mistakes(choices)
        if not mistake.given.startswith("nothing") and not mistake.path.startswith(BENCHMARK)
    ]
    if wrong:
        raise ConfigError("the options of `init`", wrong)
    interview = _Interview(choices, check_name)
    interview.console.say("Enter takes the value in brackets; Ctrl-C ends without writing anything.", "dim")
    interview.place()
    if "--partition" in interview.choices.missing():
        interview.partitions()
    if interview.choices.provider != "local":
        interview.controller()
        interview.network()
        interview.storage()
        interview.access()
    interview.benchmark()
    return interview.choices


class _Interview:
    """The questions, in their order.

    Attributes:
        choices: What is known so far.
        console: Where hints and mistakes are shown.
    """

    def __init__(self, choices: Choices, check_name: Callable[[str], object]) -> None:
        self.choices = choices
        self.console = Console()
        self._check_name = check_name
        self._facts: Catalog = catalog()

    def place(self) -> None:
        """Ask for provider, name and location."""
        if self.choices.provider is None:
            self._ask(
                "Provider (aws, gcp, or local: this machine)", "local", "provider", f"{CLUSTER}.provider"
            )
        provider = str(self.choices.provider)
        if self.choices.stack is None:
            self._stack(self._free_name(provider))
        if provider == "aws" and self.choices.region is None:
            self._hint(f"Regions: {', '.join(self._facts.surveyed[provider])}")
            self._ask(
                "Region", self._usual("region", self._facts.storage_of[provider]), "region", "aws:region"
            )
        if provider == "gcp" and self.choices.zone is None:
            self._hint(f"Regions, each with zones -a, -b, …: {', '.join(self._facts.surveyed[provider])}")
            usual = self._usual("zone", f"{self._facts.storage_of[provider]}-a")
            self._ask("Zone", usual, "zone", "gcp:zone")
        if provider == "gcp" and self.choices.project is None:
            self._ask("Project id", self._usual("project", EXAMPLE_PROJECT), "project", "gcp:project")

    def partitions(self) -> None:
        """Ask for partitions until no other one is wanted."""
        self._partition(0)
        while typer.confirm("Another partition?", default=False, err=True):
            self._partition(len(self.choices.partitions))

    def controller(self) -> None:
        """Ask for the controller's instance type, which ParallelCluster 2 calls the master's."""
        has_none = self.choices.sets("cluster.batch")  # AWS Batch
        if self.choices.controller is None and not has_none and not self.choices.sets("cluster.controller"):
            usual = DEFAULT_MACHINE[str(self.choices.provider)]
            self._hint(f"The controller runs slurmctld and is always up.\n{self._in_words(usual)}")
            self._ask("Machine of the controller", usual, "controller", f"{CLUSTER}.controller")

    def network(self) -> None:
        """Ask whether the cluster has a network of its own, or which existing one it uses."""
        if self.choices.sets("cluster.network"):
            return
        before = self.choices
        for key, question in NETWORKS[str(self.choices.provider)]:
            first = self.choices is before

            def change(text: str, key: str = key) -> Choices:
                if text == NEW and self.choices is before:
                    return before
                value = f"[{text}]" if key.endswith("s") else text
                setting = f"cluster.network.{key}={value}"
                return replace(self.choices, settings=(*self.choices.settings, setting))

            self._answer(question, NEW if first else None, change, f"{CLUSTER}.network.{key}")
            if self.choices is before:
                return

    def storage(self) -> None:
        """Ask for home directories and a shared scratch, unless an option describes any storage."""
        if self.choices.storage or self.choices.sets("cluster.storage"):
            return
        kinds = [kind for kind, providers in KINDS.items() if self.choices.provider in providers]
        self._hint("Home directories: nfs is a disk of the controller; the others are services of the cloud.")
        self._add_storage(f"Kind ({', '.join(kinds)})", "home", kinds[0], kinds)
        fast = [kind for kind in kinds if kind in SIZES]
        self._add_storage(f"Fast shared scratch (none, {', '.join(fast)})", "scratch", NONE, fast)

    def access(self) -> None:
        """Ask how users log in."""
        provider = str(self.choices.provider)
        if self.choices.sets("cluster.access"):
            return
        if self.choices.access is None:
            modes = ", ".join(f"{mode}: {MODE_WORDS[mode]}" for mode in MODES[provider])
            self._ask(f"Way to log in ({modes})", ACCESS_MODE[provider], "access", f"{CLUSTER}.access.mode")
        if self.choices.access != "ssh":
            return
        if not self.choices.ssh_cidrs:
            self._answer(
                "Network that may log in, such as your address with /32",
                None,
                lambda text: replace(self.choices, ssh_cidrs=(text,)),
                f"{CLUSTER}.access.ssh_cidrs",
            )
        if provider == "aws" and self.choices.key is None:
            self._ask("Name of your EC2 key pair", None, "key", f"{CLUSTER}.access.key")

    def benchmark(self) -> None:
        """Ask for the nodes of the benchmark."""
        decided = self.choices.benchmark is not None or self.choices.sets("benchmark")
        if decided or not self.choices.partitions:
            return
        self._answer(
            "Nodes of the training that `up` runs (0: none)",
            "0" if self._most_nodes() < 2 else "2",
            lambda text: replace(self.choices, benchmark=None if text == "0" else text),
            BENCHMARK,
        )

    def _stack(self, default: str) -> None:
        """Ask for the stack's name until one is allowed and free."""
        while True:
            name = str(typer.prompt("Name of the stack", default=default, err=True)).strip()
            try:
                self._check_name(name)
            except UserError as error:
                self._refuse(str(error))
                continue
            self.choices = replace(self.choices, stack=name)
            return

    def _partition(self, index: int) -> None:
        """Ask for one partition. Each answer adds to its description."""
        at, before = f"{CLUSTER}.partitions[{index}]", self.choices.partitions
        provider = str(self.choices.provider)
        usual = DEFAULT_MACHINE[provider]

        def with_text(text: str) -> Choices:
            return replace(self.choices, partitions=(*before, text))

        default = ("debug" if provider == "local" else "compute") + (str(index + 1) if index else "")
        name = self._answer(
            "Name of the partition, as in sbatch --partition",
            default,
            lambda answer: with_text(f"{answer}={usual}"),
            f"{at}.name",
        )
        accelerator = self._accelerator()
        attached = self._facts.attachable.get(accelerator) if provider == "gcp" else None
        offers = [usual] if attached else self._offers(accelerator) or [usual]
        self._hint("\n".join(map(self._in_words, offers)))
        machine = self._answer(
            "Instance type" if provider == "local" else "Instance type (these or any other)",
            usual if usual in offers else offers[0],
            lambda answer: with_text(f"{name}={answer}"),
            f"{at}.instance_type",
        )
        text = f"{name}={machine}"
        if attached is not None:
            count = self._answer(
                f"GPUs a node ({', '.join(map(str, attached.max_vcpus))})",
                "1",
                lambda answer: with_text(f"{text},accelerator.type={accelerator},accelerator.count={answer}"),
                f"{at}.accelerator",
            )
            text += f",accelerator={accelerator}:{count}"
        if self._has_efa(machine) and typer.confirm(
            "Nodes close together and with EFA, for jobs of several nodes?", default=True, err=True
        ):
            text += ",placement=cluster,aws.efa=true"
        least = self._answer(
            "Nodes that are always up, and paid for",
            "0",
            lambda answer: with_text(f"{text},nodes.min={answer}"),
            f"{at}.nodes.min",
        )
        most = self._answer(
            "Most nodes at once",
            str(max(int(least), 10 if accelerator == NONE else 4)),
            lambda answer: with_text(f"{text},nodes.min={least},nodes.max={answer}"),
            f"{at}.nodes",
        )
        self.choices = with_text(f"{text},nodes={least}-{most}")

    def _accelerator(self) -> str:
        """Return the accelerator that the user wants of those that the place has, or `NONE`."""
        if self.choices.provider == "local":
            return NONE
        region = str(self._region())
        types = {
            machine.accelerator.type
            for name, machine in self._of_provider()
            if machine.accelerator and self._facts.offered(name, region)
        }
        if self.choices.provider == "gcp":
            zone = self.choices.zone
            types |= {name for name, gpu in self._facts.attachable.items() if zone in gpu.zones}
        allowed = [NONE, *sorted(types)]
        question = f"Accelerators of its nodes ({', '.join(allowed)})"
        return self._one_of(question, NONE, allowed)

    def _offers(self, accelerator: str) -> list[str]:
        """Return a few instance types with an accelerator, or of the usual family, the cheapest first."""
        provider, region = str(self.choices.provider), str(self._region())
        usual = DEFAULT_MACHINE[provider]
        family = usual.removesuffix(usual.rpartition("-" if provider == "gcp" else ".")[2])

        def fits(name: str, machine: InstanceType) -> bool:
            if accelerator != NONE:
                return machine.accelerator is not None and machine.accelerator.type == accelerator
            return name.startswith(family) and machine.accelerator is None

        def rank(name: str) -> tuple[bool, float, int]:
            price = self._facts.price(name, region)
            return price is None, price or 0.0, self._facts.machines[name].vcpus

        names = [name for name, machine in self._of_provider() if fits(name, machine)]
        return sorted((name for name in names if self._facts.offered(name, region)), key=rank)[:MOST_OFFERS]

    def _of_provider(self) -> list[tuple[str, InstanceType]]:
        return [(name, self._facts.machines[name]) for name in self._facts.names(str(self.choices.provider))]

    def _has_efa(self, name: str) -> bool:
        machine = self._facts.instance_type(name)
        return machine is not None and machine.accelerator is not None and machine.efa > 0

    def _in_words(self, name: str) -> str:
        """Return an instance type's size and price."""
        machine = self._facts.machines[name]
        size = [plurals.count(machine.vcpus, "CPU"), f"{machine.memory_mib / 1024:g} GiB"]
        if machine.accelerator:
            size.append(f"{machine.accelerator.count} × {machine.accelerator.type}")
        price = self._facts.price(name, self._region())
        if machine.provider != "local":
            size.append("price not known" if price is None else f"{price:.2f} USD an hour")
        return f"  {name:<16} {', '.join(size)}"

    def _region(self) -> str | None:
        if self.choices.provider == "gcp":
            return str(self.choices.zone).rpartition("-")[0]
        return self.choices.region

    def _add_storage(self, question: str, name: str, default: str, kinds: list[str]) -> None:
        """Ask for the kind of a directory and, where the kind has one to choose, its size."""
        kind = self._one_of(question, default, [*kinds, *([NONE] if default == NONE else [])])
        if kind == NONE:
            return
        before = self.choices.storage
        text = f"{name}={kind}"
        self.choices = replace(self.choices, storage=(*before, text))
        if kind in SIZES:
            self._answer(
                "Its size in GiB",
                SIZES[kind],
                lambda answer: replace(self.choices, storage=(*before, f"{text},size_gib={answer}")),
                f"{CLUSTER}.storage.{name}",
            )

    def _most_nodes(self) -> int:
        """Return the most nodes of the first partition."""
        try:
            return int(self.choices.config()[CLUSTER]["partitions"][0].get("nodes", {}).get("max", 10))
        except (ConfigError, AttributeError, KeyError, ValueError):
            return 10

    def _free_name(self, provider: str) -> str:
        """Return a stack's name that is not taken: aws, aws-2, aws-3 and so on."""
        for name in (provider, *(f"{provider}-{number}" for number in range(2, 100))):
            with contextlib.suppress(UserError):
                self._check_name(name)
                return name
        return f"{provider}-new"

    def _usual(self, field: str, default: str) -> str:
        """Return the value that the clouds' own tools use in this shell, else the default."""
        return next((os.environ[name] for name in ENVIRONMENT[field] if os.environ.get(name)), default)

    def _hint(self, text: str) -> None:
        lines = [
            textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False)
            for line in text.splitlines()
        ]
        self.console.say("\n".join(lines), "dim")

    def _one_of(self, question: str, default: str, allowed: list[str]) -> str:
        while (answer := str(typer.prompt(question, default=default, err=True)).strip()) not in allowed:
            self._refuse(f"{answer}: allowed is one of {', '.join(allowed)}")
        return answer

    def _ask(self, question: str, default: str | None, field: str, path: str) -> None:
        """Ask for the value of a field; an answer that the checks refuse at `path` is asked again."""

        def change(text: str) -> Choices:
            values: dict[str, Any] = {field: text}
            return replace(self.choices, **values)

        self._answer(question, default, change, path)

    def _answer(self, question: str, default: str | None, change: Callable[[str], Choices], path: str) -> str:
        """Ask until the stack file's checks find nothing wrong at a path, and keep the answer.

        Args:
            question: The question.
            default: The answer of an empty line; `None` if there must be one.
            change: Returns the choices with an answer.
            path: Where the answer stands in the stack file, as messages name it.
        """
        while True:
            answer = str(typer.prompt(question, default=default, err=True)).strip()
            if not answer or set(answer) & set(",[]{}\"'"):
                self._refuse("allowed is one word without commas, brackets and quotes")
                continue
            choices = change(answer)
            mistakes = [mistake for mistake in _mistakes(choices) if mistake.path.startswith(path)]
            if not mistakes:
                self.choices = choices
                return answer
            for mistake in for_new_stack(mistakes):
                advice = f"; {mistake.advice}" * bool(mistake.advice)
                self._refuse(f"{mistake.given}: allowed is {mistake.allowed}{advice}")

    def _refuse(self, text: str) -> None:
        self.console.say(f"  {text}", "yellow")


def _mistakes(choices: Choices) -> tuple[Mistake, ...]:
    """Return the mistakes in choices that need not be complete; placeholders are none."""
    try:
        parse(choices.config(), choices.stack or "new")
    except ConfigError as error:
        return tuple(mistake for mistake in error.mistakes if not mistake.unfilled)
    return ()
