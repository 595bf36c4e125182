"""The models of what a team shares: accounts, users, quality-of-service levels, and priorities of jobs.

Fields have Slurm's names (sacctmgr(1), slurm.conf(5)), in small letters with underscores.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.fields import LONGEST_LIMIT, Section, TimeLimit, Usd

SLURM_NAME = r"^[a-z0-9_][a-z0-9_.-]*$"
"""slurmdbd keeps names of accounts and of QOS in small letters, and separates them by commas."""
USER_NAME = r"^[a-z_][a-z0-9_.-]*$"
GROUP = r"^[a-z_][a-z0-9_-]*(:[1-9][0-9]{3,9})?$"
TRES = r"^(cpu|mem|node|billing|energy|gres/[A-Za-z0-9_]+(:[A-Za-z0-9_.-]+)?|license/[A-Za-z0-9_.@-]+)$"
SSH_KEY = (
    r"^(ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
    r" [A-Za-z0-9+/]+={0,2}( [^\n]*)?$"
)
LARGEST = 2**31 - 1
"""Limits and shares are 32 bits in slurmdbd, of which the highest values mean none."""

DESCRIPTION = r"^[^\x00-\x1f\x7f|\\]+$"
"""sacctmgr separates its columns by bars."""

SlurmName = Annotated[str, Field(pattern=SLURM_NAME, max_length=64)]
UserName = Annotated[str, Field(pattern=USER_NAME, max_length=32)]
Group = Annotated[str, Field(pattern=GROUP, max_length=42)]
Description = Annotated[str, Field(pattern=DESCRIPTION, max_length=200)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Tres = dict[Annotated[str, Field(pattern=TRES)], Count]


class LimitsConfig(Section):
    """Limits of jobs. A TRES is what Slurm counts: cpu, mem (MiB), node, gres/gpu, gres/gpu:v100."""

    grp_tres: Tres = Field(default_factory=dict, description="TRES of all running jobs together.")
    grp_jobs: Count | None = Field(None, description="Running jobs together.")
    grp_submit: Count | None = Field(None, description="Jobs together that wait or run.")
    max_tres_per_job: Tres = Field(default_factory=dict, description="TRES of one job.")
    max_wall: TimeLimit | None = Field(None, description="The longest time limit of a job.")


class AssociationLimitsConfig(LimitsConfig):
    """Limits of an account, or of a user in each of their accounts."""

    max_jobs: Count | None = Field(None, description="Running jobs of each user.")
    max_submit: Count | None = Field(None, description="Jobs of each user that wait or run.")


class QosLimitsConfig(LimitsConfig):
    """Limits of the jobs of a QOS."""

    max_tres_per_user: Tres = Field(default_factory=dict, description="TRES of a user's running jobs.")
    max_tres_per_account: Tres = Field(default_factory=dict, description="TRES of an account's running jobs.")
    max_jobs_per_user: Count | None = Field(None, description="Running jobs of a user.")
    max_submit_per_user: Count | None = Field(None, description="Jobs of a user that wait or run.")


class AccountBudgetConfig(Section):
    """What an account's jobs may spend on nodes, with those of the accounts below it."""

    max_usd: Usd | None = Field(None, description="USD, as `cost --by account` has them; null for no limit.")
    max_hours: Usd | None = Field(None, description="Node-hours, likewise; null for no limit.")
    period: Literal["life", "month"] = Field(
        "life", description="What counts: the cluster's life, or each month of the calendar (UTC)."
    )
    running_jobs: Literal["keep", "cancel"] = Field(
        "keep",
        description="When the budget is used up: keep lets its running jobs finish, whatever that costs; "
        "cancel ends them. Waiting jobs wait.",
    )


class AccountConfig(Section):
    """An account of Slurm, to which jobs are booked."""

    name: SlurmName = Field(description="Small letters, digits and _ . -: jobs name it (--account).")
    description: Description | None = Field(None, description="Words for people.")
    parent: SlurmName | None = Field(None, description="The account it belongs to; null: root.")
    shares: int = Field(1, ge=1, le=LARGEST, description="Its share beside its siblings (fairshare).")
    qos: list[SlurmName] = Field(
        default_factory=list, description="QOS that its jobs may have; empty: those of its parent."
    )
    default_qos: SlurmName | None = Field(None, description="QOS of jobs that name none.")
    limits: AssociationLimitsConfig = Field(
        default_factory=AssociationLimitsConfig, description="Limits of its jobs."
    )
    budget: AccountBudgetConfig = Field(
        default_factory=AccountBudgetConfig, description="What its jobs may spend."
    )


class UserConfig(Section):
    """A user of the cluster: what they may use of Slurm and, where the stack makes users, who they are."""

    name: UserName = Field(description="The user's name on the machines.")
    account: SlurmName | None = Field(
        None, description="The account of jobs that name none; null: slurm.default_account."
    )
    accounts: list[SlurmName] = Field(default_factory=list, description="Further accounts they may name.")
    shares: int = Field(1, ge=1, le=LARGEST, description="Their share beside others of the account.")
    qos: list[SlurmName] = Field(
        default_factory=list, description="QOS that their jobs may have; empty: those of the account."
    )
    default_qos: SlurmName | None = Field(None, description="QOS of jobs that name none.")
    limits: AssociationLimitsConfig = Field(
        default_factory=AssociationLimitsConfig, description="Limits of their jobs in each account."
    )
    admin_level: Literal["none", "operator", "administrator"] = Field(
        "none", description="What they may change in Slurm."
    )
    id: int | None = Field(
        None,
        ge=1000,
        le=LARGEST,
        description="The number of the user and of their own group. With it the stack makes the user on AWS "
        "and on local machines that boot (docs/users.md); null: somebody else makes them (OS Login, SSSD, "
        "useradd).",
    )
    groups: list[Group] = Field(
        default_factory=list,
        description="Further groups, with `id`: NAME of one that the machines have, or NAME:ID of one that "
        "the stack makes.",
    )
    ssh_keys: list[Annotated[str, Field(pattern=SSH_KEY)]] = Field(
        default_factory=list, description="Public keys with which they log in, with `id`."
    )
    sudo: bool = Field(False, description="Whether they may become root, with `id`.")

    def of_accounting(self) -> list[str]:
        """Return the user's keys that only accounting gives a meaning."""
        plain = type(self)(name=self.name)
        machines = {"name", "id", "groups", "ssh_keys", "sudo"}
        keys = [key for key in type(self).model_fields if key not in machines]
        return [key for key in keys if getattr(self, key) != getattr(plain, key)]


class QosConfig(Section):
    """A quality of service: priority, limits and preemption of the jobs that have it."""

    name: SlurmName = Field(description="Small letters, digits and _ . -: jobs name it (--qos).")
    description: Description | None = Field(None, description="Words for people.")
    priority: Count = Field(0, description="The more, the earlier its jobs start.")
    preempts: list[SlurmName] = Field(
        default_factory=list, description="QOS whose jobs make way for its jobs."
    )
    preempt_mode: Literal["requeue", "cancel"] | None = Field(
        None, description="What happens to its jobs when they make way; requeue by default."
    )
    grace_seconds: int = Field(
        0,
        ge=0,
        le=LONGEST_LIMIT,
        description="With cancel: seconds between SIGTERM to its steps and the end.",
    )
    usage_factor: float = Field(1.0, ge=0, le=1e6, description="How much its use counts for fair shares.")
    limits: QosLimitsConfig = Field(default_factory=QosLimitsConfig, description="Limits of its jobs.")


class PriorityConfig(Section):
    """Who comes first (priority/multifactor). Weights say how much each factor, from 0 to 1, counts."""

    decay_half_life: TimeLimit = Field(
        "7-00:00:00", description="The time after which use counts half for fair shares."
    )
    calc_period: TimeLimit = Field("00:05:00", description="The time between two computations.")
    fairshare: Count = Field(100000, description="Weight of the share that is left.")
    qos: Count = Field(1000000, description="Weight of the QOS's priority.")
    age: Count = Field(10000, description="Weight of the time that the job has waited.")
    max_age: TimeLimit = Field("7-00:00:00", description="The wait after which the age counts fully.")
    job_size: Count = Field(0, description="Weight of the job's size.")
    partition: Count = Field(0, description="Weight of the partition.")
