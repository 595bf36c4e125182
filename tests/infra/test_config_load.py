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

from infra.config import ConfigError, engine, load_file, parse
from infra.errors import EXIT_USAGE
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, STACKS, mistakes, values

ROOT = Path(__file__).parents[2]
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), ROOT / "Pulumi.local.yaml"]

VPC = {"public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}

# stack, changes, path, words of the message
SHAPES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("local", {"partitons": []}, "partitons", ["did you mean partitions?"]),
    ("local", {"partitions[0].nodes.maximum": 3}, "partitions[0].nodes.maximum", ["keys min, max"]),
    ("local", {"partitions[0].Machine": "x"}, "partitions[0].Machine", ["did you mean instance_type?"]),
    ("aws", {"controller.disk_gb": 100}, "controller.disk_gb", ["did you mean disk_gib?"]),
    (
        "local",
        {"instance_types": {"x.y": {"cpus": 1}}},
        'instance_types["x.y"].cpus',
        ["did you mean vcpus?"],
    ),
    ("local", {"name": "Cluster_1"}, "name", ["small letters, digits and hyphens"]),
    ("local", {"name": "c" * 41}, "name", ["at most 40 characters"]),
    ("local", {"partitions[0].name": "a b"}, "partitions[0].name", ["small letters"]),
    ("local", {"partitions[0].name": REMOVE}, "partitions[0].name", ["missing", "write name: …"]),
    ("local", {"partitions[0].instance_type": REMOVE}, "partitions[0].instance_type", ["missing"]),
    ("local", {"provider": REMOVE}, "provider", ["one of aws, gcp, local"]),
    (
        "local",
        {"hooks": [{"source": "x.sh"}]},
        "hooks[0].role",
        ["missing", "one of controller, login, compute, all"],
    ),
    ("local", {"provider": "aw"}, "provider", ["one of aws, gcp, local", "did you mean aws?"]),
    ("local", {"partitions[0].nodes.max": "ten"}, "partitions[0].nodes.max", ['"ten"', "a whole number"]),
    ("local", {"partitions[0].nodes.max": 2.5}, "partitions[0].nodes.max", ["a whole number"]),
    ("local", {"partitions[0].nodes.max": 0}, "partitions[0].nodes.max", ["1 or more"]),
    ("local", {"partitions[0].nodes.max": 5001}, "partitions[0].nodes.max", ["at most 5000"]),
    ("local", {"partitions[0].nodes.min": -1}, "partitions[0].nodes.min", ["0 or more"]),
    ("local", {"partitions[0].nodes.max": "4"}, "partitions[0].nodes.max", ["write it without quotes"]),
    ("local", {"partitions[0].nodes.max": "1e3"}, "partitions[0].nodes.max", ["write all its digits"]),
    ("local", {"partitions[0].nodes.max": "4 nodes"}, "partitions[0].nodes.max", ["alone, without a unit"]),
    ("local", {"partitions[0].nodes.max": 10**40}, "partitions[0].nodes.max", ["at most 5000"]),
    ("local", {"partitions[0].nodes.max": True}, "partitions[0].nodes.max", ["a whole number"]),
    ("local", {"partitions[0].spot": "yes"}, "partitions[0].spot", ["true or false", "without quotes"]),
    ("local", {"partitions": {"name": "x"}}, "partitions", ["a list, each item"]),
    ("local", {"partitions[0]": "debug"}, "partitions[0]", ["a section of keys and values"]),
    ("local", {"controller": None}, "controller", ["nothing (null)", "leave the key out"]),
    ("local", {"partitions[0].placement": "clustered"}, "partitions[0].placement", ["none, cluster"]),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100", "count": 0}},
        "partitions[0].accelerator.count",
        ["1 or"],
    ),
    ("aws", {"storage.home.size_gib": "200GB"}, "storage.home.size_gib", ["a whole number (GiB)", "unit"]),
    ("aws", {"storage.scratch.path": "fsx"}, "storage.scratch.path", ["absolute path"]),
    ("aws", {"storage.scratch.path": "/a/../b"}, "storage.scratch.path", ["absolute path"]),
    ("aws", {"storage.scratch.path": "/my data"}, "storage.scratch.path", ["absolute path"]),
    ("aws", {"storage.scratch.s3_import": "my-bucket"}, "storage.scratch.s3_import", ["s3://bucket/prefix"]),
    ("aws", {"access.ssh_cidrs": ["10.0.0.1/8"]}, "access.ssh_cidrs[0]", ["did you mean 10.0.0.0/8?"]),
    ("aws", {"access.ssh_cidrs": ["10.0.0.1"]}, "access.ssh_cidrs[0]", ["/32"]),
    ("aws", {"access.ssh_cidrs": ["office/24"]}, "access.ssh_cidrs[0]", ["CIDR"]),
    ("aws", {"network.aws": {**VPC, "vpc": "my-vpc"}}, "network.aws.vpc", ["vpc-…"]),
    ("aws", {"image.source": "centos7"}, "image.source", ["ubuntu-24.04", "centos7 does not come up"]),
    (
        "aws",
        {"image.source": "alinux2"},
        "image.source",
        ["alinux2 does not come up", "Amazon Linux 2 in 2026"],
    ),
    ("aws", {"image.source": "plan9"}, "image.source", ["one of debian-13, ubuntu-24.04"]),
    ("local", {"budget.max_usd": 0}, "budget.max_usd", ["more than 0", "USD"]),
    ("local", {"budget.max_hours": -3}, "budget.max_hours", ["more than 0"]),
    ("local", {"budget.running_jobs": "kill"}, "budget.running_jobs", ["keep", "cancel"]),
    ("local", {"budget.max_usd": float("inf")}, "budget.max_usd", ["a number"]),
    (
        "local",
        {"hooks[0]": {"role": "head", "source": "x"}},
        "hooks[0].role",
        ["controller, login, compute, all"],
    ),
    ("local", {"hooks[0]": {"role": "all"}}, "hooks[0]", ["either source or script"]),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "args": [1]}},
        "hooks[0].args[0]",
        ["text", "quotes"],
    ),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "timeout": 0}},
        "hooks[0].timeout",
        ["1 or more", "seconds"],
    ),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "x", "timeout": "10m"}},
        "hooks[0].timeout",
        ["seconds"],
    ),
    ("local", {"slurm.suspend_time": 0}, "slurm.suspend_time", ["1 or more (seconds)"]),
    ("local", {"slurm.suspend_time": "4s"}, "slurm.suspend_time", ["(seconds)", "without a unit"]),
    # slurmctld does not start with more.
    ("local", {"slurm.resume_timeout": 65001}, "slurm.resume_timeout", ["at most 65000 (seconds)"]),
    ("local", {"slurm.suspend_timeout": 65001}, "slurm.suspend_timeout", ["at most 65000"]),
    ("local", {"slurm.slurmd_timeout": 65001}, "slurm.slurmd_timeout", ["at most 65000"]),
    ("local", {"slurm.suspend_time": 2**32 + 5}, "slurm.suspend_time", ["at most 31622400"]),
    ("local", {"slurm.reconcile_interval": float("nan")}, "slurm.reconcile_interval", ["a number (seconds)"]),
    ("local", {"local.price_hour": float("inf")}, "local.price_hour", ["a number (USD an hour)"]),
    (
        "local",
        {"instance_types": {"local.small": {"price_hour": float("inf")}}},
        'instance_types["local.small"].price_hour',
        ["a number"],
    ),
    (
        "local",
        {"instance_types": {"local.small": {"vcpus": "4"}}},
        'instance_types["local.small"].vcpus',
        ["write it without quotes"],
    ),
    (
        "local",
        {"instance_types": {"local.small": {"vcpus": 10**6}}},
        'instance_types["local.small"].vcpus',
        ["at most 65000"],
    ),
    ("local", {"local.boot_delay": -1}, "local.boot_delay", ["0 or more (seconds)"]),
    ("local", {"local.never_register": 1.1}, "local.never_register", ["at most 1"]),
    ("local", {"local.capacity": {"debug": -1}}, "local.capacity.debug", ["0 or more"]),
    ("local", {"local.capacity": {"debug": 1.5}}, "local.capacity.debug", ["a whole number"]),
    ("local", {"local.api_error": "throttle"}, "local.api_error", ["quota, capacity", "mean throttled?"]),
    ("batch", {"batch.nodes": 0}, "batch.nodes", ["1 or more"]),
    ("batch", {"batch.instance_types": []}, "batch.instance_types", ["at least 1"]),
    ("batch", {"batch.container.job_role": "me"}, "batch.container.job_role", ["arn:aws:iam"]),
    ("local", {"@epochs": 0}, "@epochs", ["1 or more"]),
    ("local", {"@profile": "synch"}, "@profile", ["published, sync, local-sgd", "did you mean sync?"]),
    ("local", {"@learning_rate": 0}, "@learning_rate", ["more than 0"]),
    ("local", {"@seed": -1}, "@seed", ["0 or more"]),
    ("local", {"@average_every": 0}, "@average_every", ["1 or more"]),
    ("local", {"@data": "cifar"}, "@data", ["auto, mnist, synthetic"]),
    ("local", {"@gpus": 1}, "@gpus", ["did you mean gpus_per_node?"]),
    ("local", {"@script": "../bert.py"}, "@script", ["a path inside"]),
    ("local", {"slurm-stacks:benchmrk": {}}, "slurm-stacks:benchmrk", ["slurm-stacks:benchmark?"]),
    ("local", {"slurm-stack:benchmark": {}}, "slurm-stack:benchmark", ["slurm-stacks:benchmark?"]),
    ("local", {"x:y": 1, "slurm-stacks:bench": {}}, "slurm-stacks:bench", ["slurm-stacks:benchmark?"]),
    ("local", {BENCHMARK: [1]}, BENCHMARK, ["a section of keys and values"]),
    ("local", {CLUSTER: REMOVE}, CLUSTER, ["missing", "Pulumi.local.yaml"]),
    ("local", {CLUSTER: "{not json"}, CLUSTER, ["a section of keys and values"]),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "words"), SHAPES, ids=[f"{c[2]}-{i}" for i, c in enumerate(SHAPES)]
)
def test_shape(stack: str, changes: dict[str, Any], path: str, words: list[str]) -> None:
    found = mistakes(values(stack, changes))
    whole = (
        path
        if path.startswith("slurm-")
        else f"{BENCHMARK}.{path[1:]}"
        if path[0] == "@"
        else f"{CLUSTER}.{path}"
    )
    assert [m.path for m in found] == [whole]
    for word in words:
        assert word in str(found[0])


@pytest.mark.parametrize(
    "limit", ["10", "24:00:00", "1:2:3", "2-0", "2-12", "2-12:30", "2-12:30:15", "INFINITE", "unlimited"]
)
def test_slurms_time_limits(limit: str) -> None:
    assert mistakes(values("local", {"partitions[0].time_limit": limit})) == []


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (86400, ["24:00:00", "in quotes", "as a number"]),
        (5400, ['time_limit: "01:30:00"', '"5400" for 5400 minutes']),
        (90, ['"90" for 90 minutes']),
        ("4000-00:00:00", ["longer than ten years"]),
        ("9" * 60, ["longer than ten years"]),
        ("1 day", ["2-12:00:00"]),
        ("1:99", ["2-12:00:00"]),
        ("24:00", ["minutes and seconds", '"00:24:00" for 24 min, or "24:00:00" for 24 h']),
        ("90:30", ['"01:30:30" for 1 h 30 min 30 s, or "90:30:00" for 90 h 30 min']),
        ("1:2:3:4", ["2-12:00:00"]),
        ("00:00:00", ["zero"]),
        (True, ["in quotes"]),
        (None, ["in quotes"]),
    ],
)
def test_other_time_limits(limit: object, words: list[str]) -> None:
    (found,) = mistakes(values("local", {"partitions[0].time_limit": limit}))
    assert found.path == f"{CLUSTER}.partitions[0].time_limit"
    for word in words:
        assert word in str(found)


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
    assert f"{CLUSTER}.partitions[499].nodes.max: -1; allowed: 1 or more" in lines
    machine = [line for line in lines if ".instance_type: " in line]
    assert " are known; another one: " in machine[0]
    assert machine[1].endswith("; as above"), "a long text is said once"


def test_the_stacks_name_stands_in_for_the_clusters() -> None:
    assert parse(values("local", {"name": REMOVE}), "blue").cluster.name == "blue"
    (found,) = mistakes(values("local", {"name": REMOVE}), "Blue.Sky")
    assert found.path == f"{CLUSTER}.name"
    assert found.given == '"Blue.Sky"'
    assert "the stack's name stands in" in found.advice
    (found,) = mistakes(values("local", {"name": "Blue"}))
    assert "stands in" not in found.advice


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
        assert engine.values() == {CLUSTER: "{}", "slurm-stacks:benchmrk": "{}"}

    contextvars.copy_context().run(run)


def test_reading_a_stack_file_does_not_import_pulumi() -> None:
    code = "import sys, infra.config, infra.design, infra.cost; sys.exit('pulumi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
