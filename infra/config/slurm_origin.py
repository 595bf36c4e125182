"""Where machines get Slurm from, if not from their distribution: three keys of the section `slurm`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.containers import PackageConfig
from infra.config.fields import APT_WORD, FINGERPRINT, HTTPS, Section


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

    source: Literal["debian-13"] | None = Field(
        None,
        description="Build Debian 13's source package of Slurm, which its security team maintains, for the "
        "image's distribution while the images are baked (image: {bake: true}).",
    )
    packages: list[PackageConfig] = Field(
        default_factory=list,
        description="Install these packages of one release of Slurm: built from Debian's or Ubuntu's source "
        "(slurmctld, slurmd, slurm-client and what they need) or from SchedMD's (slurm-smd-…).",
    )
    repository: RepositoryConfig | None = Field(
        None, description="Install Slurm from this apt repository, with the same names of packages."
    )
