"""Types of values in a stack file. Each says why it refuses another value."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from node.slurm import own_settings
from node.system import plurals

# A name that is valid in DNS, EC2 tags, Google's resource names and slurm.conf.
NAME = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"
ACCELERATOR = r"^[a-z][a-z0-9_]*$"
PLACEHOLDER = r"PLACEHOLDER_[A-Z0-9_]+"
"""A word for a value that the user fills in (`infra.config.placeholders`)."""
KEY_PAIR = r"^[A-Za-z0-9_ .:/=+@-]+$"
MEMBER = r"^((user|group|serviceAccount):[^\s:@]+@[a-z0-9.-]+\.[a-z]+|domain:[a-z0-9.-]+\.[a-z]+)$"
"""Nobody whom IAM does not know: allUsers and allAuthenticatedUsers are the whole world."""
PLACEMENT_GROUP = r"^[A-Za-z0-9][A-Za-z0-9_ .:/=+@-]*$"
KMS_KEY = (
    r"^(arn:aws(-[a-z]+)*:kms:[a-z]{2}(-[a-z]+)+-[0-9]:[0-9]{12}:key/"
    rf"(mrk-[0-9a-f]{{32}}|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})|{PLACEHOLDER})$"
)
VPC = rf"^(vpc-[0-9a-f]{{8,17}}|{PLACEHOLDER})$"
SUBNET = rf"^(subnet-[0-9a-f]{{8,17}}|{PLACEHOLDER})$"
SECURITY_GROUP = rf"^(sg-[0-9a-f]{{8,17}}|{PLACEHOLDER})$"
GS_BUCKET = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)*"
"""A bucket's name in Cloud Storage: parts of 63 characters between dots. `gs_bucket` checks the rest."""
ANY_BUCKET = r"^(s3|gs)://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^/ ]+)*/?$"
BUCKET = rf"^(s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](/.*)?|{PLACEHOLDER})$"
ROLE = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$"
REPOSITORY = r"^[a-z0-9]+([._/-][a-z0-9]+)*$"
"""A repository's name in ECR (botocore, RepositoryName; doubled separators are left out)."""
SHA256 = rf"^([0-9a-f]{{64}}|{PLACEHOLDER})$"
DOMAIN = r"^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"
LDAPS = r"^ldaps://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/?$"
DN = r"^[A-Za-z][A-Za-z0-9.-]*=[^\x00-\x1f]+$"
FILTER = r"^\([^\x00-\x1f]+\)$"
HTTPS = r"^https://[^\s/]+(/\S*)?$"
APT_WORD = r"^(/|[A-Za-z0-9][A-Za-z0-9._/+-]*)$"
FINGERPRINT = r"^([0-9A-F]{40}|[0-9A-F]{64})$"
ABSOLUTE_PATH = r"^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$"
BACKUPS = rf"^({ANY_BUCKET[1:-1]}|{ABSOLUTE_PATH[1:-1]})$"
CPU_PLATFORM = r"^(Intel|AMD|Ampere|Google) [A-Z0-9][A-Za-z0-9 ]{1,40}$"
BATCH_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$"
BOUNDARY = rf"^(arn:aws(-[a-z]+)*:iam::([0-9]{{12}}|aws):policy/[A-Za-z0-9+=,.@_/-]+|{PLACEHOLDER})$"
ROLE_PATH = r"^/([A-Za-z0-9+=,.@_-]+/)*$"
NETWORK_TAG = r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"
DEVICE = r"^/dev/(sd[b-p]|xvd[b-z][a-z]?)$"
SNAPSHOT = rf"^(snap-[0-9a-f]{{8,17}}|{PLACEHOLDER})$"
LICENSE = (
    r"^arn:aws(-[a-z]+)*:license-manager:[a-z0-9-]+:[0-9]{12}:license-configuration[:/]lic-[0-9a-f]{32}$"
)
RESOURCE_TAG = r"^tagValues/[0-9]+$"
HOST_ARN = r"^arn:aws(-[a-z]+)*:resource-groups:[a-z0-9-]+:[0-9]{12}:group/.+$"
MAX_PRICE = r"^[0-9]+(\.[0-9]+)?$"

FEATURE = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"

IN_WORDS = {
    NAME: "small letters, digits and hyphens; a letter first, no hyphen last",
    ACCELERATOR: "v100, t4, a10g, a100, h100, trainium",
    KEY_PAIR: "the name of an EC2 key pair, never the key itself",
    MEMBER: "a member as IAM writes it: user:ada@example.com, group:…, serviceAccount:…, domain:…",
    PLACEMENT_GROUP: "the name of a placement group, not its id (pg-…)",
    KMS_KEY: "the ARN of a KMS key, arn:aws:kms:<region>:<account>:key/<id>: no alias",
    VPC: "the id of a VPC, vpc-…",
    SUBNET: "the id of a subnet, subnet-…",
    SECURITY_GROUP: "the id of a security group, sg-…",
    ANY_BUCKET: "s3://bucket/prefix or gs://bucket/folder",
    BUCKET: "s3://bucket/prefix",
    ROLE: "the ARN of an IAM role, arn:aws:iam::<account>:role/<name>",
    REPOSITORY: "a name in ECR: small letters and digits, with . _ - or / between them",
    SHA256: "64 small hexadecimal digits, as sha256sum prints them",
    HTTPS: "an address that begins with https://",
    APT_WORD: "a suite or component of a deb line: letters, digits and . _ / + -",
    FINGERPRINT: "40 or 64 capital hexadecimal digits without spaces, as gpg --with-colons prints them",
    BACKUPS: "s3://bucket/prefix on AWS, gs://bucket/folder on Google Cloud, /a/folder on the local stack",
    ABSOLUTE_PATH: "an absolute path without spaces, like /fsx/enroot",
    CPU_PLATFORM: "a platform as Compute Engine names it: Intel Skylake, Intel Ice Lake, AMD Milan",
    BATCH_NAME: "letters, digits, hyphens and underscores, at most 128",
    BOUNDARY: "the ARN of a managed policy, arn:aws:iam::<account>:policy/<name>",
    ROLE_PATH: "a path that begins and ends with /, like /platform/ml/",
    NETWORK_TAG: "small letters, digits and hyphens, at most 63; a letter first, no hyphen last",
    DEVICE: "the name of a device besides the root disk, /dev/sdb to /dev/sdp",
    SNAPSHOT: "the id of a snapshot, snap-…",
    LICENSE: "the ARN of a license configuration",
    HOST_ARN: "the ARN of a resource group of hosts",
    RESOURCE_TAG: "the id of a tag's value in Resource Manager, tagValues/…",
    FEATURE: "letters, digits and _ . -, at most 64: the rest means something else in --constraint",
    MAX_PRICE: 'USD an hour in digits, like "0.5"',
}
LONGEST_NAME = 63
SOURCES = ("debian-13", "ubuntu-24.04")
MOST_GROUPS = 15
"""A network interface has at most 16 security groups (Amazon VPC quotas), and one is the cluster's."""
MOST_FEATURES = 32
MOST_NETWORK_TAGS = 64
"""The most network tags of a Compute Engine instance."""
CLUSTER_NAME_LENGTH = 40

LONGEST_LIMIT = 3653 * 86400
"""The longest time limit, in seconds. Slurm counts minutes in 32 bits."""

_TIME_LIMIT = re.compile(r"(\d+-)?\d+(:[0-5]?\d){0,2}")
_TWO_PARTS = re.compile(r"(\d+):([0-5]?\d)")
TIME_LIMIT_SCHEMA = (
    r"^([0-9]+|[0-9]+:[0-5]?[0-9]:[0-5]?[0-9]|[0-9]+-[0-9]+(:[0-5]?[0-9]){0,2}"
    r"|[Ii][Nn][Ff][Ii][Nn][Ii][Tt][Ee]|[Uu][Nn][Ll][Ii][Mm][Ii][Tt][Ee][Dd])$"
)
TIME_LIMITS = (
    'in quotes: hours:minutes:seconds, days-hours[:minutes[:seconds]], minutes alone ("90"), or "INFINITE"'
)


class Section(BaseModel):
    """Base of every section of a stack file. An unknown key is a mistake, and "4" is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Overrides(Section):
    """Base of the sections with fields of a cloud's own template.

    Attributes:
        RESERVED: Fields on which the cluster relies -> what to write instead; "nothing: …" says why nothing.
    """

    RESERVED: ClassVar[Mapping[str, str]] = {}


def refusal(code: str, allowed: str, advice: str = "") -> PydanticCustomError:
    """Return an error of a validator, with what a `Mistake` needs."""
    return PydanticCustomError("refused", "refused", {"code": code, "allowed": allowed, "advice": advice})


def clock(seconds: int) -> str:
    """Return seconds as hours:minutes:seconds."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def time_limit_advice(text: str) -> str:
    """Return what to write instead of a time in two parts, or of one without quotes."""
    if (parts := _TWO_PARTS.fullmatch(text)) is not None:
        first, second = map(int, parts.groups())
        short, long = first * 60 + second, first * 3600 + second * 60
        return (
            f"Slurm reads {text} as minutes and seconds, and most people as hours and minutes: write "
            f'"{clock(short)}" for {plurals.of_seconds(short)}, or "{clock(long)}" for '
            f"{plurals.of_seconds(long)}"
        )
    return f'YAML reads a bare time as a number: write it in quotes, time_limit: "{text}"'


def _time_limit(value: Any) -> Any:
    allowed = TIME_LIMITS
    if isinstance(value, int) and not isinstance(value, bool):
        # YAML 1.1 reads 24:00:00 in base 60, as 86400. A small number may mean minutes, as in Slurm.
        minutes = f', or "{value}" for {value} minutes' if 0 < value < 10000 else ""
        raise refusal(
            "time-limit.number",
            allowed,
            "YAML reads a bare time as a number (24:00:00 becomes 86400): "
            f'write it in quotes, time_limit: "{clock(value)}"{minutes}',
        )
    if not isinstance(value, str):
        raise refusal("time-limit.form", allowed, 'for example time_limit: "24:00:00"')
    if value.upper() in ("INFINITE", "UNLIMITED"):
        return "INFINITE"
    if not _TIME_LIMIT.fullmatch(value):
        raise refusal(
            "time-limit.form",
            allowed,
            'for example "24:00:00", "2-12:00:00" (two and a half days) or "90" (minutes)',
        )
    if time_limit_seconds(value) == 0:
        raise refusal(
            "time-limit.zero", allowed, "a limit of zero lets no job run; leave the key out for no limit"
        )
    if (time_limit_seconds(value) or 0) > LONGEST_LIMIT:
        raise refusal("time-limit.too-long", allowed, "longer than ten years; leave the key out for no limit")
    if _TWO_PARTS.fullmatch(value):
        raise refusal("time-limit.two-parts", allowed, time_limit_advice(value))
    return value


def time_limit_seconds(value: str) -> int | None:
    """Return a time limit in any of Slurm's notations as seconds; `None` for INFINITE.

    Slurm reads `m`, `m:s`, `h:m:s`, `d-h`, `d-h:m` and `d-h:m:s`.
    """
    if value == "INFINITE":
        return None
    days, dash, rest = value.rpartition("-")
    numbers = [int(n) for n in rest.split(":")]
    if dash:
        numbers += [0] * (3 - len(numbers))
    else:
        numbers = {1: [0, *numbers, 0], 2: [0, *numbers], 3: numbers}[len(numbers)]
    hours, minutes, seconds = numbers
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _cidr(value: Any) -> Any:
    allowed = "a network in CIDR notation, like 10.0.0.0/16"
    if not isinstance(value, str) or "/" not in value:
        raise refusal("network.cidr-form", allowed, "a single address is written with /32")
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        advice = ""
        if "host bits" in str(error):
            advice = f"did you mean {ipaddress.ip_network(value, strict=False)}?"
        raise refusal("network.cidr-form", allowed, advice) from error
    return value


def _path(value: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", value) or ".." in value.split("/"):
        # slurm.conf and fstab separate by spaces.
        raise refusal("mount.path", "an absolute path of letters, digits, '.', '_' and '-', like /scratch")
    return value


def _text(value: Any) -> Any:
    """Make text of a number: environment variables and tags are text, but YAML reads `160` as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _setting(value: Any) -> Any:
    """Make text of a value of slurm.conf. YAML reads `yes` and `off` as booleans, and `160` as a number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        # Pulumi passes whole numbers of a program on as 5.0.
        return str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if isinstance(value, str) and not re.fullmatch(own_settings.VALUE, value):
        raise refusal(
            "settings.value",
            "a value on one line without quotes, '#' and '\\' in it, and no space at its ends",
            "slurm.conf would end there; leave the option out for Slurm's default",
        )
    return value


def _accelerator(value: Any) -> Any:
    """Shorten a cloud's long name, which users copy from consoles and published files.

    For example nvidia-tesla-v100 becomes v100, and nvidia-a100-80gb becomes a100_80gb.
    """
    if not isinstance(value, str):
        return value
    return value.lower().removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_")


def gs_bucket(name: str) -> bool:
    """Return whether Cloud Storage accepts a bucket's name (cloud.google.com/storage/docs/buckets)."""
    return (
        re.fullmatch(GS_BUCKET, name) is not None
        and 3 <= len(name) <= (222 if "." in name else 63)
        and not re.fullmatch(r"(\d+\.){3}\d+", name)
        and not name.startswith("goog")
        and "google" not in name
    )


Name = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
ClusterName = Annotated[str, Field(pattern=NAME, max_length=CLUSTER_NAME_LENGTH)]


def _distribution(value: object) -> object:
    """Explain why other distributions cannot be chosen: posts and templates name them."""
    others = ("alinux", "amazon", "centos", "rhel", "rocky", "debian", "ubuntu")
    if isinstance(value, str) and value not in SOURCES and value.lower().startswith(others):
        raise refusal(
            "image.source",
            f"one of {', '.join(SOURCES)}",
            f"machines get Slurm, drivers and Lustre's client from their packages, so {value} does not come "
            "up (CentOS 7 ended in 2024, Amazon Linux 2 in 2026); leave the key out, and the stack gets the "
            "one that has what it needs",
        )
    return value


_DAY = r"\d{4}-\d\d-\d\d(T00:00:00Z| 00:00:00 \+0000 UTC)?"


def _day(value: object) -> object:
    """Take a day as YAML reads it, or as Pulumi passes it on: a text with the time of midnight in UTC."""
    try:
        if re.fullmatch(_DAY, str(value)) is None:
            raise ValueError(value)
        return datetime.date.fromisoformat(str(value)[:10]).isoformat()
    except ValueError:
        raise refusal("value.day", "a day, year-month-day", "for example 2026-11-26") from None


def _reservation(value: Any) -> Any:
    several = isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    if not (several or isinstance(value, str) or value is None):
        raise refusal(
            "reservation.type",
            "one reservation as text, or a list of several on AWS",
            "for example cr-0123456789abcdef0",
        )
    return value


Reservation = Annotated[
    str | list[str] | None,
    BeforeValidator(_reservation),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
    ),
]
TimeLimit = Annotated[
    str,
    BeforeValidator(_time_limit),
    WithJsonSchema({"type": "string", "pattern": TIME_LIMIT_SCHEMA}),
]
Features = Annotated[list[Annotated[str, Field(pattern=FEATURE)]], Field(max_length=MOST_FEATURES)]
"""Features of nodes, for `--constraint`, where other characters are operators."""
Cidr = Annotated[str, BeforeValidator(_cidr)]
MountPath = Annotated[str, AfterValidator(_path)]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "number"]})]
Setting = Annotated[str, BeforeValidator(_setting), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Settings = dict[str, Setting]
"""Options of slurm.conf, by name (`infra.config.rules.slurm_options`)."""
AcceleratorType = Annotated[str, BeforeValidator(_accelerator), Field(pattern=ACCELERATOR)]
Usd = Annotated[float, Field(gt=0)]
Distribution = Annotated[Literal["debian-13", "ubuntu-24.04"], BeforeValidator(_distribution)]
Day = Annotated[
    str, BeforeValidator(_day), WithJsonSchema({"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})
]
SecurityGroups = Annotated[list[Annotated[str, Field(pattern=SECURITY_GROUP)]], Field(max_length=MOST_GROUPS)]
NetworkTags = Annotated[list[Annotated[str, Field(pattern=NETWORK_TAG)]], Field(max_length=MOST_NETWORK_TAGS)]
Zones = Annotated[list[str], Field(description="Zones, tried in this order.")]
