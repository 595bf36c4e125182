"""What the tests of machines on Google Cloud share: what machines need, and a mock with images."""

from __future__ import annotations

from typing import Any

from pulumi.runtime import mocks

from infra.gcp.instance_templates import GcpRoleResources
from tests.support.gcp_mocks import Gcp

IMAGE = "https://compute/projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-v20261101"
RESOURCES_BY_ROLE = {
    role: GcpRoleResources(
        account=f"{role}@acme-ml.iam", subnetwork="subnet-1", image=IMAGE, bucket="bucket-1"
    )
    for role in ("controller", "login", "compute")
}
FACTS = (
    '{"host_keys": ["ssh-ed25519 AAAAkey"], "login_user": "ada_example_org", '
    '"scheduler_version": "slurm 23.11.4"}'
)


class Machines(Gcp):
    """Like `Gcp`, also with the newest image, and the output of the command `wait`."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        identity, known = super().new_resource(args)
        if self._preview:
            return identity, known
        found = {"instanceId": f"{args.name}-number", "diskId": f"{args.name}-number"}
        if args.name.endswith("-ready"):
            found["stdout"] = FACTS
        return identity, {**found, **known}

    def call(self, args: mocks.MockCallArgs) -> Any:
        if args.token == "gcp:compute/getImage:getImage":
            self.calls.append(args.token)
            assert args.args == {"project": "ubuntu-os-cloud", "family": "ubuntu-2404-lts-amd64"}
            return {"selfLink": IMAGE, "id": "x"}
        return super().call(args)
