"""What a change does, where several keys say the same."""

from __future__ import annotations

from infra.config.storage import GROWS
from infra.effects import HERE, Kind, Outcome, effect

# What a change does, where several keys say the same.
OTHER_CLUSTER = "another cluster; the one that is up is destroyed"
OTHER_RELEASE = "another release of Slurm is another cluster"
OTHER_IMAGE = "another image is another cluster"
ANOTHER_CLUSTER = effect(Outcome(Kind.DATA, OTHER_CLUSTER))


KEEP_IMAGE = (
    "the controller and login machines keep their image until you replace them: `pulumi up --replace`"
)
KEEP_DISK = "the controller and login machines keep their disk until you replace it: `pulumi up --replace`"
OF_NODES = effect(aws=Outcome(Kind.RENEWED, KEEP_IMAGE), gcp=Outcome(Kind.RENEWED, KEEP_DISK))
ROOT_DISK = effect(
    aws=Outcome(
        Kind.LIVE, "EBS volumes only grow; a root file system grows at its machine's next boot", Kind.NEVER
    ),
    gcp=Outcome(Kind.LIVE, GROWS, Kind.NEVER),
    local=Outcome(Kind.NOTHING, HERE),
)
