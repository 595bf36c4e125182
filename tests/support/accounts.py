"""A pytest plugin that keeps each file's tests together, decides which begin first, and reports the time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

WIDE = "wide"
FIRST = (
    "tests/cluster/test_faults.py", "tests/cluster/test_aws_machines.py",
    "tests/cluster/test_container_cluster.py", "tests/cluster/test_lost_machines.py",
    "tests/cluster/test_interruptions.py", "tests/cluster/test_live_changes.py",
    "tests/cluster/test_documented_commands.py", "tests/cluster/test_elastic_life.py",
    "tests/cluster/test_containers_cluster.py", "tests/cluster/test_soak.py",
    "tests/cluster/test_taken_while_ending.py", "tests/cluster/test_health_cluster.py",
    "tests/cluster/test_google_machines.py", "tests/cluster/test_benchmark_training.py",
    "tests/cluster/test_gce_cluster.py", "tests/cluster/test_ec2_cluster.py",
    "tests/cluster/test_own_tmp.py", "tests/cluster/test_diagnosis.py",
    "tests/cluster/test_accounting.py", "tests/cluster/test_nodes_by_name.py",
    "tests/cluster/test_sweep.py", "tests/cluster/test_capacity_drains_cluster.py",
    "tests/cluster/test_consumer_job.py", "tests/cluster/", "tests/engine/",
    "tests/remote/", "tests/bench/", "tests/localcloud/", "tests/node/", "tests/operations/", "tests/cli/",
)  # fmt: skip
"""The longest files, the longest first, then the folders whose tests wait for real programs.

One worker runs a file's tests in order, so at the end all workers would wait for a long file that began late.
All other tests fill the time until these end.
"""

_left_out: Counter[str] = Counter()
_seconds: dict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


def folder_of(nodeid: str) -> str:
    """Return the first two parts of a test's path: `tests/infra` for `tests/infra/aws/test_plan.py::x`."""
    return "/".join(nodeid.partition("::")[0].split("/")[:2])


def rank(nodeid: str) -> int:
    """Return a test's place in the order of the suite: smaller numbers begin earlier."""
    return next((place for place, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Have one worker of pytest-xdist run all tests of a file, in their order: they share a cluster."""
    # This is before xdist's own hook, which deals the tests out one by one where nothing was chosen.
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The sort is stable: the tests of a file stay together and in their order.
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker(WIDE):
            _left_out[item.nodeid.partition("::")[0]] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker of pytest-xdist tells the process that reports. Each worker has collected every test.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _left_out.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - _left_out)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[folder_of(report.nodeid)] += report.duration
    _tests[folder_of(report.nodeid)] += report.when == "call"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if len(_seconds) > 1:
        terminalreporter.section("where the time went")
        for folder, seconds in sorted(_seconds.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"{seconds:7.0f} s  {folder}: {_tests[folder]} tests ran")
    if _left_out:
        number = _left_out.total()
        terminalreporter.section("left out")
        terminalreporter.write_line(
            f"{number} wide test{'s' if number > 1 else ''}, each of a promise that others prove; "
            "`./cluster test --all` runs them too:"
        )
        for file, count in sorted(_left_out.items()):
            terminalreporter.write_line(f"{count:4}  {file}")
