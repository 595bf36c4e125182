"""Machines of a stack on AWS from their user data on: namespaces for instances, moto for AWS, all else real.

cloud-init's script, the first code, the loader out of the bucket, every step of the bootstrap, munge,
slurmctld, the elastic daemon with boto3, slurmd and a job. What this distribution has not, stand-ins note
(`tests.support.machine_programs`): systemd, Ubuntu's packages, an NFS server.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from infra import bundle
from infra.aws import policies, userdata
from infra.node.bootstrap import key_server
from infra.node.elastic.drivers.ec2_names import NODES, node_of
from infra.node.model import ClusterDesign, Hook, Host, Mount, Partition, Settings, Site, SlurmSettings
from tests.support.checkout import ROOT, until
from tests.support.ec2_machines import BUCKET, CONTROLLER, EFS, Ec2Land, need_ec2_machines
from tests.support.fake_imds import ROLE, key
from tests.support.iam import allowed

PARTITION = Partition("compute", "m5.large", 2, 1000, 0, 2, default=True, zones=("eu-west-1a",))
HEAD = Host("controller", "controller", ("controller", "login"), "m5.large", 50)
OPTIONS = "rw,hard,nfsvers=4.1,_netdev"
HOOK = '#!/bin/sh\necho "$SLURM_STACKS_ROLE $SLURM_STACKS_HOST $1" >/var/lib/hook\n'
CGROUPS = "#!/bin/sh\necho IgnoreSystemd=yes >>/etc/slurm/cgroup.conf\n"
GROUP = "/slurm-stacks/t"
NOT_TOUCHED = ("/etc/hosts", "/etc/hostname", "/etc/slurm/slurm.conf", "/etc/munge/munge.key",
               "/etc/systemd/system/munge.service", "/opt/slurm-stacks/start.py")  # fmt: skip


@pytest.fixture(scope="module")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Land]:
    need_ec2_machines()
    made = Ec2Land(tmp_path_factory.mktemp("ec2") / "run", PARTITION.nodes())
    before = made.files(*NOT_TOUCHED)
    yield made
    made.close()
    assert made.files(*NOT_TOUCHED) == before, "a machine has changed this host"


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    return ClusterDesign(
        "t", "test", "aws", "vm", (HEAD,), (PARTITION,),
        (Mount("/home", "efs", options=OPTIONS), Mount("/apps", "efs", options=OPTIONS)),
        # This Slurm's cgroups: a namespace has no systemd to ask.
        hooks=(Hook("all", "hooks/note.sh", ("x",)), Hook("controller", "hooks/cgroups.sh")),
        slurm=SlurmSettings(resume_timeout=120, reconcile_interval=1.0), region="eu-west-1", trains=False,
    )  # fmt: skip


def metadata(role: str, **more: str) -> dict[str, str]:
    """What an instance of this role finds in its metadata; its key tells its calls apart."""
    return {ROLE: role, f"{ROLE}{role}": json.dumps(key(role.upper())), **more}


@pytest.fixture(scope="module")
def aws(land: Ec2Land, design: ClusterDesign, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """AWS with what the stack makes in it."""
    ids = land.start_cloud()
    project = tmp_path_factory.mktemp("project")
    (project / "infra").symlink_to(ROOT / "infra")
    (project / "hooks").mkdir()
    (project / "hooks" / "note.sh").write_text(HOOK)
    (project / "hooks" / "cgroups.sh").write_text(CGROUPS)
    mounts = {path: {"source": f"{EFS}:{path}"} for path in ("/home", "/apps")}
    driver = {
        "region": "eu-west-1", "cluster": "t", "bucket": BUCKET, "secret": ids["secret"], "log_group": GROUP,
        "subnets": json.dumps({"eu-west-1a": ids["subnet"]}),
        "templates": json.dumps({"compute": ids["template"]}), "mounts": json.dumps(mounts),
    }  # fmt: skip
    site = Site("/", "slurm", "controller", CONTROLLER, driver=driver)
    code, settings = bundle.node_archive(design, project), bundle.settings_object(Settings(design, site))
    pointer = bundle.current(code, settings)
    land.publish(
        {
            "loader.py": bundle.loader_archive("aws"),
            pointer["code"]["key"]: code,
            pointer["settings"]["key"]: settings,
            "current.json": json.dumps(pointer).encode(),
        }
    )
    return ids


def come_up(land: Ec2Land, host: str) -> dict[str, Any]:
    """The boot report of a machine whose boot is over."""
    try:
        until(lambda: land.report(host)["state"] not in (None, "booting"), 240, f"{host}'s boot", 0.5)
    except AssertionError as error:
        error.add_note(land.shell(host, "tail -n 50 /var/log/slurm-stacks-boot.service.log /var/log/slurm/*"))
        raise
    report = land.report(host)
    assert report["state"] == "ready", json.dumps(report, indent=1)
    return report


@pytest.fixture(scope="module")
def controller(land: Ec2Land, aws: dict[str, str], design: ClusterDesign) -> dict[str, Any]:
    """The head, up."""
    text = userdata.render(design, BUCKET, "controller", "controller")
    land.boot("controller", metadata("controller"), text)
    return come_up(land, "controller")


def steps(report: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in report["steps"]}


def test_a_head_comes_up_from_its_user_data(land: Ec2Land, controller: dict[str, Any]) -> None:
    assert steps(controller) == {
        "users": "done", "hosts": "done", "secrets": "done", "disks": "done", "packages": "done",
        "metadata": "done", "mounts": "done", "slurm": "done", "hooks": "done", "ready": "done",
        "logs": "skipped", "environment": "skipped",
    }  # fmt: skip
    notes = {step["name"]: step["note"] for step in controller["steps"]}
    assert notes["secrets"] == "made the munge key"
    assert notes["environment"] == "the stack has no benchmark that would need one"
    assert "logs stay on this machine" in notes["logs"], "its agent is Amazon's, and not to be had here"
    assert land.shell("controller", "cat /var/lib/hook") == "controller controller x"
    assert " is UP" in land.shell("controller", "scontrol ping")
    assert land.shell("controller", "findmnt -no SOURCE /home") == f"{EFS}:/home"
    assert land.shell("controller", "stat -c '%U %a' /etc/munge/munge.key") == "munge 400"
    asked = land.shell("controller", "cat /run/stand-ins/installed").split()
    assert asked == ["chrony", "nfs-common", "python3-boto3"], "the others are this host's"


def test_a_boot_again_changes_nothing_and_keeps_the_queue(land: Ec2Land, controller: dict[str, Any]) -> None:
    """As `up` does it to a head with new settings."""
    job = land.shell("controller", "sbatch --parsable --hold --output=/dev/null --wrap true")
    key = land.shell("controller", "sha256sum </etc/munge/munge.key")
    land.shell("controller", "systemctl restart --no-block slurm-stacks-boot.service")
    until(lambda: land.report("controller")["started"] > controller["started"], 120, "another boot", 0.3)
    again = come_up(land, "controller")
    assert steps(again) == steps(controller)
    assert {s["name"]: s["note"] for s in again["steps"]}["secrets"] == "took the cluster's munge key"
    assert land.shell("controller", "sha256sum </etc/munge/munge.key") == key
    assert land.shell("controller", f"squeue --noheader --format=%T --jobs={job}") == "PENDING"
    land.shell("controller", f"scancel {job}")


def boot_node(land: Ec2Land, design: ClusterDesign, node: str, instance: dict[str, Any]) -> dict[str, Any]:
    """The boot report of a node that EC2 has launched."""
    tags = {f"meta-data/tags/instance/{name}": value for name, value in instance["tags"].items()}
    found = metadata("compute", **tags, **{"meta-data/ami-launch-index": str(instance["index"])})
    land.boot(node, found, userdata.render(design, BUCKET, "compute"))
    return come_up(land, node)


def test_a_node_that_a_job_wants_is_launched_boots_and_runs_it(
    land: Ec2Land, controller: dict[str, Any], design: ClusterDesign
) -> None:
    out = "/var/spool/slurmd/out"
    script = "echo $SLURMD_NODENAME $(hostname)"
    job = land.shell("controller", f"sbatch --parsable --chdir=/tmp --output={out} --wrap {script!r}")
    (launched,) = until(lambda: list(land.instances().values()), 120, "a launch", 0.3)
    assert launched["tags"]["slurm-stacks:cluster"] == "t"
    node = node_of(launched["tags"][NODES], launched["index"])
    report = boot_node(land, design, node, launched)
    assert steps(report)["ready"] == "done"
    assert land.shell(node, "cat /var/lib/hook") == f"compute {node} x"
    until(lambda: "COMPLETED" in land.shell("controller", f"scontrol show job {job}"), 120, "the job", 0.5)
    assert land.shell(node, f"cat {out}") == f"{node} {node}"


BY_NAME = """
import json, os, socket, subprocess, sys
found = {"": socket.gethostname(), "MASTER_ADDR": socket.gethostbyname(os.environ["MASTER_ADDR"])}
for name in sys.argv[1:]:
    found[name] = socket.gethostbyname(name)
    said = subprocess.run(["getent", "hosts", name], stdout=subprocess.PIPE, text=True).stdout.split()
    assert said[0] == found[name], said
print(json.dumps(found))
"""
NAMES_JOB = """\
#!/bin/sh
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
exec srun --ntasks-per-node=1 /usr/bin/python3 "$@"
"""


def test_nodes_find_each_other_and_the_controller_by_name(
    land: Ec2Land, controller: dict[str, Any], design: ClusterDesign
) -> None:
    """A job's script finds all of its nodes from its first line on, and the controller finds them, too."""
    land.shell("controller", f"printf %s {shlex.quote(NAMES_JOB)} >/tmp/names.sh")
    hosts = ("controller", *PARTITION.nodes())
    asked = f"-c {shlex.quote(BY_NAME)} {' '.join(hosts)}"
    out = "--output=/var/spool/slurmd/names"
    job = land.shell("controller", f"sbatch --parsable --nodes=2 --chdir=/tmp {out} /tmp/names.sh {asked}")
    up = {node for node in PARTITION.nodes() if land.report(node)["state"] == "ready"}

    def launched() -> dict[str, dict[str, Any]]:
        found = (i for i in land.instances().values() if NODES in i["tags"])
        return {str(node_of(i["tags"][NODES], i["index"])): i for i in found}

    until(lambda: launched().keys() >= set(PARTITION.nodes()), 120, "two machines", 0.3)
    for node in launched().keys() - up:
        boot_node(land, design, node, launched()[node])
    until(lambda: "COMPLETED" in land.shell("controller", f"scontrol show job {job}"), 120, "the job", 0.5)
    addresses = {host: land.addresses[host] for host in hosts}
    said = [json.loads(line) for line in land.shell("compute-0", "cat /var/spool/slurmd/names").splitlines()]
    assert sorted(said, key=lambda one: str(one[""])) == [
        {"": node, "MASTER_ADDR": addresses["compute-0"], **addresses} for node in PARTITION.nodes()
    ]
    here = json.loads(land.shell("controller", f"MASTER_ADDR=compute-1 /usr/bin/python3 {asked}"))
    assert here == {"": "controller", "MASTER_ADDR": addresses["compute-1"], **addresses}


TRIES = """
import json, socket, urllib.request
found = {}
try:
    found["file"] = open("/etc/munge/munge.key", "rb").read(4).hex()
except OSError as error:
    found["file"] = type(error).__name__
try:
    with socket.create_connection(("CONTROLLER", PORT), 60) as connection:
        found["server"] = connection.recv(4096).hex()
except OSError as error:
    found["server"] = type(error).__name__
try:
    ask = urllib.request.Request("http://169.254.169.254/latest/api/token", method="PUT")
    ask.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
    token = urllib.request.urlopen(ask, timeout=60).read().decode()
    ask = urllib.request.Request("http://169.254.169.254/latest/meta-data/iam/security-credentials/")
    ask.add_header("X-aws-ec2-metadata-token", token)
    found["role"] = urllib.request.urlopen(ask, timeout=60).read().decode()
except OSError:
    found["role"] = None
print(json.dumps(found))
"""


def tries(land: Ec2Land, host: str, user: str) -> dict[str, Any]:
    """What a user's process gets on a machine: the key's file, the key's server, the machine's identity."""
    script = TRIES.replace("CONTROLLER", CONTROLLER).replace("PORT", str(key_server.PORT))
    become = f"setpriv --reuid={user} --regid={user} --clear-groups"
    found: dict[str, Any] = json.loads(
        land.shell(host, f"{become} /usr/bin/python3 -c {shlex.quote(script)}")
    )
    return found


def test_no_ordinary_process_has_the_munge_key_or_the_controllers_identity(
    land: Ec2Land, controller: dict[str, Any], aws: dict[str, str], design: ClusterDesign
) -> None:
    """After the job: its node is up. What a node's identity may do is harmless: the key is not among it."""
    node = next(node for node in PARTITION.nodes() if land.report(node)["state"] == "ready")
    assert tries(land, node, "65534") == {"file": "PermissionError", "server": "", "role": "compute"}
    compute = policies.compute(scope(aws), design)
    assert not allowed(compute, "secretsmanager:GetSecretValue", aws["secret"], {})
    assert tries(land, "controller", "65534") == {"file": "PermissionError", "server": "", "role": None}
    assert tries(land, "controller", "64030")["role"] == "controller", "the elastic daemon is slurm's"


def scope(aws: dict[str, str]) -> policies.Scope:
    return policies.Scope(
        "aws", "eu-west-1", "123456789012", f"arn:aws:s3:::{BUCKET}", aws["secret"],
        f"arn:aws:logs:eu-west-1:123456789012:log-group:{GROUP}", "arn:aws:iam::123456789012:role/c",
        [aws["subnet"]], [],
    )  # fmt: skip


def test_the_roles_allow_what_the_machines_have_asked(
    land: Ec2Land, controller: dict[str, Any], aws: dict[str, str], design: ClusterDesign
) -> None:
    """Last: of all that went over the wire until here."""
    documents = {
        f"AKID{r.upper()}": getattr(policies, r)(scope(aws), design) for r in ("controller", "compute")
    }
    asked = land.asked()
    assert {who for who, _ in asked} == set(documents)
    refused = [
        (who, one)
        for who, one in asked
        if not allowed(documents[who], one["action"], one["resource"], one["context"])
    ]
    assert refused == []
