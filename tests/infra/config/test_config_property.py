"""Any content of a stack file gives a configuration or one message, and never another error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.engine import project
from infra.config import ConfigError, load_file, parse
from infra.config.cluster import ClusterConfig
from infra.config.fields import clock, time_limit_seconds
from infra.config.jobs import BatchConfig, BenchmarkConfig
from infra.config.partitions import PartitionConfig
from infra.config.rules.partitions import RESERVED
from infra.config.storage import SharedStorage
from infra.design import design, slurm_time
from infra.errors import EXIT_USAGE
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from tests.support import texts
from tests.support.stack_values import BENCHMARK, CLUSTER, mistakes, values

KEYS = sorted(
    {
        key
        for model in (ClusterConfig, PartitionConfig, BenchmarkConfig, BatchConfig, SharedStorage)
        for key in model.model_fields
    }
    | {"min", "max", "type", "count", "mode", "ssh_cidrs", "cidr", "zones", "id", "bake", "aws", "efa"}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10000),
    st.floats(),
    texts.text(max_size=8),
    st.sampled_from(
        ["aws", "gcp", "local", "m5.xlarge", "n1-standard-2", "p3.2xlarge", "v100", "nfs", "1:00"]
    ),
    st.sampled_from(
        ["ssh", "batch", "10.0.0.0/16", "0.0.0.0/0", "us-east-1", "eu-west-1a", "fsx_lustre", "/home"]
    ),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), texts.text(max_size=5)), inner, max_size=5),
    ),
    max_leaves=20,
)
SECTIONS = st.dictionaries(st.sampled_from(KEYS), TREES, max_size=6)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(cluster=st.one_of(TREES, SECTIONS), benchmark=st.one_of(TREES, SECTIONS), region=SCALARS, zone=SCALARS)
def test_any_tree(cluster: Any, benchmark: Any, region: Any, zone: Any) -> None:
    config = {CLUSTER: cluster, BENCHMARK: benchmark, "aws:region": region, "gcp:zone": zone}
    for mistake in mistakes(config):
        assert mistake.path
        assert mistake.given
        assert mistake.allowed
        assert mistake.path.isprintable()
        assert mistake.given.isprintable()


@MANY
@given(
    name=st.sampled_from(["local", "aws", "gcp", "batch"]),
    key=st.sampled_from(KEYS),
    value=TREES,
    where=st.sampled_from(["", "partitions[0].", "@", "storage.scratch.", "batch.", "network.", "access."]),
)
def test_one_value_changed(name: str, key: str, value: Any, where: str) -> None:
    config = values(name)
    if (where == "partitions[0]." and name == "batch") or (where == "@" and BENCHMARK not in config):
        return
    for mistake in mistakes(values(name, {f"{where}{key}": value})):
        assert mistake.allowed


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.one_of(texts.text(max_size=60), st.binary(max_size=60), TREES.map(yaml.safe_dump)))
def test_any_file(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "Pulumi.any.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"Pulumi\.any\.yaml"):
        load_file(file)


# These are texts to which YAML gives a meaning, and texts that people write by mistake.
PIECES = st.one_of(
    st.sampled_from(
        ["{", "}", "[", "]", ": ", ":", "- ", ", ", "&a ", "*a", "<<: *a", "!!int ", "!!set ", "!x "]
    ),
    st.sampled_from(
        ["'", '"', "|", ">", "#", "?", "%", "@", "`", "~", "\n", "\n    ", "\t", "\r", "---\n", "...\n"]
    ),
    st.sampled_from(
        ["010", "1:30", "1e3", ".inf", "-0", "yes", "null", "2024-01-01", "on: 1", "9" * 30, "\ufeff"]
    ),
    st.sampled_from(KEYS),
    texts.text(max_size=3),
)


@MANY
@given(
    cuts=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 3), PIECES), min_size=1, max_size=4),
    name=st.sampled_from(["local", "aws", "gcp", "batch"]),
)
def test_a_good_file_with_something_else_in_it(
    tmp_path: Path, cuts: list[tuple[int, int, str]], name: str
) -> None:
    """The file is accepted, or refused with a message. An accepted file can be deployed, and the program
    reads it in the same way."""
    text = yaml.safe_dump({"config": values(name), "encryptionsalt": "v1"}, sort_keys=False)
    for at, lost, piece in sorted(cuts, reverse=True):
        text = text[:at] + piece + text[at + lost :]
    file = tmp_path / "Pulumi.any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    (tmp_path / "Pulumi.yaml").write_text("name: slurm-stacks\nruntime: python\n")
    try:
        config = load_file(file)
    except ConfigError as error:
        refusal = error
    else:
        assert design(config, catalog()).stack == "any"
        assert parse(project.load(Stack(tmp_path, "any")).config, "any") == config
        return
    assert refusal.exit_code == EXIT_USAGE
    assert str(refusal).startswith("Pulumi.any.yaml")
    assert all(mistake.path and mistake.given and mistake.allowed for mistake in refusal.mistakes)
    assert all(line.isprintable() for line in str(refusal).splitlines())


@given(seconds=st.integers(1, 10**7))
def test_time_limits_survive_their_notations(seconds: int) -> None:
    assert time_limit_seconds(clock(seconds)) == seconds
    assert time_limit_seconds(slurm_time(clock(seconds))) == seconds


@given(name=texts.matching(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?"), most=st.integers(1, 5000))
def test_names_that_fit_are_taken(name: str, most: int) -> None:
    found = mistakes(
        values("local", {"partitions[0].name": name, "partitions[0].nodes.max": most, "@nodes": 1})
    )
    assert bool(found) == (name in RESERVED)
