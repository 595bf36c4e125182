"""Starts a program of a peer with the peer's own Python, against stand-ins, in folders of its own.

    PYTHON tests/support/peer_launch.py pcluster resume NODES
    PYTHON tests/support/peer_launch.py pcluster passes NUMBER
    PYTHON tests/support/peer_launch.py slurm-gcp FOLDER SCRIPT [NODES]

Nothing of the peers is changed. Where they have a path or an address in their text, it is set to another one
before they run: the folder of logs and caches, the metadata server, the API's discovery document.
PEER_FOLDER and, for slurm-gcp, PEER_CLOUD (the stand-in's address) are in the environment.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import logging.config
import os
import resource
import runpy
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PEER_FOLDER", "/nonexistent"))


def main() -> None:
    peer, *words = sys.argv[1:]
    # The peers' own logging adds nothing to a root that has a handler, and their folder may not exist.
    name = Path(words[0 if peer == "pcluster" else 1]).stem
    logging.basicConfig(filename=FOLDER / f"launch-{name}.log", level=logging.INFO)
    if peer == "pcluster":
        pcluster(*words)
    else:
        slurm_gcp(*words)


def pcluster(program: str, *words: str) -> None:
    """Run slurm_resume, slurm_suspend or clustermgtd as its console script does, or time its passes."""
    if program == "passes":
        passes(int(words[0]))
        return
    job: Any = importlib.import_module("slurm_plugin.slurm_resources").SlurmResumeJob
    resume_file(set(inspect.signature(job).parameters))
    sys.argv = [f"slurm_{program}", *words]
    importlib.import_module(f"slurm_plugin.{program}").main()


def passes(number: int) -> None:
    """Print the CPU seconds of each of clustermgtd's passes, and the process's largest memory in MiB."""
    module: Any = importlib.import_module("slurm_plugin.clustermgtd")
    config = module.ClustermgtdConfig(os.environ["CONFIG_FILE"])
    manager = module.ClusterManager(config=config)
    logging.config.fileConfig(config.logging_config, disable_existing_loggers=False)
    print(json.dumps(timed(manager.manage_cluster, number)))
    manager.shutdown()


def timed(act: Any, number: int) -> dict[str, Any]:
    """Return the CPU seconds of each of `number` calls, children included, and the largest memory in MiB."""
    seconds = []
    for _ in range(number):
        before = spent()
        act()
        seconds.append(spent() - before)
        print("pass", flush=True)
    return {"seconds": seconds, "memory": largest()}


def largest() -> float:
    """Return this process's largest memory in MiB. Its ru_maxrss includes that of whoever started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


FIELDS = ("oversubscribe", "partition", "reservation", "features", "extra")
"""What a job of the resume file has from 23.02 on, beside its nodes."""


def resume_file(known: set[str]) -> None:
    """Give a peer the resume file in the form of the releases of Slurm that it was written for.

    Before 23.02 a job has its nodes as `nodes`, and nothing else. Later releases add fields that a peer's
    class of jobs refuses.

    Args:
        known: The fields of a job that the peer takes.
    """
    path = os.environ.get("SLURM_RESUME_FILE")
    if not path:
        return
    told = json.loads(Path(path).read_text())
    told["jobs"] = [as_known(job, known) for job in told["jobs"]]
    own = FOLDER / f"resume-file-{os.getpid()}"
    own.write_text(json.dumps(told))
    os.environ["SLURM_RESUME_FILE"] = str(own)


def as_known(job: dict[str, Any], known: set[str]) -> dict[str, Any]:
    if "nodes" in job:
        nodes = job["nodes"]
        job = {**dict.fromkeys(FIELDS), **job, "nodes_alloc": nodes, "nodes_resume": nodes}
        job |= {"oversubscribe": "NO", "partition": os.environ["PEER_PARTITION"]}
    return {name: value for name, value in job.items() if name in known}


def slurm_gcp(folder: str, script: str, *words: str) -> None:
    """Run a script of slurm-gcp as its interpreter line does."""
    cloud = os.environ["PEER_CLOUD"]
    sys.path.insert(0, folder)
    client: Any = importlib.import_module("googleapiclient.discovery")
    client.DISCOVERY_URI = f"{cloud}/discovery/v1/apis/{{api}}/{{apiVersion}}/rest"
    cache: Any = importlib.import_module("file_cache")
    kept = FOLDER / "cache"
    kept.mkdir(exist_ok=True)
    cache.cache = lambda name: cache.FileCache(_made(kept / name))
    util: Any = importlib.import_module("util")
    util.ROOT_URL = f"{cloud}/computeMetadata/v1"
    util.slurmdirs.prefix = Path("/usr")
    util.slurmdirs.state = FOLDER / "state"
    util.dirs.custom_scripts = FOLDER / "custom_scripts"
    resume_file({"job_id", "partition", "nodes_alloc", "nodes_resume"})
    sys.argv = [script, *words]
    runpy.run_path(str(Path(folder) / script), run_name="__main__")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
