"""A runner that records commands and runs none, and machines of a cloud whose root is a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.report import BootReport, file_sink
from node.design.accelerators import Accelerator
from node.design.folders import Folders
from node.design.model import AwsPartition, Partition
from node.design.sites import AwsSite, GcpSite, MountSource
from node.design.storage import Mount
from tests.support.doubles import HEAD, FakeServices, design, settings
from tests.support.fake_metadata import SECRET

Answer = str | Exception | Callable[..., str]
COMPUTE = Partition("compute", "m4.large", 2, 7000, 0, 10, default=True)
V100 = Partition("v100", "p3dn.24xlarge", 96, 700000, 0, 4, Accelerator("v100", 8), aws=AwsPartition(efa=1))
T4 = Partition("t4", "g4dn.xlarge", 4, 15000, 0, 20, Accelerator("t4", 1))
NFS = (
    Mount("/home", "nfs", served_by="controller", options="rw,hard"),
    Mount("/apps", "nfs", served_by="controller", options="rw,hard"),
)
GCP_DRIVER = {"cluster": "t", "bucket": "t-bucket", "secret": SECRET, "region": "europe-west4"}


SITE_FIELDS = ("bucket", "secret", "cgroups")


def site_of(provider: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return a site from fields of `Site` and of its `cloud`."""
    fields = {key: known[key] for key in SITE_FIELDS if key in known}
    mounts = {path: MountSource(**its) for path, its in known.get("mounts", {}).items()}
    rest = {key: value for key, value in known.items() if key not in fields and key != "mounts"}
    cloud = (AwsSite if provider == "aws" else GcpSite)(**rest)
    return {**fields, "mounts": mounts, "cloud": cloud}


class Recorder:
    """Records commands. A command that begins with the words of an answer gets it, any other gets ""."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.options: list[dict[str, Any]] = []
        self._answers: list[tuple[tuple[str, ...], Answer]] = []

    def answer(self, words: str, answer: Answer) -> None:
        self._answers.insert(0, (tuple(words.split()), answer))

    def fail(self, words: str, status: int = 1, said: str = "") -> None:
        self.answer(words, CommandError(f"{words}: exit status {status}\n{said}".rstrip(), status))

    def __call__(self, *argv: str, **options: Any) -> str:
        self.calls.append(" ".join(argv))
        self.options.append(options)
        for words, answer in self._answers:
            if argv[: len(words)] == words:
                if isinstance(answer, Exception):
                    raise answer
                return answer(*argv) if callable(answer) else answer
        return ""

    def having(self, *words: str) -> list[str]:
        """Return the calls that contain all of these words, in order."""
        return [call for call in self.calls if all(word in call.split() for word in words)]


def machine(
    folder: Path,
    role: str = "compute",
    host: str = "compute-0",
    *,
    partitions: tuple[Partition, ...] = (COMPUTE, V100, T4),
    mounts: tuple[Mount, ...] = NFS,
    driver: dict[str, Any] | None = None,
    provider: str = "aws",
    suite: str = "noble",
    **changes: Any,
) -> tuple[Context, Recorder]:
    """Return a cloud's machine that is about to boot. Its root is `folder/root`."""
    root = folder / "root"
    for name in ("etc", "opt/slurm-stacks/current", "home", "apps", "dev", "sys/block"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/os-release").write_text(f'ID=any\nVERSION_CODENAME="{suite}"\n')
    cluster_design = design(
        *partitions,
        isolation="vm",
        provider=provider,
        hosts=(HEAD,),
        mounts=mounts,
        region="eu-west-1",
        **changes,
    )
    its = settings(
        root,
        cluster_design,
        user="slurm",
        shared=str(root / "home"),
        apps=str(root / "apps"),
        slurmctld_port=6817,
        slurmd_port=6818,
        controller_host="controller",
        controller_address="10.0.0.5",
        **site_of(provider, driver or {}),
    )
    recorder = Recorder()
    report = BootReport(host, role, [file_sink(folder / "report.json")])
    context = Context(its, root / "settings.json", role, host, Folders(its), FakeServices(), report, recorder)
    return context, recorder


def gcp_machine(
    folder: Path, role: str = "compute", host: str = "compute-0", **more: Any
) -> tuple[Context, Recorder]:
    """Return such a machine on Google Cloud."""
    return machine(folder, role, host, provider="gcp", **{"driver": GCP_DRIVER, **more})
