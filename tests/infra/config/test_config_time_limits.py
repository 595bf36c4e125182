"""A time limit in two parts is refused with both readings, however YAML takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.config import ConfigError, load_file
from infra.config.load import CLUSTER
from node.system import plurals

FILE = """\
config:
  slurm-stacks:cluster:
    provider: local
    partitions:
      - {{name: debug, instance_type: local.small, time_limit: {limit}}}
"""


@pytest.mark.parametrize(
    ("limit", "given", "readings"),
    [
        # YAML 1.1 reads the first as the number 1440, and those that begin with 0 as text.
        ("24:00", "24:00", '"00:24:00" for 24 min, or "24:00:00" for 24 h'),
        ('"24:00"', '"24:00"', '"00:24:00" for 24 min, or "24:00:00" for 24 h'),
        ("00:30", '"00:30"', '"00:00:30" for 30 s, or "00:30:00" for 30 min'),
        ("1:30", "1:30", '"00:01:30" for 1 min 30 s, or "01:30:00" for 1 h 30 min'),
        ("'90:05'", '"90:05"', '"01:30:05" for 1 h 30 min 5 s, or "90:05:00" for 90 h 5 min'),
    ],
)
def test_two_parts(tmp_path: Path, limit: str, given: str, readings: str) -> None:
    file = tmp_path / "Pulumi.t.yaml"
    file.write_text(FILE.format(limit=limit))
    with pytest.raises(ConfigError) as caught:
        load_file(file)
    (found,) = caught.value.mistakes
    assert (found.path, found.given) == (f"{CLUSTER}.partitions[0].time_limit", given)
    assert found.advice.endswith(f"write {readings}")
    assert "minutes" in found.allowed


@pytest.mark.parametrize("limit", ['"24:00:00"', '"0-12"', '"1-12:30"', '"90"', "INFINITE", '"00:00:30"'])
def test_what_can_be_read_in_one_way_only(tmp_path: Path, limit: str) -> None:
    file = tmp_path / "Pulumi.t.yaml"
    file.write_text(FILE.format(limit=limit))
    assert load_file(file).cluster.partitions[0].time_limit == limit.strip('"')


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0.0714, "4 min"), (2.6042, "2 h 36 min"), (48, "48 h"), (0.005, "18 s"), (0.9999, "1 h")],
)
def test_hours_are_said_in_words(hours: float, words: str) -> None:
    assert plurals.of_hours(hours) == words
