"""The parts of `peers` that need neither Slurm nor a peer: its stand-ins, meter, readers and table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.bench import peers
from tests.bench.figures import ROOT
from tests.bench.peers import EQUAL, OURS, PEER, Figures, Row
from tests.support import peer_launch
from tests.support.cpu_meter import Meter, Process, Spent, below
from tests.support.fake_ec2 import fake_ec2
from tests.support.peer_clouds import CLUSTER, ManyEc2, ManyGce, aws_site, discovery, partial
from tests.support.peer_sides import rpcs

SDIAG = """\
*******************************************************
sdiag output at Sat Nov 28 16:00:00 2026 (1795881600)
Backfilling stats
\tTotal cycles: 12

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:107    ave_time:92     total_time:9844
\tMESSAGE_NODE_REGISTRATION_STATUS        ( 1002) count:3      ave_time:40     total_time:120

Remote Procedure Call statistics by user
\troot            (       0) count:110    ave_time:90     total_time:9964
"""
"""In the form that sdiag of Slurm 22.05 prints."""
ORPHAN = """
import os, subprocess, sys, time
from tests.support.cpu_meter import Meter, processes
burn = "import time\\nwhile time.process_time() < 0.4: pass"
meter = Meter()
before = meter.read()
# A program that ends before its child does.
subprocess.Popen(["/bin/sh", "-c", f"{sys.executable} -S -c '{burn}' & exit 0"]).wait()
# It is dead, and nobody has buried it, when the first reading is made.
while not any(p.parent == os.getpid() and p.state == "Z" for p in processes().values()):
    time.sleep(0.05)
first = meter.read()
meter.own(sys.executable, "-S", "-c", burn)
second = meter.read()
print((first - before).programs, (second - first).programs)
"""


def test_the_fields_of_a_process_are_read_behind_a_name_with_spaces_and_parentheses() -> None:
    rest = " ".join(["0"] * 9)
    process = Process.parse(f"42 (slurm (d) x) S 7 {rest} 100 50 20 30 " + " ".join(["0"] * 30))
    assert (process.pid, process.parent, process.name, process.state) == (42, 7, "slurm (d) x", "S")
    assert (process.own, process.ended) == (1.5, 0.5)


def test_all_descendants_are_found() -> None:
    known = {pid: Process(pid, parent, "x", 0, 0) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1))}
    assert below({2, 99}, known) == {2, 3, 4}


def test_an_orphan_counts_and_the_measurements_own_commands_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    orphan, own = map(float, done.stdout.split())
    assert 0.4 <= orphan < 0.75
    assert abs(own) < 0.1


def test_questions_to_slurm_are_counted_by_type_and_not_by_user() -> None:
    assert rpcs(SDIAG) == {"REQUEST_PARTITION_INFO": 107, "MESSAGE_NODE_REGISTRATION_STATUS": 3}


@pytest.fixture(scope="module")
def ec2() -> Iterator[ManyEc2]:
    """An EC2 with what ParallelCluster's cluster has."""
    with fake_ec2(["q0-dy-cr"], kind=ManyEc2) as fake:
        aws_site(fake, ["q0-dy-cr"])
        yield fake


def launch(client: Any, count: int) -> list[Any]:
    template = {"LaunchTemplateName": f"{CLUSTER}-q0-cr", "Version": "$Latest"}
    made = client.run_instances(MinCount=count, MaxCount=count, LaunchTemplate=template)
    return list(made["Instances"])


def listed(client: Any, cluster: str) -> list[Any]:
    filters = [
        {"Name": "tag:parallelcluster:cluster-name", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = client.get_paginator("describe_instances").paginate(
        Filters=filters, PaginationConfig={"PageSize": 5}
    )
    return [i for page in pages for r in page["Reservations"] for i in r["Instances"]]


def shape(thing: Any) -> Any:
    """Return which fields there are, without their values."""
    if isinstance(thing, dict):
        return {name: shape(value) for name, value in thing.items()}
    return [shape(one) for one in thing] if isinstance(thing, list) else type(thing)


def test_copies_of_an_instance_are_as_moto_tells_of_many(ec2: ManyEc2) -> None:
    client = ec2.connect()
    made, shown = launch(client, 7), listed(client, CLUSTER)
    assert [one["AmiLaunchIndex"] for one in made] == list(range(7))
    assert [one["InstanceId"] for one in made] == [one["InstanceId"] for one in shown]
    assert len({one["InstanceId"] for one in shown}) == len({one["PrivateIpAddress"] for one in shown}) == 7
    assert all(one["PrivateIpAddress"].replace(".", "-") in one["PrivateDnsName"] for one in shown)
    assert listed(client, "another") == []
    # Moto's own answers about several instances, one after the other like it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ManyEc2, "_answer", lambda self, environ, call: ec2._forward(environ, call_text(call)))
        own, seen = launch(client, 3), listed(client, CLUSTER)
    assert [shape(one) for one in own] == [shape(one) for one in made[:3]]
    assert shape(seen[-1]) == shape(shown[0])


def call_text(call: Any) -> bytes:
    return urlencode({"Action": call.action, **call.params}).encode()


def test_machines_are_counted_and_end(ec2: ManyEc2) -> None:
    client = ec2.connect()
    ec2.told("clear")
    ec2.told("reset")
    made = launch(client, 700)
    assert ec2.told("state") == {"calls": {"EC2.RunInstances": 1}, "living": 700}
    client.terminate_instances(InstanceIds=[one["InstanceId"] for one in made[:400]])
    assert ec2.told("reset")["living"] == 300
    assert ec2.told("clear") == {"calls": {}, "living": 0}


BULK = {
    "count": 2,
    "minCount": "1",
    "perInstanceProperties": {"t-q0-0": {}, "t-q0-1": {}},
    "instanceProperties": {"resourcePolicies": {}, "scheduling": {}},
}
FIELDS = "items.zones.instances(name,status,labels.slurm_instance_role),nextPageToken"


def test_the_beta_api_answers_with_the_fields_that_are_asked_for() -> None:
    fake = ManyGce()
    link = fake.template("t-q0", labels={"slurm_cluster_name": "t", "slurm_instance_role": "compute"})
    head = f"/compute/beta/projects/{fake.cloud.project}"
    zone = fake.cloud.zones[0]
    body = json.dumps({**BULK, "sourceInstanceTemplate": link}).encode()
    status, operation = fake.answer("POST", f"{head}/zones/{zone}/instances/bulkInsert?alt=json", body)
    assert (status, operation["operationType"]) == (200, "bulkInsert")
    time.sleep(5 * fake.cloud.seconds)
    query = f"fields={FIELDS}&filter=labels.slurm_cluster_name=t AND name:t-*&alt=json"
    status, found = fake.answer("GET", f"{head}/aggregated/instances?{query}".replace(" ", "%20"), b"")
    assert status == 200, found
    shown = found["items"][f"zones/{zone}"]["instances"]
    assert [set(one) for one in shown] == [{"name", "status", "labels"}] * 2
    others = query.replace("t-*", "u-*").replace(" ", "%20")
    assert not any(
        scope["instances"]
        for scope in fake.answer("GET", f"{head}/aggregated/instances?{others}", b"")[1]["items"].values()
    )


def test_an_answer_without_named_fields_stays() -> None:
    assert partial({"items": []}, "kind") == {"items": []}


def test_the_discovery_document_leads_to_the_stand_in() -> None:
    told = {"rootUrl": "https://compute/", "mtlsRootUrl": "x", "servicePath": "compute/beta/", "kept": 1}
    found = json.loads(discovery(json.dumps(told), "http://127.0.0.1:5"))
    assert found == {
        "rootUrl": "http://127.0.0.1:5/",
        "baseUrl": "http://127.0.0.1:5/compute/beta/",
        "servicePath": "compute/beta/",
        "kept": 1,
    }


def test_a_peer_gets_the_resume_file_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_PARTITION", "q0")
    known = {"job_id", "nodes_alloc", "nodes_resume", "oversubscribe", "partition"}
    old = peer_launch.as_known({"job_id": 1, "nodes": "q0-dy-cr-[0-1]"}, known)
    nodes = {"nodes_alloc": "q0-dy-cr-[0-1]", "nodes_resume": "q0-dy-cr-[0-1]"}
    assert old == {"job_id": 1, **nodes, "oversubscribe": "NO", "partition": "q0"}
    new = {"job_id": 1, **nodes, "oversubscribe": "NO", "partition": "q0"}
    assert peer_launch.as_known({**new, "exclusive": "x"}, known) == new


def test_a_line_of_the_table_has_medians_and_ratios() -> None:
    row = Row("boot-one", "a minute", lambda side: {}, polls=True)
    ours = [Figures(cpu, 0.5, 0, 20, Counter(a=2), Counter(b=7)) for cpu in (3.0, 1.0, 2.0)]
    found = {OURS: ours, PEER: [Figures(0.5, 0.1, 0, 70, Counter(a=4), Counter(b=1))], EQUAL: [Figures(8.0)]}
    cells = [cell.strip() for cell in peers.line("ec2", row, "", found, "").strip("|").split("|")]
    first, second = "2.00 | 0.50 | 4.00 | 8.00 | 0.25", "20 / 70 | 2 / 4 | 7 / 1 | 0.50 / 0.10"
    assert " | ".join(cells) == f"ec2:boot-one | a minute | {first} | {second}"
    assert len(cells) == peers.HEAD.splitlines()[0].strip("|").count("|") + 1
    memory = {OURS: [Figures(0.0, memory=64)], PEER: [Figures(0.0, memory=32)]}
    assert "| 64.00 MiB | 32.00 | 2.00 | | " in peers.line("ec2", row, "", memory, "")
    alone = peers.line("gcp", row, "", {OURS: ours}, "no folder (--slurm-gcp)")
    assert "| 2.00 | no folder (--slurm-gcp) |" in alone
    assert alone.count("|") == len(cells) + 1


def test_figures_of_two_readings_are_subtracted() -> None:
    left = Spent(3.0, 2.0, 1.0) - Spent(1.0, 0.5, 0.25)
    assert (left.slurm, left.product) == (2.0, 2.25)


def test_a_measurement_says_first_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    @contextmanager
    def made(*_: Any) -> Iterator[None]:
        said.append(capsys.readouterr().err)
        yield None

    monkeypatch.setattr(peers.Peers, "make", made)
    row = Row("boot-one", "a minute", lambda side: {"": Figures(1.0)})
    stand_in: Any = SimpleNamespace(name="gcp")
    chosen = argparse.Namespace(runs=2, nodes=5)
    peers.measured(row, peers.Peers(), stand_in, Meter(), chosen)
    assert [text.splitlines()[-1] for text in said] == [
        f"  boot-one {number}, ours: a slurmctld with its nodes starts" for number in (1, 2)
    ]
