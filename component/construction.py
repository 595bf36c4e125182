"""The construction of a cluster, as the plugin is asked for it.

What a cluster is made with takes a second to import. It is imported with the first cluster, so that the
plugin starts at once and answers with the schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi.errors import InputPropertiesError

if TYPE_CHECKING:
    from infra.slurm_cluster import SlurmCluster

SCHEMA = Path(__file__).with_name("schema.json")
"""The package's schema, which `tools/generate.py` writes."""
TOKEN = "slurm-stacks:index:SlurmCluster"


def construct(
    name: str, kind: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions | None = None
) -> tuple[pulumi.Output[str], dict[str, pulumi.Output[Any]]]:
    """Declare a cluster's resources, and return its URN and its outputs.

    Args:
        kind: The type of the resource.
        inputs: The arguments, with the names of the schema.

    Raises:
        ValueError: The package has no such type.
    """
    if kind != TOKEN:
        raise ValueError(f"the package has no {kind}")
    from infra.slurm_cluster import OUTPUTS

    # Whether an input is known can only be awaited, and the SDK calls this as a plain function.
    task = asyncio.ensure_future(_cluster(name, inputs, options or pulumi.ResourceOptions()))
    cluster: pulumi.Output[SlurmCluster] = pulumi.Output.from_input(task)
    return cluster.apply(lambda component: component.urn), {
        camel: _output(cluster, key) for key, camel in OUTPUTS.items()
    }


def _output(cluster: pulumi.Output[SlurmCluster], key: str) -> pulumi.Output[Any]:
    return cluster.apply(lambda component: component.outputs.get(key))


async def _cluster(name: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions) -> SlurmCluster:
    """Declare a cluster's resources.

    Raises:
        InputPropertiesError: The arguments have mistakes, or such a cluster cannot be made.
    """
    from component.arguments import Program, read
    from infra.config.load import engine_secrets, engine_values
    from infra.errors import UserError
    from infra.program import mode
    from infra.slurm_cluster import SlurmCluster

    providers = options.providers or {}
    packages = frozenset(providers if isinstance(providers, Mapping) else ())
    settings, secret = engine_values(), engine_secrets()
    program = Program(pulumi.get_stack(), mode.folder(), settings, packages, secret)
    try:
        config, values = read(name, {key: await _known(value) for key, value in inputs.items()}, program)
        return SlurmCluster(name, config, values, guarded=True, opts=options)
    except UserError as error:
        # No property is named beside the message: the engine would print the value at its path, and Pulumi
        # 3.274 ends with a stack trace if that is an output.
        raise InputPropertiesError(str(error), []) from error


async def _known(value: Any) -> Any:
    """Return an input with what is known in it, and `Given` in the place of each `Output` of one value."""
    from component.arguments import Given

    if isinstance(value, pulumi.output.Unknown):
        return Given(_unknown(), known=False)
    if isinstance(value, pulumi.Output):
        known = await value.is_known()
        plain = await value.future() if known else None
        if isinstance(plain, Mapping | list):
            return await _known(plain)
        return Given(value, known=known, value=plain, secret=await value.is_secret())
    if isinstance(value, Mapping):
        return {key: await _known(part) for key, part in value.items()}
    if isinstance(value, list):
        return [await _known(part) for part in value]
    return value


def _unknown() -> pulumi.Output[Any]:
    """Return an `Output` that is not known, for an input about which the program says no more."""
    never: asyncio.Future[Any] = asyncio.Future()
    known: asyncio.Future[bool] = asyncio.Future()
    never.set_result(pulumi.output.UNKNOWN)
    known.set_result(False)
    return pulumi.Output(set(), never, known)
