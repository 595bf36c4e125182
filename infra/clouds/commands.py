"""The command lines that a cloud's stack runs on the engineer's machine, and their input, as plain data.

Resources are declared with these lines. The lines run `operations.clouds.commands`.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.design.model import Access, ClusterDesign


def line(module: str, verb: str, design: ClusterDesign, *rest: str) -> str:
    """Return a command line of a provider's operations, for a resource of its stack.

    Args:
        module: The provider's module, such as `operations.aws`.
    """
    return f"{module} {shlex.join([verb, '--stack', design.stack, *rest])}"


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """Which cluster it is and where it lies: all that is needed to find its resources in the cloud.

    Attributes:
        provider_settings: As whom the cloud is asked (`infra.config.provider_settings`).
    """

    cluster: str
    region: str
    zone: str | None = None
    project: str | None = None
    provider_settings: str | None = None

    @classmethod
    def of(cls, design: ClusterDesign) -> ClusterRef:
        return cls(design.name, str(design.region), design.zone, design.project, design.provider_settings)

    @classmethod
    def known(cls, outputs: Mapping[str, Any], provider_settings: str | None = None) -> ClusterRef | None:
        """Return the cluster that is up, by its outputs. Its stack file may name another one by now.

        Args:
            provider_settings: Those of the stack file, which the engine follows as well.

        Returns:
            None if the outputs do not say.
        """
        cluster = outputs.get("cluster")
        if not isinstance(cluster, Mapping) or not cluster.get("region") or not cluster.get("name"):
            return None
        zone, project = (str(cluster[key]) if cluster.get(key) else None for key in ("zone", "project"))
        return cls(str(cluster["name"]), str(cluster["region"]), zone, project, provider_settings)

    def named(self) -> dict[str, str]:
        """Return the known fields, by name."""
        fields = {
            "region": self.region,
            "zone": self.zone,
            "project": self.project,
            "cluster": self.cluster,
            "provider-settings": self.provider_settings,
        }
        return {key: value for key, value in fields.items() if value}

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain data. Settings are left out if there are none."""
        fields = dataclasses.asdict(self)
        return {key: value for key, value in fields.items() if key != "provider_settings" or value}

    def where(self) -> list[str]:
        """Return the arguments without the settings: another profile is not another cluster."""
        return dataclasses.replace(self, provider_settings=None).arguments()

    def arguments(self) -> list[str]:
        """Return the fields as arguments of a command line of `operations.clouds.commands`."""
        return [word for key, value in self.named().items() for word in (f"--{key}", value)]


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Which machines of which cluster a resource waits for.

    Attributes:
        hosts: The hosts in the order in which they boot.
        login: The host that users log in to.
        mode: `access.mode`.
        key: `access.key`.
        user: `access.user`.
    """

    place: ClusterRef
    bucket: str
    hosts: Sequence[str]
    login: str
    mode: str
    key: str | None = None
    user: str | None = None

    @property
    def access(self) -> Access:
        """How users reach the login machine."""
        return Access(self.mode, key=self.key, user=self.user)

    @classmethod
    def of(cls, design: ClusterDesign, bucket: str) -> WaitRequest:
        return cls(
            place=ClusterRef.of(design),
            bucket=bucket,
            hosts=[host.name for host in design.hosts],
            login=design.login_hosts()[0].name,
            mode=design.access.mode,
            key=design.access.key,
            user=design.access.user,
        )

    @classmethod
    def parse(cls, text: str) -> WaitRequest:
        fields = json.loads(text)
        return cls(**{**fields, "place": ClusterRef(**fields["place"])})

    def text(self) -> str:
        fields = dataclasses.asdict(self)
        return json.dumps({**fields, "place": self.place.plain()}, sort_keys=True)
