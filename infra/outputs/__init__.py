"""What other stacks consume: one versioned object.

`contract` is what it holds and how it is read, `publish` makes it of a program's design and inventory,
`fields` lists its fields. Reading it needs neither Pulumi nor the rest of slurm-stacks.
"""

from infra.outputs.contract import API_VERSION, ClusterOutput, OutputError, load, read, schema

__all__ = ["API_VERSION", "ClusterOutput", "OutputError", "load", "read", "schema"]
