"""Plugins of the clouds for the real engine that make nothing: they answer as the mocks of our unit tests do.

The protocol is that of `pulumirpc.ResourceProvider`, whose messages the SDK brings along. A property that a
program changes is an update, or a replacement where the providers' own rules say so (`replacing_rules`). What
is made anew has another id where its cloud assigns one. Every call is a line of the file `$STAND_IN_LOG`. The
deletion of a resource that `$STAND_IN_REFUSES` names fails.

    with_plugins(home)  # puts them where the engine looks
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import sys
import uuid
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime import mocks
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
from tests.support import replacing_rules

ROOT = Path(__file__).resolve().parents[2]
LOG, REFUSES = "STAND_IN_LOG", "STAND_IN_REFUSES"
PACKAGES = {"aws": "pulumi-aws", "gcp": "pulumi-gcp", "command": "pulumi-command"}
SIGNATURE = "4dabf18193072939515e22adb298388d"
"""The key that marks a secret, an output or an asset (`pulumi.runtime.rpc._special_sig_key`)."""
IDS = {
    "aws:ec2/vpc:Vpc": "vpc",
    "aws:ec2/subnet:Subnet": "subnet",
    "aws:ec2/securityGroup:SecurityGroup": "sg",
    "aws:ec2/networkInterface:NetworkInterface": "eni",
    "aws:ec2/instance:Instance": "i",
    "aws:ebs/volume:Volume": "vol",
    "aws:efs/fileSystem:FileSystem": "fs",
}
"""Types whose ids AWS assigns, with the beginning of each."""
NUMBERS = {
    "gcp:compute/instance:Instance": "instanceId",
    "gcp:compute/disk:Disk": "diskId",
}
"""Types that Google Cloud numbers, with the output that has the number: "This identifier is defined by the
server", as the reference of Compute Engine's API says of `id`. Their ids for Pulumi are paths of names."""


def with_plugins(home: Path) -> None:
    """Put the plugins into a `PULUMI_HOME`, in the versions of the installed SDKs."""
    for name, package in PACKAGES.items():
        folder = home / "plugins" / f"resource-{name}-v{importlib.metadata.version(package)}"
        folder.mkdir(parents=True)
        plugin = folder / f"pulumi-resource-{name}"
        line = shlex.join([sys.executable, str(Path(__file__).resolve()), name])
        plugin.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        plugin.chmod(0o755)


def answers(package: str) -> mocks.Mocks:
    """Return the mock of a cloud; commands print what the clouds' waits do."""
    if package in ("gcp", "command"):
        # What a wait on Google Cloud prints has all that one on AWS prints.
        from tests.support.gcp_machines import Machines as GcpMachines

        return GcpMachines()
    from tests.support.aws_machines import Machines as AwsMachines

    class AnyCluster(AwsMachines):
        def call(self, args: mocks.MockCallArgs) -> Any:
            if args.token == "aws:ec2/getSubnets:getSubnets":
                return {"ids": [], "id": "x"}
            return super().call(args)

    return AnyCluster()


def plain(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return properties as plain values; secrets and outputs are what they hold, and assets their hash."""
    return {key: _plain(value) for key, value in json_format.MessageToDict(struct).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if SIGNATURE in value:
            return value["hash"] if "hash" in value else _plain(value.get("value"))
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def struct(values: dict[str, Any]) -> struct_pb2.Struct:
    """Return plain values as properties."""
    made = struct_pb2.Struct()
    made.update({key: value for key, value in values.items() if value is not None})
    return made


class StandIn(provider_pb2_grpc.ResourceProviderServicer):
    """A provider of a package whose resources exist in the engine's state alone."""

    def __init__(self, package: str) -> None:
        self._version = importlib.metadata.version(PACKAGES[package])
        self._mocks = answers(package)

    def _note(self, verb: str, urn: str, identity: str, inputs: dict[str, Any]) -> None:
        if file := os.environ.get(LOG):
            with Path(file).open("a") as log:
                log.write(json.dumps({"verb": verb, "urn": urn, "id": identity, "inputs": inputs}) + "\n")

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's names
        return plugin_pb2.PluginInfo(version=self._version)

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.ConfigureResponse()

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.CheckResponse(inputs=request.news)

    def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802
        old, new = plain(request.old_inputs), plain(request.news)
        changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        fixed = replacing_rules.fixed(_type(request.urn), old, new)
        kind = provider_pb2.DiffResponse
        return kind(
            changes=kind.DIFF_SOME if changed else kind.DIFF_NONE,
            diffs=changed,
            replaces=sorted(name for name in fixed if replacing_rules.differs(name, old, new)),
        )

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        inputs, kind = plain(request.properties), _type(request.urn)
        identity, outputs = self._answer(request.urn, inputs)
        number = uuid.uuid4()
        if kind in IDS:
            identity = f"{IDS[kind]}-{number.hex[:17]}"
        if kind in NUMBERS:
            outputs[NUMBERS[kind]] = str(number.int % 10**19)
        self._note("create", request.urn, identity, inputs)
        return provider_pb2.CreateResponse(id=identity, properties=struct({**outputs, "id": identity}))

    def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        inputs, kind = plain(request.news), _type(request.urn)
        self._note("update", request.urn, request.id, inputs)
        _, outputs = self._answer(request.urn, inputs)
        if kind in NUMBERS:
            outputs[NUMBERS[kind]] = plain(request.olds)[NUMBERS[kind]]
        return provider_pb2.UpdateResponse(properties=struct({**outputs, "id": request.id}))

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._note("delete", request.urn, request.id, {})
        if request.urn.rpartition("::")[2] == os.environ.get(REFUSES):
            context.abort(grpc.StatusCode.UNKNOWN, "it refuses")
        return empty_pb2.Empty()

    def Read(self, request: Any, context: Any) -> Any:  # noqa: N802
        return provider_pb2.ReadResponse(
            id=request.id, properties=request.properties, inputs=request.properties
        )

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        found: Any = self._mocks.call(mocks.MockCallArgs(request.tok, plain(request.args), ""))
        return provider_pb2.InvokeResponse(**{"return": struct(found)})

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        return empty_pb2.Empty()

    def _answer(self, urn: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        kind, name = _type(urn), urn.rpartition("::")[2]
        identity, outputs = self._mocks.new_resource(mocks.MockResourceArgs(kind, name, inputs, "", "", True))
        if kind == "aws:s3/bucket:Bucket":
            outputs = {**outputs, "bucket": name}
        return str(identity), dict(outputs)


def _type(urn: str) -> str:
    """Return the type of a resource, without those of its parents."""
    return urn.split("::")[2].rpartition("$")[2]


def main(package: str) -> None:
    """Serve a package until the engine ends the process."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(StandIn(package), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
