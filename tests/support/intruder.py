"""An ordinary user's process on a cluster's machine that tries everything: a program, run there as it is.

`PROVIDER SECRET JOB PORT`: the cloud; where the cluster's secret is, as JSON; the number of another user's
job; the port at which the controller serves the munge key. It prints JSON: what it `got` (nothing, as it
should be), how many things it `tried`, the `role` that the metadata address gave it, and why it got nothing.
It signs its calls with the product's own code for AWS, which every user of a machine may read.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/slurm-stacks/current")
METADATA = "http://169.254.169.254"
SECONDS = 30.0
ANOTHERS = "bob"
BUCKET = "t-bucket"


def ask(
    url: str, headers: dict[str, str] | None = None, method: str = "GET", body: bytes | None = None
) -> bytes:
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        said: bytes = answer.read()
        return said


class Tries:
    def __init__(self) -> None:
        self.got: list[str] = []
        self.why: dict[str, str] = {}

    def do(self, name: str, act: Callable[[], object]) -> None:
        try:
            found = act()
        except (OSError, ValueError, RuntimeError, LookupError) as error:
            body = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
            self.why[name] = f"{type(error).__name__}: {error} {body}"[:200]
            return
        if found:
            self.got.append(f"{name}: {str(found)[:100]}")
        else:
            self.why[name] = "nothing"

    def run(self, *command: str, given: str = "") -> None:
        """A program that must be there, and must fail."""
        if shutil.which(command[0]) is None:
            raise SystemExit(f"{command[0]} is not on this machine: that proves nothing")

        def act() -> str:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=SECONDS * 4, check=False
            )
            if done.returncode:
                raise RuntimeError((done.stderr or done.stdout).strip())
            return done.stdout or "it ended well"

        self.do(" ".join(command), act)


# --- the machine's identity -------------------------------------------------------------------------------


def aws(tries: Tries, secret: dict[str, str]) -> str | None:
    def version_1() -> bytes:
        return ask(f"{METADATA}/latest/meta-data/instance-id")

    tries.do("metadata without a token", version_1)
    try:
        life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = ask(f"{METADATA}/latest/api/token", life, "PUT").decode()
    except OSError as error:
        tries.why["identity"] = str(error)
        return None
    place = f"{METADATA}/latest/meta-data/iam/security-credentials/"
    role = ask(place, {"X-aws-ec2-metadata-token": token}).decode()
    given = json.loads(ask(place + role, {"X-aws-ec2-metadata-token": token}))
    from infra.node.aws.s3 import Bucket
    from infra.node.aws.secretsmanager import Secret
    from infra.node.aws.signed import Service
    from infra.node.aws.sigv4 import Credentials

    known = Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["Token"], 4e9)
    region = secret["region"]
    store = Secret(secret["secret"], region, lambda: known)
    tries.do("read the secret", store.get)
    tries.do("write the secret", lambda: store.put(b"mine") or "written")
    bucket = Bucket(f"s3://{BUCKET}", region, lambda: known)
    for name in ("current.json", "loader.py", "boot/controller.json"):
        tries.do(f"write {name}", lambda name=name: bucket.put(name, b"mine") or "written")  # type: ignore[misc]
    tries.do("read the controller's report", lambda: bucket.get("boot/controller.json"))
    for action in ("TerminateInstances&InstanceId.1=i-1", "DescribeInstances", "RunInstances&MinCount=1"):
        body = f"Action={action}&Version=2016-11-15&MaxCount=1&LaunchTemplate.LaunchTemplateId=lt-1"

        def call(body: str = body) -> bytes:
            url = f"https://ec2.{region}.amazonaws.com/"
            kind = {"content-type": "application/x-www-form-urlencoded"}
            answer = Service("ec2", region, lambda: known).call("POST", url, kind, body.encode())
            if answer.status != 200:
                raise RuntimeError(answer.body.decode())
            return answer.body

        tries.do(action, call)
    return role


def google(tries: Tries, secret: dict[str, str]) -> str | None:
    flavor = {"Metadata-Flavor": "Google"}
    base = f"{METADATA}/computeMetadata/v1/instance"
    tries.do("metadata without its header", lambda: ask(f"{base}/name"))
    try:
        token = json.loads(ask(f"{base}/service-accounts/default/token", flavor))["access_token"]
        account = ask(f"{base}/service-accounts/default/email", flavor).decode()
    except OSError as error:
        tries.why["identity"] = str(error)
        return None
    known = {"Authorization": f"Bearer {token}"}
    store = f"https://secretmanager.googleapis.com/v1/{secret['secret']}"
    tries.do("read the secret", lambda: ask(f"{store}/versions/latest:access", known))
    mine = json.dumps({"payload": {"data": "bWluZQ=="}}).encode()
    tries.do("write the secret", lambda: ask(f"{store}:addVersion", known, "POST", mine))
    for name in ("current.json", "loader.py", "boot/controller.json"):
        place = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
        tries.do(f"write {name}", lambda place=place: ask(place, known, "POST", b"mine"))  # type: ignore[misc]
    compute = "https://compute.googleapis.com/compute/v1/projects/p-1/zones/europe-west4-a/instances"
    tries.do("list the machines", lambda: ask(compute, known))
    tries.do("delete the controller", lambda: ask(f"{compute}/t-controller", known, "DELETE"))
    tries.do("launch machines", lambda: ask(f"{compute}/bulkInsert", known, "POST", b"{}"))
    return account.partition("@")[0].removeprefix("t-")


# --- the machine, and the others --------------------------------------------------------------------------


def files(tries: Tries) -> None:
    secrets = (
        *("/etc/munge/munge.key", "/etc/shadow", "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/authorized_keys"),
        *("/var/lib/munge/munge.seed", f"/home/{ANOTHERS}/data"),
    )
    for path in secrets:
        tries.do(f"read {path}", lambda path=path: Path(path).read_bytes())  # type: ignore[misc]
    for path in ("/etc/munge", "/var/spool/slurmctld", "/var/lib/munge", "/root", f"/home/{ANOTHERS}"):
        tries.do(f"list {path}", lambda path=path: os.listdir(path))  # type: ignore[misc]  # noqa: PTH208
    ours = (
        *("/etc/slurm/slurm.conf", "/etc/passwd", "/opt/slurm-stacks/start.py", "/opt/slurm-stacks/settings.json"),
        *("/usr/local/bin/slurm-stacks", "/home/bench/aaa/run.py", "/etc/hosts", "/etc/resolv.conf"),
        *("/run/munge/munge.socket.2", "/etc/systemd/system/slurm-stacks-boot.service"),
    )
    for path in ours:
        if Path(path).exists():
            tries.do(f"write {path}", lambda path=path: Path(path).open("ab"))  # type: ignore[misc]
    folders = (
        *("/var/lib/slurm-stacks", "/var/lib/slurm-stacks/requests", "/var/lib/slurm-stacks/names"),
        *("/var/spool/slurmd", "/run/slurm-stacks", "/run/munge", "/opt/slurm-stacks", "/usr/local/lib"),
        *("/opt/slurm-stacks/current/infra", "/home/bench/aaa", "/home", "/apps", "/etc/systemd/system"),
    )
    for path in folders:
        if Path(path).is_dir():
            tries.do(f"make a file in {path}", lambda path=path: (Path(path) / "mine").touch() or path)  # type: ignore[misc,func-returns-value]
    tries.do("take another's workload away", lambda: os.rename("/home/bench/aaa", "/home/bench/mine") or "gone")  # type: ignore[func-returns-value]  # noqa: PTH104
    for pid in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            strange = Path(f"/proc/{pid}").stat().st_uid != os.getuid()
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if strange and name in ("munged", "slurmctld", "slurmd", "dnsmasq", "python3"):
            for part in ("environ", "mem"):
                tries.do(f"{part} of {name}", lambda pid=pid, part=part: Path(f"/proc/{pid}/{part}").open("rb").read(1))  # type: ignore[misc]
            tries.do(f"signal {name}", lambda pid=pid: os.kill(int(pid), 9) or "killed")  # type: ignore[misc,func-returns-value]


def privileges(tries: Tries) -> None:
    for user in (0, 64030, 2002):
        tries.do(f"become {user}", lambda user=user: os.setuid(user) or "became")  # type: ignore[misc,func-returns-value]
    libc = ctypes.CDLL(None, use_errno=True)

    def mount() -> str:
        if libc.mount(b"/srv/shares/home", b"/tmp", None, 4096, None):
            raise OSError(ctypes.get_errno(), "mount")
        return "mounted"

    tries.do("mount", mount)
    tries.run("sudo", "-n", "true")
    tries.run("systemctl", "--no-ask-password", "stop", "slurm-stacks-munged.service")
    tries.run("runuser", "-u", ANOTHERS, "true")


def sockets(tries: Tries, job: str, port: int) -> None:
    def serve(source: int | None) -> bytes:
        with socket.socket() as connection:
            connection.settimeout(SECONDS)
            if source is not None:
                connection.bind(("", source))
            connection.connect(("controller", port))
            return connection.recv(4096)

    tries.do("ask for the key", lambda: serve(None))
    tries.do("ask for the key from a reserved port", lambda: serve(1000))
    tries.do("take the key server's port", lambda: socket.create_server(("", port)).close() or "taken")  # type: ignore[func-returns-value]

    def elastic() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("/run/slurm-stacks/elastic.sock")
            return b"connected"

    tries.do("the daemon's socket", elastic)
    tries.run("scancel", job) if False else tries.run("scontrol", "hold", job)
    tries.run("scontrol", "update", f"JobId={job}", "Priority=1000")
    tries.run("scontrol", "write", "batch_script", job, "-")
    tries.run("scontrol", "update", "NodeName=compute-0", "State=DOWN", "Reason=mine")
    tries.run("scontrol", "update", "PartitionName=compute", "State=DOWN")
    tries.run("scontrol", "reconfigure")
    tries.run("scontrol", "shutdown")
    tries.run("sbatch", f"--uid={ANOTHERS}", "--wrap=true")
    tries.run("scontrol", "token", f"username={ANOTHERS}")
    tries.run("scancel", "--state=PENDING", job)


def main(provider: str, secret: str, job: str, port: str) -> None:
    tries = Tries()
    role = {"aws": aws, "gcp": google}[provider](tries, json.loads(secret))
    files(tries)
    sockets(tries, job, int(port))
    privileges(tries)
    print(json.dumps({"got": tries.got, "tried": len(tries.why) + len(tries.got), "role": role, "why": tries.why}))


if __name__ == "__main__":
    main(*sys.argv[1:])
