"""The options of slurm.conf for what a team shares: priorities, preemption, who may use a partition. Pure."""

from __future__ import annotations

from node.design.model import ClusterDesign, Partition, SharedPartition
from node.design.sharing import Priority

Options = list[tuple[str, object]]

PREEMPT_MODE = "REQUEUE"
"""What happens to a preempted job, unless its QOS says otherwise."""
ENDLESS = "INFINITE"


def priority(design: ClusterDesign) -> Options:
    """Return how waiting jobs are ordered."""
    weights = design.slurm.priority
    if weights is None or not design.slurm.accounting:
        # Jobs are ordered by submission. The default of 23.02 (multifactor) needs an accounting database
        # and gives all jobs priority 1: if accounting were turned off, waiting jobs would come after later
        # ones.
        return [("PriorityType", "priority/basic")]
    return [
        ("PriorityType", "priority/multifactor"),
        # No half-life is 0 here.
        ("PriorityDecayHalfLife", 0 if weights.decay_half_life == ENDLESS else weights.decay_half_life),
        ("PriorityCalcPeriod", weights.calc_period),
        ("PriorityMaxAge", weights.max_age),
        *_weights(weights),
    ]


def _weights(weights: Priority) -> Options:
    return [
        ("PriorityWeightFairshare", weights.fairshare),
        ("PriorityWeightQOS", weights.qos),
        ("PriorityWeightAge", weights.age),
        ("PriorityWeightJobSize", weights.job_size),
        ("PriorityWeightPartition", weights.partition),
    ]


def preempts(design: ClusterDesign) -> bool:
    """Return whether jobs make way for others."""
    return design.slurm.accounting and any(level.preempts for level in design.qos)


def preemption(design: ClusterDesign) -> Options:
    """Return how jobs make way for others: by QOS, and each QOS has its own mode and grace time."""
    if not preempts(design):
        return []
    return [("PreemptType", "preempt/qos"), ("PreemptMode", PREEMPT_MODE)]


def of_partition(design: ClusterDesign, partition: Partition | SharedPartition) -> Options:
    """Return who may use a partition, and the QOS whose limits hold for all of its jobs."""
    options: Options = []
    if accounts := with_children(design, partition.allow_accounts):
        options.append(("AllowAccounts", ",".join(accounts)))
    if partition.allow_qos:
        options.append(("AllowQos", ",".join(partition.allow_qos)))
    if partition.qos is not None:
        options.append(("QoS", partition.qos))
    if preempts(design):
        # It is the cluster's. Where it is not written, it would count as changed by somebody.
        options.append(("PreemptMode", PREEMPT_MODE))
    return options


def with_children(design: ClusterDesign, accounts: tuple[str, ...]) -> list[str]:
    """Return accounts with those below them, which Slurm itself includes from 23.11 on."""
    found = dict.fromkeys(accounts)
    for _ in design.accounts:
        found |= {account.name: None for account in design.accounts if account.parent in found}
    return list(found)
