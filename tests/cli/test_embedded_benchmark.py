"""`up` without the benchmark: it makes, changes and deletes nothing of it, and the next `up` continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.engine import embedded
from tests.support.tiny_project import Tiny, make

PROGRAM = """
import pulumi, pulumi_command as command
from infra.program import mode

class Benchmark(pulumi.ComponentResource):
    def __init__(self, name):
        super().__init__(mode.COMPONENT, name)
        command.local.Command(name + "-job", create="echo submit >> {log}", delete="echo cancel >> {log}",
                              triggers=[{run}], opts=pulumi.ResourceOptions(parent=self))
        self.register_outputs({{}})

command.local.Command("head", create="echo head{head} >> {log}", update="echo changed >> {log}")
kept = mode.kept_benchmark()
if kept is None:
    Benchmark("training")
    pulumi.export("benchmark_result", "/result{run}")
elif "benchmark_result" in kept:
    pulumi.export("benchmark_result", kept["benchmark_result"])
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def up(tiny: Tiny, *, head: int = 1, run: int = 1, benchmark: bool = True) -> dict[str, Any]:
    tiny.write(PROGRAM.format(log=tiny.log, head=head, run=run), prelude=False)
    return embedded.up(tiny.stack, benchmark=benchmark)


def test_a_benchmark_that_runs_is_left_as_it_is(tiny: Tiny) -> None:
    assert up(tiny) == {"benchmark_result": "/result1"}
    assert sorted(tiny.words) == ["head1", "submit"]
    # Everything else changes. A change of the workload meanwhile is ignored.
    assert up(tiny, head=2, run=2, benchmark=False) == {"benchmark_result": "/result1"}
    assert tiny.words == ["changed"], "neither cancelled nor submitted anew"
    assert up(tiny, head=2) == {"benchmark_result": "/result1"}
    assert tiny.words == [], "for the next one nothing has changed"
    assert up(tiny, head=2, run=2) == {"benchmark_result": "/result2"}
    assert sorted(tiny.words) == ["cancel", "submit"]
    embedded.destroy(tiny.stack)
    assert tiny.words == ["cancel"]


def test_a_fresh_stack_gets_its_benchmark_by_the_next_up(tiny: Tiny) -> None:
    assert up(tiny, benchmark=False) == {}
    assert tiny.words == ["head1"]
    assert up(tiny) == {"benchmark_result": "/result1"}
    assert tiny.words == ["submit"]
    embedded.destroy(tiny.stack)
