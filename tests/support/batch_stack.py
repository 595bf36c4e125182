"""The published AWS Batch stack's design, with changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign
from tests.support.checkout import ROOT
from tests.support.stack_values import filled_in


def batch_design(**changes: Any) -> ClusterDesign:
    """The design of `Pulumi.aws-batch.yaml`, with changes of its part about Batch."""
    text = filled_in((ROOT / "Pulumi.aws-batch.yaml").read_text())
    cluster_design = design(parse(yaml.safe_load(text)["config"], "aws-batch"), catalog())
    assert cluster_design.batch is not None
    return dataclasses.replace(cluster_design, batch=dataclasses.replace(cluster_design.batch, **changes))
