"""Tests of a cluster on either cloud, from its user data on, on machines that boot (`cloud_land`)."""

from __future__ import annotations

import base64
import json
import shlex
import time
from typing import Any

import pytest

from node.bootstrap import key_server, report_server
from tests.support.checkout import ROOT, until
from tests.support.cloud_stack import NODES, TIMERS, Cluster

STEPS = {
    "users": "done", "hosts": "done", "secrets": "done", "disks": "done", "packages": "done",
    "metadata": "done", "mounts": "done", "slurm": "done", "hooks": "done", "ready": "done",
    "logs": "skipped", "environment": "skipped",
}  # fmt: skip
MEET = """
import json, os, socket, subprocess, sys
rank, nodes = int(os.environ["SLURM_PROCID"]), sys.argv[1:]
found = {"host": socket.gethostname()}
for name in ("controller", *nodes):
    found[name] = socket.gethostbyname(name)
    said = subprocess.run(["getent", "hosts", name], stdout=subprocess.PIPE, text=True).stdout.split()
    assert said[0] == found[name], said
if rank == 0:
    server = socket.create_server(("", 29500))
    met = [found]
    for _ in nodes[1:]:
        with server.accept()[0] as connection:
            met.append(json.loads(connection.makefile().readline()))
    print(json.dumps(met))
else:
    while True:
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], 29500), 60) as connection:
                connection.sendall((json.dumps(found) + "\\n").encode())
            break
        except ConnectionRefusedError:
            pass
"""
JOB = """\
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
exec srun --ntasks-per-node=1 /usr/bin/python3 meet.py $(scontrol show hostnames "$SLURM_JOB_NODELIST")
"""


POD = """
set -e
ip netns add pod
ip link add pod0 type veth peer name eth0 netns pod
ip address add 10.200.0.1/24 dev pod0
ip link set pod0 up
ip netns exec pod ip address add 10.200.0.2/24 dev eth0
ip netns exec pod ip link set eth0 up
ip netns exec pod ip route add default via 10.200.0.1
echo 1 >/proc/sys/net/ipv4/ip_forward
nft add table ip pod
nft add chain ip pod out '{ type nat hook postrouting priority 100; }'
nft add rule ip pod out ip saddr 10.200.0.0/24 masquerade
"""
"""Makes a network behind a machine, as Docker makes it for a container."""
NO_POD = (
    "nft delete table ip pod; ip netns delete pod; ip link delete pod0; echo 0 >/proc/sys/net/ipv4/ip_forward"
)


TRACEBACKS = "grep -c Traceback /var/log/slurm/elastic.log || true"


def forged(now: float) -> list[bytes]:
    """Reports that once ended a job, a boot, or every pass of the controller."""
    step = {"name": "mounts", "note": "forged", "tail": []}
    notices = [f"{now + 20:.6e}", "NaN", "Infinity", "1e300", "99999999999999999999"]
    report = (
        f'"started": {now}, "ended": null, "host": "x", "role": "compute", "facts": {{}}, "host_keys": []'
    )
    return [
        *(
            f'{{"state": "failed", "steps": [{json.dumps(step)}], "notice": {notice}, {report}}}'.encode()
            for notice in notices
        ),
        b'{"started": NaN, "state": "failed", "steps": [], "notice": 1}',
        b'{"state": "ready", "steps": ' + b"[" * 300_000,
    ]


def says(cluster: Cluster, host: str, content: bytes) -> str:
    """Send a report as root of a machine, with the product's own client. Returns the controller's answer."""
    program = (
        "import sys; sys.path.insert(0, '/opt/slurm-stacks/current')\n"
        "from node.bootstrap import report_sender\n"
        "content = sys.stdin.buffer.read()[:65_000]\n"
        "try:\n    report_sender.send('controller', content)\n    print('taken')\n"
        "except OSError as error:\n    print(error)\n"
    )
    given = base64.b64encode(content).decode()
    if len(given) > 100_000:
        given = base64.b64encode(content[:60_000]).decode()
    line = f"printf %s {given} | base64 --decode | /usr/bin/python3 -c {shlex.quote(program)}"
    return cluster.sh(line, host=host)


def nodes(cluster: Cluster) -> dict[str, list[str]]:
    """Return what Slurm says of each node: state, when its slurmd started, and reason."""
    shown = cluster.sh("scontrol --oneliner show nodes").splitlines()
    found = {}
    for line in shown:
        name = line.split()[0].removeprefix("NodeName=")
        pick = [word for word in line.split() if word.startswith(("State=", "SlurmdStartTime="))]
        found[name] = [*pick, line.partition(" Reason=")[2]]
    return found


class CloudMachines:
    """The tests run in this order: each continues where the one before it ended. A subclass has `cluster`."""

    datasource: str
    driver: str

    def test_a_head_comes_up_from_its_user_data(self, cluster: Cluster) -> None:
        states = {step["name"]: step["state"] for step in cluster.head["steps"]}
        assert states == STEPS
        notes = {step["name"]: step["note"] for step in cluster.head["steps"]}
        assert notes["secrets"] == "made the munge key"
        assert notes["packages"].startswith(("all are there", "installed google")), notes["packages"]
        assert "status: done" in cluster.sh("cloud-init status --wait")
        told = json.loads(cluster.sh("cat /run/cloud-init/result.json"))["v1"]
        assert told["errors"] == []
        assert told["datasource"].startswith(f"DataSource{self.datasource}")
        assert cluster.sh("cat /var/lib/hook") == "controller controller x"
        assert " is UP" in cluster.sh("scontrol ping")
        assert cluster.sh("stat -c '%U %a' /etc/munge/munge.key") == "munge 400"
        units = {"munged": "munge", "slurmctld": "slurm", "elastic": "slurm", "keys": ""}
        for unit, user in units.items():
            show = f"systemctl show --property=ActiveState,User --value slurm-stacks-{unit}.service"
            assert sorted(cluster.sh(show).split()) == sorted(["active", *([user] if user else [])]), unit
        assert cluster.sh("systemctl is-active munge slurmctld || true") == "inactive\ninactive"
        assert cluster.sh("systemctl is-system-running --wait || systemctl --failed --plain") == "running"

    def test_a_jobs_nodes_find_each_other_by_name(self, cluster: Cluster) -> None:
        cluster.sh(f"printf %s {shlex.quote(MEET)} >/home/ada/meet.py")
        job = cluster.submit(JOB, f"--nodes={len(NODES)}", "--output=met")
        cluster.done(job)
        met = json.loads(cluster.sh("cat /home/ada/met"))
        found = {host: one.address for host, one in cluster.land.hosts().items()}
        assert sorted(found) == [*NODES, "controller"]
        assert sorted(met, key=lambda one: str(one["host"])) == [{"host": n, **found} for n in NODES]
        for node in NODES:
            said = cluster.sh(f"getent hosts {node}").split()
            assert said[:2] == [found[node], f"{node}.t.slurm-stacks.internal"]
            assert cluster.sh("cat /var/lib/hook", host=node) == f"compute {node} x"
            cluster.land.ready(node)

    def test_no_machine_asks_for_what_its_identity_may_not(self, cluster: Cluster) -> None:
        """The tests up to here have only made the calls of a cluster's machines."""
        assert cluster.stack.refused == []

    def test_an_ordinary_user_gets_nothing_of_the_key_the_controller_or_others(
        self, cluster: Cluster
    ) -> None:
        """Both a job on a node and a process on the controller, where users log in, try everything."""
        secret = "bob's own"
        cluster.sh(f"umask 077; echo {shlex.quote(secret)} >/home/bob/data", user="bob")
        cluster.sh(
            "mkdir -p /home/bench/aaa && chown bob /home/bench/aaa && "
            "echo theirs >/home/bench/aaa/run.py && chown bob /home/bench/aaa/run.py"
        )
        key = cluster.sh("base64 --wrap=0 /etc/munge/munge.key")
        program = (ROOT / "tests" / "support" / "intruder.py").read_text()
        cluster.sh(f"printf %s {shlex.quote(program)} >/home/ada/intruder.py")
        hold = cluster.submit("true", "--hold", "--output=bobs", user="bob")
        words = shlex.join(
            [
                *(cluster.design.provider, json.dumps(self.secret_of(cluster)), hold),
                *(str(key_server.PORT), str(report_server.PORT)),
            ]
        )
        job = cluster.submit(
            f"exec /usr/bin/python3 intruder.py {words}",
            "--output=node",
            "--error=node-errors",
            "--nodelist=compute-1",
        )
        cluster.done(job)
        for host in ("compute-1", "controller"):
            said = cluster.sh("/usr/bin/python3 /home/ada/intruder.py nfs", host=host)
            assert said == "the file server takes the word of this client", "as a user it would, too"
        found = {"compute-1": cluster.sh("cat /home/ada/node")}
        found["controller"] = cluster.sh(f"cd /home/ada && /usr/bin/python3 intruder.py {words}", user="ada")
        results: dict[str, Any] = {host: json.loads(text) for host, text in found.items()}
        assert {host: result["got"] for host, result in results.items()} == {
            "compute-1": [],
            "controller": [],
        }
        assert {host: result["role"] for host, result in results.items()} == {
            "compute-1": None,
            "controller": None,
        }
        for host, result in results.items():
            assert "refused" in result["why"]["speak NFS"]
            assert key not in found[host], host
            assert len(result["why"]) > 50, result["why"]
            assert "Errno 13" in result["why"]["read /etc/munge/munge.key"], "it is there"
            # The controller closes the connection, before or after the report's last byte.
            closed = ("nothing", "reset by peer", "not connected", "Broken pipe")
            assert any(words in result["why"]["report a boot"] for words in closed)
            assert "Errno 13" in result["why"]["report a boot from a reserved port"]
        assert "no question" in results["controller"]["why"]["have the daemon act"]
        # What `./cluster status` and `cost` ask is for every user who logs in.
        assert json.loads(cluster.sh("slurm-stacks status", user="ada"))["nodes"]
        assert "by" in json.loads(cluster.sh("slurm-stacks cost", user="ada"))
        assert cluster.job(hold)["JobState"] == "PENDING"
        assert cluster.sh("cat /home/bob/data /home/bench/aaa/run.py") == f"{secret}\ntheirs"
        cluster.sh(f"scancel {hold}")

    def test_only_root_has_a_machines_identity_unless_the_stack_file_opens_it(self, cluster: Cluster) -> None:
        """With it nothing of the cluster can be changed, by root of a node or by a job where it is open."""
        known = len(cluster.stack.refused)
        cluster.start_login()
        assert cluster.stack.refused[known:] == [], "its boot asks for no more than its identity may"
        words = shlex.join(["cloud", cluster.design.provider, json.dumps(self.secret_of(cluster))])
        program = f"/usr/bin/python3 /home/ada/intruder.py {words}"
        opened = cluster.submit(f"exec {program}", "--partition=open", "--output=open")
        # Google's users come from the metadata service, which a machine asks when somebody logs in.
        until(lambda: cluster.sh("getent passwd ada || true", host="login-0"), 120, "ada on login-0")
        hosts = ("compute-0", "login-0")
        of_users = {host: json.loads(cluster.sh(program, user="ada", host=host)) for host in hosts}
        assert {host: (one["role"], one["got"]) for host, one in of_users.items()} == dict.fromkeys(
            hosts, (None, [])
        )
        of_root = {host: json.loads(cluster.sh(program, host=host)) for host in hosts}
        assert {host: one["role"] for host, one in of_root.items()} == {
            "compute-0": "compute",
            "login-0": "login",
        }
        assert [said for one in of_root.values() for said in one["got"]] == []
        cluster.done(opened)
        of_job = json.loads(cluster.sh("cat /home/ada/open"))
        assert (of_job["role"], of_job["got"]) == ("compute", [])
        for one in (*of_root.values(), of_job):
            assert len(one["why"]) > 10, one["why"]

    def test_a_container_with_a_network_of_its_own_gets_no_identity(self, cluster: Cluster) -> None:
        """Docker's containers are root's. Their requests are forwarded."""
        for host in ("controller", "compute-0"):
            cluster.sh(POD, host=host)
            inside = (
                f"ip netns exec pod /usr/bin/python3 /home/ada/intruder.py cloud {cluster.design.provider}"
            )
            answer = json.loads(
                cluster.sh(f"{inside} {shlex.quote(json.dumps(self.secret_of(cluster)))}", host=host)
            )
            assert (answer["role"], answer["got"]) == (None, [])
            assert "refused" in answer["why"]["identity"]
            cluster.sh(NO_POD, host=host)

    def test_forged_boot_reports_change_nothing_of_other_machines(self, cluster: Cluster) -> None:
        """In the bucket, where the role of every node may write, and by root of a node at the controller."""
        job = cluster.submit("sleep 1000", "--output=/dev/null", "--nodelist=compute-0")
        until(lambda: cluster.job(job)["JobState"] == "RUNNING", 60, "the job")
        before, tracebacks = nodes(cluster), cluster.sh(TRACEBACKS)
        running = {one.host: one.id for one in cluster.land.running()}
        stored = {node: json.dumps(cluster.land.report(node)).encode() for node in NODES}
        now = time.time()
        contents = forged(now)
        for first in range(0, len(contents), len(NODES)):
            for number, node in enumerate(NODES):
                content = contents[(first + number) % len(contents)]
                cluster.stack.store(f"boot/{node}.json", content)
            time.sleep(1.5 * TIMERS.reconcile_interval)
        refused = [says(cluster, "compute-1", content) for content in forged(now) if b"e+0" not in content]
        assert [one for one in refused if "the report is broken: " not in one] == []
        about = {"host": "compute-0", "node": "compute-0", "started": now, "notice": now + 20}
        step = {"name": "mounts", "note": "forged\n\x1b[31m|", "tail": []}
        said = json.dumps({"state": "failed", "steps": [step], **about}).encode()
        assert says(cluster, "compute-1", said) == "taken"
        time.sleep(2 * TIMERS.reconcile_interval)
        self.after_a_notice_of(cluster, "compute-1")
        others = [node for node in NODES if node != "compute-1"]
        assert {node: nodes(cluster)[node] for node in others} == {node: before[node] for node in others}
        there = {one.host: one.id for one in cluster.land.running()}
        assert {host: there.get(host) for host in running if host != "compute-1"} == {
            host: identity for host, identity in running.items() if host != "compute-1"
        }
        runs = cluster.job(job)
        assert (runs["JobState"], runs["Restarts"]) == ("RUNNING", "0")
        # A content that stops a pass would leave a traceback. A slow slurmctld on a busy host leaves none.
        assert cluster.sh(TRACEBACKS) == tracebacks
        cluster.sh(f"scancel {job}")
        for node, content in stored.items():
            cluster.stack.store(f"boot/{node}.json", content)

    def after_a_notice_of(self, cluster: Cluster, node: str) -> None:
        """Wait for what follows when root of a node says that the cloud takes its machine, if anything."""
        raise NotImplementedError

    def secret_of(self, cluster: Cluster) -> dict[str, str]:
        """Return where the cluster's secret is, for the intruder."""
        raise NotImplementedError

    # By default test_lost_machines.py and test_faults.py do the same to process machines, and
    # test_ec2_cluster.py to a machine of the cloud's driver.
    @pytest.mark.wide
    def test_a_machine_that_loses_its_power_gives_its_job_another(self, cluster: Cluster) -> None:
        script = 'echo "start $SLURM_RESTART_COUNT" >>starts; [ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'
        job = cluster.submit(script, "--output=/dev/null", "--nodelist=compute-1")
        until(lambda: cluster.sh("cat /home/ada/starts || true"), 120, "the job")
        lost = cluster.land.hosts()["compute-1"].id
        cluster.land.lose_power("compute-1")
        until(lambda: lost not in {one.id for one in cluster.land.running()}, 240, "the machine's end")
        cluster.done(job)
        assert cluster.land.hosts()["compute-1"].id != lost
        assert cluster.sh("cat /home/ada/starts").split() == ["start", "start", "1"]

    def test_a_head_that_reboots_keeps_its_queue_and_its_nodes(self, cluster: Cluster) -> None:
        waits = cluster.submit("hostname", "--hold", "--output=after")
        runs = cluster.submit("sleep 5; hostname", "--output=through", "--nodelist=compute-0")
        key = cluster.sh("sha256sum </etc/munge/munge.key")
        running = {one.id for one in cluster.land.running()}
        before = cluster.land.report("controller")["started"]
        cluster.land.reboot("controller")
        again = cluster.land.ready("controller", since=before)
        assert {s["name"]: s["note"] for s in again["steps"]}["secrets"] == "took the cluster's munge key"
        assert cluster.sh("sha256sum </etc/munge/munge.key") == key
        assert "skuid" in cluster.sh("nft list table inet slurm_stacks_metadata")
        # Our boot's steps only enable this unit, so systemd has loaded the rules at its start.
        assert cluster.sh("systemctl is-active slurm-stacks-metadata").strip() == "active"
        assert cluster.job(waits)["JobState"] == "PENDING"
        cluster.done(runs)
        cluster.sh(f"scontrol release {waits}")
        cluster.done(waits)
        assert cluster.sh("cat /home/ada/after /home/ada/through").split()[1] == "compute-0"
        assert {one.id for one in cluster.land.running()} == running, "no node was given up"

    def test_all_goes_down_and_nothing_is_left(self, cluster: Cluster) -> None:
        """The fixture's end checks that this host has no container, mount, cgroup or process left."""
        cluster.stack.end_all()
        until(lambda: cluster.land.hosts() == {}, 180, "no machine that is on")
        assert cluster.land.running() == []
