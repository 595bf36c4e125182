"""The models of the controller, the login machines, the way to them, and what machines boot from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.common_effects import KEEP_DISK, KEEP_IMAGE, OF_NODES, OTHER_RELEASE, ROOT_DISK
from infra.config.fields import (
    BACKUPS,
    DN,
    DOMAIN,
    FILTER,
    KEY_PAIR,
    LDAPS,
    MEMBER,
    Cidr,
    Distribution,
    NetworkTags,
    Section,
    SecurityGroups,
)
from infra.config.network import MOVES
from infra.config.storage import Gp3Config
from infra.effects import Kind, Outcome, effect


class DirectoryConfig(Section):
    """Users of LDAP or Active Directory, whom all machines ask by SSSD, with TLS only."""

    domain: str = Field(
        pattern=DOMAIN, max_length=253, description="A name for it, as SSSD shows it: corp.example.com."
    )
    uris: list[Annotated[str, Field(pattern=LDAPS)]] = Field(
        min_length=1, description="Its servers, ldaps://HOST or ldaps://HOST:PORT, tried in this order."
    )
    search_base: str = Field(pattern=DN, max_length=1000, description="Where users are: dc=example,dc=com.")
    ldap_schema: Literal["rfc2307", "rfc2307bis", "ad"] = Field(
        "rfc2307",
        description="rfc2307: members of groups are names. rfc2307bis: they are DNs. Both take numbers from "
        "uidNumber and gidNumber. ad: Active Directory, whose users get numbers from their SIDs.",
    )
    bind_dn: str | None = Field(
        None, pattern=DN, max_length=1000, description="As whom machines ask; null: as nobody."
    )
    password_secret: str | None = Field(
        None,
        max_length=2048,
        description="Where the password of bind_dn is: the ARN of a secret (AWS Secrets Manager), "
        "projects/…/secrets/… (Google), a file of this machine (local). Never the password.",
    )
    access_filter: str | None = Field(
        None,
        pattern=FILTER,
        max_length=2000,
        description="An LDAP filter for who may log in, like (memberOf=cn=hpc,dc=example,dc=com); null: all.",
    )
    ca_certificate: str | None = Field(
        None,
        min_length=1,
        description="Path in this project of the PEM file with the authority of its certificate; null: an "
        "authority that the machines' distribution knows.",
    )


class AccessConfig(Section):
    """How users reach the login machine. The default is the way that needs no open port on that cloud."""

    mode: Annotated[
        Literal["ssm", "iap", "ssh"] | None,
        effect(
            aws=Outcome(Kind.LIVE, f"the head gets a public address, or gives it up; {MOVES}"),
            gcp=Outcome(Kind.LIVE, "the login machine gets a public address, or gives it up"),
        ),
    ] = Field(
        None,
        description="ssm: AWS Session Manager. iap: Google's Identity-Aware Proxy. ssh: a public address and "
        "port 22 for `ssh_cidrs`. Default: ssm on AWS, iap on Google Cloud.",
    )
    ssh_cidrs: Annotated[list[Cidr], effect(clouds=Kind.LIVE)] = Field(
        default_factory=list,
        description="With mode ssh: networks that may reach port 22, e.g. 203.0.113.0/24.",
    )
    allow_ssh_from_anywhere: Annotated[bool, effect(Kind.NOTHING, design=())] = Field(
        False, description="Must also be true if ssh_cidrs contains 0.0.0.0/0 or ::/0."
    )
    key: Annotated[
        str | None, effect(aws=Outcome(Kind.TAKEOVER, "EC2 gives a machine its key pair at the launch"))
    ] = Field(
        None,
        pattern=KEY_PAIR,
        max_length=255,
        description="Name of an EC2 key pair that exists in the region (AWS). Google Cloud uses OS Login.",
    )
    users: Annotated[list[Annotated[str, Field(pattern=MEMBER, max_length=254)]], effect(gcp=Kind.LIVE)] = (
        Field(
            default_factory=list,
            description="Google Cloud: members of IAM who may log in, e.g. user:ada@example.com. They get "
            "their roles on this cluster's bucket and service accounts; those in the project are granted "
            "once.",
        )
    )
    directory: Annotated[
        DirectoryConfig | None,
        effect(Outcome(Kind.NODES, "controller and login machines ask it at once")),
    ] = Field(None, description="A directory of users (LDAP, Active Directory); null: none.")


class ImageConfig(Section):
    """What machines boot from: a distribution, your own image, or images that are built first."""

    source: Annotated[
        Distribution | None,
        effect(clouds=Outcome(Kind.NEVER, OTHER_RELEASE), design=("image.source", "access.user")),
    ] = Field(
        None,
        description="The distribution. Default: debian-13, whose Slurm is maintained, unless the stack needs "
        "what only ubuntu-24.04 has (accelerators, EFA, FSx for Lustre, Session Manager, your own images).",
    )
    id: Annotated[str | None, OF_NODES] = Field(
        None,
        description="An existing image of Ubuntu 24.04, instead of the distribution's: ami-… on AWS, "
        "projects/…/global/images/… on Google Cloud.",
    )
    bake: Annotated[bool, OF_NODES] = Field(
        False,
        description="Build images from `source` or `id` first, with the nodes' software, so that nodes start "
        "faster.",
    )
    revision: Annotated[str | None, OF_NODES] = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.-]{0,30}$",
        description="Any word, such as the day: another one has `up` build the baked images again, with the "
        "packages that there are by then.",
    )


class OwnImageConfig(Section):
    """An image for these machines only."""

    id: str = Field(
        description="An image of Ubuntu 24.04: ami-… on AWS, projects/…/global/images/… on Google Cloud."
    )


class BackupConfig(Section):
    """Backups of Slurm's state and accounting to a bucket, by a timer on the controller."""

    bucket: str = Field(
        pattern=BACKUPS,
        description="s3://bucket/prefix on AWS, gs://bucket/folder on Google Cloud, a folder of this machine "
        "on the local stack. It is there already, and `down` leaves it.",
    )
    every_hours: int = Field(24, ge=1, le=24 * 31, description="Hours between two backups.")
    keep: int = Field(14, ge=1, le=1000, description="How many stay; older ones are deleted.")


class ControllerConfig(Section):
    """The machine that runs slurmctld and exports /home and /apps."""

    instance_type: Annotated[str | None, effect(clouds=Kind.PAUSE, local=Kind.LIVE)] = Field(
        None, description="Instance type. Default: m5.large (aws), n1-standard-2 (gcp), local.small (local)."
    )
    disk_gib: Annotated[int | None, ROOT_DISK] = Field(
        None, ge=10, le=16384, description="Root disk in GiB; 50 by default."
    )
    gp3: Annotated[Gp3Config | None, effect(aws=Kind.LIVE)] = Field(
        None, description="AWS: the performance of the root disk."
    )
    security_groups: Annotated[SecurityGroups, effect(aws=Kind.LIVE)] = Field(
        default_factory=list,
        description="AWS: more security groups of the VPC under network.aws; they only add what is allowed.",
    )
    network_tags: Annotated[NetworkTags, effect(gcp=Kind.LIVE)] = Field(
        default_factory=list, description="Google Cloud: network tags, for firewall rules of yours."
    )
    image: Annotated[
        OwnImageConfig | None,
        effect(aws=Outcome(Kind.NOTHING, KEEP_IMAGE), gcp=Outcome(Kind.NOTHING, KEEP_DISK)),
    ] = Field(None, description="Its own image; null: the cluster's.")
    state: Annotated[
        Literal["kept", "machine"] | None,
        effect(
            Outcome(
                Kind.LIVE,
                "kept: slurmctld stops while its files are copied; machine: the disk and all on it are "
                "deleted",
            ),
            design=(),
        ),
    ] = Field(
        None,
        description="Where Slurm's queue, its accounting and the machine's SSH host keys are. kept: on a "
        "disk of their own, with which another controller takes over: jobs go on. machine: on the root "
        "disk, and lost with the machine. Default: kept if the file has slurm: {accounting: true}, else "
        "machine.",
    )
    backup: Annotated[
        BackupConfig | None,
        effect(Outcome(Kind.LIVE, "what is in the bucket stays"), design=("cluster.backup",)),
    ] = Field(None, description="Scheduled backups of Slurm's state and accounting; null: none.")


class LoginConfig(Section):
    """Machines where users log in and submit jobs."""

    count: Annotated[
        int,
        effect(
            Kind.LIVE,
            aws=Outcome(
                Kind.LIVE,
                f"from or to 0 with access.mode ssh, the head gives up or gets its address; {MOVES}",
            ),
            design=(),
        ),
    ] = Field(0, ge=0, le=10, description="How many; 0: the controller is the login machine.")
    instance_type: Annotated[str | None, effect(clouds=Kind.PAUSE, local=Kind.LIVE)] = Field(
        None, description="Instance type; the controller's by default."
    )
    disk_gib: Annotated[int | None, ROOT_DISK] = Field(
        None, ge=10, le=16384, description="Root disk in GiB; 50 by default."
    )
    gp3: Annotated[Gp3Config | None, effect(aws=Kind.LIVE)] = Field(
        None, description="AWS: the performance of the root disk."
    )
    security_groups: Annotated[SecurityGroups, effect(aws=Kind.LIVE)] = Field(
        default_factory=list, description="AWS: more security groups, as of the controller."
    )
    network_tags: Annotated[NetworkTags, effect(gcp=Kind.LIVE)] = Field(
        default_factory=list, description="Google Cloud: network tags, as of the controller."
    )
    open_metadata: Annotated[bool, effect(clouds=Kind.LIVE)] = Field(
        False,
        description="true: programs of every user there may ask the cloud's metadata address, and so act "
        "with the login machines' identity; false: root's alone. A controller's is never open.",
    )
