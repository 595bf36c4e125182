"""The models of Slurm's settings, and of where its packages come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.common_effects import OTHER_IMAGE
from infra.config.fields import (
    APT_WORD,
    FINGERPRINT,
    HTTPS,
    SHA256,
    Day,
    Section,
    Settings,
)
from infra.config.sharing import PriorityConfig, SlurmName
from infra.effects import Kind, Outcome, effect
from node.design.sharing import DEFAULT_ACCOUNT

ORIGIN = effect(
    clouds=Outcome(Kind.NEVER, "heads and nodes have one Slurm: down, then up"),
    local=Outcome(Kind.DATA, OTHER_IMAGE),
)


LONGEST_SCRIPT_SECONDS = 600
"""The longest prolog. Jobs wait for it, and Slurm waits for it at most as long as for a node."""


class JobScriptConfig(Section):
    """Your script, which runs as root on each node of a job."""

    source: str = Field(min_length=1, description="Path in this project.")
    timeout: int = Field(60, ge=1, le=LONGEST_SCRIPT_SECONDS, description="Seconds it may take.")


class PackageConfig(Section):
    """A Debian package that machines install, known by its hash."""

    source: str = Field(
        description="A path in this project, or an address: s3:// on AWS, gs:// on Google Cloud, https:// on "
        "both. It ends in .deb."
    )
    sha256: str = Field(pattern=SHA256, description="The SHA-256 of the file: sha256sum FILE.")


LONGEST_SUSPEND = 366 * 86400
# slurmctld accepts up to 65535 s, and the prolog that waits gets more than resume_timeout.
LONGEST_TIMEOUT = 65000


class RepositoryConfig(Section):
    """An apt repository with packages of Slurm, and the key that signs it."""

    url: str = Field(pattern=HTTPS, description="The address in a deb line.")
    suite: str = Field(pattern=APT_WORD, description="The suite in a deb line; / for a flat repository.")
    components: list[str] = Field(
        default_factory=list, description="The components in a deb line; empty for a flat repository."
    )
    key: str = Field(pattern=HTTPS, description="The address of the key, in ASCII armour.")
    fingerprint: str = Field(
        pattern=FINGERPRINT, description="The key's fingerprint: gpg --show-keys --fingerprint FILE."
    )


class SlurmOriginConfig(Section):
    """At most one of these keys says where Slurm comes from. Without one it is the distribution's."""

    source: Annotated[Literal["debian-13"] | None, ORIGIN] = Field(
        None,
        description="Build Debian 13's source package of Slurm, which its security team maintains, for the "
        "image's distribution while the images are baked (image: {bake: true}).",
    )
    packages: Annotated[list[PackageConfig], ORIGIN] = Field(
        default_factory=list,
        description="Packages of one release of Slurm, instead of the distribution's: built from Debian's or "
        "Ubuntu's source (slurmctld, slurmd, slurm-client, what they need) or from SchedMD's (slurm-smd-…).",
    )
    repository: Annotated[RepositoryConfig | None, ORIGIN] = Field(
        None, description="An apt repository that has these packages, instead."
    )


class SlurmConfig(SlurmOriginConfig):
    """Slurm's timers in seconds, whose defaults depend on the provider, your scripts, and Slurm's origin."""

    suspend_time: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=1, le=LONGEST_SUSPEND, description="Idle seconds after which a node is powered down."
    )
    suspend_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=1, le=LONGEST_TIMEOUT, description="Seconds that a power-down may take."
    )
    resume_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None,
        ge=1,
        le=LONGEST_TIMEOUT,
        description="Seconds from the launch of a node to its registration. On a cloud the default is the "
        "sum of what the boot's steps may take, which is less with image: {bake: true}.",
    )
    slurmd_timeout: Annotated[int | None, effect(Kind.LIVE)] = Field(
        None, ge=5, le=LONGEST_TIMEOUT, description="Seconds of silence after which a node is DOWN."
    )
    reconcile_interval: Annotated[float | None, effect(Kind.LIVE)] = Field(
        None,
        ge=0.5,
        le=3600,
        description="Seconds between two comparisons of Slurm's nodes with the cloud's machines.",
    )
    accounting: Annotated[
        bool | None,
        effect(
            Outcome(
                Kind.LIVE,
                "slurmdbd and its database start or stop; they are on by default where machines boot",
            )
        ),
    ] = Field(
        None,
        description="Run slurmdbd and its database on the controller: `sacct` shows jobs that are over, "
        "clients that ask it work (docs/clients.md), and limits hold (docs/accounts.md). By default true on "
        "clouds and on local machines that boot, but false on a Slurm that nobody maintains "
        "(docs/versions.md) and with slurm.packages or slurm.repository; false on process machines, where it "
        "takes 70 MiB of memory, about 7 s of the controller's first start and 2 s of each further one, and "
        "the first `up` installs slurmdbd and MariaDB where they are missing.",
    )
    default_account: Annotated[SlurmName, effect(Kind.LIVE)] = Field(
        DEFAULT_ACCOUNT,
        description="With accounting: the account of users for whom `users` says none, also of those who "
        "come later (docs/accounts.md).",
    )
    exclusive_accounts: Annotated[bool, effect(Kind.LIVE)] = Field(
        False,
        description="true: `up` takes away accounts, users and QOS that people added with sacctmgr; false: "
        "they stay, and are shown.",
    )
    priority: Annotated[PriorityConfig | None, effect(Kind.LIVE)] = Field(
        None,
        description="Order jobs by fair shares, QOS and age, with accounting; null: by these weights where "
        "there are `accounts`, `users` or `qos`, and else by submission.",
    )
    accept_unmaintained: Annotated[Day | None, effect(Kind.NOTHING, design=())] = Field(
        None,
        description="You accept what is published until this day against a release of Slurm that nobody "
        "maintains (docs/versions.md): without it such a stack has no accounting and no containers for jobs.",
    )
    prolog: Annotated[JobScriptConfig | None, effect(Kind.NODES)] = Field(
        None, description="Runs on each node of a job before it, after our own checks; null: none."
    )
    epilog: Annotated[JobScriptConfig | None, effect(Kind.NODES)] = Field(
        None, description="Runs on each node of a job after it; null: none."
    )
    settings: Annotated[
        Settings,
        effect(
            Outcome(
                Kind.LIVE,
                "slurmctld starts again, and nodes that are up read it; before Slurm 23.11 plugins of slurmd "
                "only on nodes that start afterwards",
            )
        ),
    ] = Field(
        default_factory=dict,
        description="Options of slurm.conf (`MaxArraySize: 100001`), by Slurm's names: all that the cluster "
        "does not set for itself. Lists (SchedulerParameters, …) get your words besides ours. The head tries "
        "them first, and goes on with the former ones if slurmctld refuses them.",
    )
