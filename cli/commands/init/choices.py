"""The choices that describe a new cluster, in the form of the options of `./cluster init`.

Questions fill in the same choices as options do, so there is one way from choices to a configuration, and
every answer can be repeated on a command line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import yaml

from infra import slurm_releases
from infra.config import ConfigError, Mistake, distributions, parse
from infra.config.load import BENCHMARK, CLUSTER
from infra.config.mistakes import fitting, shown
from infra.config.rules.software import ORIGINS
from infra.config.stack_file import NAMESPACE, Loader
from infra.instance_types.catalog import catalog

OPTIONS = {
    "partitions": "partition",
    "ssh_cidrs": "ssh-cidr",
    "settings": "set",
}
"""Field -> its option, where the names differ."""
LOCATION_KEYS = {
    "aws": {"region": "aws:region"},
    "gcp": {"project": "gcp:project", "region": "gcp:region", "zone": "gcp:zone"},
    "local": {},
}
"""Provider -> field -> the key of the stack file."""
MAINTAINED = "debian-13"
"""Whose source package of Slurm is built where a distribution has no maintained one."""
_RANGE = re.compile(r"(?:(\d+)-)?(\d+)")
_ACCELERATOR = re.compile(r"([A-Za-z][\w-]*)(?::(\d+))?")


def for_new_stack(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Return mistakes whose advice holds for a stack without a file, of which `doctor` cannot be asked."""
    return [
        replace(
            mistake,
            advice=f"{mistake.advice}. First write the file with a type that is known, and change it there",
        )
        if "cluster doctor" in mistake.advice
        else mistake
        for mistake in mistakes
    ]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a user chose for a new cluster; each field has the text of its option.

    Attributes:
        stack: The stack's name.
        provider: Aws, gcp, or local.
        region: AWS region.
        zone: Google Cloud zone.
        project: Google Cloud project.
        partitions: `NAME=TYPE[,KEY=VALUE…]` of each partition.
        controller: `TYPE[,KEY=VALUE…]`.
        login: `COUNT[,KEY=VALUE…]`.
        storage: `NAME=KIND[,KEY=VALUE…]` of each directory.
        access: Ssm, iap, or ssh.
        ssh_cidrs: Networks that may log in.
        key: EC2 key pair.
        benchmark: `NODES[,KEY=VALUE…]`.
        settings: `PATH=VALUE` of other keys.
    """

    stack: str | None = None
    provider: str | None = None
    region: str | None = None
    zone: str | None = None
    project: str | None = None
    partitions: tuple[str, ...] = ()
    controller: str | None = None
    login: str | None = None
    storage: tuple[str, ...] = ()
    access: str | None = None
    ssh_cidrs: tuple[str, ...] = ()
    key: str | None = None
    benchmark: str | None = None
    settings: tuple[str, ...] = ()

    def missing(self) -> dict[str, str]:
        """Return the options that a stack file cannot do without, and what each means."""
        needed = {"stack": "the new stack's name", "provider": "where it runs: aws, gcp, or local"}
        if self.provider == "aws":
            needed["region"] = "AWS region, such as us-east-1"
        if self.provider == "gcp":
            needed["zone"] = "Google Cloud zone, such as us-central1-a"
            needed["project"] = "the id of your Google Cloud project"
        if not self.sets("cluster.partitions") and not self.sets("cluster.batch"):
            needed["partitions"] = "a partition and its instance type, NAME=TYPE[,nodes=MIN-MAX]"
        return {
            f"--{OPTIONS.get(name, name)}": text for name, text in needed.items() if not getattr(self, name)
        }

    def sets(self, path: str) -> bool:
        """Return whether `--set` gives a key at a path or below it."""
        paths = [text.partition("=")[0].strip().removeprefix(f"{NAMESPACE}:") for text in self.settings]
        return any(f"{name}.".startswith(f"{path}.") for name in paths)

    def config(self) -> dict[str, Any]:
        """Return the configuration, as under `config:` of a stack file.

        Raises:
            ConfigError: An option is not written as it must be; the error has all of them.
        """
        builder = _Builder(self)
        if builder.mistakes:
            raise ConfigError("the options of `init`", builder.mistakes)
        _add_maintained_slurm(builder.config, self.stack or "new")
        return builder.config

    def command_line(self) -> str:
        """Return the command that repeats these choices."""
        words = ["./cluster", "init"]
        for field in fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            for text in values:
                words += [f"--{OPTIONS.get(field.name, field.name)}", text]
        return shlex.join(words)


def _add_maintained_slurm(values: dict[str, Any], stack: str) -> None:
    """Have a maintained Slurm built for the images, where the stack's distribution has none.

    What the user has chosen stays: an origin of Slurm, or whether an image is baked.

    Args:
        values: The configuration, which is changed.
    """
    cluster = values[CLUSTER]
    image, slurm = cluster.get("image", {}), cluster.get("slurm", {})
    if (
        cluster.get("provider") not in ("aws", "gcp")
        or not isinstance(image, dict)
        or not isinstance(slurm, dict)
    ):
        return
    if "bake" in image or slurm.keys() & {*ORIGINS, "accept_unmaintained"}:
        return
    try:
        parsed = parse(values, stack).cluster
        table = slurm_releases.table()
        needed = parsed.scheduler == "slurm" and not table.maintained(
            table.packages[distributions.chosen(parsed, catalog())]
        )
    except ConfigError as error:
        needed = any(mistake.code == "slurm.unmaintained" for mistake in error.mistakes)
    if needed:
        cluster["image"] = {**image, "bake": True}
        cluster["slurm"] = {**slurm, "source": MAINTAINED}


class _Builder:
    """Builds the configuration of choices, and collects the mistakes in their form."""

    def __init__(self, choices: Choices) -> None:
        self.mistakes: list[Mistake] = []
        self.config: dict[str, Any] = {}
        self._cluster: dict[str, Any] = {}
        self._choices = choices
        self._location()
        self.config[CLUSTER] = self._cluster
        self._add_cluster()
        self._add_benchmark()
        for text in choices.settings:
            self._add_setting(text)
        # A stack may have a name that a cluster cannot have.
        self._cluster.setdefault("name", fitting(choices.stack or "") or choices.stack)

    def _location(self) -> None:
        choices = self._choices
        keys = LOCATION_KEYS.get(choices.provider or "", {})
        for name in ("project", "region", "zone"):
            value = getattr(choices, name)
            if value is None:
                continue
            if name in keys:
                self.config[keys[name]] = value
            elif choices.provider in LOCATION_KEYS:
                options = ", ".join(f"--{key}" for key in keys) or "no place"
                self._add(
                    "option.other-provider",
                    f"--{name}",
                    shown(value),
                    f"{options} with --provider {choices.provider}",
                    "leave it out",
                )

    def _add_cluster(self) -> None:
        choices, cluster = self._choices, self._cluster
        if choices.provider is not None:
            cluster["provider"] = choices.provider
        values = {"mode": choices.access, "ssh_cidrs": list(choices.ssh_cidrs), "key": choices.key}
        if access := {key: value for key, value in values.items() if value}:
            cluster["access"] = access
        if choices.controller is not None:
            cluster["controller"] = self._section("--controller", "instance_type", choices.controller)
        if choices.login is not None:
            cluster["login"] = self._section("--login", "count", choices.login)
        for text in choices.partitions:
            name, section = self._named("--partition", "NAME=TYPE", "instance_type", text)
            if section is not None:
                cluster.setdefault("partitions", []).append({"name": name, **_shorthands(section)})
        for text in choices.storage:
            name, section = self._named("--storage", "NAME=KIND", "kind", text)
            if section is not None:
                self._put(f"--storage {name}", cluster, ("storage", name), section)

    def _add_benchmark(self) -> None:
        if self._choices.benchmark is not None:
            self.config[BENCHMARK] = self._section("--benchmark", "nodes", self._choices.benchmark)

    def _add_setting(self, text: str) -> None:
        path, equals, value = text.partition("=")
        top, _, rest = path.strip().removeprefix(f"{NAMESPACE}:").partition(".")
        if top not in ("cluster", "benchmark") or not rest or not equals:
            self._add(
                "option.form",
                "--set",
                shown(text),
                "cluster.KEY=VALUE or benchmark.KEY=VALUE",
                "keys of sections have dots between them",
            )
            return
        section = self.config.setdefault(f"{NAMESPACE}:{top}", {})
        self._put(f"--set {path}", section, tuple(rest.split(".")), self._value(f"--set {path}", value))

    def _named(self, option: str, form: str, key: str, text: str) -> tuple[str, dict[str, Any] | None]:
        name, equals, rest = text.partition("=")
        if not (equals and name.strip() and rest):
            self._add("option.form", option, shown(text), f"{form}[,KEY=VALUE…]", "")
            return "", None
        return name.strip(), self._section(f"{option} {name.strip()}", key, rest)

    def _section(self, option: str, key: str, text: str) -> dict[str, Any]:
        """Return the section of `VALUE[,KEY=VALUE…]`, whose first value is that of `key`."""
        first, *others = _split(text)
        section = {key: self._value(option, first)}
        for item in others:
            path, equals, value = item.partition("=")
            if equals and path.strip():
                self._put(option, section, tuple(path.strip().split(".")), self._value(option, value))
            else:
                self._add("option.form", option, shown(item), "KEY=VALUE between commas", "")
        return section

    def _put(self, option: str, section: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
        for part in path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                self._add(
                    "option.key-of-value",
                    option,
                    ".".join(path),
                    "a key of a section",
                    f"{part} is given as a value",
                )
                return
        if path[-1] in section:
            self._add("key.twice", option, ".".join(path), "each key once", "remove one of them")
        section[path[-1]] = value

    def _value(self, option: str, text: str) -> Any:
        """Return a value: JSON's scalars, YAML in brackets and quotes, else text.

        Other scalars are text, because YAML reads 24:00:00 as a number.
        """
        text = text.strip()
        try:
            return yaml.load(text, Loader=Loader) if text[:1] in ("[", "{", '"', "'") else json.loads(text)
        except yaml.YAMLError:
            self._add(
                "option.not-yaml",
                option,
                shown(text),
                "a value as YAML writes it",
                "close its brackets and quotes",
            )
        except ValueError:
            pass
        return text

    def _add(self, code: str, path: str, given: str, allowed: str, advice: str) -> None:
        self.mistakes.append(Mistake(code, path, given, allowed, advice))


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not inside brackets or quotes."""
    depth, quote, part = 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield part
            part = ""
            continue
        part += character
    yield part


def _shorthands(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partition with `nodes=0-10` and `accelerator=v100:2` as sections."""
    section = dict(partition)
    nodes, accelerator = section.get("nodes"), section.get("accelerator")
    if isinstance(nodes, int | str) and (match := _RANGE.fullmatch(str(nodes))):
        section["nodes"] = {"min": int(match[1] or 0), "max": int(match[2])}
    if isinstance(accelerator, str) and (match := _ACCELERATOR.fullmatch(accelerator)):
        section["accelerator"] = {"type": match[1], "count": int(match[2] or 1)}
    return section
