"""The plugin's answers to the engine: the package's schema, and clusters.

This module is apart from the construction, because the SDK's `pulumi.provider` declares `google.rpc.Status`
to protobuf, and so do Google's clients: no process can import both.
"""

from __future__ import annotations

import json

import pulumi
from pulumi.provider import ConstructResult, Provider

from component.construction import SCHEMA, construct


class ClusterProvider(Provider):
    """The provider of `SlurmCluster`."""

    def __init__(self) -> None:
        text = SCHEMA.read_text(encoding="utf-8")
        super().__init__(version=json.loads(text)["version"], schema=text)

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: pulumi.Inputs,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Construct a cluster."""
        urn, outputs = construct(name, resource_type, inputs, options)
        return ConstructResult(urn, outputs)
