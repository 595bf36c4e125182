"""The models of `launch_template_overrides` and `instance_template_overrides`: fields of a node's template.

The names are those of the clouds' models, in the words of Pulumi's SDK: `cpu_options` is EC2's `CpuOptions`.
Each model has every field of the cloud's model that the cluster does not rely on. Those that it relies on are
in `RESERVED`, with what to write instead. Tests compare both with botocore and google-cloud-compute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from infra.config.fields import (
    DEVICE,
    HOST_ARN,
    KMS_KEY,
    LICENSE,
    MAX_PRICE,
    RESOURCE_TAG,
    SNAPSHOT,
    Overrides,
)

_ENDS = "the cluster ends nodes, and learns from the cloud which have ended"


class CpuOptions(Overrides):
    """Cores and threads of a node. Slurm's number of CPUs follows from them."""

    core_count: int | None = Field(None, ge=1, description="Cores of a node.")
    threads_per_core: int | None = Field(None, ge=1, le=2, description="1: without hyper-threading.")
    amd_sev_snp: Literal["enabled", "disabled"] | None = Field(None, description="AMD SEV-SNP.")
    nested_virtualization: Literal["enabled", "disabled"] | None = Field(
        None, description="Virtual machines inside of nodes."
    )


class CreditSpecification(Overrides):
    """What burstable machines (T3) do without CPU credits."""

    cpu_credits: Literal["standard", "unlimited"] = Field(
        description="standard: they slow down; unlimited: the credits are paid for."
    )


class EnclaveOptions(Overrides):
    """Nitro Enclaves."""

    enabled: bool = Field(description="Whether nodes may run enclaves.")


class LicenseSpecification(Overrides):
    """A license configuration of AWS License Manager."""

    license_configuration_arn: str = Field(pattern=LICENSE, description="Its ARN.")


class MaintenanceOptions(Overrides):
    """What EC2 does with a node whose hardware fails."""

    auto_recovery: Literal["default", "disabled"] = Field(description="Whether EC2 recovers the machine.")


class Monitoring(Overrides):
    """CloudWatch's metrics of nodes."""

    enabled: bool = Field(description="true: one a minute, which is paid for; false: one in five minutes.")


class NetworkPerformanceOptions(Overrides):
    """How a node's bandwidth is divided."""

    bandwidth_weighting: Literal["default", "vpc-1", "ebs-1"] = Field(description="More for the VPC or EBS.")


class PrivateDnsNameOptions(Overrides):
    """The names that AWS's DNS has for nodes. Slurm does not use them."""

    hostname_type: Literal["ip-name", "resource-name"] | None = Field(None, description="Kind of the name.")
    enable_resource_name_dns_a_record: bool | None = Field(None, description="An A record of the id.")
    enable_resource_name_dns_aaaa_record: bool | None = Field(None, description="An AAAA record of the id.")


class PlacementOverrides(Overrides):
    """The host of a node."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "availability_zone": "zones: […] of the partition",
        "group_id": "aws: {placement_group: …}, by its name",
        "group_name": "aws: {placement_group: …}",
        "partition_number": "nothing: such groups spread machines, and placement: cluster joins them",
        "spread_domain": "nothing: EC2 keeps it for itself",
    }
    affinity: Literal["default", "host"] | None = Field(None, description="With a host: stay on it.")
    host_id: str | None = Field(None, pattern=r"^h-[0-9a-f]{8,17}$", description="A dedicated host, h-….")
    host_resource_group_arn: str | None = Field(None, pattern=HOST_ARN, description="A group of hosts.")
    tenancy: Literal["default", "dedicated", "host"] | None = Field(
        None, description="dedicated: no hardware is shared with other accounts; host: a dedicated host."
    )


class SpotOptions(Overrides):
    """The price of spot capacity."""

    RESERVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("block_duration_minutes", "instance_interruption_behavior", "spot_instance_type", "valid_until"),
        f"nothing: {_ENDS}",
    )
    max_price: str = Field(pattern=MAX_PRICE, description='The most USD an hour, in quotes: "0.5".')


class MarketOptions(Overrides):
    """How capacity is bought."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "market_type": "spot: true of the partition, or aws: {capacity_block: true}"
    }
    spot_options: SpotOptions = Field(description="With spot: true.")


class Ebs(Overrides):
    """An additional EBS volume."""

    delete_on_termination: bool = Field(True, description="Whether the volume goes with its node.")
    encrypted: bool = Field(True, description="Whether it is encrypted.")
    iops: int | None = Field(None, ge=100, description="IOPS of gp3, io1 and io2.")
    kms_key_id: str | None = Field(None, pattern=KMS_KEY, description="ARN of its key; null: the default.")
    snapshot_id: str | None = Field(None, pattern=SNAPSHOT, description="The snapshot that it begins with.")
    throughput: int | None = Field(None, ge=125, description="MiB/s of gp3.")
    volume_initialization_rate: int | None = Field(
        None, ge=100, le=300, description="MiB/s by which the snapshot is loaded."
    )
    volume_size: int | None = Field(None, ge=1, le=65536, description="GiB.")
    volume_type: Literal["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"] = Field(
        "gp3", description="Its type."
    )


class BlockDeviceMapping(Overrides):
    """A volume that nodes have besides their root disk."""

    device_name: str = Field(pattern=DEVICE, description="Its device, /dev/sdb to /dev/sdp.")
    ebs: Ebs | None = Field(None, description="An EBS volume.")
    no_device: str | None = Field(None, description='"": the image\'s volume of this name is left out.')
    virtual_name: str | None = Field(
        None, pattern=r"^ephemeral([0-9]|1[0-9]|2[0-3])$", description="ephemeral0: an instance store."
    )


class LaunchTemplateOverrides(Overrides):
    """Fields of EC2's launch template of nodes that have no key of their own here."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "capacity_reservation_specification": "reservation: … of the partition",
        "disable_api_termination": f"nothing: {_ENDS}",
        "elastic_gpu_specifications": "nothing: AWS has ended it",
        "elastic_inference_accelerators": "nothing: AWS has ended it",
        "hibernation_options": f"nothing: {_ENDS}",
        "iam_instance_profile": "aws: {permissions_boundary: …, role_path: …} of the cluster",
        "image_id": "image: {id: …}",
        "instance_initiated_shutdown_behavior": f"nothing: {_ENDS}",
        "instance_requirements": "nothing: Slurm's nodes of a partition are alike (instance_type)",
        "instance_type": "instance_type: … of the partition",
        "kernel_id": "image: {id: …} with an image that has it",
        "key_name": "access: {key: …}",
        "metadata_options": "open_metadata: true of the partition",
        "network_interfaces": "aws: {efa: true} or aws: {security_groups: […]} of the partition",
        "operator": f"nothing: {_ENDS}",
        "ram_disk_id": "image: {id: …} with an image that has it",
        "secondary_interfaces": "aws: {efa: true} of the partition",
        "security_group_ids": "aws: {security_groups: […]} of the partition",
        "security_group_names": "aws: {security_groups: […]} of the partition",
        "security_groups": "aws: {security_groups: […]} of the partition",
        "tag_specifications": "tags: {…} of the cluster",
        "user_data": "hooks: […] for scripts of yours",
        "vpc_security_group_ids": "aws: {security_groups: […]} of the partition",
    }
    block_device_mappings: list[BlockDeviceMapping] = Field(
        default_factory=list,
        description="Volumes besides the root disk, which disk_gib, aws.gp3 and aws.kms_key describe.",
    )
    cpu_options: CpuOptions | None = Field(None, description="Cores and threads.")
    credit_specification: CreditSpecification | None = Field(None, description="T machines: CPU credits.")
    disable_api_stop: bool | None = Field(None, description="Whether nobody may stop a node.")
    ebs_optimized: bool | None = Field(None, description="Types where this is not the default already.")
    enclave_options: EnclaveOptions | None = Field(None, description="Nitro Enclaves.")
    instance_market_options: MarketOptions | None = Field(None, description="The most for spot capacity.")
    license_specifications: list[LicenseSpecification] = Field(
        default_factory=list, description="Licenses of AWS License Manager."
    )
    maintenance_options: MaintenanceOptions | None = Field(None, description="Recovery by EC2.")
    monitoring: Monitoring | None = Field(None, description="Detailed metrics in CloudWatch.")
    network_performance_options: NetworkPerformanceOptions | None = Field(None, description="Bandwidth.")
    placement: PlacementOverrides | None = Field(None, description="Dedicated hosts and hardware.")
    private_dns_name_options: PrivateDnsNameOptions | None = Field(None, description="Names in AWS's DNS.")

    def cpus(self) -> int | None:
        """Return the CPUs that a node has by `cpu_options`; `None` if these do not say it."""
        options = self.cpu_options
        if options is None or options.core_count is None or options.threads_per_core is None:
            return None
        return options.core_count * options.threads_per_core


class AdvancedMachineFeatures(Overrides):
    """Cores and threads of a node, and its virtualization. Slurm's number of CPUs follows from them."""

    enable_nested_virtualization: bool | None = Field(None, description="Virtual machines inside of nodes.")
    enable_uefi_networking: bool | None = Field(None, description="Network in the firmware.")
    performance_monitoring_unit: Literal["STANDARD", "ENHANCED", "ARCHITECTURAL"] | None = Field(
        None, description="Counters of the processor that programs may read."
    )
    threads_per_core: int | None = Field(None, ge=1, le=2, description="1: without hyper-threading.")
    turbo_mode: Literal["ALL_CORE_MAX"] | None = Field(None, description="Frequency of all cores.")
    visible_core_count: int | None = Field(None, ge=1, description="Cores that a node shows.")


class ConfidentialInstanceConfig(Overrides):
    """Confidential VMs."""

    confidential_instance_type: Literal["SEV", "SEV_SNP", "TDX"] | None = Field(
        None, description="The technology."
    )
    enable_confidential_compute: bool | None = Field(None, description="Whether memory is encrypted.")

    @property
    def is_on(self) -> bool:
        """Whether nodes are Confidential VMs."""
        return self.confidential_instance_type is not None or self.enable_confidential_compute is True


class NetworkInterfaceOverrides(Overrides):
    """The network interface of a node."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("network", "subnetwork", "subnetwork_project", "network_attachment"), "network: {gcp: …}"
        ),
        **dict.fromkeys(
            ("access_configs", "ipv6_access_configs", "ipv6_access_type", "ipv6_address"),
            "nothing: nodes have no public address",
        ),
        **dict.fromkeys(
            (
                "alias_ip_ranges", "alias_ipv6_ranges", "internal_ipv6_prefix_length", "network_ip",
                "stack_type", "name", "parent_nic_name", "vlan", "service_class_id",
            ),
            "nothing: all nodes of a launch are alike, with one address each, which Slurm learns from slurmd",
        ),
    }  # fmt: skip
    enable_vpc_scoped_dns: bool | None = Field(None, description="Names by the VPC's DNS.")
    igmp_query: Literal["IGMP_QUERY_V2", "IGMP_QUERY_DISABLED"] | None = Field(None, description="Multicast.")
    nic_type: Literal["GVNIC", "VIRTIO_NET"] | None = Field(None, description="Its type; Tier 1 takes GVNIC.")
    queue_count: int | None = Field(None, ge=1, description="Queues.")


class NetworkPerformanceConfig(Overrides):
    """The bandwidth of a node."""

    total_egress_bandwidth_tier: Literal["DEFAULT", "TIER_1"] = Field(description="TIER_1 is paid for.")


class NodeAffinity(Overrides):
    """Sole-tenant nodes on which machines may be."""

    key: str = Field(description="The label of the sole-tenant node.")
    operator: Literal["IN", "NOT_IN"] = Field(description="Whether it must have one of the values.")
    values: list[str] = Field(min_length=1, description="Values of the label.")


class SchedulingOverrides(Overrides):
    """Where Google places a node."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "preemptible": "spot: true of the partition",
        "provisioning_model": "spot: true of the partition",
        **dict.fromkeys(
            (
                "automatic_restart", "graceful_shutdown", "instance_termination_action",
                "local_ssd_recovery_timeout", "local_ssd_recovery_timeouts", "max_run_duration",
                "on_host_maintenance", "on_instance_stop_action", "preemption_notice_duration",
                "skip_guest_os_shutdown",
                "termination_time",
            ),
            f"nothing: {_ENDS}",
        ),
    }  # fmt: skip
    availability_domain: int | None = Field(None, ge=1, le=8, description="Of a spread policy.")
    host_error_timeout_seconds: int | None = Field(
        None, ge=90, le=330, description="Seconds until a host that hangs is given up; a multiple of 30."
    )
    min_node_cpus: int | None = Field(None, ge=1, description="Fewest CPUs on a sole-tenant node.")
    node_affinities: list[NodeAffinity] = Field(default_factory=list, description="Sole-tenant nodes.")


class ShieldedInstanceConfig(Overrides):
    """Shielded VMs."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "enable_secure_boot": "gcp: {secure_boot: true} of the partition"
    }
    enable_integrity_monitoring: bool | None = Field(None, description="Reports of changed firmware.")
    enable_vtpm: bool | None = Field(None, description="A virtual TPM.")


class InstanceTemplateOverrides(Overrides):
    """Fields of Compute Engine's instance template of nodes that have no key of their own here."""

    RESERVED: ClassVar[Mapping[str, str]] = {
        "description": "nothing: it names the cluster and the partition",
        "disks": "disk_gib, gcp: {disk_type: …} and storage: {local_scratch: …}",
        "guest_accelerators": "accelerator: {type: …, count: …} of the partition",
        "instance_description": "nothing: it names the cluster and the partition",
        "labels": "tags: {…} of the cluster",
        "machine_type": "instance_type: … of the partition",
        "metadata_startup_script": "hooks: […] for scripts of yours",
        "min_cpu_platform": "gcp: {min_cpu_platform: …} of the partition",
        "name": "nothing: the cluster's name begins all names",
        "name_prefix": "nothing: the cluster's name begins all names",
        "reservation_affinity": "reservation: … of the partition",
        "resource_policies": "placement: cluster, or gcp: {placement_policy: …}",
        "service_account": "nothing: the firewall knows nodes by their account (open_metadata)",
        "service_accounts": "nothing: the firewall knows nodes by their account (open_metadata)",
        "tags": "gcp: {network_tags: […]} of the partition",
        "workload_identity_config": "nothing: nodes have the identity of their account (open_metadata)",
    }
    advanced_machine_features: AdvancedMachineFeatures | None = Field(None, description="Cores and threads.")
    can_ip_forward: bool | None = Field(None, description="Whether nodes may route for others.")
    confidential_instance_config: ConfidentialInstanceConfig | None = Field(
        None, description="Confidential VMs."
    )
    key_revocation_action_type: Literal["NONE", "STOP"] | None = Field(
        None, description="What happens when a disk's key is revoked."
    )
    metadata: dict[str, str] = Field(
        default_factory=dict, description="Metadata besides ours, such as keys of an agent."
    )
    network_interfaces: list[NetworkInterfaceOverrides] = Field(
        default_factory=list, max_length=1, description="One item, for the one interface of a node."
    )
    network_performance_config: NetworkPerformanceConfig | None = Field(None, description="Bandwidth.")
    resource_manager_tags: dict[str, Annotated[str, Field(pattern=RESOURCE_TAG)]] = Field(
        default_factory=dict, description="tagKeys/… -> tagValues/…, for firewall policies and IAM."
    )
    scheduling: SchedulingOverrides | None = Field(None, description="Sole-tenant nodes.")
    shielded_instance_config: ShieldedInstanceConfig | None = Field(None, description="Shielded VMs.")

    def cpus(self, vcpus: int) -> int | None:
        """Return the CPUs that a node has by `advanced_machine_features`; `None` if these do not say it.

        Args:
            vcpus: The vCPUs of the machine type, of which two are threads of one core.
        """
        features = self.advanced_machine_features
        if features is None or (features.visible_core_count is None and features.threads_per_core is None):
            return None
        threads = features.threads_per_core or 2
        return (features.visible_core_count or vcpus // 2) * threads


def as_json(overrides: Overrides | None) -> str:
    """Return what the stack file gives, with defaults only inside of what it gives; empty for nothing."""
    fields = overrides.model_dump(exclude_none=True, include=overrides.model_fields_set) if overrides else {}
    return json.dumps(fields, sort_keys=True) if fields else ""
