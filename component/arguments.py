"""The component's arguments as a configuration: checked like a stack file, also while some are unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pulumi

from infra.config import ConfigError, Mistake, StackConfig, fields
from infra.config.argument_names import BENCHMARK, Place, from_schema, path_in_schema
from infra.config.load import BENCHMARK as BENCHMARK_KEY
from infra.config.load import CLUSTER, LOCATION_KEYS, parse
from infra.config.mistakes import NO_SECRET, shown
from infra.config.rules import platform
from infra.program.stand_ins import MARK, StandIn, StandIns, digits

_GOOGLE_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_UNKNOWN = "an Output that is not known in a preview"


@dataclass(frozen=True, slots=True)
class Given:
    """An `Output` of one value among the arguments.

    Attributes:
        known: Whether it is known in this operation. In a preview it may not be.
        value: The value, if it is known.
        secret: Whether the program says that it is a secret.
    """

    output: pulumi.Output[Any]
    known: bool
    value: Any = None
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a value that may come from another resource.

    Attributes:
        pattern: What the value must match.
        words: The same for messages.
        stand_in: Returns a text of this form from the digits of a stand-in and the cluster's region.
    """

    pattern: str
    words: str
    stand_in: Callable[[str, str], str]


def _id(prefix: str, words: str) -> Form:
    return Form(rf"{prefix}-[0-9a-f]{{8,17}}", words, lambda number, _region: f"{prefix}-{number}")


def _address(scheme: str) -> Form:
    bucket = rf"{scheme}://[a-z0-9][a-z0-9._-]{{1,220}}[a-z0-9](/.*)?"
    return Form(
        bucket,
        f"{scheme}://bucket/prefix",
        lambda number, _region: f"{scheme}://b{number}/f{number}",
    )


def _name(pattern: str, words: str) -> Form:
    return Form(pattern, words, lambda number, _region: f"n{number}")


_VOLUME = _id("vol", "the id of a volume, vol-…")
_FILE_SYSTEM = _id("fs", "the id of a file system, fs-…")
_DISK = _name(_GOOGLE_NAME, "the name of a persistent disk")
_INSTANCE = _name(_GOOGLE_NAME, "the name of a Filestore instance")
_SNAPSHOT = _id("snap", "the id of an EBS snapshot, snap-…")
_BACKUP = _id("backup", "the id of a backup, backup-…")
_KMS = Form(
    fields.KMS_KEY,
    fields.IN_WORDS[fields.KMS_KEY],
    lambda number, region: (
        f"arn:aws:kms:{region}:000000000000:key/{MARK}-0000-0000-0000-{number[-12:].rjust(12, '0')}"
    ),
)
_ROLE = Form(
    fields.ROLE,
    fields.IN_WORDS[fields.ROLE],
    lambda number, _region: f"arn:aws:iam::000000000000:role/n{number}",
)
_GROUP = _id("sg", fields.IN_WORDS[fields.SECURITY_GROUP])
_BOUNDARY = Form(
    fields.BOUNDARY,
    fields.IN_WORDS[fields.BOUNDARY],
    lambda number, _region: f"arn:aws:iam::000000000000:policy/n{number}",
)
_STORAGE: dict[str, Form | dict[tuple[str, str], Form]] = {
    "existing": {
        ("aws", "nfs"): _VOLUME,
        ("aws", "efs"): _FILE_SYSTEM,
        ("aws", "fsx_lustre"): _FILE_SYSTEM,
        ("gcp", "nfs"): _DISK,
        ("gcp", "filestore"): _INSTANCE,
    },
    "restore": {
        ("aws", "nfs"): _SNAPSHOT,
        ("aws", "fsx_lustre"): _BACKUP,
        ("gcp", "nfs"): _name(_GOOGLE_NAME, "the name of a snapshot"),
    },
    "s3_export": _address("s3"),
    "s3_import": _address("s3"),
    "security_group": _GROUP,
}
_DIRECTORIES = ("storage.home.", "storage.apps.", "storage.scratch.")
FORMS: dict[str, Form | dict[tuple[str, str], Form]] = {
    "access.key": _name(fields.KEY_PAIR, fields.IN_WORDS[fields.KEY_PAIR]),
    "aws.kms_key": _KMS,
    "aws.permissions_boundary": _BOUNDARY,
    "batch.container.job_role": _ROLE,
    "batch.security_groups[]": _GROUP,
    "controller.security_groups[]": _GROUP,
    "login.security_groups[]": _GROUP,
    "network.aws.private_subnets[]": _id("subnet", fields.IN_WORDS[fields.SUBNET]),
    "network.aws.public_subnet": _id("subnet", fields.IN_WORDS[fields.SUBNET]),
    "network.aws.vpc": _id("vpc", fields.IN_WORDS[fields.VPC]),
    "network.gcp.network": _name(_GOOGLE_NAME, "the name of a network"),
    "network.gcp.subnetwork": _name(_GOOGLE_NAME, "the name of a subnetwork"),
    "partitions[].aws.security_groups[]": _GROUP,
    "storage.buckets[].bucket": {("aws", ""): _address("s3"), ("gcp", ""): _address("gs")},
    "tags.*": {
        ("aws", ""): _name(platform.AWS_VALUE.pattern, platform.AWS_VALUE_WORDS),
        ("gcp", ""): _name(platform.GOOGLE_VALUE.pattern, platform.GOOGLE_VALUE_WORDS),
    },
    **{
        f"storage.{part}.{key}": form
        for part in ("home", "apps", "scratch")
        for key, form in _STORAGE.items()
    },
}
"""Path of an argument that may be an output of another resource -> the value's form. Where it depends on the
provider and on the kind of the directory, it is the form for each of them."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a component is in.

    Attributes:
        stack: The name of its stack.
        folder: Its folder, in which the user's files are.
        settings: Its settings, such as `aws:region`.
        own_providers: The packages for which the component is given a provider, such as `aws`.
        secret: The settings whose values are secret.
    """

    stack: str
    folder: Path
    settings: Mapping[str, Any]
    own_providers: frozenset[str] = frozenset()
    secret: frozenset[str] = frozenset()


def read(name: str, inputs: Mapping[str, Any], program: Program) -> tuple[StackConfig, StandIns]:
    """Return the configuration of a component, and what stands in it for outputs of other resources.

    Args:
        name: The component's name, which the cluster has if no argument names it.
        inputs: The arguments, with the names of the schema. Those that are known are plain values.

    Raises:
        ConfigError: The arguments have mistakes. Their paths are those of the schema.
    """
    given = from_schema(inputs)
    place = {key: value for key in Place.model_fields if (value := given.pop(key, None)) is not None}
    benchmark = given.pop(BENCHMARK, None)
    settings = _settings(given.get("provider"), place, program)
    outputs = _Outputs(given.get("provider"), settings.get("aws:region"))
    values = outputs.replaced({**settings, CLUSTER: given})
    if benchmark is not None:
        values |= outputs.replaced({BENCHMARK_KEY: benchmark})
    values[CLUSTER] = {"name": name, **values[CLUSTER]}
    subject = f"SlurmCluster {name}"
    try:
        stack = f"{program.stack}.{name}"
        config = parse(
            values, stack, subject=subject, project=program.folder, secret=program.secret & settings.keys()
        )
    except ConfigError as error:
        paths = {mistake.path for mistake in outputs.mistakes}
        mistakes = [*outputs.mistakes, *(mistake for mistake in error.mistakes if mistake.path not in paths)]
        raise ConfigError(subject, [*map(_in_schema, mistakes)]) from None
    mistakes = [
        *outputs.mistakes,
        *_zones_of_outputs(config),
        *_region(config, place.get("region"), program),
        *config.placeholders,
    ]
    if mistakes:
        raise ConfigError(subject, [*map(_in_schema, mistakes)])
    return config, StandIns(tuple(outputs.all))


def _settings(provider: Any, place: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """Return the settings of the cloud's provider: the component's own before the program's.

    A provider that the component is given has none of the program's, as any that a program declares.
    """
    if provider not in ("aws", "gcp"):
        return {}
    inherited = {
        key: value
        for key, value in program.settings.items()
        if key.partition(":")[0] == provider
        and (provider not in program.own_providers or key in LOCATION_KEYS)
    }
    return {**inherited, **{f"{provider}:{key}": value for key, value in place.items()}}


class _Outputs:
    """The outputs of other resources among the arguments.

    Attributes:
        all: What stands in for them.
        mistakes: Those at paths where a value must be known.
    """

    def __init__(self, provider: Any, region: Any) -> None:
        self._provider = provider
        self._region = region if isinstance(region, str) else "us-east-1"
        self.all: list[StandIn] = []
        self.mistakes: list[Mistake] = []

    def replaced(self, value: Any, path: str = "", owner: Mapping[str, Any] | None = None) -> Any:
        """Return the arguments with a text in the place of each output."""
        if isinstance(value, Given):
            return self._stand_in(value, path, owner or {})
        if isinstance(value, Mapping):
            below = {key: f"{path}.{key}" if path else key for key in value}
            return {key: self.replaced(part, below[key], value) for key, part in value.items()}
        if isinstance(value, list):
            return [self.replaced(part, f"{path}[{index}]", owner) for index, part in enumerate(value)]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def _stand_in(self, value: Given, path: str, owner: Mapping[str, Any]) -> Any:
        key = re.sub(r"\[\d+\]", "[]", path.removeprefix(f"{CLUSTER}."))
        # The keys of tags are the user's.
        key = "tags.*" if key.startswith("tags.") else key
        form = FORMS.get(key)
        if isinstance(form, dict):
            kind = str(owner.get("kind", "nfs")) if key.startswith(_DIRECTORIES) else ""
            form = form.get((str(self._provider), kind))
        if form is None and value.known and not value.secret:
            return self.replaced(value.value, path, owner)
        if value.secret:
            self.mistakes.append(
                Mistake(
                    "component.secret",
                    path,
                    "a secret",
                    NO_SECRET,
                    "mark it as no secret (unsecret), if it is none",
                )
            )
            return None
        if form is None:
            self.mistakes.append(
                Mistake(
                    "component.unknown",
                    path,
                    _UNKNOWN,
                    "a value that is known before anything is made: names and numbers of resources "
                    "depend on it",
                    "give the value itself, or a setting of the program (pulumi config)",
                )
            )
            return None
        text = form.stand_in(digits(path), self._region)
        self.all.append(StandIn(text, value.output.apply(lambda known: checked(known, path, form))))
        return text


def checked(value: Any, path: str, form: Form) -> str:
    """Return a value that is known by now, if it has the right form."""
    if isinstance(value, str) and re.fullmatch(form.pattern.strip("^$"), value):
        return value
    mistake = Mistake("component.value", path, shown(value), form.words, "")
    raise ConfigError("SlurmCluster", [_in_schema(mistake)])


def _zones_of_outputs(config: StackConfig) -> list[Mistake]:
    """Check that the zones of subnets are given that nobody can ask for in a preview."""
    network = config.cluster.network
    aws = network.aws
    if aws is None or config.provider != "aws":
        return []
    ids = [aws.vpc, aws.public_subnet, *aws.private_subnets]
    if not any(MARK in str(each) for each in ids) or len(network.zones) == len(aws.private_subnets):
        return []
    return [
        Mistake(
            "component.zones",
            f"{CLUSTER}.network.zones",
            shown(network.zones) if network.zones else "nothing",
            "the zone of each of network.aws.privateSubnets, in their order; the first is also that of the "
            "public subnet",
            "the subnets come from other resources, so AWS cannot be asked in a preview",
        )
    ]


def _region(config: StackConfig, given: Any, program: Program) -> list[Mistake]:
    """Check that the component's resources are made where its configuration says.

    AWS's provider decides on the region, and nobody can ask the provider.
    """
    if config.provider != "aws":
        return []
    usual = program.settings.get("aws:region")
    if "aws" in program.own_providers:
        if given is not None:
            return []
        allowed, advice = "the region of the aws provider that the component is given", "write the region"
    elif given in (None, usual):
        return []
    else:
        allowed = f"the program's aws:region, {usual}" if usual else "nothing without a provider"
        advice = "give the component an aws provider of this region (option providers)"
    return [Mistake("component.region", "aws:region", shown(given), allowed, advice)]


def _in_schema(mistake: Mistake) -> Mistake:
    return replace(mistake, path=path_in_schema(mistake.path))
