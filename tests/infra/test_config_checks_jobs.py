"""Impossible hooks, local settings, budgets, AWS Batch stacks and benchmarks: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import (
    ENROOT_DEB,
    check_refusal,
    ours,
    pyxis,
)
from tests.support.stack_values import CLUSTER, REMOVE, values

SLURM_DEBS = pyxis("s3://bucket/slurmd.deb")["packages"]
MIRROR = {"url": "https://h/apt", "suite": "noble", "key": "https://h/key.asc", "fingerprint": "A" * 40}

# stack, changes, path of the one mistake, words that its message must have
REFUSED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    # hooks, local, login
    ("aws", {"hooks[0]": {"role": "all", "source": "/root/x.sh"}}, "hooks[0].source", ["this project"]),
    ("aws", {"hooks[0]": {"role": "all", "source": "a/../../x"}}, "hooks[0].source", ["this project"]),
    ("aws", {"hooks[0]": {"role": "all", "source": "gs://b/x"}}, "hooks[0].source", ["s3://"]),
    ("local", {"hooks[0]": {"role": "all", "source": "https://b/x"}}, "hooks[0].source", ["this project"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "http://b/x"}}, "hooks[0].source", ["not protected"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://My_Bucket/x"}}, "hooks[0].source", ["pt My_Bucket"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://10.0.0.1/x"}}, "hooks[0].source", ["pt 10.0.0.1"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://googol/x"}}, "hooks[0].source", ["pt googol"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://ab/x"}}, "hooks[0].source", ["3 to 63"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs:///x"}}, "hooks[0].source", ["an empty name"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket"}}, "hooks[0].source", ["one object"]),
    ("local", {"hooks[0]": {"role": "all"}}, "hooks[0]", ["either source or script"]),
    ("local", {"containers": {"runtime": "oci"}}, "containers.runtime", ["isolation: container"]),
    ("aws", {"containers": {"runtime": "docker"}}, "containers.runtime", ["oci"]),
    ("aws", {"containers": {"runtime": "oci", "image": "x"}}, "containers.image", []),
    ("aws", {"containers": {"runtime": "oci", "packages": []}}, "containers.packages", ["runtime: pyxis"]),
    ("aws", {"containers": {"runtime": "pyxis"}}, "containers.packages", ["Enroot", "image"]),
    ("local", {"containers": pyxis(ENROOT_DEB)}, "containers.runtime", ["isolation: container"]),
    ("aws", {"containers": pyxis("https://h/enroot.rpm")}, "containers.packages[0].source", [".deb"]),
    ("aws", {"containers": pyxis("gs://b/e.deb")}, "containers.packages[0].source", ["s3://", "https://"]),
    ("aws", {"containers": pyxis("http://h/e.deb")}, "containers.packages[0].source", ["not protected"]),
    ("aws", {"containers": pyxis("/e.deb")}, "containers.packages[0].source", ["inside this project"]),
    ("aws", {"containers": pyxis(ENROOT_DEB, "A" * 64)}, "containers.packages[0].sha256", ["sha256sum"]),
    ("aws", {"containers": pyxis(ENROOT_DEB, images="enroot")}, "containers.images", ["absolute path"]),
    ("gcp", {"containers": pyxis("gs://b/f/")}, "containers.packages[0].source", [".deb"]),
    # Slurm's origin
    ("aws", {"slurm.source": "debian-13"}, "slurm.source", ["only with image: {bake: true}"]),
    (
        "aws",
        {
            "slurm.source": "debian-13",
            "image.bake": True,
            "partitions[0].image": {"id": "ami-0123456789abcdef0"},
        },
        "partitions[0].image",
        ["not baked"],
    ),
    ("aws", {"slurm.source": "debian-12", "image.bake": True}, "slurm.source", ["debian-13"]),
    ("local", {"slurm.source": "debian-13"}, "slurm.source", ["isolation: container"]),
    ("local", {"slurm.repository": MIRROR}, "slurm.repository", ["isolation: container"]),
    (
        "aws",
        {"slurm.repository": MIRROR, "slurm.packages": SLURM_DEBS},
        "slurm",
        ["one of"],
    ),
    (
        "aws",
        {"slurm.packages": pyxis("http://h/e.deb")["packages"]},
        "slurm.packages[0].source",
        ["https://"],
    ),
    ("aws", {"slurm.packages": pyxis("s3://b/e.rpm")["packages"]}, "slurm.packages[0].source", [".deb"]),
    (
        "aws",
        {"slurm.packages": SLURM_DEBS * 2},
        "slurm.packages[1].sha256",
        ["another hash"],
    ),
    ("aws", {"slurm.repository": MIRROR | {"key": "http://h/k"}}, "slurm.repository.key", ["https://"]),
    ("aws", {"slurm.repository": MIRROR | {"suite": "a b"}}, "slurm.repository.suite", ["deb line"]),
    (
        "gcp",
        {"slurm.repository": MIRROR | {"fingerprint": "A1"}},
        "slurm.repository.fingerprint",
        ["40 or"],
    ),
    ("batch", {"@enabled": False, "containers": {"runtime": "oci"}}, "containers", ["under `batch`"]),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "a.sh", "script": "#!/bin/sh"}},
        "hooks[0]",
        ["source and script"],
    ),
    ("aws", {"hooks[0]": {"role": "all", "script": "echo\n"}}, "hooks[0].script", ["begin with #!/bin/bash"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/f/"}}, "hooks[0].source", ["one object"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/a\nb"}}, "hooks[0].source", ["line breaks"]),
    ("local", {"health": {"enabled": True}}, "health.enabled", ["there is nothing to check"]),
    ("aws", {"health": {"enabled": False, "skip": ["efa"]}}, "health.skip", ["remove one of them"]),
    ("aws", {"health": {"skip": ["gpu"]}}, "health.skip[0]", ["memory_rows"]),
    ("aws", {"health": {"interval_seconds": 1}}, "health.interval_seconds", ["5"]),
    ("batch", {"@enabled": False, "health": {"skip": ["efa"]}}, "health", ["no Slurm"]),
    ("gcp", {"slurm.prolog": {"source": "gs://b/a.sh"}}, "slurm.prolog.source", ["a path in this project"]),
    ("local", {"slurm.epilog": {"source": "/a.sh"}}, "slurm.epilog.source", ["inside this project"]),
    ("batch", {"@enabled": False, "slurm.prolog": {"source": "a.sh"}}, "slurm", ["no slurm"]),
    ("local", {"login.count": 1}, "login.count", ["this machine"]),
    ("aws", {"local": {"boot_delay": 1.0}}, "local", ["settings of aws"]),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.quota_nodes": 2},
        "local.quota_nodes",
        ["3 or more"],
    ),
    (
        "local",
        {
            "partitions[0].accelerator": {"type": "v100", "count": 4},
            "partitions[0].nodes.min": 2,
            "local.quota_gpus": 7,
        },
        "local.quota_gpus",
        ["8 or more", "devices"],
    ),
    ("local", {"local.capacity": {"debig": 2}}, "local.capacity.debig", ["the pools debug", "mean debug?"]),
    (
        "local",
        {"partitions[0].zones": ["a", "b"], "local.capacity": {"debug/c": 2}},
        'local.capacity["debug/c"]',
        ["debug, debug/a, debug/b"],
    ),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.capacity": {"debug": 2}},
        "local.capacity.debug",
        ["3 or more", "debug are static"],
    ),
    (
        "local",
        {
            "partitions[0].zones": ["a", "b"],
            "partitions[0].nodes.min": 3,
            "local.capacity": {"debug/a": 1, "debug/b": 1},
        },
        "local.capacity",
        ["3 or more in its zones together"],
    ),
    # budgets with unknown prices, and budgets that nothing watches
    (
        "aws",
        {"partitions[0].instance_type": "t8i.medium", "budget.max_usd": 100},
        "budget.max_usd",
        ["there is none for t8i.medium", "instance_types: {t8i.medium: {price_hour: …}}", "max_hours"],
    ),
    # AWS Batch
    ("aws", {"batch": values("batch")[CLUSTER]["batch"]}, "scheduler", ["batch, where"]),
    ("batch", {"batch": REMOVE}, "batch", ["the section `batch`"]),
    ("gcp", {"scheduler": "batch", "@enabled": False}, "scheduler", ["slurm on gcp", "AWS Batch"]),
    (
        "batch",
        {"partitions": [{"name": "cpu", "instance_type": "m5.large"}]},
        "partitions",
        ["no partitions"],
    ),
    ("batch", {"batch.instance_types": ["p3.16xlarge"]}, "batch.instance_types[0]", ["retired"]),
    ("batch", {"batch.vcpus.desired": 5000}, "batch.vcpus", ["min up to desired up to max"]),
    ("batch", {"batch.vcpus.max": 200}, "batch.vcpus.max", ["384 or more"]),
    ("batch", {"batch.container.vcpus": 97}, "batch.container.vcpus", ["at most 96"]),
    ("batch", {"batch.container.memory_mib": 786432}, "batch.container.memory_mib", ["less than"]),
    ("batch", {"batch.container.gpus": 9}, "batch.container.gpus", ["at most 8"]),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 160}},
        "batch.container.environment.MPI_GPUS",
        ["32: 4 nodes with 8 GPUs"],
    ),
    (
        "batch",
        {"batch.container.environment": {"AWS_BATCH_X": "1"}},
        "batch.container.environment.AWS_BATCH_X",
        ["do not start with AWS_BATCH"],
    ),
    ("batch", {"image": REMOVE}, "image.id", ["no driver", "580", "bake: true"]),
    ("batch", {"batch.efa": True}, "batch.efa", ["placement group"]),
    (
        "batch",
        {
            "batch.efa": True,
            "batch.placement_group": "g",
            "batch.instance_types": ["g4dn.xlarge"],
            "batch.container": {"image": "train", "vcpus": 4, "memory_mib": 8000},
        },
        "batch.efa",
        ["no Elastic Fabric Adapter"],
    ),
    ("batch", {"batch.container.repository": "own"}, "batch.container.repository", ["beside `image`"]),
    ("batch", {"batch.container.repository": "Own"}, "batch.container.repository", ["a name in ECR"]),
    ("batch", {"batch.container.command": ["a", "Ref::manifest"]}, "batch.container.command", ["start_on"]),
    (
        "batch",
        {"batch.container.command": ["train", "--lr", "Ref::lr"]},
        "batch.container.command",
        ['"Ref::lr"', "write batch: {parameters: {lr: …}}"],
    ),
    (
        "batch",
        {"batch.container.command": ["train"], "batch.parameters": {"lr": 0.1}},
        "batch.parameters.lr",
        ["as Ref::lr"],
    ),
    ("batch", {"batch.instance_types": ["p3"]}, "batch.instance_types[0]", ["take p3dn.24xlarge"]),
    ("batch", {"batch.instance_types": ["optimal"]}, "batch.instance_types[0]", ["take one type"]),
    (
        "batch",
        {"batch.container.environment": {"LONG": "x" * 24600}},
        "batch.container.environment",
        ["24576 bytes", "job definition"],
    ),
    ("batch", {"hooks": [{"role": "all", "script": "#!/bin/sh"}]}, "hooks", ["container"]),
    ("batch", {"login": {"count": 1}}, "login", ["no login machine"]),
    ("batch", {"storage.home": {"kind": "nfs"}}, "storage.home.kind", ["fsx_lustre or efs"]),
    ("batch", {"storage.local_scratch": {}}, "storage.local_scratch", ["batch.volumes"]),
    ("batch", {"batch.file_system": "job"}, "batch.file_system", ["s3_import"]),
    ("batch", {"storage.buckets": [{"bucket": "s3://abc", "path": "/b"}]}, "storage.buckets", ["s3_import"]),
    ("batch", {"batch.instance_types": ["trn1.32xlarge"]}, "batch.instance_types[0]", ["NVIDIA"]),
    (
        "batch",
        {"batch.tags": {"aws:x": "1"}},
        "slurm-stacks:cluster.batch.tags.aws:x",
        ["do not start with aws:"],
    ),
    (
        "batch",
        {"batch.container.shared_memory_mib": 424001},
        "batch.container.shared_memory_mib",
        ["at most 424000"],
    ),
    (
        "batch",
        {"batch.container.environment": {"A B": "1"}},
        'batch.container.environment["A B"]',
        ["letters, digits and underscores"],
    ),
    (
        "batch",
        {"batch.container.volumes": [{"source": "/a"}, {"source": "/b", "path": "/a"}]},
        "batch.container.volumes[1].path",
        ["each folder once"],
    ),
    (
        "batch",
        {"batch.instance_types": ["r5.24xlarge"], "batch.container.environment": {"MPI_GPUS": 4}},
        "batch.container.environment.MPI_GPUS",
        ["r5.24xlarge has no GPU"],
    ),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 33, "SLURM_STACKS_LAUNCH": "mpi"}},
        "batch.container.environment.MPI_GPUS",
        ["at most 32"],
    ),
    *(
        ("batch", ours(**variables), f"batch.container.{path}", words)
        for variables, path, words in (
            ({"JOB_DIR": None}, "environment.JOB_DIR", ["/fsx/resized"]),
            ({"JOB_DIR": "/scratch/x"}, "environment.JOB_DIR", ["all nodes see"]),
            ({"SCRATCH_DIR": "x"}, "environment.SCRATCH_DIR", ["absolute"]),
            ({"BATCH_SIZE": 0}, "environment.BATCH_SIZE", ["1 or more"]),
            ({"SLURM_STACKS_LAUNCH": "srun"}, "environment.SLURM_STACKS_LAUNCH", ["processes, mpi"]),
            ({"SLURM_STACKS_LAUNCH": "mpi"}, "command", ["does not use MPI"]),
        )
    ),
    ("batch", {"batch.container.cached": True}, "batch.container.cached", ["image: {bake: true}"]),
    (
        "batch",
        {"batch.container.cached": True, "image": {"bake": True}, "batch.disk_gib": 40},
        "batch.disk_gib",
        ["48 or more"],
    ),
    (
        "batch",
        {
            "batch.file_system": "job",
            "storage.scratch": {
                "kind": "fsx_lustre",
                "size_gib": 1200,
                "deployment": "PERSISTENT_2",
                "throughput": 125,
                "s3_import": "s3://data/train",
            },
        },
        "storage.scratch.deployment",
        ["SCRATCH_2"],
    ),
    ("batch", {"@enabled": True}, "@enabled", ["scheduler batch"]),
    # benchmark
    ("local", {"@partition": "gpu"}, "@partition", ["debug"]),
    ("local", {"@nodes": 5}, "@nodes", ["at most 4", "debug"]),
    ("local", {"local.quota_nodes": 1}, "@nodes", ["at most 1", "quota"]),
    # a training that would run on the CPUs of Trainium's or Inferentia's machines
    (
        "aws",
        {"partitions[0].instance_type": "trn1.32xlarge"},
        "@partition",
        ["default partition, cpu", "run on the CPUs", "16 idle devices of type trainium", "enabled: false"],
    ),
    (
        "aws",
        {"partitions[0].instance_type": "inf2.xlarge", "@partition": "cpu"},
        "@partition",
        ["beside 1 idle device of type inferentia2", "examples/neuron.sh"],
    ),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100"}, "@gpus_per_node": 1},
        "@gpus_per_node",
        ["simulated"],
    ),
    ("gcp", {"@gpus_per_node": 2}, "@gpus_per_node", ["at most 1"]),
    ("aws", {"@gpus_per_node": 1}, "@gpus_per_node", ["at most 0"]),
    ("aws", {"partitions[1].default": True, "@gpus_per_node": 9}, "@gpus_per_node", ["at most 8"]),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "words"),
    REFUSED,
    ids=[f"{stack}-{path}-{i}" for i, (stack, _, path, _) in enumerate(REFUSED)],
)
def test_refused(stack: str, changes: dict[str, Any], path: str, words: list[str]) -> None:
    check_refusal(stack, changes, path, words)
