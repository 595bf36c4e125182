"""What the tests of machines on AWS share: the resources that machines need, and a mock with addresses."""

from __future__ import annotations

from typing import Any

from pulumi.runtime import mocks

from infra.aws.launch_templates import AwsRoleResources
from tests.support.aws_mocks import Aws

AMI = "ami-0123456789abcdef0"
GROUPS = {"controller": "sg-head", "login": "sg-login", "compute": "sg-compute"}
RESOURCES_BY_ROLE = {
    role: AwsRoleResources(
        profile=f"{role}-profile",
        group=group,
        subnet=None if role == "compute" else "subnet-head",
        image=AMI,
        bucket="bucket-1",
    )
    for role, group in GROUPS.items()
}
FACTS = '{"host_keys": ["ssh-ed25519 AAAAkey"], "scheduler_version": "slurm 23.11.4"}'


class Machines(Aws):
    """Like `Aws`, also with the addresses of machines and the image's parameter."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        identity, known = super().new_resource(args)
        if self._preview:
            return identity, known
        found = {"privateIp": "10.0.0.7", "publicIp": "198.51.100.7"}
        if args.name.endswith("-ready"):
            found["stdout"] = FACTS
        return identity, {**found, **known}

    def call(self, args: mocks.MockCallArgs) -> Any:
        if args.token == "aws:ssm/getParameter:getParameter":
            self.calls.append(args.token)
            name = args.args["name"]
            return {"name": name, "insecureValue": AMI, "value": "hush", "id": name, "type": "String"}
        if args.token == "aws:ec2/getAmi:getAmi":
            self.calls.append(args.token)
            ((only,),) = (one["values"] for one in args.args["filters"])
            return {"id": only, "rootDeviceName": f"/dev/of-{only}"}
        return super().call(args)
