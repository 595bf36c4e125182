"""The stack file: what it may say, and all its mistakes at once, each with its path and what is allowed.

    config = load_file("Pulumi.local.yaml")
    design = infra.design.design(config, infra.instance_types.catalog.catalog())

`infra.config.schema` has the JSON Schema, `infra.config.changes` what a change of each key does.
"""

from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
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
