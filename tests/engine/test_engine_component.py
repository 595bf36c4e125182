"""Clusters in a program that is not ours, with the real engine and clouds that make nothing."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli import outputs
from component.construction import SCHEMA
from infra.program.stand_ins import MARK
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.consumer_program import PAGE, Consumer, code, program

START_SECONDS = 1.5
AWS = "7.48.0"
"""The release of AWS's package for TypeScript."""
PLATFORM = ROOT / "docs" / "platform.md"
NODEJS = pytest.mark.skipif(
    not (shutil.which("npm") and shutil.which("pulumi-language-nodejs")),
    reason="npm, or Pulumi's host for Node.js, is not on PATH",
)


@pytest.fixture
def consumer(tmp_path: Path) -> Consumer:
    made = Consumer(tmp_path / "one" / "program", tmp_path / "one" / "home", tmp_path / "state")
    made.write()
    return made


def test_the_engine_reads_the_package_and_makes_sdks_of_it(consumer: Consumer) -> None:
    text = consumer.pulumi("package", "get-schema", str(consumer.component))
    found = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    assert found.items() >= {k: v for k, v in json.loads(SCHEMA.read_text()).items() if k != "meta"}.items()
    for language in ("python", "nodejs"):
        consumer.pulumi(
            "package", "gen-sdk", str(consumer.component), "--language", language, "--out", f"sdk-{language}"
        )
    arguments = (consumer.folder / "sdk-nodejs" / "nodejs" / "types" / "input.ts").read_text()
    assert "instanceType: pulumi.Input<string>;" in arguments
    assert re.search(r"placement\?: pulumi.Input<string \| enums.PartitionConfigPlacement", arguments)


def test_two_clusters_of_somebody_elses_program_live_and_end(
    consumer: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.generate()
    consumer.pulumi("stack", "init", "dev")
    preview = consumer.pulumi("preview")
    assert "train: [unknown]" in preview, "the network is not there yet"
    consumer.pulumi("up", "--yes", "--skip-preview")
    created = consumer.inputs()
    planned = int(re.search(r"\+ (\d+) to create", preview)[1])  # type: ignore[index]
    assert len(created) <= planned
    assert MARK not in (consumer.shared / ".pulumi" / "stacks" / "consumer" / "dev.json").read_text()
    vpc = created["train-network-controller"]["vpcId"]
    assert vpc.startswith("vpc-")
    assert "no changes" in _same(consumer)

    other = Consumer(tmp_path / "two" / "elsewhere", tmp_path / "two" / "me", consumer.shared)
    clone = tmp_path / "two" / "clone"
    clone.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".slurm-stacks"):
            (clone / entry.name).symlink_to(entry)
    (clone / "component").unlink()
    (clone / "component").mkdir()
    for entry in (ROOT / "component").iterdir():
        (clone / "component" / entry.name).symlink_to(entry)
    other.component = clone / "component"
    other.write()
    other.generate()
    other.pulumi("stack", "select", "dev")
    assert "no changes" in _same(other), "another engineer's checkout, home and folder"

    consumer.log.unlink()
    consumer.clusters["small"] = 3
    consumer.write_program()
    consumer.pulumi("up", "--yes", "--skip-preview")
    changed = {*consumer.calls("create"), *consumer.calls("update"), *consumer.calls("delete")}
    assert changed
    assert all(name.startswith("small-") for name in changed), "the other cluster stays as it is"

    # The commands of a checkout find both clusters in the stack.
    with monkeypatch.context() as ours:
        for name, value in consumer.env().items():
            ours.setenv(name, value)
        found = {name: outputs.read(f"organization/consumer/dev:{name}") for name in ("train", "small")}
        with sentences.raises("outputs.several", "--outputs organization/consumer/dev:small"):
            outputs.read("organization/consumer/dev")
    for name, published in found.items():
        login = published.cluster.login
        assert login is not None
        assert login.access is not None
        assert (published.cluster.name, login.access.mode) == (name, "ssm")
        assert login.access.machine.startswith("i-")

    # While a cluster has jobs, its guard refuses, and nothing of it is deleted.
    consumer.refuses = "train-guard"
    consumer.log.unlink()
    consumer.pulumi("destroy", "--yes", "--skip-preview", fails=True)
    assert [name for name in consumer.calls("delete") if not name.startswith("small")] == ["train-guard"]
    consumer.key = "another"
    consumer.write_program()
    consumer.log.unlink()
    consumer.pulumi("up", "--yes", "--skip-preview", fails=True)
    assert [name for name in consumer.calls("delete") if not name.startswith("small")] == ["train-guard"]
    consumer.refuses = ""
    consumer.log.unlink()
    consumer.pulumi("up", "--yes", "--skip-preview")
    order = consumer.calls("delete")
    assert order.index("train-guard") < order.index("train-head-controller")

    consumer.log.unlink()
    consumer.pulumi("destroy", "--yes", "--skip-preview")
    order = consumer.calls("delete")
    for name in ("train", "small"):
        places = [
            order.index(f"{name}-{part}") for part in ("guard", "ready", "head-controller", "termination")
        ]
        assert [*places, order.index("vpc")] == sorted([*places, order.index("vpc")])
    assert len(order) == len(created)


@pytest.mark.wide
@pytest.mark.skipif(
    not (shutil.which("go") and shutil.which("pulumi-language-go")),
    reason="go, or Pulumi's host for Go, is not on PATH",
)
def test_a_program_in_go(consumer: Consumer) -> None:
    consumer.go(program("go"))
    consumer.pulumi("stack", "init", "dev")
    assert re.search(r"SlurmCluster +train", consumer.pulumi("preview"))


@pytest.mark.wide
@pytest.mark.skipif(
    not shutil.which("pulumi-language-dotnet"), reason="Pulumi's host for .NET is not on PATH"
)
def test_the_package_for_csharp(consumer: Consumer, tmp_path: Path) -> None:
    """It is generated. The engine downloads a logo for it, which comes from here."""
    picture = tmp_path / "www" / "logo.png"
    picture.parent.mkdir()
    picture.write_bytes(b"\x89PNG")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(picture.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        logo = f"http://127.0.0.1:{server.server_port}/{picture.name}"
        schema = tmp_path / "schema.json"
        schema.write_text(json.dumps({**json.loads(SCHEMA.read_text()), "logoUrl": logo}))
        consumer.pulumi("package", "gen-sdk", str(schema), "--language", "dotnet", "--out", "sdk")
        server.shutdown()
    arguments = (consumer.folder / "sdk" / "dotnet" / "Inputs" / "PartitionConfigArgs.cs").read_text()
    assert '[Input("instanceType", required: true)]' in arguments
    assert "public Input<string> InstanceType { get; set; }" in arguments


def _same(consumer: Consumer) -> str:
    """Return what the engine says of a program that changes nothing; with a change it fails."""
    text = consumer.pulumi("preview", "--expect-no-changes")
    return "no changes" if " unchanged" in text and " to " not in text else text


@pytest.mark.wide
@NODEJS
def test_the_same_program_in_typescript(consumer: Consumer) -> None:
    consumer.plugin("aws", AWS)
    consumer.typescript({"@pulumi/aws": AWS}, index=program("typescript"))
    consumer.pulumi("stack", "init", "dev")
    assert "[unknown]" in consumer.pulumi("preview")
    consumer.pulumi("up", "--yes", "--skip-preview")
    assert json.loads(consumer.pulumi("stack", "output", "names", "--json")) == ["train", "small"]
    assert "no changes" in _same(consumer)
    consumer.pulumi("destroy", "--yes", "--skip-preview")
    assert {*consumer.calls("delete")} == {*consumer.calls("create")}


# --- transforms --------------------------------------------------------------------------------------------

TRANSFORMED = {
    "python": """
from pulumi_slurm_stacks import SlurmCluster


def everywhere(args):
    changes = {
        "aws:ebs/volume:Volume": {"size": 77},
        "slurm-stacks:index:SlurmCluster": {"tags": {"team": "vision"}},
    }
    if args.type_ in changes:
        return pulumi.ResourceTransformResult({**args.props, **changes[args.type_]}, args.opts)


pulumi.runtime.register_resource_transform(everywhere)
for name, options in {"train": opts, "small": None}.items():
    SlurmCluster(
        name,
        provider="aws",
        network={"zones": ["eu-west-1b"]},
        partitions=[{"name": "cpu", "instance_type": "m5.xlarge"}],
        opts=options,
    )
""",
    "typescript": """
import { SlurmCluster } from "@pulumi/slurm-stacks";

const changes: Record<string, object> = {
    "aws:ebs/volume:Volume": { size: 77 },
    "slurm-stacks:index:SlurmCluster": { tags: { team: "vision" } },
};
pulumi.runtime.registerResourceTransform(args =>
    args.type in changes ? { props: { ...args.props, ...changes[args.type] }, opts: args.opts } : undefined);
for (const [name, options] of Object.entries({ train: opts, small: {} })) {
    new SlurmCluster(name, {
        provider: "aws",
        network: { zones: ["eu-west-1b"] },
        partitions: [{ name: "cpu", instanceType: "m5.xlarge" }],
    }, options);
}
""",
}


def transformed(language: str) -> str:
    """Return a program with the transform that the page shows, as the option of one of its two clusters."""
    (shown,) = code(language, PLATFORM)
    return shown + TRANSFORMED[language]


def check_transformed(consumer: Consumer) -> None:
    consumer.pulumi("stack", "init", "dev")
    consumer.pulumi("up", "--yes", "--skip-preview")
    made = consumer.inputs()
    assert made["train-logs-group"]["retentionInDays"] == 365
    assert made["small-logs-group"]["retentionInDays"] != 365, "which is an option of the other"
    for name in ("train", "small"):
        assert made[f"{name}-storage-home"]["size"] == 77
        for part in ("head-controller", "storage-home", "network-vpc"):
            assert made[f"{name}-{part}"]["tags"]["team"] == "vision", "the component's own arguments"
    assert "no changes" in _same(consumer)


def test_transforms_reach_every_resource_of_a_cluster(consumer: Consumer) -> None:
    consumer.generate()
    consumer.write_program(transformed("python"))
    check_transformed(consumer)


@pytest.mark.wide
@NODEJS
def test_transforms_in_typescript(consumer: Consumer) -> None:
    consumer.typescript({}, index=transformed("typescript"))
    check_transformed(consumer)


# --- policies ----------------------------------------------------------------------------------------------


PLAIN_DISKS = """import pulumi


def plain(args):
    if args.type_ == "aws:ebs/volume:Volume":
        return pulumi.ResourceTransformResult({**args.props, "encrypted": False}, args.opts)


pulumi.runtime.register_resource_transform(plain)
"""


def test_a_policy_pack_sees_resources_and_arguments(consumer: Consumer, tmp_path: Path) -> None:
    pack = tmp_path / "policy"
    shutil.copytree(ROOT / "examples" / "policy", pack)
    project = pack / "PulumiPolicy.yaml"
    # The pack's packages are also in this environment.
    project.write_text(project.read_text().replace("virtualenv: .venv", f"virtualenv: {sys.prefix}"))
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(consumer.folder / name, pack)
    consumer.generate()
    consumer.write_program(program("python").replace("import pulumi\n", PLAIN_DISKS, 1))
    consumer.pulumi("stack", "init", "dev")
    text = consumer.pulumi("preview", "--policy-pack", str(pack), fails=True)
    assert "a disk is not encrypted" in text, "policies are asked after transforms"
    assert "tags without cost-center, owner" in text
    assert "set budget.maxUsd or budget.maxHours" in text
    assert not re.search("open to everybody|IMDSv1", text)
    given = 'tags={"cost-center": "4711", "owner": "ml"}, budget={"max_usd": 100.0},'
    consumer.write_program(program("python").replace('provider="aws",', f'provider="aws", {given}'))
    text = consumer.pulumi("preview", "--policy-pack", str(pack))
    assert "to create" in text
    assert "mandatory" not in text.lower()


# --- a user's tests ----------------------------------------------------------------------------------------


def test_a_users_tests_with_mocks(consumer: Consumer) -> None:
    """They need neither the engine, which has generated the package before, nor our code."""
    line = "python -m unittest test_program.py"
    assert line in PAGE.read_text()
    consumer.generate()
    sdk = f"import sys\nsys.path.insert(0, {str(consumer.folder / 'sdk' / 'python')!r})\n"
    (consumer.folder / "test_program.py").write_text(sdk + program("python", test=True))
    consumer.run(*line.split())
    consumer.write_program(program("python").replace("vpc.id", '"vpc-elsewhere"'))
    with pytest.raises(AssertionError, match="vpc-elsewhere"):
        consumer.run(*line.split())


@pytest.mark.wide
@NODEJS
def test_a_users_tests_with_mocks_in_typescript(consumer: Consumer) -> None:
    line = "node -r ts-node/register program_test.ts"
    assert line in PAGE.read_text()
    shown, tests = program("typescript"), program("typescript", test=True)
    consumer.typescript({"@pulumi/aws": AWS, "ts-node": "^10"}, index=shown, program_test=tests)
    consumer.run(*line.split())
    (consumer.folder / "index.ts").write_text(shown.replace("vpc: vpc.id", 'vpc: "vpc-elsewhere"'))
    with pytest.raises(AssertionError, match="vpc-elsewhere"):
        consumer.run(*line.split())


# --- mistakes, and the start -------------------------------------------------------------------------------


def test_bad_arguments_are_told_as_those_of_a_stack_file(consumer: Consumer) -> None:
    consumer.generate()
    consumer.pulumi("stack", "init", "dev")
    file = consumer.folder / "__main__.py"
    file.write_text(
        file.read_text().replace('"m5.xlarge"', '"m5.xlrge"').replace('"name": "cpu"', '"name": vpc.id')
    )
    text = consumer.pulumi("preview", fails=True)
    assert "partitions[0].instanceType" in text
    assert "did you mean m5.xlarge" in text
    assert "partitions[0].name [component.unknown]" in text
    assert "construction.py" not in text, "no stack trace of the plugin"


def test_the_plugin_starts_within_its_limit() -> None:
    """It is the median of five starts, until the engine has the port, in CPU time."""
    spent = []
    for _ in range(5):
        before = os.times()
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "component"), "127.0.0.1:1"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        began = time.monotonic()
        assert int(process.stdout.readline()) > 0
        assert time.monotonic() - began < 60
        process.terminate()
        process.wait(60)
        process.stdout.close()
        after = os.times()
        spent.append(
            after.children_user - before.children_user + after.children_system - before.children_system
        )
    assert sorted(spent)[2] <= START_SECONDS, spent
