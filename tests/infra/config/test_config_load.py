"""Reading a stack file: types, names, YAML's traps. All mistakes are reported at once."""

from __future__ import annotations

import contextvars
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.config import ConfigError, load_file, parse
from infra.config.load import engine_values
from infra.errors import EXIT_USAGE
from tests.support.stack_parts import Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, STACKS, mistakes, values

ROOT = Path(__file__).parents[3]
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), ROOT / "Pulumi.local.yaml"]

VPC = {"public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}

# stack, changes, path and code of the one mistake
SHAPES: list[Refused] = [
    ("local", {"partitons": []}, "partitons", "key.unknown"),
    ("local", {"partitions[0].nodes.maximum": 3}, "partitions[0].nodes.maximum", "key.unknown"),
    ("local", {"partitions[0].Machine": "x"}, "partitions[0].Machine", "key.unknown"),
    ("aws", {"controller.disk_gb": 100}, "controller.disk_gb", "key.unknown"),
    (
        "local",
        {"instance_types": {"x.y": {"cpus": 1}}},
        'instance_types["x.y"].cpus',
        "key.unknown",
    ),
    ("local", {"name": "Cluster_1"}, "name", "value.form"),
    ("local", {"name": "c" * 41}, "name", "value.length"),
    ("local", {"partitions[0].name": "a b"}, "partitions[0].name", "value.form"),
    ("local", {"partitions[0].name": REMOVE}, "partitions[0].name", "key.missing"),
    ("local", {"partitions[0].instance_type": REMOVE}, "partitions[0].instance_type", "key.missing"),
    ("local", {"provider": REMOVE}, "provider", "key.missing"),
    (
        "local",
        {"hooks": [{"source": "x.sh"}]},
        "hooks[0].role",
        "key.missing",
    ),
    ("local", {"provider": "aw"}, "provider", "value.choice"),
    ("local", {"partitions[0].nodes.max": "ten"}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].nodes.max": 2.5}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].nodes.max": 0}, "partitions[0].nodes.max", "value.range"),
    ("local", {"partitions[0].nodes.max": 5001}, "partitions[0].nodes.max", "value.range"),
    ("local", {"partitions[0].nodes.min": -1}, "partitions[0].nodes.min", "value.range"),
    ("local", {"partitions[0].nodes.max": "4"}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].nodes.max": "1e3"}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].nodes.max": "4 nodes"}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].nodes.max": 10**40}, "partitions[0].nodes.max", "value.range"),
    ("local", {"partitions[0].nodes.max": True}, "partitions[0].nodes.max", "value.type"),
    ("local", {"partitions[0].spot": "yes"}, "partitions[0].spot", "value.type"),
    ("local", {"partitions": {"name": "x"}}, "partitions", "value.type"),
    ("local", {"partitions[0]": "debug"}, "partitions[0]", "value.type"),
    ("local", {"controller": None}, "controller", "value.type"),
    ("local", {"partitions[0].placement": "clustered"}, "partitions[0].placement", "value.choice"),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100", "count": 0}},
        "partitions[0].accelerator.count",
        "value.range",
    ),
    ("aws", {"storage.home.size_gib": "200GB"}, "storage.home.size_gib", "value.type"),
    ("aws", {"storage.scratch.path": "fsx"}, "storage.scratch.path", "mount.path"),
    ("aws", {"storage.scratch.path": "/a/../b"}, "storage.scratch.path", "mount.path"),
    ("aws", {"storage.scratch.path": "/my data"}, "storage.scratch.path", "mount.path"),
    ("aws", {"storage.scratch.s3_import": "my-bucket"}, "storage.scratch.s3_import", "value.form"),
    ("aws", {"access.ssh_cidrs": ["10.0.0.1/8"]}, "access.ssh_cidrs[0]", "network.cidr-form"),
    ("aws", {"access.ssh_cidrs": ["10.0.0.1"]}, "access.ssh_cidrs[0]", "network.cidr-form"),
    ("aws", {"access.ssh_cidrs": ["office/24"]}, "access.ssh_cidrs[0]", "network.cidr-form"),
    ("aws", {"network.aws": {**VPC, "vpc": "my-vpc"}}, "network.aws.vpc", "value.form"),
    ("aws", {"image.source": "centos7"}, "image.source", "image.source"),
    (
        "aws",
        {"image.source": "alinux2"},
        "image.source",
        "image.source",
    ),
    ("aws", {"image.source": "plan9"}, "image.source", "value.choice"),
    ("local", {"budget.max_usd": 0}, "budget.max_usd", "value.range"),
    ("local", {"budget.max_hours": -3}, "budget.max_hours", "value.range"),
    ("local", {"budget.running_jobs": "kill"}, "budget.running_jobs", "value.choice"),
    ("local", {"budget.max_usd": float("inf")}, "budget.max_usd", "value.type"),
    (
        "local",
        {"hooks[0]": {"role": "head", "source": "x"}},
        "hooks[0].role",
        "value.choice",
    ),
    ("local", {"hooks[0]": {"role": "all"}}, "hooks[0]", "hook.source-or-script"),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "args": [1]}},
        "hooks[0].args[0]",
        "value.type",
    ),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "timeout": 0}},
        "hooks[0].timeout",
        "value.range",
    ),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "timeout": "10m"}},
        "hooks[0].timeout",
        "value.type",
    ),
    ("local", {"slurm.suspend_time": 0}, "slurm.suspend_time", "value.range"),
    ("local", {"slurm.suspend_time": "4s"}, "slurm.suspend_time", "value.type"),
    # slurmctld does not start with more.
    ("local", {"slurm.resume_timeout": 65001}, "slurm.resume_timeout", "value.range"),
    ("local", {"slurm.suspend_timeout": 65001}, "slurm.suspend_timeout", "value.range"),
    ("local", {"slurm.slurmd_timeout": 65001}, "slurm.slurmd_timeout", "value.range"),
    ("local", {"slurm.suspend_time": 2**32 + 5}, "slurm.suspend_time", "value.range"),
    ("local", {"slurm.reconcile_interval": float("nan")}, "slurm.reconcile_interval", "value.type"),
    ("local", {"local.price_hour": float("inf")}, "local.price_hour", "value.type"),
    (
        "local",
        {"instance_types": {"local.small": {"price_hour": float("inf")}}},
        'instance_types["local.small"].price_hour',
        "value.type",
    ),
    (
        "local",
        {"instance_types": {"local.small": {"vcpus": "4"}}},
        'instance_types["local.small"].vcpus',
        "value.type",
    ),
    (
        "local",
        {"instance_types": {"local.small": {"vcpus": 10**6}}},
        'instance_types["local.small"].vcpus',
        "value.range",
    ),
    ("local", {"local.boot_delay": -1}, "local.boot_delay", "value.range"),
    ("local", {"local.never_register": 1.1}, "local.never_register", "value.range"),
    ("local", {"local.capacity": {"debug": -1}}, "local.capacity.debug", "value.range"),
    ("local", {"local.capacity": {"debug": 1.5}}, "local.capacity.debug", "value.type"),
    ("local", {"local.api_error": "throttle"}, "local.api_error", "value.choice"),
    ("batch", {"batch.nodes": 0}, "batch.nodes", "value.range"),
    ("batch", {"batch.instance_types": []}, "batch.instance_types", "value.length"),
    ("batch", {"batch.container.job_role": "me"}, "batch.container.job_role", "value.form"),
    ("local", {"@epochs": 0}, "@epochs", "value.range"),
    ("local", {"@profile": "synch"}, "@profile", "value.choice"),
    ("local", {"@learning_rate": 0}, "@learning_rate", "value.range"),
    ("local", {"@seed": -1}, "@seed", "value.range"),
    ("local", {"@average_every": 0}, "@average_every", "value.range"),
    ("local", {"@data": "cifar"}, "@data", "value.choice"),
    ("local", {"@gpus": 1}, "@gpus", "key.unknown"),
    ("local", {"@script": "../bert.py"}, "@script", "benchmark.path-outside"),
    ("local", {"slurm-stacks:benchmrk": {}}, "slurm-stacks:benchmrk", "key.unknown"),
    ("local", {"slurm-stack:benchmark": {}}, "slurm-stack:benchmark", "key.unknown"),
    ("local", {"x:y": 1, "slurm-stacks:bench": {}}, "slurm-stacks:bench", "key.unknown"),
    ("local", {BENCHMARK: [1]}, BENCHMARK, "value.type"),
    ("local", {CLUSTER: REMOVE}, CLUSTER, "value.type"),
    ("local", {CLUSTER: "{not json"}, CLUSTER, "value.type"),
]

TIME_LIMITS: list[Refused] = [
    ("local", {"partitions[0].time_limit": limit}, "partitions[0].time_limit", f"time-limit.{rule}")
    for limit, rule in (
        (86400, "number"), (5400, "number"), (90, "number"), ("4000-00:00:00", "too-long"),
        ("9" * 60, "too-long"), ("1 day", "form"), ("1:99", "form"), ("24:00", "two-parts"),
        ("90:30", "two-parts"), ("1:2:3:4", "form"), ("00:00:00", "zero"), (True, "form"), (None, "form"),
    )
]  # fmt: skip


@each_refusal(SHAPES)
def test_shape(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, [*SHAPES, *TIME_LIMITS])


@pytest.mark.parametrize(
    "limit", ["10", "24:00:00", "1:2:3", "2-0", "2-12", "2-12:30", "2-12:30:15", "INFINITE", "unlimited"]
)
def test_slurms_time_limits(limit: str) -> None:
    assert mistakes(values("local", {"partitions[0].time_limit": limit})) == []


@pytest.mark.parametrize(("stack", "changes", "path", "code"), TIME_LIMITS)
def test_other_time_limits(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_all_mistakes_at_once_shapes_and_combinations() -> None:
    config = values(
        "aws",
        {
            "nam": "x",
            "aws:region": REMOVE,
            "partitions[0].nodes.max": "ten",
            "partitions[0].aws.efa": True,
            "partitions[1].instance_type": "p3.8xlarge",
            "partitions[2]": {"instance_type": "m5.large", "nodes": {"min": 3, "max": 2}},
            "access": {"mode": "ssh", "ssh_cidrs": ["0.0.0.0/0"], "key": "mine"},
            "@partition": "tpu",
            "@epoch": 3,
        },
    )
    with pytest.raises(ConfigError) as caught:
        parse(config, "test")
    paths = sorted(m.path.removeprefix(f"{CLUSTER}.") for m in caught.value.mistakes)
    assert paths == [
        "access.ssh_cidrs[0]",
        "aws:region",
        "nam",
        "partitions[0].aws.efa",
        "partitions[0].nodes.max",
        "partitions[1].instance_type",
        "partitions[2].name",
        "partitions[2].nodes",
        f"{BENCHMARK}.epoch",
    ]
    assert caught.value.exit_code == EXIT_USAGE
    assert "stack test: 9 mistakes." in str(caught.value)
    for mistake in caught.value.mistakes:
        assert str(mistake) in str(caught.value)


def test_a_wrong_value_is_reported_once() -> None:
    """The value that replaces a wrong one must not lead to further mistakes that nobody made."""
    for changes in (
        {"provider": "azure"},
        {"partitions": "debug"},
        {"partitions[0].instance_type": 7},
        {"partitions[0].name": 7, "@partition": "debug"},
        {"partitions[0].nodes": "many", "@nodes": 200},
        {"name": 7},
        {"name": "c" * 50},
    ):
        assert len(mistakes(values("local", changes))) == 1, changes


def test_a_thousand_mistakes_are_one_message() -> None:
    partitions = [{"name": f"p{i}", "instance_type": "m9.huge", "nodes": {"max": -1}} for i in range(500)]
    with pytest.raises(ConfigError) as caught:
        parse(values("aws", {"partitions": partitions, BENCHMARK: REMOVE}), "test")
    assert len(caught.value.mistakes) == 1000
    lines = str(caught.value).splitlines()
    assert lines[0] == lines[-1] == "the configuration of stack test: 1000 mistakes."
    assert len(lines) == 1004, "a line each"
    assert f"{CLUSTER}.partitions[499].nodes.max: -1; allowed: 1 or more [value.range]" in lines
    machine = [line for line in lines if ".instance_type: " in line]
    assert len(machine[0]) > len(machine[1]) + 80, "a long text stands there once"
    assert machine[1].endswith("; as above [instance-type.unknown]")


def test_the_stacks_name_stands_in_for_the_clusters() -> None:
    assert parse(values("local", {"name": REMOVE}), "blue").cluster.name == "blue"
    (found,) = mistakes(values("local", {"name": REMOVE}), "Blue.Sky")
    assert found.path == f"{CLUSTER}.name"
    assert found.given == '"Blue.Sky"'
    (other,) = mistakes(values("local", {"name": "Blue"}))
    assert other.code == found.code
    assert other.advice != found.advice, "the file has no name that could be changed"


def test_without_a_benchmark_there_is_none() -> None:
    assert parse(values("local", {BENCHMARK: REMOVE}), "s").benchmark is None


def test_pulumi_hands_objects_as_json_text() -> None:
    config = values("aws")
    as_text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    assert parse(as_text, "s") == parse(config, "s")


def test_parsing_does_not_change_the_given_values() -> None:
    config = values("aws", {"partitions[0].nodes.max": "ten", "name": REMOVE})
    before = json.dumps(config)
    assert mistakes(config)
    assert json.dumps(config) == before


def test_places() -> None:
    aws, gcp, local = (parse(values(name), "s") for name in ("aws", "gcp", "local"))
    assert (aws.region, aws.zone, aws.project) == ("us-east-1", None, None)
    assert (gcp.region, gcp.zone) == ("europe-west4", "europe-west4-a")
    assert parse(values("gcp", {"gcp:project": "lab-42"}), "s").project == "lab-42"
    assert (local.region, local.zone) == (None, None)
    assert parse(values("local", {"aws:region": "eu-west-1"}), "s").region is None


@pytest.mark.parametrize("key", [CLUSTER, BENCHMARK])
def test_what_the_engine_calls_secret_is_refused_as_in_the_file(key: str) -> None:
    """The engine gives it in clear, and says of the whole key that something in it is secret."""
    given = values("aws") | {BENCHMARK: {"epochs": 2}}
    with pytest.raises(ConfigError) as caught:
        parse(given, "mine", secret=frozenset({key}))
    assert (key, "value.secret") in [(mistake.path, mistake.code) for mistake in caught.value.mistakes]
    assert all("pulumi config set --plaintext" in mistake.advice for mistake in caught.value.mistakes)
    assert parse(given, "mine", secret=frozenset({"other:key"})).benchmark


@pytest.mark.parametrize("secret", ["-----BEGIN OPENSSH PRIVATE KEY-----\nabc", {"secure": "v1:abc"}])
def test_secrets_are_not_repeated(secret: object) -> None:
    (found,) = mistakes(values("aws", {"access.key": secret}))
    assert "abc" not in str(found)
    (found,) = mistakes(values("aws", {"password": "hunter2"}))
    assert "hunter2" not in str(found)


def test_long_values_are_shortened() -> None:
    (found,) = mistakes(values("local", {"partitions[0].nodes": "x" * 10000}))
    assert len(found.given) <= 80


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_the_stacks_are_read(file: Path) -> None:
    config = load_file(file)
    assert config.stack == file.stem.removeprefix("Pulumi.")


def test_the_engine_hands_over_every_key_misspelt_ones_too() -> None:
    def run() -> None:
        pulumi.runtime.set_all_config({CLUSTER: "{}", "slurm-stacks:benchmrk": "{}"})
        assert engine_values() == {CLUSTER: "{}", "slurm-stacks:benchmrk": "{}"}

    contextvars.copy_context().run(run)


def test_reading_a_stack_file_does_not_import_pulumi() -> None:
    code = "import sys, infra.config, infra.design, infra.cost; sys.exit('pulumi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
