"""AWS for the tests of Batch's components."""

from __future__ import annotations

import json
from typing import Any

from pulumi.runtime import mocks

from tests.support.aws_machines import Machines
from tests.support.aws_mocks import ACCOUNT

IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/mnp-tensorflow@sha256:{'a' * 64}"


class BatchAws(Machines):
    """A mock of AWS that also answers for Batch, ECR and Image Builder."""

    def __init__(self, *, preview: bool = False) -> None:
        super().__init__(preview=preview)
        self._offered = {"p3dn.24xlarge": ["us-east-1b"]}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        identity, known = super().new_resource(args)
        if self._preview:
            return identity, known
        known |= {"repositoryUrl": IMAGE.partition("@")[0], "latestVersion": 3, "ecsClusterArn": "arn:ecs"}
        if args.name.endswith("-push"):
            known["stdout"] = json.dumps({"digest": IMAGE.partition("@")[2]})
        if args.typ == "aws:imagebuilder/image:Image":
            known["outputResources"] = [{"amis": [{"image": "ami-baked", "region": "us-east-1"}]}]
        return identity, known

    def call(self, args: mocks.MockCallArgs) -> Any:
        if args.token == "aws:ec2/getSubnets:getSubnets":
            return {"ids": [], "id": "x"}
        return super().call(args)
