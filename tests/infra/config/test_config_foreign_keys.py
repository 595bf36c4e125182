"""What people paste from posts and other tools' files: each word gets our key, and following it works.

The words are held to their sources: the files of the five published systems, and the references of the tools
that they were written for (slurm-gcp's schema, ParallelCluster's and the Cluster Toolkit's variables).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config import ClusterConfig, ConfigError, foreign_keys, load_file
from infra.config.foreign_keys import WORDS
from infra.config.load import CLUSTER, LOCATION_KEYS
from infra.config.mistakes import _places
from infra.config.partitions import PoolConfig
from infra.design import design
from infra.instance_types.catalog import catalog
from tests.support import sentences
from tests.support.stack_values import mistakes, values

SLURM_GCP = """\
imports:
- path: slurm.jinja
resources:
- name: slurm-cluster
  type: slurm.jinja
  properties:
    cluster_name: slurm8
    zone: europe-west4-a
    controller_machine_type: n1-standard-2
    login_machine_type: n1-standard-2
    compute_image_machine_type: n1-standard-2
    default_users:
    partitions:
    - name: debug
      machine_type: n1-standard-2
      max_node_count: 8
      zone: europe-west4-a
      gpu_type: nvidia-tesla-v100
      gpu_count: 1
"""
"""The file of the post on GPUs; that of the first post has the same words without the last two."""
PARALLELCLUSTER_2 = (
    "aws_region_name", "scheduler", "base_os", "key_name", "master_instance_type", "compute_instance_type",
    "initial_queue_size", "max_queue_size", "maintain_initial_size", "vpc_id", "master_subnet_id",
    "compute_subnet_id", "custom_ami", "post_install", "cluster_type", "scaledown_idletime", "vpc_settings",
    "fsx_settings", "ebs_settings", "min_vcpus", "desired_vcpus", "max_vcpus", "shared_dir", "ec2_iam_role",
)  # fmt: skip
"""What `pcluster configure` of the second post wrote, and its usual neighbours."""
PARALLELCLUSTER_3 = """\
Region: us-east-1
Imds: {ImdsSupport: v2.0}
Image: {Os: alinux2, CustomAmi: ami-0123456789abcdef0}
HeadNode:
  InstanceType: m5.8xlarge
  Networking: {SubnetId: subnet-12345678}
  Ssh: {KeyName: mine}
  LocalStorage: {RootVolume: {Size: 500}}
  Iam: {AdditionalIamPolicies: [{Policy: some}]}
  CustomActions: {OnNodeConfigured: {Sequence: [{Script: some}]}}
Scheduling:
  Scheduler: slurm
  SlurmSettings: {ScaledownIdletime: 60}
  SlurmQueues:
  - Name: compute-gpu
    CapacityType: ONDEMAND
    Networking: {SubnetIds: [subnet-12345678], PlacementGroup: {Enabled: true}}
    ComputeSettings:
      LocalStorage: {EphemeralVolume: {MountDir: /local_scratch}, RootVolume: {Size: 200}}
    CapacityReservationTarget: {CapacityReservationId: cr-0123456789abcdef0}
    ComputeResources:
    - {Name: ml, InstanceType: p4de.24xlarge, MinCount: 4, MaxCount: 4, Efa: {Enabled: true}}
SharedStorage:
- Name: fsx
  MountDir: /fsx
  StorageType: FsxLustre
  FsxLustreSettings: {StorageCapacity: 4800, PerUnitStorageThroughput: 250, DeploymentType: PERSISTENT_2}
- {Name: ebs, StorageType: Ebs, MountDir: /apps, EbsSettings: {VolumeType: gp3, Size: 200}}
Monitoring: {DetailedMonitoring: true}
"""
"""The keys of the published templates for p4de."""
CONTAINERS = {
    "Networking", "Ssh", "LocalStorage", "ComputeSettings", "CapacityReservationTarget", "Efa", "RootVolume",
    "EphemeralVolume", "PlacementGroup", "FsxLustreSettings", "EbsSettings", "ImdsSupport", "Os", "path",
    "AdditionalIamPolicies", "Policy", "OnNodeConfigured", "Sequence", "Script", "DetailedMonitoring",
}  # fmt: skip
"""Keys without an answer of their own: only the keys in them, or the section around them, have one."""
JOB_DEFINITION = """\
{"jobDefinitionName": "mnptensorflow-gpu-mnp1", "jobDefinitionArn": "arn", "revision": 2, "status": "ACTIVE",
 "type": "multinode", "parameters": {}, "retryStrategy": {"attempts": 1},
 "nodeProperties": {"numNodes": 20, "mainNode": 0, "nodeRangeProperties": [
   {"targetNodes": "0:19", "container": {"image": "mnp-tensorflow", "vcpus": 62, "memory": 424000,
   "command": [], "jobRoleArn": "arn",
   "volumes": [{"host": {"sourcePath": "/scratch"}, "name": "scratch"}],
   "environment": [{"name": "JOB_DIR", "value": "/fsx/resized"}],
   "mountPoints": [{"containerPath": "/fsx", "sourceVolume": "fsx"}], "ulimits": [],
   "instanceType": "p3.16xlarge"}}]}}
"""
"""The job definition of the post on AWS Batch, which YAML reads as it is."""
PARTS_OF_IT = {"host", "name", "value", "sourceVolume", "parameters"}
"""Keys in it that belong to the section around them, or are ours as well."""
BATCH = (
    "minvCpus", "desiredvCpus", "maxvCpus", "imageId", "serviceRole", "instanceRole", "instanceTypes",
    "computeEnvironmentName", "jobQueueName", "placementGroup", "ec2KeyPair",
)  # fmt: skip
"""What the post's form of the compute environment has, by the names of its API."""


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys(inner)}
    return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()


def refused(folder: Path, content: str) -> ConfigError:
    file = folder / "Pulumi.mine.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_file(file)
    return caught.value


def advice_of(error: ConfigError) -> dict[str, str]:
    """The advice by the key that it is for."""
    return {re.split(r"[.\]:]+", mistake.path)[-1]: mistake.advice for mistake in error.mistakes}


def test_every_key_that_a_word_leads_to_is_one_of_ours() -> None:
    ours = {re.sub(r"\[]", "", path) for paths in _places(ClusterConfig).values() for path in paths}
    of_pools = {f"partitions.pools.{key}" for key in PoolConfig.model_fields}
    for word, answer in WORDS.items():
        if answer.key:
            assert answer.key in ours | of_pools or answer.key in LOCATION_KEYS, word
        else:
            assert len(answer.note) > 20, word


def test_no_word_that_a_place_has_is_hidden_by_another_tools() -> None:
    """A key of ours, where it belongs, is no mistake, whoever else uses the word."""
    for word in WORDS:
        *around, name = word.split(".")
        assert not (around == [] and name in ClusterConfig.model_fields and name.islower()), word


@pytest.mark.parametrize("whole", [SLURM_GCP, PARALLELCLUSTER_3], ids=["slurm-gcp", "parallelcluster-3"])
@pytest.mark.parametrize("place", ["instead of the file", "under the cluster"])
def test_a_pasted_file_gets_an_answer_for_every_word(tmp_path: Path, whole: str, place: str) -> None:
    text = whole
    pasted = yaml.safe_load(whole)
    if place == "under the cluster":
        pasted = pasted["resources"][0]["properties"] if "resources" in pasted else pasted
        text = yaml.safe_dump({"config": {CLUSTER: {"provider": "aws", **pasted}}})
    error = refused(tmp_path, text)
    said = advice_of(error)
    ours = {"name", "partitions"}
    missing = keys(pasted) - CONTAINERS - said.keys() - ours
    assert not missing
    for key in keys(pasted) & said.keys():
        assert "remove it" not in said[key]
        assert "no key is called so" not in said[key], key


def test_a_pasted_job_definition_gets_an_answer_for_every_word(tmp_path: Path) -> None:
    pasted = yaml.safe_load(JOB_DEFINITION)
    cluster = {"provider": "aws", "scheduler": "batch", "batch": pasted}
    said = advice_of(refused(tmp_path, yaml.safe_dump({"config": {CLUSTER: cluster}})))
    assert keys(pasted) - PARTS_OF_IT - said.keys() == set()
    assert "write batch: {nodes: 20}" in said["numNodes"]
    assert "write batch: {container: {memory_mib: 424000}}" in said["memory"]
    assert "write batch: {attempts: 1}" in said["attempts"]


SILENT = """\
Region: us-east-1
HeadNode:
  Networking: {Proxy: {HttpProxyAddress: "http://proxy:3128"}}
  Iam: {S3Access: [{BucketName: data}]}
  Wibble: {Wobble: 1}
Scheduling:
  Scheduler: slurm
  SlurmSettings: {MungeKeySecretArn: arn, Dns: {DisableManagedDns: true}, EnableMemoryBasedScheduling: true}
  SlurmQueues:
  - Name: gpu
    JobExclusiveAllocation: true
    HealthChecks: {Gpu: {Enabled: true}}
    Networking: {SubnetIds: [subnet-12345678], PlacementGroup: {Enabled: true}, AssignPublicIp: true}
    ComputeResources: [{Name: ml, InstanceType: p4de.24xlarge, SpotPrice: 3.5, SchedulableMemory: 900000}]
SharedStorage:
- {Name: home, StorageType: FsxOpenZfs, MountDir: /home, FsxOpenZfsSettings: {VolumeId: fsvol-1}}
"""
"""Keys of ParallelCluster 3, some of which no table has."""


def test_a_key_of_a_pasted_section_that_no_table_has_is_named_and_not_lost(tmp_path: Path) -> None:
    error = refused(tmp_path, SILENT)
    lost = {
        re.split(r"[.\]:]+", mistake.path)[-1]
        for mistake in error.mistakes
        if mistake.code == "key.not-carried"
    }
    assert lost == {"Wibble", "HealthChecks", "AssignPublicIp", "SchedulableMemory"}
    said = advice_of(error)
    assert "partitions.exclusive" in said["JobExclusiveAllocation"]
    assert "storage.buckets" in said["S3Access"]
    assert said["PlacementGroup"] == foreign_keys.SECTION.note
    assert "partitions.placement" in said["Enabled"]
    assert {"Proxy", "MungeKeySecretArn", "Dns", "EnableMemoryBasedScheduling", "SpotPrice"} <= said.keys()
    assert "storage.home.existing" in said["FsxOpenZfsSettings"]
    assert "VolumeId" not in said, "the answer for its section stands for it"


def test_a_partitions_name_in_a_pasted_file_is_ours_and_the_deployments_is_not(tmp_path: Path) -> None:
    names = {m.path: m.advice for m in refused(tmp_path, SLURM_GCP).mistakes if m.path.endswith("name")}
    assert "partitions.name: write name: debug" in names["resources[0].properties.partitions[0].name"]
    assert "it names the deployment" in names["resources[0].name"]


@pytest.mark.parametrize("place", ["image.", "storage.", ""])
def test_a_section_of_the_cluster_toolkit_outside_of_a_module_is_just_unknown(place: str) -> None:
    (mistake,) = mistakes(values("aws", {f"{place}settings": {"PreemptMode": "REQUEUE"}}))
    assert (mistake.path, mistake.code) == (f"{CLUSTER}.{place}settings", "key.unknown")


def test_only_batchs_own_spelling_is_batchs() -> None:
    (mistake,) = mistakes(values("aws", {"partitions[0].PlacementGroup": {"Enabled": True}}))[:1]
    assert "batch" not in mistake.advice


@pytest.mark.parametrize("word", [*PARALLELCLUSTER_2, *BATCH])
def test_words_that_have_no_file_of_yaml(word: str) -> None:
    if word in ClusterConfig.model_fields:
        return
    answer = foreign_keys.find((CLUSTER, word))
    assert answer is not None
    assert answer.key or answer.note


# place, word of another tool, value
WORDS_AT: list[tuple[str, str, Any]] = [
    ("", "cluster_name", "slurm10"),
    ("", "zone", "europe-west4-a"),
    ("", "controller_machine_type", "n1-standard-2"),
    ("", "login_machine_type", "n1-standard-2"),
    ("", "master_instance_type", "m4.large"),
    ("", "max_queue_size", 10),
    ("", "suspend_time", 300),
    ("", "default_users", "ana@example.com"),
    ("", "key_name", "my key: secret!"),
    ("partitions[0].", "max_node_count", 8),
    ("partitions[0].", "static_node_count", 2),
    ("partitions[0].", "gpu_type", "nvidia-tesla-v100"),
    ("partitions[0].", "gpu_count", 1),
    ("partitions[0].", "zone", "europe-west4-a"),
    ("", "compute_subnet_id", "subnet-0123"),
    ("network.", "AllowedIps", "203.0.113.0/24"),
    ("partitions[0].", "preemptible_bursting", True),
    ("partitions[0].", "compute_disk_type", "pd-ssd"),
    ("partitions[0].", "cpu_platform", "Intel Skylake"),
    ("partitions[0].", "node_count_dynamic_max", 8),
    ("controller.", "disk_size_gb", 100),
]


@pytest.mark.parametrize(("where", "word", "value"), WORDS_AT)
def test_a_word_of_another_tool_is_known(where: str, word: str, value: Any) -> None:
    (found,) = mistakes(values("gcp", {f"{where}{word}": value}))
    assert (found.path, found.code) == (f"{CLUSTER}.{where}{word}", "key.of-another-tool")


def merged(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merged(into[key], value)
        else:
            into[key] = value


def test_who_does_what_the_message_says_gets_the_published_cluster(tmp_path: Path) -> None:
    """Each line of advice is followed to the letter; what has no line to write is left out."""
    pasted = yaml.safe_load(SLURM_GCP)["resources"][0]["properties"]
    cluster: dict[str, Any] = {"provider": "gcp", **pasted}
    error = refused(tmp_path, yaml.safe_dump({"config": {"gcp:project": "my-lab", CLUSTER: cluster}}))
    config: dict[str, Any] = {"gcp:project": "my-lab", CLUSTER: cluster}
    for mistake in error.mistakes:
        at, _, word = mistake.path.removeprefix(f"{CLUSTER}.").rpartition(".")
        section = cluster["partitions"][0] if at == "partitions[0]" else cluster
        if word not in keys(pasted) or word in ("partitions", "name"):
            continue
        section.pop(word)
        line = re.search(r"write ([a-z:_]+: (?:\{.*?\}+|\[.*?\]|[\w.-]+))", mistake.advice)
        if line and "…" not in line[1]:
            more = yaml.safe_load(f"{{{line[1]}}}") if not line[1].startswith("gcp:") else None
            if more is None:
                key, _, value = line[1].rpartition(": ")
                config[key] = value
            else:
                merged(section, more)
    file = tmp_path / "Pulumi.mine.yaml"
    file.write_text(yaml.safe_dump({"config": config}))
    cluster_design = design(load_file(file), catalog())
    assert (cluster_design.name, cluster_design.zone) == ("slurm8", "europe-west4-a")
    assert cluster_design.controller().instance_type == "n1-standard-2"
    (debug,) = cluster_design.partitions
    assert (debug.name, debug.instance_type, debug.min, debug.max) == ("debug", "n1-standard-2", 0, 8)
    assert debug.accelerator is not None
    assert (debug.accelerator.type, debug.accelerator.count) == ("v100", 1)
    assert debug.zones == ("europe-west4-a",)


MISPLACED: list[dict[str, Any]] = [
    {"partitions[0].efa": True},
    {"partitions[0].min": 1},
    {"resume_timeout": 600},
    {"instance_type": "m5.large"},
    {"wibble": 1},
]


@pytest.mark.parametrize("changes", MISPLACED, ids=str)
def test_a_key_of_ours_at_another_place(changes: dict[str, Any]) -> None:
    (found,) = mistakes(values("aws", changes))
    assert (found.path, found.code) == (f"{CLUSTER}.{next(iter(changes))}", "key.unknown")


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    configs = [values("gcp", {f"{where}{word}": value}) for where, word, value in WORDS_AT]
    configs += [values("aws", changes) for changes in MISPLACED]
    configs.append(values("aws", {"HeadNode": {"Wibble": 1}}))
    sentences.check(pytestconfig, __file__, (str(m) for config in configs for m in mistakes(config)))


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("slurmCPU-parallelcluster", "slurmcpu-parallelcluster"),
        ("Über_Cluster 2", "uber-cluster-2"),
        ("2nd", "nd"),
        ("X" * 40, "x" * 40),
    ],
)
def test_a_name_that_does_not_fit_gets_one_that_does(name: str, fits: str) -> None:
    (found,) = mistakes(values("aws", {"name": name}))
    assert found.advice == f"write {fits}"
    assert mistakes(values("aws", {"name": fits})) == []


def test_the_stacks_name_where_the_file_gives_none(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.slurmCPU.yaml"
    file.write_text(yaml.safe_dump({"config": {**values("local"), CLUSTER: {**values("local")[CLUSTER]}}}))
    content = yaml.safe_load(file.read_text())
    del content["config"][CLUSTER]["name"]
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="write name: slurmcpu"):
        load_file(file)
