"""EC2 out of namespaces: machines with an address, files and processes of their own, which boot from their
user data, and one more that is AWS. Nothing of it is this host's, and no address but theirs is reached."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.local.cloud.machines import Boot
from infra.local.cloud.network import hosts_text
from tests.support.checkout import ROOT, until
from tests.support.cloud_programs import BUCKET
from tests.support.machine_programs import ENVIRONMENT, PATH, STATE
from tests.support.namespaces.maker import enter
from tests.support.namespaces.run import NamespaceRun, need_namespaces

CLOUD, CONTROLLER = "10.99.200.1", "10.99.0.2"
PORT, NFS = 5000, 2049
EFS = "fs-12345678.efs.eu-west-1.amazonaws.com"
URL = f"http://{CLOUD}:{PORT}"
METADATA = "169.254.169.254/32"
PROGRAMS = ("systemctl", "apt-get", "dpkg-query")


def need_ec2_machines() -> None:
    """Skip the test where such machines are not possible."""
    if os.geteuid() != 0:
        pytest.skip("machines with several users are root's to make")
    need_namespaces()
    if any(Path(place).resolve().is_relative_to("/home") for place in (ROOT, sys.base_prefix)):
        pytest.skip("this project or its Python is below /home, which is another folder on these machines")


class Ec2Land:
    """Args:
    nodes: names of those that may be launched.
    """

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self._run = NamespaceRun(folder)
        self.path = self._run.path
        names = {"controller": CONTROLLER, **{node: f"10.99.1.{i}" for i, node in enumerate(nodes)}}
        self.addresses = {**names, "cloud": CLOUD}
        # What a cluster shares as its software, machines see where it is: this project, wherever it lies.
        (self.path / "apps").symlink_to(ROOT)
        (self.path / "cloud" / "hosts").write_text(hosts_text(self.addresses))
        (self.path / "machine_programs.py").write_bytes(
            (ROOT / "tests" / "support" / "machine_programs.py").read_bytes()
        )
        self._machines: dict[str, int] = {}

    def start_cloud(self) -> dict[str, str]:
        """AWS, with a bucket, an empty secret and a launch template; their ids."""
        self._start("cloud")
        self._background("cloud", "aws", str(PORT), str(self.path))
        self._background("cloud", "listen", str(NFS))
        until(lambda: self._listens(PORT), 60, "moto")
        made: dict[str, str] = json.loads(self.engineer("make"))
        return made

    def boot(self, host: str, metadata: dict[str, str], user_data: str) -> None:
        """An instance's first boot, up to the end of its user data; its unit goes on."""
        self._start(host)
        content = self.path / f"{host}.json"
        content.write_text(json.dumps(metadata))
        places = "/usr/local/sbin"
        prepare = [
            f"ip address add {METADATA} dev lo",
            f"mkdir -p {STATE} {places} /usr/local/lib/python3.11/dist-packages",
            *(f"cp {self.path}/machine_programs.py {places}/{name}" for name in PROGRAMS),
            f"cp {self.path}/machine_programs.py /usr/sbin/mount.nfs4",
            *(f"sed -i '1i #!/usr/bin/python3 -I' {places}/{name}" for name in PROGRAMS),
            "sed -i '1i #!/usr/bin/python3 -I' /usr/sbin/mount.nfs4",
            f"chmod 755 {' '.join(f'{places}/{name}' for name in PROGRAMS)} /usr/sbin/mount.nfs4",
            f"echo {shlex.quote(str(_site_packages()))} >{STATE}/site-packages",
            f"printf 'AWS_ENDPOINT_URL={URL}\\nAWS_ENDPOINT_URL_S3={URL}\\n' >{ENVIRONMENT}",
            f"echo {CLOUD} {EFS} >>/etc/hosts",
            # This host's: an instance has none of it.
            "for at in /home /apps; do if mountpoint -q $at; then umount --lazy $at; fi; done",
            "rm -rf /etc/slurm /etc/munge/munge.key /opt/slurm-stacks /var/lib/slurm-stacks",
            # A machine that has just booted; a namespace's kernel has run for days.
            "mv /usr/sbin/slurmd /usr/sbin/slurmd.real",
            "printf '#!/bin/sh\\nexec /usr/sbin/slurmd.real -b \"$@\"\\n' >/usr/sbin/slurmd",
            "chmod 755 /usr/sbin/slurmd",
        ]
        self.shell(host, "set -e\n" + "\n".join(prepare))
        self._background(host, "imds", str(content))
        until(lambda: self.shell(host, "ss -Hltn 'sport = :80'"), 60, "the metadata service")
        self.shell(host, user_data)

    def report(self, host: str) -> dict[str, Any]:
        """The machine's boot report, as its bucket has it."""
        found: dict[str, Any] | None = json.loads(self.engineer("get", f"boot/{host}.json"))
        return found or {"state": None, "steps": []}

    def publish(self, objects: dict[str, bytes]) -> None:
        for key, content in objects.items():
            file = self.path / "object"
            file.write_bytes(content)
            self.engineer("put", key, str(file))

    def instances(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self.engineer("instances"))
        return found

    def engineer(self, *words: str) -> str:
        """What `cloud_programs` prints, run where AWS is."""
        program = ROOT / "tests" / "support" / "cloud_programs.py"
        return self._call("cloud", [sys.executable, str(program), *words])

    def shell(self, host: str, script: str) -> str:
        """What a script prints on a machine, which root runs there."""
        return self._call(host, ["sh"], script)

    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        """What IAM has been asked, with the access keys."""
        return [tuple(json.loads(line)) for line in (self.path / "asked").read_text().splitlines()]

    def files(self, *paths: str) -> dict[str, bytes | None]:
        """Files of this host's, which no machine may change."""
        return {p: Path(p).read_bytes() if Path(p).is_file() else None for p in paths}

    def close(self) -> None:
        self._run.close()

    def _start(self, host: str) -> None:
        boot = Boot(f"m-{len(self._machines)}-{os.getpid()}", "compute", host)
        self._machines[host] = self._run.maker.start(boot).pid
        until(lambda: self._call(host, ["hostname"]) == host, 60, f"{host}'s name")

    def _background(self, host: str, *words: str) -> None:
        program = ROOT / "tests" / "support" / "cloud_programs.py"
        line = shlex.join([sys.executable, str(program), *words])
        log = self.path / f"{host}-{words[0]}.log"
        self.shell(host, f"setsid {line} >{log} 2>&1 </dev/null &")

    def _listens(self, port: int) -> bool:
        return self.shell("cloud", f"ss -Hltn 'sport = :{port}'") != ""

    def _call(self, host: str, command: Sequence[str], given: str = "") -> str:
        environment = [f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", f"AWS_ENDPOINT_URL={URL}"]
        prefix = enter(self._machines[host], rootless=False, environment=environment, folder="/")
        done = subprocess.run(
            [*prefix, *command], input=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{host}: {shlex.join(command)}\n{given}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()


def _site_packages() -> Path:
    import boto3

    return Path(boto3.__file__).resolve().parents[1]


__all__ = ["BUCKET", "CONTROLLER", "EFS", "Ec2Land", "need_ec2_machines"]
