"""The output for other stacks: one versioned object.

`contract` says what it contains and how it is read, `publish` makes it from a program's design and inventory,
and `fields` lists its fields. Reading it needs neither Pulumi nor the rest of slurm-stacks.
"""

from infra.outputs.contract import API_VERSION, ClusterOutput, OutputError, load, read, schema

__all__ = ["API_VERSION", "ClusterOutput", "OutputError", "load", "read", "schema"]
