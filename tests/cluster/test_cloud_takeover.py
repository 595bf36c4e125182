"""A controller that is lost on a cloud, on machines that boot: another one takes its disk, queue and jobs.

The cloud's API says what is there, and `up`'s own code what is lost. In which order the stack's resources are
then made is in `tests/cli/clouds/test_clouds_takeover.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cli.providers.clouds import heads
from localcloud import volumes
from tests.support.checkout import until
from tests.support.cloud_image import layers
from tests.support.cloud_land import ADDRESSES, need_clouds, opened
from tests.support.cloud_stack import HEAD, UNUSED, Cluster, design

# The first test makes the machines' image where there is none.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.wide]
QUEUE = "/var/spool/slurmctld/job_state"
WAITS = (
    "echo began >>{name}; while [ ! -e go-{name} ]; do sleep 0.2; done; echo ended >>{name}; exit {status}"
)


@pytest.fixture(scope="module", params=["aws", "gcp"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_clouds()
    if why := volumes.unavailable():
        pytest.skip(f"a disk of a machine is a loop device: {why}")
    folder = tmp_path_factory.mktemp(request.param)
    # Late, because every worker that collects the tests imports this file, and the SDKs take it two seconds.
    if request.param == "aws":
        from tests.support.aws_land import REGION, AwsLand

        plan = design("aws", REGION, "efs", kept=True)
        land: Any = AwsLand(folder / "l", plan)
    else:
        if not (layers()[0] / "usr/bin/google_guest_agent").exists():
            pytest.skip("this distribution has no google-guest-agent, which sets up OS Login")
        from tests.support.google_land import GoogleLand

        plan = design("gcp", "europe-west4", "filestore", kept=True)
        land = GoogleLand(folder / "l", plan)
    with opened(land):
        running = Cluster(land, plan, folder / "project")
        running.start_login()  # A host of the stack that is not there is a lost one.
        yield running


def states(cluster: Cluster, *jobs: str) -> list[str]:
    return [cluster.job(job)["JobState"] for job in jobs]


def until_saved(cluster: Cluster, *jobs: str) -> None:
    """Wait until slurmctld, which saves every five seconds if something is new, has these on its disk."""
    since = cluster.sh("date +%s.%N")
    for job in jobs:
        cluster.sh(f"scontrol update JobId={job} Comment='changed at {since}'")
    newer = f"find {QUEUE} -newermt @{since}"
    until(lambda: cluster.sh(newer), 60, "the queue on the disk", 0.5)


def test_jobs_queue_and_nodes_outlive_the_controller(cluster: Cluster) -> None:
    land: Any = cluster.land
    notes = {step["name"]: step["note"] for step in cluster.head["steps"]}
    assert "/state: made ext4" in notes["disks"] or "made ext4" in notes["disks"], notes["disks"]
    wide = cluster.submit(WAITS.format(name="a", status=0), "--nodes=2", "--output=/dev/null")
    ends = cluster.submit(WAITS.format(name="b", status=7), "--output=/dev/null", "--no-requeue")
    until(lambda: states(cluster, wide, ends) == ["RUNNING"] * 2, 420, "the jobs", 0.5)
    held = cluster.submit("hostname", "--hold", "--output=after")
    after = cluster.submit("hostname", f"--dependency=afterok:{wide}", "--output=later")
    cluster.sh(f"scontrol update nodename={UNUSED} state=drain reason='by hand'")
    until_saved(cluster, wide, ends, held, after)
    keys = land.report("controller")["host_keys"]
    nodes = {one.host: one.id for one in land.running() if one.host != "controller"}
    first = land.hosts()["controller"]
    assert keys
    said: list[str] = []
    cloud, plan = land.cloud(), cluster.design
    assert heads.lost(cloud, plan, plan, "test", said.append, replace=False) == ()

    began = time.monotonic()
    land.lose("controller")
    # This job ends while nobody schedules: its node reports that later.
    cluster.sh("touch /home/ada/go-b", user="ada", host=next(n for n in nodes if n.startswith("compute")))
    assert heads.lost(cloud, plan, plan, "test", said.append, replace=False) == ("controller",)
    until(lambda: "controller" not in land.hosts(), 120, "the machine's end", 0.2)
    gone = time.monotonic()
    before = land.report("controller")["started"]
    land.make(HEAD)
    again = land.ready("controller", since=before)
    until(lambda: " is UP" in cluster.sh("scontrol ping || true"), 60, "slurmctld", 0.2)
    print(f"{time.monotonic() - began:.0f} s, {time.monotonic() - gone:.0f} s of them from the launch")

    second = land.hosts()["controller"]
    assert second.id != first.id
    assert second.address == first.address == ADDRESSES["controller"]
    notes = {step["name"]: step["note"] for step in again["steps"]}
    assert "ext4 was on" in notes["disks"], notes["disks"]
    assert notes["secrets"] == "took the cluster's munge key"
    assert again["host_keys"] == keys, "users' known_hosts still fit"
    assert states(cluster, wide, held, after) == ["RUNNING", "PENDING", "PENDING"]
    assert "by hand" in cluster.sh("sinfo --noheader --list-reasons")
    until(lambda: states(cluster, ends) == ["FAILED"], 120, "the end that nobody heard", 0.5)
    assert cluster.job(ends)["ExitCode"] == "7:0"

    cluster.sh("touch /home/ada/go-a", user="ada")
    cluster.sh(f"scontrol release {held}")
    for job in (wide, held, after):
        cluster.done(job)
    for name in ("a", "b"):
        assert cluster.sh(f"cat /home/ada/{name}").split() == ["began", "ended"], "it ran once"
    kept = {one.host: one.id for one in land.running() if one.host in nodes}
    assert kept == nodes, "no node was given up"
    assert cluster.stack.refused == [], "no machine asked for what it may not"


def test_one_that_is_switched_off_is_no_lost_one(cluster: Cluster) -> None:
    """And one that reboots keeps its disk."""
    land: Any = cluster.land
    held = cluster.submit("hostname", "--hold", "--output=/dev/null")
    until_saved(cluster, held)
    before = land.report("controller")["started"]
    land.reboot("controller")
    land.ready("controller", since=before)
    cloud, plan = land.cloud(), cluster.design
    assert heads.lost(cloud, plan, plan, "test", print, replace=False) == ()
    assert states(cluster, held) == ["PENDING"]
    cluster.sh(f"scancel {held}")


def test_all_goes_down_and_nothing_is_left(cluster: Cluster) -> None:
    """The fixture's end checks that this host has no container, mount, cgroup, process or device left."""
    land: Any = cluster.land
    cluster.stack.end_all()
    until(lambda: land.hosts() == {}, 180, "no machine that is on")
    assert land.running() == []
    until(lambda: volumes.attached(land.path) == [], 60, "the disk, which nobody has")
