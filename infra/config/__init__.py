"""What a stack file may say; every mistake at once, with its path and what is allowed.

    config = load_file("Pulumi.local.yaml")
    design = infra.design.design(config, infra.machines.catalog())

`python -m infra.config` writes the JSON Schema, `infra/schema/stack.json`.
"""

from infra.config.cluster import BenchmarkConfig, ClusterConfig
from infra.config.load import StackConfig, load_file, parse
from infra.config.mistakes import ConfigError, Mistake

__all__ = [
    "BenchmarkConfig",
    "ClusterConfig",
    "ConfigError",
    "Mistake",
    "StackConfig",
    "load_file",
    "parse",
]
