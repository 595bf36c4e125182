"""The products that `tests/bench/peers.py` compares, each on a slurmctld of its own and a stand-in cloud.

All have the same nodes, by names that every product's rules allow: those of a partition `q0-dy-cr` on EC2
(ParallelCluster's queue `q0` and its compute resource `cr`), and of `t-q0` on Compute Engine (the nodeset
`q0` of slurm-gcp's cluster `t`). Nothing boots. A node that is asked for stays on its way up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from node.design.folders import Folders
from node.design.model import ClusterDesign, Partition, Settings, SlurmSettings
from node.design.sites import AwsSite, GcpSite
from node.elastic import programs
from node.slurm.hostlist import expand, fold
from node.system import rpc
from node.system.codec import from_json, to_json
from tests.bench.figures import ROOT
from tests.node.slurm_cluster import SlurmCluster
from tests.support import doubles
from tests.support.checkout import until
from tests.support.cpu_meter import Meter
from tests.support.peer_clouds import CLUSTER, DOMAIN, TABLE

PARTITIONS = 5
TIMERS = SlurmSettings(suspend_time=3600, resume_timeout=1800)
NAMES = {"aws": "q{}-dy-cr", "gcp": "t-q{}"}
TITLES = {"aws": "EC2", "gcp": "Compute Engine"}
LAUNCH = Path(__file__).with_name("peer_launch.py")
PATIENCE = 600.0
"""Seconds for what takes a minute on an idle machine."""


class Cloud:
    """A stand-in of a cloud in a process of its own, whose CPU time counts nowhere."""

    def __init__(self, name: str, meter: Meter, document: Path | None = None) -> None:
        self.name = name
        names = [NAMES[name].format(number) for number in range(PARTITIONS)]
        words = [sys.executable, "-m", "tests.support.peer_clouds", name, *names]
        words += ["--document", str(document)] if document else []
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        meter.outside.add(self._process.pid)
        assert self._process.stdout is not None
        self.site: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.url: str = self.site["url"]

    def tell(self, word: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/-/{word}", timeout=60) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    def calls(self) -> dict[str, int]:
        return dict(self.tell("state")["calls"])

    def living(self) -> int:
        return int(self.tell("state")["living"])

    def environment(self) -> dict[str, str]:
        """Return the variables by which a cloud's client library finds this stand-in."""
        if self.name == "aws":
            return {
                "AWS_ENDPOINT_URL": self.url,
                "AWS_ACCESS_KEY_ID": "dummy",
                "AWS_SECRET_ACCESS_KEY": "dummy",
                "AWS_DEFAULT_REGION": self.site["region"],
            }
        host = self.url.removeprefix("http://")
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "STORAGE_EMULATOR_HOST": self.url}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def plan(cloud: str, nodes: int) -> ClusterDesign:
    """Return a design whose nodes are spread over some partitions."""
    each = max(1, nodes // PARTITIONS)
    parts = [
        Partition(NAMES[cloud].format(i), "a", 2, 1000, 0, each, default=not i) for i in range(PARTITIONS)
    ]
    return doubles.design(*parts, provider=cloud, isolation="vm", slurm=TIMERS)


class CloudSlurm(SlurmCluster):
    """A slurmctld as on a cloud's controller, with this user's munged and free ports."""

    def __init__(self, design: ClusterDesign, cloud: Cloud, edit: Callable[[str], str]) -> None:
        # Only the daemon's own port is reserved: no node ever listens.
        super().__init__(doubles.design(), edit=lambda text: edit(self._with_munge(text)))
        site = {"bucket": cloud.site["bucket"], "secret": cloud.site["secret"]}
        self.site = dataclasses.replace(
            self.site, python=os.path.realpath(sys.executable), **site, cloud=self._cloud(cloud)
        )
        self.settings = Settings(design, self.site)
        self.folders = Folders(self.settings)

    @staticmethod
    def _cloud(cloud: Cloud) -> Any:
        return from_json(AwsSite if cloud.name == "aws" else GcpSite, cloud.site["cloud"])

    def _with_munge(self, text: str) -> str:
        return text.replace("AuthInfo=", f"AuthInfo=socket={self.folders.munge_socket},")


class Side:
    """A product on a Slurm of its own.

    Attributes:
        title: Its name in tables.
        edits: (pattern, text) that change our slurm.conf to the product's.
    """

    title = "slurm-stacks"
    edits: Sequence[tuple[str, str]] = ()

    def __init__(
        self, cloud: Cloud, meter: Meter, nodes: int, options: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.cloud, self.meter = cloud, meter
        self.design = plan(cloud.name, nodes)
        self._options = options
        self.slurm = CloudSlurm(self.design, cloud, self._edited)
        self._daemon: subprocess.Popen[bytes] | None = None

    def _edited(self, text: str) -> str:
        for pattern, new in (*self.edits, *self._options):
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        return text

    # --- the cluster ---------------------------------------------------------------------------------------

    def __enter__(self) -> Any:
        self.cloud.tell("clear")
        self.slurm.__enter__()
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise
        self.cloud.tell("reset")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            print(self.story(), file=sys.stderr)
        self.close()

    def story(self) -> str:
        """Return the ends of the logs, for an error's message."""
        logs = [file for pattern in ("*.log", "*.out") for file in sorted(self.slurm.root.rglob(pattern))]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in logs)

    def close(self) -> None:
        self.end_daemon()
        self.slurm.close()

    def prepare(self) -> None:
        """Write what the product needs, once slurmctld serves."""
        folders = self.slurm.folders
        code = Path(str(folders.code))
        (code / "node").symlink_to(ROOT / "node")
        self.settings_file = self.slurm.root / "settings.json"
        self.settings_file.write_text(json.dumps(to_json(self.slurm.settings)))
        programs.write(self.slurm.settings, self.settings_file)

    def run(self, *command: str) -> str:
        """Run a command of Slurm whose seconds count nowhere."""
        return self.meter.own(*command, env=self.slurm.environment(), cwd=self.slurm.root).stdout

    def ask(self, *command: str) -> str:
        """Run a command that only asks, until slurmctld answers: it may be busy with a thousand programs."""
        told = [""]

        def answered() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                told[0] = self.run(*command)
                return True
            return False

        until(answered, PATIENCE, " ".join(command))
        return told[0]

    def partition(self, number: int) -> str:
        """Return the name of a partition in this product's slurm.conf."""
        return self.design.partitions[number].name

    # --- the product ---------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        return {**self.slurm.environment(), **self.cloud.environment()}

    def start_daemon(self) -> None:
        """Start the product's daemon, and wait until it has all that it loads at its first call."""
        service = programs.daemon_service(self.slurm.settings, self.settings_file)
        # This Python has what a controller's distribution has beside its own.
        argv = [sys.executable, *service.argv[1:]]
        if self.cloud.name == "gcp":
            own = f"sys.path.append({str(ROOT)!r}); from tests.support.peer_pass import at_stand_in"
            argv[-1] = argv[-1].replace("; main(", f"; {own}; at_stand_in({self.cloud.url!r}); main(")
        self._spawn(argv, service.env)
        socket = str(self.slurm.folders.daemon_socket)
        until(lambda: Path(socket).exists(), PATIENCE, "the daemon")
        rpc.call(socket, "status", PATIENCE)
        rpc.call(socket, "status", PATIENCE)

    def _spawn(self, argv: Sequence[str], env: dict[str, str]) -> None:
        with self.log.open("wb") as log:
            self._daemon = subprocess.Popen(
                argv, env={**self.environment(), **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.meter.daemons.add(self._daemon.pid)

    @property
    def log(self) -> Path:
        return self.slurm.root / "daemon.log"

    def end_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self.meter.daemons.discard(self._daemon.pid)
            self._daemon = None

    def launched(self, count: int) -> bool:
        """Return whether the product knows that its machines are launched."""
        found = re.findall(r"launched (\S+) in one call", self.log.read_text())
        return len({node for text in found if text != "nothing" for node in expand(text)}) >= count

    def passes(self, number: int) -> dict[str, Any]:
        """Have the product look at everything `number` times. Returns the seconds of each look, and MiB."""
        self.end_daemon()
        url = [self.cloud.url] if self.cloud.name == "gcp" else []
        words = ["-m", "tests.support.peer_pass", str(self.settings_file), str(number), *url]
        return self._passes([sys.executable, *words])

    def _passes(self, words: Sequence[str]) -> dict[str, Any]:
        done = self.meter.own(*words, env={**os.environ, **self.environment()}, cwd=ROOT)
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Peer(Side):
    """A peer: its own programs, and none of ours.

    Args:
        python: The peer's own interpreter.
    """

    def __init__(self, *arguments: Any, python: Path, poll: int | None = None) -> None:
        self._python, self._poll = python, poll
        super().__init__(*arguments)

    @property
    def folder(self) -> Path:
        return self.slurm.root / "peer"

    def _edited(self, text: str) -> str:
        for line in (
            "PrologSlurmctld",
            "EpilogSlurmctld",
            "PrologEpilogTimeout",
            "RebootProgram",
            "ResumeFailProgram",
        ):
            text = re.sub(rf"^{line}=.*\n", "", text, flags=re.MULTILINE)
        return super()._edited(text)

    def prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)
        stubs = self.folder / "stubs"
        stubs.mkdir()
        self.stubs(stubs)
        for name in ("resume", "suspend"):
            words = shlex.join([str(self._python), str(LAUNCH), *self.program(name)])
            lines = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in self.environment().items())
            out = self.folder / f"{name}.out"
            program = Path(str(self.slurm.folders.code)) / "bin" / name
            script(program, f'#!/bin/sh\n{lines}exec {words} "$1" </dev/null >>{out} 2>&1\n')

    def stubs(self, folder: Path) -> None:
        """Make the commands that the peer's machine has and this one may not have."""
        raise NotImplementedError

    def program(self, name: str) -> list[str]:
        """Return the words with which `peer_launch` starts one of the peer's programs."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        path = f"{self.folder}/stubs:{self.slurm.environment()['PATH']}"
        return {
            **super().environment(),
            "PATH": path,
            "PEER_FOLDER": str(self.folder),
            "PEER_PARTITION": self.partition(0),
        }

    def launched(self, count: int) -> bool:
        """Return whether no ResumeProgram runs any more: it does all that there is to do."""
        return not self.meter.programs()


class ParallelCluster(Peer):
    """aws-parallelcluster-node: slurm_resume and clustermgtd."""

    title = "aws-parallelcluster-node"

    def partition(self, number: int) -> str:
        return super().partition(number).partition("-")[0]

    def _edited(self, text: str) -> str:
        # Its partitions are queues, and its nodes have the compute resource in their names.
        return super()._edited(re.sub(r"^PartitionName=(\w+)-dy-cr ", r"PartitionName=\1 ", text, flags=re.M))

    def prepare(self) -> None:
        super().prepare()
        binaries = self.folder / "slurm" / "bin"
        binaries.parent.mkdir()
        binaries.symlink_to("/usr/bin")
        queues = {self.partition(n): fold(p.nodes()) for n, p in enumerate(self.design.partitions)}
        pool = self.folder / "slurm" / "etc" / "pcluster"
        pool.mkdir(parents=True)
        (pool / "parallelcluster_partition_nodelist_mapping.json").write_text(json.dumps(queues))
        fleet = {
            "Api": "run-instances",
            "CapacityType": "on-demand",
            "Instances": [{"InstanceType": "c4.2xlarge"}],
        }
        (self.folder / "fleet.json").write_text(json.dumps({queue: {"cr": fleet} for queue in queues}))
        for section, name in (
            ("slurm_resume", "resume"),
            ("clustermgtd", "clustermgtd"),
            ("slurm_suspend", "suspend"),
        ):
            self._write(section, name)
        self.beat()

    def _write(self, section: str, name: str) -> None:
        values = {
            "region": self.cloud.site["region"], "cluster_name": CLUSTER, "dynamodb_table": TABLE,
            "hosted_zone": self.cloud.site["zone"], "dns_domain": DOMAIN,
            "head_node_private_ip": "10.0.0.1", "head_node_hostname": "head", "instance_id": "i-head",
            "fleet_config_file": self.folder / "fleet.json",
            "clustermgtd_heartbeat_file_path": self._heartbeat, "heartbeat_file_path": self._heartbeat,
            "logging_config": self._logging(name), "loop_time": self._poll or 60,
        }  # fmt: skip
        text = "".join(f"{key} = {value}\n" for key, value in values.items())
        (self.folder / f"{name}.conf").write_text(f"[{section}]\n{text}")

    @property
    def _heartbeat(self) -> Path:
        return self.folder / "heartbeat"

    def beat(self) -> None:
        """Write clustermgtd's sign of life, without which slurm_resume launches nothing."""
        self._heartbeat.write_text(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f%z"))

    def _logging(self, name: str) -> Path:
        """Return the peer's own configuration of logs, with another folder for them."""
        (own,) = self._python.parents[1].glob(
            f"lib/python*/site-packages/slurm_plugin/logging/parallelcluster_{name}_logging.conf"
        )
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        file = self.folder / f"{name}_logging.conf"
        file.write_text(own.read_text().replace("/var/log/parallelcluster", str(logs)))
        return file

    def stubs(self, folder: Path) -> None:
        # `sudo scontrol` is scontrol here. On a head node sudo costs some milliseconds more.
        (folder / "sudo").symlink_to("/usr/bin/env")
        script(folder / "get-compute-fleet-status.sh", '#!/bin/sh\necho \'{"status": "RUNNING"}\'\n')

    def program(self, name: str) -> list[str]:
        return ["pcluster", name]

    def environment(self, program: str = "resume") -> dict[str, str]:
        own = {
            "SLURM_BINARIES_DIR": f"{self.folder}/slurm/bin",
            "CONFIG_FILE": f"{self.folder}/{program}.conf",
        }
        return {**super().environment(), **own}

    def start_daemon(self) -> None:
        self._heartbeat.unlink()
        env = self.environment("clustermgtd")
        self._spawn([str(self._python), str(LAUNCH), "pcluster", "clustermgtd"], env)
        until(self._heartbeat.exists, PATIENCE, "clustermgtd's first pass")

    def passes(self, number: int) -> dict[str, Any]:
        env = self.environment("clustermgtd")
        done = self.meter.own(str(self._python), str(LAUNCH), "pcluster", "passes", str(number), env=env)
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


class SlurmGcp(Peer):
    """slurm-gcp: resume.py, and slurmsync.py once a minute, which is all that it has of a daemon."""

    title = "slurm-gcp"

    def __init__(self, *arguments: Any, scripts: Path, **more: Any) -> None:
        self._scripts = scripts
        super().__init__(*arguments, **more)

    def prepare(self) -> None:
        super().prepare()
        shutil.copytree(self._scripts, self.folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        site = self.cloud.site
        nodesets = {
            f"q{n}": {
                "nodeset_name": f"q{n}", "node_count_static": 0, "node_count_dynamic_max": p.max,
                "instance_template": site["cloud"]["templates"][p.name], "zone_policy_allow": [site["zone"]],
                "zone_target_shape": "ANY_SINGLE_ZONE", "enable_placement": False,
                "subnetwork": f"projects/p-1/regions/{site['region']}/subnetworks/s",
            }
            for n, p in enumerate(self.design.partitions)
        }  # fmt: skip
        partitions = {
            p.name: {"partition_name": p.name, "partition_nodeset": [f"q{n}"], "enable_job_exclusive": False}
            for n, p in enumerate(self.design.partitions)
        }
        config = {
            "slurm_cluster_name": CLUSTER, "project": site["project"], "slurm_bin_dir": "/usr/bin",
            "slurm_log_dir": str(self.folder), "output_dir": str(self.folder), "hybrid": True,
            "nodeset": nodesets, "partitions": partitions, "nodeset_tpu": {}, "nodeset_dyn": {},
        }  # fmt: skip
        # JSON is YAML.
        (self.folder / "config.yaml").write_text(json.dumps(config))

    def stubs(self, folder: Path) -> None:
        # Its restart of slurmctld by systemd must not reach this machine's.
        (folder / "sudo").symlink_to("/bin/true")
        (folder / "systemctl").symlink_to("/bin/true")

    def program(self, name: str) -> list[str]:
        return ["slurm-gcp", str(self.folder / "scripts"), f"{name}.py"]

    def environment(self) -> dict[str, str]:
        own = {"SLURM_CONFIG_YAML": f"{self.folder}/config.yaml", "PEER_CLOUD": self.cloud.url}
        return {**super().environment(), **own}

    def sync(self) -> subprocess.CompletedProcess[str]:
        """Run slurmsync once.

        Raises:
            AssertionError: A part of it failed, apart from the one that needs Slurm's JSON.
        """
        words = [str(self._python), str(LAUNCH), *self.program("slurmsync")]
        done = self.meter.own(*words, env=self.environment(), cwd=self.folder)
        failed = re.findall(
            r"^ERROR: failed to .*(?<!slurm reservation for scheduled maintenance)$", done.stdout, re.M
        )
        assert not failed, done.stdout
        return done

    def start_daemon(self) -> None:
        """Run slurmsync once, for the caches that it keeps, and from then on each minute, as by cron."""
        self.sync()
        period = self._poll or 60
        words = shlex.join([str(self._python), str(LAUNCH), *self.program("slurmsync")])
        # A window of a minute has one run, which is not at its end.
        loop = f"sleep {period / 2}; while :; do {words}; sleep {period}; done"
        self._spawn(["/bin/sh", "-c", loop], {})

    def passes(self, number: int) -> dict[str, Any]:
        seconds, most = [], 0.0
        for _ in range(number):
            before = self.meter.owned
            with self.meter.peak() as peak:
                self.sync()
            seconds.append(self.meter.owned - before)
            most = max(most, peak())
        return {"seconds": seconds, "memory": most}


# --- what Slurm says ---------------------------------------------------------------------------------------


def rpcs(text: str) -> Counter[str]:
    """Return how often slurmctld was asked for what, by sdiag's table of message types."""
    table = text.partition("statistics by message type")[2].partition("statistics by user")[0]
    return Counter(
        {name: int(count) for name, count in re.findall(r"^\s*(\w+)\s*\(\s*\d+\)\s*count:(\d+)", table, re.M)}
    )
