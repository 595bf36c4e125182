"""The words of other tools for what a stack file configures, and the advice on what to write instead.

The words are those of the posts and templates that the stacks come from: slurm-gcp's deployment file
(`slurm-cluster.yaml` and `slurm.jinja.schema` of SchedMD/slurm-gcp), ParallelCluster 2 and 3 (its
configuration's reference, the templates of aws-samples/awsome-distributed-training), the Cluster Toolkit
(the variables of its slurm-gcp v6 modules), and the parameters of AWS Batch's API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Word:
    """What a word of another tool is here.

    Attributes:
        key: Our key from `slurm-stacks:cluster` on, as in `partitions.nodes.max`, or one with a namespace
            (`gcp:zone`); empty if there is none.
        note: What else there is to know; without a key: what does it instead, or why nothing does.
        same: Whether our key takes the other's value as it is.
        whole: Whether this answers the keys in it, too, if it is a section. Otherwise each key in it gets an
            answer of its own, and one without any is named.
        exact: Whether the case of its letters counts.
        listed: Whether our key takes a list of such values.
    """

    key: str = ""
    note: str = ""
    same: bool = True
    whole: bool = False
    exact: bool = False
    listed: bool = False


def _to(key: str, note: str = "") -> Word:
    """Return our key, which takes other values."""
    return Word(key, note, same=False, whole=True)


def _list(key: str, note: str = "a list") -> Word:
    """Return our key, which takes a list where the other takes one value, or a list as well."""
    return Word(key, note, whole=True, listed=True)


def _parts(key: str, note: str) -> Word:
    """Return our section, whose keys have answers of their own."""
    return Word(key, note, same=False)


def _not(note: str) -> Word:
    """Return the answer for a word that no key stands for."""
    return Word("", note, whole=True)


_USERS = _to("access.users", "a list of IAM's members: user:ada@example.com; users of OS Login, who submit")
_LABELS = _to("tags", "of all that the cluster makes; on Google Cloud they are labels")
_ROLE = _not("each role of machines has an account with the least that works: leave it out")
_OS = _to("image.source", "debian-13 or ubuntu-24.04; image: {id: …} takes an image made of Ubuntu 24.04")
_HYPERTHREADING = _to(
    "partitions.threads_per_core",
    "1; --hint=nomultithread changes nothing (docs/clouds.md)",
)
_HOOK = _to("hooks", "[{role: compute, source: …}], or role: controller, login or all (docs/hooks.md)")
_HOME = _parts("storage", "home, apps and scratch, each with kind, path and size_gib (docs/storage.md)")
_IDLE = _to("slurm.suspend_time", "in seconds; ScaledownIdletime has minutes")
_RESERVED = Word("partitions.reservation")
_VERSION = _not("no key chooses it: machines have the distribution's Slurm; leave it out")
_SPOT = _to("partitions.spot", "true or false")
_CLOSE = _to("partitions.placement", "cluster, or none")
_LUSTRE = "storage.scratch"
_QUEUE = _parts("partitions", "a list; each item has name, instance_type and nodes: {min, max}")
SECTION = Word("", "its keys have other places here, each in a line of its own in this message")
UNKNOWN = _not("nothing here takes its place, so it would be lost: leave it out, and look for it in docs/")
"""The answer for a key inside another tool's section that no table has."""
_NO_DISK_TYPE = _not("disks are gp3; gp3: {iops, throughput_mibs} beside disk_gib makes them faster")
_BALANCED = _not(
    "disks of controller and login machines are pd-balanced; nodes' are partitions: [{gcp: {disk_type: …}}]"
)
_EXTERNAL = _to(
    "access.mode", "ssh: a public address for the login machine; iap or ssm: none. Nodes have none"
)
_AWSS_OWN = _not("AWS gives it, nobody chooses it: leave it out")
_ACCOUNTING = _to("slurm.accounting", "true: slurmdbd with a database on the controller")
_SLURM_GCP = {
    "cluster_name": Word("name"),
    "zone": Word("gcp:zone"),
    "region": Word("gcp:region", "on AWS aws:region"),
    "partitions.name": Word("partitions.name"),
    "partitions.zone": _list("partitions.zones"),
    "network.zone": _list("network.zones"),
    "machine_type": Word("partitions.instance_type"),
    "controller.machine_type": Word("controller.instance_type"),
    "login.machine_type": Word("login.instance_type"),
    "controller_machine_type": Word("controller.instance_type"),
    "controller_disk_size_gb": Word("controller.disk_gib"),
    "controller_disk_type": _BALANCED,
    "controller_secondary_disk": _HOME,
    "controller_secondary_disk_size_gb": Word("storage.home.size_gib"),
    "controller_secondary_disk_type": _BALANCED,
    "login_machine_type": Word("login.instance_type", "and login: {count: 1} for a machine of its own"),
    "login_disk_size_gb": Word("login.disk_gib"),
    "login_disk_type": _BALANCED,
    "login_node_count": Word("login.count"),
    "compute_machine_type": Word("partitions.instance_type"),
    "compute_disk_size_gb": Word("partitions.disk_gib"),
    "compute_disk_type": Word("partitions.gcp.disk_type"),
    "compute_image_machine_type": _to("image.bake", "true makes an image; the machine for it is chosen"),
    "compute_image_disk_type": _to("image.bake", "true makes an image; its disk is chosen"),
    "compute_image_disk_size_gb": _to("image.bake", "true makes an image; its size is chosen"),
    "compute_image_family": _to("partitions.image.id", "an image of Ubuntu 24.04, projects/…/images/…"),
    "cpu_platform": Word("partitions.gcp.min_cpu_platform"),
    "max_node_count": Word("partitions.nodes.max"),
    "static_node_count": Word("partitions.nodes.min"),
    "gpu_type": Word("partitions.accelerator.type"),
    "gpu_count": Word("partitions.accelerator.count"),
    "preemptible_bursting": Word("partitions.spot"),
    "default_users": _USERS,
    "default_account": Word("slurm.default_account", "with accounting; everybody has it"),
    "cidr": Word("network.cidr"),
    "vpc_net": Word("network.gcp.network"),
    "vpc_subnet": Word("network.gcp.subnetwork"),
    "shared_vpc_host_project": _not("networks of other projects cannot be used so far"),
    "private_google_access": _not("the stack's own subnetwork always has it: leave it out"),
    "external_controller_ip": _EXTERNAL,
    "external_login_ips": _EXTERNAL,
    "external_compute_ips": _EXTERNAL,
    "network_storage": _to(
        "storage.home.existing", "server:/path; also under apps and scratch; storage.buckets for a bucket"
    ),
    "login_network_storage": _to("storage.home.existing", "server:/path; every machine mounts it"),
    "suspend_time": Word("slurm.suspend_time"),
    "slurm_version": _VERSION,
    "ompi_version": _not("Open MPI comes with EFA, or by a hook: leave it out"),
    "munge_key": _not("the controller makes one and keeps it in the secret store: leave it out"),
    "cloudsql": _ACCOUNTING,
    "controller_labels": _LABELS,
    "login_labels": _LABELS,
    "compute_labels": _LABELS,
    "compute_image_labels": _LABELS,
    "labels": _LABELS,
    "controller_service_account": _ROLE,
    "login_node_service_account": _ROLE,
    "compute_node_service_account": _ROLE,
    "controller_scopes": _ROLE,
    "login_node_scopes": _ROLE,
    "compute_node_scopes": _ROLE,
}  # fmt: skip
"""slurm-gcp, of Deployment Manager."""
_CLUSTER_TOOLKIT = {
    "project_id": Word("gcp:project"),
    "deployment_name": Word("name"),
    "slurm_cluster_name": Word("name"),
    "partition_name": Word("partitions.name"),
    "node_count_static": Word("partitions.nodes.min"),
    "node_count_dynamic_max": _to("partitions.nodes.max", "static and dynamic nodes together"),
    "disk_type": Word("partitions.gcp.disk_type"),
    "controller.disk_type": _BALANCED,
    "login.disk_type": _BALANCED,
    "disk_size_gb": Word("partitions.disk_gib"),
    "controller.disk_size_gb": Word("controller.disk_gib"),
    "login.disk_size_gb": Word("login.disk_gib"),
    "min_cpu_platform": Word("partitions.gcp.min_cpu_platform"),
    "guest_accelerator": _to("partitions.accelerator", "{type, count}, no list"),
    "preemptible": Word("partitions.spot"),
    "enable_spot_vm": Word("partitions.spot"),
    "enable_placement": _CLOSE,
    "enable_public_ips": _EXTERNAL,
    "reservation_name": _RESERVED,
    "is_default": Word("partitions.default"),
    "instance_image": _to("image.id", "projects/…/global/images/…, made of Ubuntu 24.04"),
    "startup_script": _HOOK,
    "controller_startup_script": _HOOK,
    "login_startup_script": _HOOK,
    "compute_startup_script": _HOOK,
    "enable_login": _to("login.count", "how many"),
    "bandwidth_tier": _to(
        "partitions.gcp.instance_template_overrides.network_performance_config",
        "{total_egress_bandwidth_tier: TIER_1}, and network_interfaces: [{nic_type: GVNIC}]",
    ),
    "network_name": Word("network.gcp.network"),
    "subnetwork_name": Word("network.gcp.subnetwork"),
    "subnetwork_self_link": _to("network.gcp.subnetwork", "its name alone"),
    "filestore_tier": _to("storage.home.tier", "with kind: filestore"),
    "local_mount": _to("storage.home.path", "and of apps and scratch"),
}  # fmt: skip
"""Google's Cluster Toolkit, in a blueprint's settings."""
_PARALLELCLUSTER_2 = {
    "aws_region_name": Word("aws:region"),
    "base_os": _OS,
    "key_name": Word("access.key", "with access: {mode: ssh}"),
    "master_instance_type": Word("controller.instance_type"),
    "master_root_volume_size": Word("controller.disk_gib"),
    "compute_instance_type": Word("partitions.instance_type"),
    "compute_root_volume_size": Word("partitions.disk_gib"),
    "initial_queue_size": Word("partitions.nodes.min", "if maintain_initial_size is true; else leave it out"),
    "max_queue_size": Word("partitions.nodes.max"),
    "maintain_initial_size": _to("partitions.nodes.min", "the nodes that stay up; false is min: 0"),
    "initial_count": Word("partitions.nodes.min"),
    "min_count": Word("partitions.nodes.min"),
    "max_count": Word("partitions.nodes.max"),
    "min_vcpus": Word("batch.vcpus.min"),
    "desired_vcpus": Word("batch.vcpus.desired"),
    "max_vcpus": Word("batch.vcpus.max"),
    "cluster_type": _to("partitions.spot", "true for spot"),
    "spot_price": _not("spot machines cost at most the price on demand: partitions: [{spot: true}]"),
    "spot_bid_percentage": _not("AWS Batch runs multi-node parallel jobs on demand only"),
    "scaledown_idletime": _IDLE,
    "shared_dir": _HOME,
    "ephemeral_dir": _to("storage.local_scratch.path", "and kind: nvme"),
    "custom_ami": Word("image.id", "made of Ubuntu 24.04"),
    "pre_install": _HOOK,
    "post_install": _HOOK,
    "post_install_args": _to("hooks.args", "a list"),
    "ec2_iam_role": _ROLE,
    "s3_read_resource": _to("storage.buckets", "[{bucket: s3://…, path: /data}] shows it as a folder"),
    "s3_read_write_resource": _to("storage.buckets", "with read_only: false"),
    "vpc_id": Word("network.aws.vpc"),
    "master_subnet_id": Word("network.aws.public_subnet"),
    "compute_subnet_id": _list("network.aws.private_subnets"),
    "vpc_settings": _parts("network.aws", "vpc, public_subnet, private_subnets"),
    "ebs_settings": _HOME,
    "efs_settings": _HOME,
    "fsx_settings": _HOME,
    "scaling_settings": _IDLE,
    "queue_settings": _QUEUE,
    "compute_resource_settings": _QUEUE,
    "enable_efa": _to("partitions.aws.efa", "true"),
    "disable_hyperthreading": _HYPERTHREADING,
    "additional_sg": _list("partitions.aws.security_groups", "a list; also controller.security_groups"),
    "additional_iam_policies": _ROLE,
    "cluster_template": _not("a stack file is one cluster: Pulumi.<stack>.yaml"),
}  # fmt: skip
"""ParallelCluster 2, whose file has `key = value`, and the words of `pcluster configure`."""
_PARALLELCLUSTER_3 = {
    "Region": Word("aws:region"),
    "Image": SECTION,
    "Image.Os": _OS,
    "CustomAmi": Word("image.id", "made of Ubuntu 24.04"),
    "SlurmQueues.CustomAmi": Word("partitions.image.id", "made of Ubuntu 24.04"),
    "HeadNode.CustomAmi": Word("controller.image.id", "made of Ubuntu 24.04"),
    "HeadNode": SECTION,
    "HeadNode.InstanceType": Word("controller.instance_type"),
    "HeadNode.SubnetId": Word("network.aws.public_subnet", "and network.aws.vpc"),
    "HeadNode.RootVolume.Size": Word("controller.disk_gib"),
    "KeyName": Word("access.key", "with access: {mode: ssh}"),
    "AllowedIps": _list("access.ssh_cidrs"),
    "ElasticIp": _to("access.mode", "ssh: the login machine keeps its public address"),
    "LoginNodes": SECTION,
    "LoginNodes.InstanceType": Word("login.instance_type"),
    "LoginNodes.Count": Word("login.count"),
    "Imds": _not("IMDSv2 is always demanded: leave it out"),
    "Iam": _ROLE,
    "CustomActions": _HOOK,
    "Scheduling": SECTION,
    "Scheduling.Scheduler": Word("scheduler"),
    "SlurmSettings": SECTION,
    "ScaledownIdletime": _IDLE,
    "SlurmSettings.Database": _ACCOUNTING,
    "QueueUpdateStrategy": _not("`up` replaces nodes when their jobs are over: leave it out"),
    "CustomSlurmSettings": _to(
        "slurm.settings", "{Option: value}; a queue's are settings: of its partition; lists get your words"
    ),
    "SlurmQueues": _QUEUE,
    "SlurmQueues.Name": Word("partitions.name"),
    "CapacityType": _to("partitions.spot", "true for SPOT; CAPACITY_BLOCK is aws: {capacity_block: true}"),
    "SubnetIds": _list("network.aws.private_subnets"),
    "PlacementGroup.Enabled": _CLOSE,
    "PlacementGroup.Name": Word("partitions.aws.placement_group"),
    "RootVolume.Size": Word("partitions.disk_gib"),
    "RootVolume.VolumeType": _NO_DISK_TYPE,
    "SlurmQueues.RootVolume.Iops": Word("partitions.aws.gp3.iops"),
    "SlurmQueues.RootVolume.Throughput": Word("partitions.aws.gp3.throughput_mibs"),
    "EphemeralVolume.MountDir": Word("storage.local_scratch.path", "and kind: nvme"),
    "CapacityReservationId": _RESERVED,
    "CapacityReservationResourceGroupArn": _RESERVED,
    "ComputeResources": _parts("partitions", "each is a partition: name, instance_type, nodes"),
    "ComputeResources.Name": Word("partitions.name"),
    "ComputeResources.Instances": _to("partitions.instance_type", "one type"),
    "InstanceType": Word("partitions.instance_type"),
    "MinCount": Word("partitions.nodes.min"),
    "MaxCount": Word("partitions.nodes.max"),
    "Efa.Enabled": Word("partitions.aws.efa"),
    "GdrSupport": _to("hooks", "GDRCopy: the example hook gdrcopy.sh"),
    "DisableSimultaneousMultithreading": _HYPERTHREADING,
    "SlurmQueues.AdditionalSecurityGroups": Word("partitions.aws.security_groups"),
    "HeadNode.AdditionalSecurityGroups": Word("controller.security_groups"),
    "LoginNodes.AdditionalSecurityGroups": Word("login.security_groups"),
    "S3Access": _to("storage.buckets", "[{bucket: s3://…, path: /data}] shows it as a folder"),
    "JobExclusiveAllocation": Word("partitions.exclusive"),
    "SpotPrice": _not("spot machines cost at most the price on demand: partitions: [{spot: true}]"),
    "EnableMemoryBasedScheduling": _not("jobs get the memory that they ask for, always: leave it out"),
    "MungeKeySecretArn": _not("the controller makes the key and keeps it in the secret store: leave it out"),
    "Dns": _not("machines find each other by their names without a hosted zone: leave it out"),
    "Proxy": _not("machines reach the internet by the stack's NAT gateway, or your network's: leave it out"),
    "Networking": SECTION,
    "Networking.PlacementGroup": SECTION,
    "FsxOpenZfsSettings": _to("storage.home.existing", "server:/path, as it exports NFS"),
    "FsxOntapSettings": _to("storage.home.existing", "server:/path, as it exports NFS"),
    "SharedStorage.Name": _not("home, apps and scratch are its names: leave it out"),
    "Iam.PermissionsBoundary": Word("aws.permissions_boundary"),
    "Iam.ResourcePrefix": _to("aws.role_path", "a path; the names begin with the cluster's name"),
    "SharedStorage": _HOME,
    "SharedStorage.MountDir": _to("storage.scratch.path", "and of home and apps"),
    "StorageType": _to("storage.scratch.kind", "FsxLustre is fsx_lustre, Ebs is nfs, Efs is efs"),
    "StorageCapacity": Word(f"{_LUSTRE}.size_gib"),
    "DeploymentType": Word(f"{_LUSTRE}.deployment"),
    "PerUnitStorageThroughput": Word(f"{_LUSTRE}.throughput"),
    "ImportPath": Word(f"{_LUSTRE}.s3_import"),
    "ExportPath": Word(f"{_LUSTRE}.s3_export"),
    "FileSystemId": Word(f"{_LUSTRE}.existing"),
    "SharedStorage.Size": _to("storage.apps.size_gib", "and of home and scratch"),
    "SharedStorage.VolumeType": _NO_DISK_TYPE,
    "SharedStorage.Iops": _to("storage.apps.gp3.iops", "and of home"),
    "SharedStorage.Throughput": _to("storage.apps.gp3.throughput_mibs", "and of home"),
    "EncryptionInTransit": _not("EFS is mounted over NFS inside of the network, without TLS so far"),
    "KmsKeyId": _to("aws.kms_key", "its ARN"),
    "Monitoring": _not("CloudWatch has logs and figures of every machine (docs/aws.md): leave it out"),
    "DirectoryService": _not("the directory of users is access.directory: docs/users.md#a-directory"),
    "AdditionalPackages": _HOOK,
    "DevSettings": _not("it belongs to ParallelCluster's own code: leave it out"),
    "Tags": _LABELS,
}  # fmt: skip
"""ParallelCluster 3, whose file is YAML."""
_BATCH = {
    "jobDefinitionName": Word("batch.job_definition"),
    "computeEnvironmentName": Word("batch.compute_environment"),
    "jobQueueName": Word("batch.queue"),
    "retryStrategy": _to("batch.attempts", "its attempts"),
    "attempts": Word("batch.attempts"),
    "nodeProperties": SECTION,
    "numNodes": Word("batch.nodes"),
    "mainNode": _not("it is node 0: leave it out"),
    "nodeRangeProperties": SECTION,
    "targetNodes": _not("all nodes have the one container: leave it out"),
    "nodeRangeProperties.container": _parts("batch.container", ""),
    "nodeRangeProperties.container.image": Word("batch.container.image"),
    "nodeRangeProperties.container.vcpus": Word("batch.container.vcpus"),
    "nodeRangeProperties.container.command": Word("batch.container.command"),
    "nodeRangeProperties.container.environment": _to("batch.container.environment", "{NAME: value}, no list"),
    "nodeRangeProperties.container.volumes": _to("batch.container.volumes", "[{source: /fsx, path: /fsx}]"),
    "jobDefinitionArn": _AWSS_OWN,
    "batch.revision": _AWSS_OWN,
    "batch.status": _AWSS_OWN,
    "batch.type": _not("it is always multinode: leave it out"),
    "memory": Word("batch.container.memory_mib"),
    "jobRoleArn": Word("batch.container.job_role"),
    "mountPoints": _to("batch.container.volumes", "[{source: /fsx, path: /fsx}] has both"),
    "sourcePath": _to("batch.container.volumes", "source"),
    "containerPath": _to("batch.container.volumes", "path"),
    "ulimits": _not("a container has the limits that NCCL and MPI need: leave it out"),
    "instanceType": _list("batch.instance_types"),
    "instanceTypes": Word("batch.instance_types"),
    "minvCpus": Word("batch.vcpus.min"),
    "desiredvCpus": Word("batch.vcpus.desired"),
    "maxvCpus": Word("batch.vcpus.max"),
    "imageId": Word("image.id"),
    "placementGroup": Word("batch.placement_group"),
    "ec2KeyPair": _not("nobody logs in to Batch's machines: leave it out"),
    "serviceRole": _ROLE,
    "instanceRole": _ROLE,
    "parameters": _to("batch.parameters", "Ref::name in the command takes them"),
    "importPath": Word(f"{_LUSTRE}.s3_import"),
    "storageCapacity": Word(f"{_LUSTRE}.size_gib"),
}  # fmt: skip
"""AWS Batch's API and console."""
_SPOT_OF_POOL = _to("partitions.pools.spot", "true or false")
_TYPE_OF_POOL = _to("partitions.pools.instance_type", "one type: each of several is a pool of its own")
_POOLS = {
    "pools.purchase": _SPOT_OF_POOL,
    "pools.purchase_option": _SPOT_OF_POOL,
    "pools.capacity_type": _SPOT_OF_POOL,
    "pools.use_spot": Word("partitions.pools.spot"),
    "pools.preemptible": Word("partitions.pools.spot"),
    "pools.instance_types": _TYPE_OF_POOL,
    "pools.instanceTypes": _TYPE_OF_POOL,
    "pools.machine_types": _TYPE_OF_POOL,
    "pools.nodes": _to("partitions.pools.max", "the most; static nodes, nodes.min, are the first pool's"),
    "pools.min": _to("partitions.nodes.min", "static nodes are the first pool's"),
    "pools.priority": _not("pools are wanted in their order: put the first choice at the top"),
}  # fmt: skip
"""Words of node pools and of lists of machine types: EKS, Karpenter, SkyPilot, GKE; and of our partitions."""
_WHOLE_FILES = {
    "imports": _not("it names the file's program; a stack file has one: leave it out"),
    "resources": SECTION,
    "resources.properties": SECTION,
    "resources.name": _not("it names the deployment; the stack's name is the file's: leave it out"),
    "resources.type": _not("the file's form says it: leave it out"),
    "blueprint_name": _not("a stack file is one cluster: Pulumi.<stack>.yaml"),
    "vars": SECTION,
    "deployment_groups": SECTION,
    "modules": SECTION,
    "modules.settings": SECTION,
    "modules.id": _not("the modules of a cluster are chosen by its keys: leave it out"),
    "modules.source": _not("the modules of a cluster are chosen by its keys: leave it out"),
    "modules.use": _not("the parts of a cluster know each other: leave it out"),
    "deployment_groups.group": _not("a stack file is one cluster: leave it out"),
}
"""The sections of such files that hold the rest."""
WORDS: Mapping[str, Word] = {
    **_WHOLE_FILES,
    **_SLURM_GCP,
    **_CLUSTER_TOOLKIT,
    **_PARALLELCLUSTER_2,
    **_PARALLELCLUSTER_3,
    **{name: replace(word, exact=True) for name, word in _BATCH.items()},
    **_POOLS,
}
"""The word, with the sections around it that it needs -> what it is here. Their case does not count."""
TOOLS: Mapping[str, Mapping[str, Word]] = {
    "slurm-gcp (Deployment Manager)": _SLURM_GCP,
    "Cluster Toolkit": _CLUSTER_TOOLKIT,
    "ParallelCluster 2, and `pcluster configure`": _PARALLELCLUSTER_2,
    "ParallelCluster 3": _PARALLELCLUSTER_3,
    "AWS Batch": _BATCH,
    "Node pools of EKS, GKE, Karpenter and SkyPilot": _POOLS,
}
Location = tuple[str | int, ...]
_KEYS_OF_POOLS = (
    "instance_type",
    "accelerator",
    "spot",
    "zones",
    "reservation",
    "aws",
    "gcp",
    "features",
    "weight",
)
"""The keys of a partition that its pools may have instead."""
MOST_SHOWN = 8
"""A list of more values is not repeated."""
MOST_DEEP = 12
"""A section of another tool that is deeper than this is not looked through."""
_PLAIN = re.compile(r"[A-Za-z0-9][\w.:/-]{0,59}( [A-Za-z]\w{0,30}){0,3}")
_BY_NAME: dict[str, list[tuple[str, tuple[str, ...], Word]]] = {}
for _path, _word in WORDS.items():
    *_around, _name = _path.split(".")
    _BY_NAME.setdefault(_name.lower(), []).append((_name, tuple(map(str.lower, _around)), _word))


def find(location: Location, *, exact: bool = False) -> Word | None:
    """Return what a key is here, by its name and the sections around it; `None` if no tool has the word.

    The word that needs the nearest section wins, then the one that needs most sections.

    Args:
        exact: Whether the case of the key's letters counts. Without it, it decides between two words.
    """
    texts = [part for part in location if isinstance(part, str)]
    around = [part.lower() for part in texts[:-1]]
    matches = [
        ((_nearest(inside, around), len(inside), name == texts[-1]), word)
        for name, inside, word in _BY_NAME.get(texts[-1].lower(), ())
        if _within(inside, around) and (name == texts[-1] or not (exact or word.exact))
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def inner(location: Location, value: Any, word: Word) -> Iterator[tuple[Location, Any, Word]]:
    """Yield the keys in another tool's section with their values and answers.

    What neither has an answer nor holds a key that has one would be lost without a word. So it is yielded
    too, unless the answer for the section around it stands for all that is in it.

    Args:
        word: The answer for the section.
    """
    if len(location) > MOST_DEEP:
        return
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, below in items:
        child = (*location, key)
        answer = find(child) if isinstance(key, str) else None
        if answer is not None:
            yield child, below, answer
            yield from inner(child, below, answer)
            continue
        answers = list(inner(child, below, word))
        if isinstance(key, str) and not word.whole and all(inside is UNKNOWN for *_, inside in answers):
            yield child, below, UNKNOWN
        else:
            yield from answers


def advice(location: Location, word: Word, value: Any) -> str:
    """Return what to write instead of a word."""
    if not word.key:
        return word.note
    key, note = word.key, f" ({word.note})" if word.note else ""
    text = _shown([value] if word.listed and not isinstance(value, list) else value) if word.same else "…"
    if ":" in key:
        return f"here it is {key}: write {key}: {text} directly below `config:`{note}"
    keys = key.split(".")
    if "pools" in location and len(keys) > 1 and keys[0] == "partitions" and keys[1] in _KEYS_OF_POOLS:
        return f"here it is partitions.pools.{key.removeprefix('partitions.')}: write " + (
            f"{_nested(keys[1:], text)} in this pool{note}"
        )
    around = [part for part in location[:-1] if isinstance(part, str) and ":" not in part]
    depth = next((n for n in range(len(around), 0, -1) if around == keys[:n]), 0)
    if not depth and keys[0] == "partitions" and len(keys) > 1:
        return f"here it is {key}: write {_nested(keys[1:], text)} in its partition{note}"
    where = " in this section" if depth else ""
    return f"here it is {key}: write {_nested(keys[depth:], text)}{where}{note}"


def page(text: str) -> str:
    """Return docs/reference/words.md with the tables as they are now."""
    return text.partition(f"## {next(iter(TOOLS))}")[0] + "\n".join(rows()) + "\n"


def rows() -> list[str]:
    """Return the tables of docs/reference/words.md, line by line."""
    lines = []
    for tool, words in TOOLS.items():
        lines += [f"## {tool}", "", "| there | here | |", "|---|---|---|"]
        for word, answer in words.items():
            key = f"`{answer.key}`" if answer.key else "–"
            note = "its keys have other places here" if answer is SECTION else answer.note
            lines.append(f"| `{word}` | {key} | {note.replace('|', '/')} |")
        lines.append("")
    return lines[:-1]


def _nested(parts: list[str], value: str) -> str:
    """Return keys in each other on one line, as YAML: `nodes: {max: 10}`."""
    text = f"{parts[-1]}: {value}"
    for part in reversed(parts[:-1]):
        text = f"{part}: {{{text}}}"
    return text


def _nearest(inside: tuple[str, ...], around: list[str]) -> int:
    """Return how deep the innermost of the sections is that a word needs; 0 if it needs none."""
    return len(around) - around[::-1].index(inside[-1]) if inside else 0


def _within(inside: tuple[str, ...], around: list[str]) -> bool:
    """Return whether the sections are all there, in this order."""
    sections = iter(around)
    return all(part in sections for part in inside)


def _shown(value: Any) -> str:
    """Return a number, a name, yes or no, or a list of these; others are not repeated: they may be secret."""
    if isinstance(value, list):
        items = [_shown(item) for item in value]
        return f"[{', '.join(items)}]" if 0 < len(items) <= MOST_SHOWN and "…" not in items else "…"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return str(value)
    return "…"
