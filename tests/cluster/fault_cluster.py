"""A cluster whose cloud can have every simulated fault, and what its tests ask of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from tests.support.checkout import Checkout, until

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 8}, default: true}
          - {name: gpu, instance_type: local.medium, accelerator: {type: v100, count: 2}, nodes: {max: 4}}
        slurm: {suspend_time: 2, suspend_timeout: 2, resume_timeout: 45}
"""
START_SECONDS = 90.0
"""The limit from a fault's end to a job's end. On an idle host 10 s and the boot are promised."""


@contextlib.contextmanager
def without_faults(cluster: Checkout) -> Iterator[Checkout]:
    """Yield a cluster without jobs, machines or faults, and leave it so."""
    yield cluster
    cluster.execute("scancel", "--user", os.environ.get("USER", "root"), "--quiet")
    cluster.chaos("clear")
    until(lambda: states(cluster) == {"idle~"}, 120, "zero nodes")
    until(lambda: machines(cluster) == [], 120, "zero machines")


def states(checkout: Checkout) -> set[str]:
    return set(checkout.ask("sinfo", "--noheader", "--Node", "--format=%T").split())


def machines(checkout: Checkout) -> list[dict[str, Any]]:
    """Living compute machines, from the cloud's own records."""
    records = json.loads((checkout.run_directory / "cloud" / "machines.json").read_text())["machines"]
    return [r for r in records if r["tags"]["role"] == "compute" and r["state"] in ("pending", "running")]


def submit(checkout: Checkout, *options: str, script: str = "true") -> str:
    return checkout.execute("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def job(checkout: Checkout, number: str) -> dict[str, str]:
    text = checkout.ask("scontrol", "--oneliner", "show", "job", number)
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def done(checkout: Checkout, *numbers: str, seconds: float = START_SECONDS) -> None:
    for number in numbers:
        until(lambda n=number: job(checkout, n)["JobState"] == "COMPLETED", seconds, f"job {number}")  # type: ignore[misc]


def cause(checkout: Checkout, number: str) -> str:
    """Return why a job waits, as `./cluster status` says it."""
    found = [j for j in checkout.status()["jobs"] if str(j["id"]) == number]
    return str(found[0]["cause"]) if found and found[0]["state"] == "PENDING" else ""


def waits_for(checkout: Checkout, number: str, *words: str, seconds: float = 120) -> None:
    """Wait until the job is pending, with these words as its cause in the status and on the job."""

    def told() -> bool:
        # The job's own line comes first, because the status takes seven programs.
        comment = checkout.ask("scontrol", "--oneliner", "show", "job", number).partition("AdminComment=")[2]
        return words[0] in comment and all(word in cause(checkout, number) for word in words)

    until(told, seconds, f"job {number} to wait because of {words}")
