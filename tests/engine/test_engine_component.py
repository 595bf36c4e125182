"""Clusters in a program that is not ours, with the real engine and clouds that make nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import outputs
from component.construction import SCHEMA
from infra.program.stand_ins import MARK
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.consumer_program import Consumer, program

START_SECONDS = 1.5


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


def _same(consumer: Consumer) -> str:
    """Return what the engine says of a program that changes nothing; with a change it fails."""
    text = consumer.pulumi("preview", "--expect-no-changes")
    return "no changes" if " unchanged" in text and " to " not in text else text


NODE = {
    "@pulumi/aws": "7.48.0",
    "@pulumi/pulumi": "3.270.0",
    "@pulumi/slurm-stacks": "file:sdk/nodejs",
    "@types/node": "^20",
    "typescript": "^5.9",
}
COMPILER = {
    "strict": True,
    "target": "es2020",
    "module": "commonjs",
    "moduleResolution": "node",
    "skipLibCheck": True,
}


@pytest.mark.wide
def test_the_same_program_in_typescript(consumer: Consumer) -> None:
    if not shutil.which("npm") or not shutil.which("pulumi-language-nodejs"):
        pytest.skip("npm, or Pulumi's host for Node.js, is not on PATH")
    folder = consumer.folder
    for file in ("__main__.py", "pyproject.toml", "uv.lock"):
        (folder / file).unlink()
    project = (folder / "Pulumi.yaml").read_text()
    (folder / "Pulumi.yaml").write_text(re.sub("runtime:\n.*\n.*\n", "runtime: nodejs\n", project))
    (folder / "package.json").write_text(json.dumps({"name": "consumer", "dependencies": NODE}))
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": COMPILER, "files": ["index.ts"]}))
    (folder / "index.ts").write_text(program("typescript"))
    consumer.plugin("aws", NODE["@pulumi/aws"])
    consumer.pulumi("package", "gen-sdk", str(consumer.component), "--language", "nodejs", "--out", "sdk")
    consumer.run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--install-links=false")
    sdk = folder / "sdk" / "nodejs"
    consumer.run("npx", "tsc", "--project", str(sdk), "--outDir", str(sdk / "bin"))
    shutil.copy(sdk / "package.json", sdk / "bin")
    consumer.run("npx", "tsc", "--noEmit", "--project", str(folder))
    consumer.pulumi("stack", "init", "dev")
    assert "[unknown]" in consumer.pulumi("preview")
    consumer.pulumi("up", "--yes", "--skip-preview")
    assert json.loads(consumer.pulumi("stack", "output", "names", "--json")) == ["train", "small"]
    assert "no changes" in _same(consumer)
    consumer.pulumi("destroy", "--yes", "--skip-preview")
    assert {*consumer.calls("delete")} == {*consumer.calls("create")}


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
