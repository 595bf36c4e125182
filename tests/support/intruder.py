"""A program that tries to get what an ordinary user on a cluster's machine must not have.

Its arguments are `PROVIDER SECRET JOB PORT REPORTS`: the cloud; where the cluster's secret is, as JSON; the
id of another user's job; the ports at which the controller serves the munge key and takes boot reports. It
prints JSON: what it `got` (it should be nothing), the `role` that the metadata address gave it, and why it
got nothing.
With the arguments `cloud PROVIDER SECRET` it tries only what concerns the cloud, as root of a machine may.
With the argument `nfs` alone it only speaks to the file server, which root may, so a test knows that there is
one. It signs its calls with the product's own code for AWS, which every user of a machine may read.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, "/opt/slurm-stacks/current")
METADATA = "http://169.254.169.254"
SECONDS = 30.0
RESOLVER_SECONDS = 60.0
ANOTHERS = "bob"
WORKLOAD = "/home/bench/aaa"
"""A folder that another user has staged."""
BUCKET = "t-bucket"
PUBLISHED = (
    *("current.json", "loader.py", "image.json", "code/mine.zip", "settings/mine.json"),
    *("boot/controller.json", "mine"),
)
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmd.distrib", "dnsmasq", "python3", "systemd")


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

    def do(self, name: str, act: Callable[..., object], *arguments: object) -> None:
        """Run an attempt and record its result. An empty result is no success; `None` is one."""
        try:
            found = act(*arguments)
        except (OSError, http.client.HTTPException, ValueError, RuntimeError, LookupError) as error:
            body = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
            self.why[name] = f"{type(error).__name__}: {error} {body}"[:200]
            return
        if found or found is None:
            self.got.append(f"{name}: {str(found)[:200]}")
        else:
            self.why[name] = "nothing"

    def run(self, *command: str, given: str = "") -> None:
        """Run a program that must exist and must fail."""
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
    tries.do("metadata without a token", ask, f"{METADATA}/latest/meta-data/instance-id")
    try:
        life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = ask(f"{METADATA}/latest/api/token", life, "PUT").decode()
    except (OSError, http.client.HTTPException) as error:
        tries.why["identity"] = str(error)
        return None
    place = f"{METADATA}/latest/meta-data/iam/security-credentials/"
    role = ask(place, {"X-aws-ec2-metadata-token": token}).decode()
    given = json.loads(ask(place + role, {"X-aws-ec2-metadata-token": token}))
    from node.aws.api import Service
    from node.aws.services import Bucket, Secret
    from node.aws.signatures import Credentials

    known = Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["Token"], 4e9)
    region = secret["region"]
    store = Secret(secret["secret"], region, lambda: known)
    tries.do("read the secret", store.get)
    tries.do("write the secret", store.put, b"mine")
    bucket = Bucket(f"s3://{BUCKET}", region, lambda: known)
    for name in PUBLISHED:
        tries.do(f"write {name}", bucket.put, name, b"mine")
    tries.do("read the controller's report", bucket.get, "boot/controller.json")

    def ec2(action: str) -> bytes:
        body = f"Action={action}&Version=2016-11-15&MaxCount=1&LaunchTemplate.LaunchTemplateId=lt-1"
        kind = {"content-type": "application/x-www-form-urlencoded"}
        url = f"https://ec2.{region}.amazonaws.com/"
        answer = Service("ec2", region, lambda: known).call("POST", url, kind, body.encode())
        if answer.status != 200:
            raise RuntimeError(answer.body.decode())
        return answer.body

    for action in ("TerminateInstances&InstanceId.1=i-1", "DescribeInstances", "RunInstances&MinCount=1"):
        tries.do(action, ec2, action)
    return role


def google(tries: Tries, secret: dict[str, str]) -> str | None:
    flavor = {"Metadata-Flavor": "Google"}
    base = f"{METADATA}/computeMetadata/v1/instance"
    tries.do("metadata without its header", ask, f"{base}/name")
    try:
        token = json.loads(ask(f"{base}/service-accounts/default/token", flavor))["access_token"]
        account = ask(f"{base}/service-accounts/default/email", flavor).decode()
    except (OSError, http.client.HTTPException) as error:
        tries.why["identity"] = str(error)
        return None
    known = {"Authorization": f"Bearer {token}"}
    store = f"https://secretmanager.googleapis.com/v1/{secret['secret']}"
    tries.do("read the secret", ask, f"{store}/versions/latest:access", known)
    mine = json.dumps({"payload": {"data": "bWluZQ=="}}).encode()
    tries.do("write the secret", ask, f"{store}:addVersion", known, "POST", mine)
    upload = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o?uploadType=media"
    for name in PUBLISHED:
        tries.do(f"write {name}", ask, f"{upload}&name={name}", known, "POST", b"mine")
    compute = "https://compute.googleapis.com/compute/v1/projects/p-1/zones/europe-west4-a/instances"
    tries.do("list the machines", ask, compute, known)
    tries.do("delete the controller", ask, f"{compute}/t-controller", known, "DELETE")
    tries.do("launch machines", ask, f"{compute}/bulkInsert", known, "POST", b"{}")
    return account.partition("@")[0].removeprefix("t-")


# --- the machine, and the others --------------------------------------------------------------------------


def read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(64) or b"it can be read"


def write(path: str) -> None:
    with Path(path).open("ab"):
        pass


def make_in(folder: str) -> None:
    (Path(folder) / "mine").touch()


def files(tries: Tries) -> None:
    secrets = (
        *(
            "/etc/munge/munge.key",
            "/etc/shadow",
            "/etc/ssh/ssh_host_ed25519_key",
            "/var/lib/munge/munge.seed",
        ),
        *(f"/home/{ANOTHERS}/data", "/var/lib/cloud/instance/user-data.txt", "/proc/kcore"),
    )
    for path in secrets:
        tries.do(f"read {path}", read, path)
    for path in ("/etc/munge", "/var/spool/slurmctld", "/var/lib/munge", "/root", f"/home/{ANOTHERS}"):
        tries.do(f"list {path}", os.listdir, path)
    ours = (
        *("/etc/slurm/slurm.conf", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", WORKLOAD + "/run.py"),
        *(
            "/opt/slurm-stacks/run_loader.py",
            "/opt/slurm-stacks/settings.json",
            "/usr/local/bin/slurm-stacks",
        ),
        *("/run/munge/munge.socket.2", "/etc/systemd/system/slurm-stacks-boot.service"),
    )
    for path in ours:
        if Path(path).exists():
            tries.do(f"write {path}", write, path)
    folders = (
        *("/var/lib/slurm-stacks", "/var/lib/slurm-stacks/elastic", "/var/lib/slurm-stacks/names"),
        "/var/lib/slurm-stacks/elastic/requests",
        "/var/lib/slurm-stacks/reports",
        *("/var/spool/slurmd", "/run/slurm-stacks", "/run/munge", "/opt/slurm-stacks", "/usr/local/lib"),
        *("/opt/slurm-stacks/current/node", WORKLOAD, "/home", "/apps", "/etc/systemd/system"),
    )
    for path in folders:
        if Path(path).is_dir():
            tries.do(f"make a file in {path}", make_in, path)
    tries.do("take another's workload away", os.rename, WORKLOAD, f"{WORKLOAD}-mine")
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            strange = Path(f"/proc/{pid}").stat().st_uid != os.getuid()
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if strange and name in DAEMONS:
            for part in ("environ", "mem"):
                tries.do(f"{part} of {name} ({pid})", read, f"/proc/{pid}/{part}")
            tries.do(f"end {name} ({pid})", os.kill, pid, signal.SIGTERM)


def privileges(tries: Tries) -> None:
    for user in (0, 64030, 2002):
        tries.do(f"become {user}", os.setuid, user)
    libc = ctypes.CDLL(None, use_errno=True)

    def mount() -> None:
        if libc.mount(b"/home", b"/tmp", None, 4096, None):
            raise OSError(ctypes.get_errno(), "mount")

    tries.do("mount", mount)
    tries.run("sudo", "-n", "true")
    tries.run("systemctl", "--no-ask-password", "stop", "slurm-stacks-munged.service")
    tries.run("runuser", "-u", ANOTHERS, "true")


def sockets(tries: Tries, job: str, port: int, reports: int) -> None:
    def serve(source: int | None, port: int = port, said: bytes = b"") -> bytes:
        with socket.socket() as connection:
            connection.settimeout(SECONDS)
            if source is not None:
                connection.bind(("", source))
            connection.connect(("controller", port))
            if said:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096)

    def report(source: int | None) -> bytes:
        step = {"name": "mounts", "note": "forged", "tail": []}
        said = {"state": "failed", "steps": [step], "notice": time.time() + 20, "host": "compute-0"}
        return serve(source, reports, json.dumps(said).encode())

    def take(port: int = port) -> None:
        socket.create_server(("", port)).close()

    def elastic() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("/run/slurm-stacks/elastic.sock")

    def request() -> bytes:
        """Whoever may ask for the status may ask the daemon to do nothing."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("/run/slurm-stacks/status.sock")
            connection.sendall(b'{"method": "record", "params": {}}\n')
            answer = connection.recv(4096)
        if b"no question" in answer:
            raise PermissionError(answer.decode())
        return answer

    tries.do("ask for the key", serve, None)
    tries.do("ask for the key from a reserved port", serve, 1000)
    tries.do("take the key server's port", take)
    tries.do("report a boot", report, None)
    tries.do("report a boot from a port of its own", report, 1024)
    tries.do("report a boot from a reserved port", report, 1001)
    tries.do("take the reports' port", take, reports)
    tries.do("the daemon's socket", elastic)
    tries.do("have the daemon act", request)
    tries.run("scontrol", "release", job)
    tries.run("scontrol", "update", f"JobId={job}", "Priority=1000")
    script = ["scontrol", "write", "batch_script", job, "-"]
    # The program also exits with 0 if it has no script.
    said = subprocess.run(script, capture_output=True, text=True, check=False)
    tries.do("another's script", lambda: said.stdout)
    tries.run("scontrol", "update", "NodeName=compute-0", "State=DOWN", "Reason=mine")
    tries.run("scontrol", "update", "PartitionName=compute", "State=DOWN")
    tries.run("scontrol", "reconfigure")
    tries.run("scontrol", "shutdown")
    tries.run("sbatch", f"--uid={ANOTHERS}", "--wrap=true")
    tries.run("scontrol", "token", f"username={ANOTHERS}")
    tries.run("scancel", "--state=PENDING", job)


def address_of(name: str) -> str:
    """Resolve a name. The test's resolver is away for a moment whenever a machine has ended."""
    deadline = time.monotonic() + RESOLVER_SECONDS
    while True:
        try:
            return socket.gethostbyname(name)
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def nfs() -> str:
    """Speaks to the server of /home as an NFS client that says it acts for root (RFC 5531, AUTH_SYS)."""
    from node.design.published import read_settings

    source = read_settings(Path("/opt/slurm-stacks/settings.json")).site.mounts["/home"].source
    assert source is not None
    server = address_of(source.partition(":")[0])
    root = struct.pack(
        ">5I", 0, 0, 0, 0, 0
    )  # stamp, the machine's empty name, user, group, no further groups
    call = struct.pack(">6I", 7, 0, 2, 100003, 4, 0)  # of NFS 4's procedure that does nothing
    call += struct.pack(">2I", 1, len(root)) + root + struct.pack(">2I", 0, 0)
    with socket.create_connection((server, 2049), SECONDS) as connection:
        connection.sendall(struct.pack(">I", 1 << 31 | len(call)) + call)
        answer = connection.makefile("rb").read(28)
    if answer[4:] != struct.pack(">6I", 7, 1, 0, 0, 0, 0):
        raise RuntimeError(f"it says {answer!r}")
    return "the file server takes the word of this client"


def file_server(tries: Tries) -> None:
    tries.do("speak NFS", nfs)
    # In a namespace of its own it is root, too.
    tries.run("unshare", "--user", "--map-root-user", sys.executable, __file__, "nfs")


CLOUDS = {"aws": aws, "gcp": google}


def main(provider: str, secret: str, job: str, port: str, reports: str) -> None:
    tries = Tries()
    role = CLOUDS[provider](tries, json.loads(secret))
    files(tries)
    file_server(tries)
    sockets(tries, job, int(port), int(reports))
    privileges(tries)
    show(tries, role)


def show(tries: Tries, role: str | None) -> None:
    print(
        json.dumps(
            {"got": tries.got, "tried": len(tries.why) + len(tries.got), "role": role, "why": tries.why}
        )
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["nfs"]:
            print(nfs())
        case ["cloud", provider, secret]:
            tries = Tries()
            show(tries, CLOUDS[provider](tries, json.loads(secret)))
        case arguments:
            main(*arguments)
