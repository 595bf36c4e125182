"""The JSON Schema of a stack file, made from the models. Editors complete and check with it.

Checked in as `infra/schema/stack.json`, which `tools/generate.py` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.config.load import BENCHMARK, CLUSTER
from infra.config.stack_file import NAMESPACE

FILE = Path(__file__).parents[1] / "schema" / "stack.json"


def schema() -> dict[str, Any]:
    """Return the schema of a whole stack file."""
    _, schema = models_json_schema([(ClusterConfig, "validation"), (BenchmarkConfig, "validation")])
    definitions = schema["$defs"]
    # Without a name the cluster has the stack's.
    definitions["ClusterConfig"]["required"].remove("name")
    settings = {
        "aws:region": "AWS region, e.g. eu-central-1.",
        "gcp:project": "Google Cloud project.",
        "gcp:region": "Google Cloud region; the zone's by default.",
        "gcp:zone": "Google Cloud zone, e.g. europe-west4-a.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stack file of slurm-stacks (Pulumi.<stack>.yaml)",
        "type": "object",
        "required": ["config"],
        "additionalProperties": False,
        "properties": {
            "config": {
                "type": "object",
                "required": [CLUSTER],
                "properties": {
                    CLUSTER: {"$ref": "#/$defs/ClusterConfig"},
                    BENCHMARK: {"$ref": "#/$defs/BenchmarkConfig"},
                    **{key: {"type": "string", "description": text} for key, text in settings.items()},
                },
                # Settings of other programs are allowed, unknown settings of ours are not.
                "propertyNames": {
                    "pattern": f"^({CLUSTER}|{BENCHMARK}|(?!{NAMESPACE}:)[^:]+:.+)$",
                },
            },
            "environment": {"description": "Written by Pulumi."},
            "secretsprovider": {"type": "string", "description": "Written by Pulumi."},
            "encryptedkey": {"type": "string", "description": "Written by Pulumi."},
            "encryptionsalt": {"type": "string", "description": "Written by Pulumi."},
        },
        "$defs": definitions,
    }


def text() -> str:
    """Return the schema as it is checked in."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
