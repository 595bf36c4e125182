"""The published AWS Batch stack's design, with changes."""

from __future__ import annotations

import dataclasses
from typing import Any

from infra.config import load_file
from infra.design import design
from infra.instance_types.catalog import catalog
from node.model import ClusterDesign
from tests.support.checkout import ROOT


def batch_design(**changes: Any) -> ClusterDesign:
    """The design of `Pulumi.aws-batch.yaml`, with changes of its part about Batch."""
    made = design(load_file(ROOT / "Pulumi.aws-batch.yaml"), catalog())
    assert made.batch is not None
    return dataclasses.replace(made, batch=dataclasses.replace(made.batch, **changes))
