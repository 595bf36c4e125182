"""Users of the stack file on machines that boot: their shares of a busy cluster, and a bill for each."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.checkout import Checkout, until
from tests.support.kept_cluster import up

# The first test makes the machines' image where there is none, and the second one measures for ten minutes.
pytestmark = [pytest.mark.timeout(2400), pytest.mark.wide]

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container, price_hour: 720}
        login: {count: 1}
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true, exclusive: true}
          - {name: shared, instance_type: local.medium, nodes: {max: 1}, local: {price_hour: 3600}}
        slurm:
          suspend_time: 60
          accounting: true
          priority: {decay_half_life: "00:10:00", calc_period: "00:01:00"}
        accounts: [{name: vision, shares: 50}, {name: speech, shares: 50}]
        users:
          - {name: ada, id: 2001, account: vision}
          - {name: bob, id: 2002, account: speech}
          - {name: eve, id: 2003}
      slurm-stacks:benchmark: {enabled: false}
"""
USERS = ("ada", "bob", "eve")
GATE = "/home/gate"
TOGETHER = f"touch {GATE}/$USER; until [ $(ls {GATE} | wc -l) = 2 ]; do sleep 0.1; done; sleep 2"
WAITING = {"ada": 24, "bob": 8}
"""User -> how many of their tasks are kept in the queue: one has three times as many."""
TASK_SECONDS = 3
MINUTES = 10
PERCENT = 5.0
"""How far from a half a user's part may be."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with up(tmp_path_factory, STACK) as checkout:
        yield checkout


def submit(cluster: Checkout, user: str, *options: str, script: str) -> str:
    """Submit as a user who logs in."""
    words = shlex.join(["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script])
    return cluster.execute("su", "-", user, "-c", words).strip()


def ended(cluster: Checkout, *jobs: str, state: str = "COMPLETED") -> None:
    """Wait until the accounting has the jobs' ends."""
    asked = ("sacct", "-anXP", f"--jobs={','.join(jobs)}", "--format=state")
    until(lambda: cluster.execute(*asked).split() == [state] * len(jobs), 300, f"{state}: {jobs}")


def test_a_bill_for_each_user_adds_up_to_the_ledger(cluster: Checkout) -> None:
    """With a boot that fails, and a node that two users share."""
    cluster.chaos("set", "never_register=1")
    alone = submit(cluster, "eve", script="sleep 5")
    until(lambda: cluster.status()["machines"]["running"], 240, "a machine that never registers")
    time.sleep(5)
    cluster.chaos("clear")
    cluster.chaos("kill", "debug-0")
    cluster.execute("install", "--directory", "--mode=1777", GATE)
    one, other = (
        submit(cluster, user, "--partition=shared", "--ntasks=1", "--mem=50", script=TOGETHER)
        for user in ("ada", "bob")
    )
    ended(cluster, one, other, alone)
    jobs = ("sacct", "-anXP", f"--jobs={one},{other}", "--format=nodelist")
    assert cluster.execute(*jobs).split() == ["shared-0", "shared-0"]
    # A machine that runs costs a dollar a second while it is asked.
    until(lambda: cluster.status()["machines"]["running"] == 0, 300, "a cluster without nodes")
    ledger = cluster.status()["cost"]["usd"]
    bill = json.loads(cluster.cluster("cost", "--by=user", "--json", check=True).stdout)
    total = bill["total"]["usd"]
    print(f"ledger {ledger:.4f}, bill {total:.4f}: {bill['rows']}")
    assert total == pytest.approx(ledger, rel=0.005)
    assert sum(row["usd"] for row in bill["rows"]) == pytest.approx(total, abs=1e-3)
    usd = {(row["kind"], row["name"]): row["usd"] for row in bill["rows"]}
    assert {*(("jobs", user) for user in USERS), ("idle", ""), ("failed boots", "")} <= usd.keys()
    # A dollar a second, of which each of the two has half.
    text = cluster.execute("sacct", "-anXP", f"--jobs={one},{other}", "--format=user,elapsedraw")
    seconds = dict(line.split("|") for line in text.splitlines())
    for user in ("ada", "bob"):
        assert usd["jobs", user] == pytest.approx(int(seconds[user]) / 2, rel=0.02)


def test_two_users_have_half_of_a_busy_cluster_each(cluster: Checkout) -> None:
    """Although one always has three times as many tasks in the queue."""
    began = time.monotonic()
    since = cluster.execute("date", "+%Y-%m-%dT%H:%M:%S").strip()
    while time.monotonic() < began + 60 * MINUTES:
        # An array that waits is one line, so its tasks are counted one by one.
        queued = Counter(cluster.execute("squeue", "--noheader", "--array", "--format=%u").split())
        for user, wanted in WAITING.items():
            if queued[user] < wanted:
                submit(cluster, user, f"--array=1-{wanted}", script=f"sleep {TASK_SECONDS}")
        time.sleep(3)
    # With a state and a start, but no end, sacct shows what had the state at the start.
    words = ("--state=CD", f"--starttime={since}", "--endtime=now", "--format=user,elapsedraw")
    text = cluster.execute("sacct", "-anXP", "--partition=debug", *words)
    ran, tasks = Counter[str](), Counter[str]()
    for user, elapsed in (line.split("|") for line in text.splitlines()):
        ran[user] += int(elapsed)
        tasks[user] += 1
    percent = {user: 100 * ran[user] / ran.total() for user in WAITING}
    print(f"{percent}, tasks {dict(tasks)}")
    assert percent["bob"] == pytest.approx(50, abs=PERCENT)
    cluster.execute("scancel", "--user=ada")
    cluster.execute("scancel", "--user=bob")
