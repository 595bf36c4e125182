"""The example consumer against mocks of the engine, and its script for the login machine in a real shell."""

from __future__ import annotations

import asyncio
import contextvars
import os
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from packaging.requirements import Requirement
from pulumi.runtime import mocks, rpc
from test_outputs import built

from infra.outputs import contract
from tests.support.checkout import ROOT
from tests.support.recorder import Recorder
from tests.support.stack_values import stack_file

EXAMPLE = ROOT / "examples" / "consumer"
REFERENCE = "organization/slurm-stacks/local"
JOB = "hello-job"
MODULES = ("slurm_job", "slurm_stacks")


class Engine(mocks.Mocks):
    """The engine's answers: another stack's outputs (`None`: not known yet), and the output of a command."""

    def __init__(self, outputs: dict[str, Any] | None, *, preview: bool) -> None:
        self._outputs = outputs
        self._preview = preview
        self.references: list[str] = []

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.typ == "pulumi:pulumi:StackReference":
            assert args.resource_id is not None
            self.references.append(args.resource_id)
            known = {} if self._outputs is None else {"outputs": self._outputs, "secretOutputNames": []}
            return args.resource_id, {"name": args.resource_id, **known}
        printed = {} if self._preview else {"stdout": "Welcome to the cluster\n7"}
        return f"{args.name}-id", {**args.inputs, **(printed if args.name == JOB else {})}

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise AssertionError(f"the example calls {args.token}")


class Consumer(Recorder):
    """A run of the example's program, or of another one in its place."""

    def __init__(
        self,
        outputs: dict[str, Any] | None,
        *,
        preview: bool = False,
        program: Path = EXAMPLE / "__main__.py",
        **config: str,
    ) -> None:
        self.engine = Engine(outputs, preview=preview)
        super().__init__(self.engine)
        self.exports: dict[str, Any] = {}
        declared = yaml.safe_load((EXAMPLE / "Pulumi.yaml").read_text())["config"]
        values = {key: str(entry["default"]) for key, entry in declared.items()} | config
        assert values.keys() == declared.keys()
        contextvars.copy_context().run(self._run, program, values, preview)

    def _run(self, file: Path, config: dict[str, str], preview: bool) -> None:
        loop = asyncio.new_event_loop()
        # After an error the SDK abandons its other tasks, whose errors are no news. The first one is raised.
        loop.set_exception_handler(lambda _loop, _context: None)
        asyncio.set_event_loop(loop)
        pulumi.runtime.set_mocks(
            self.engine, project="slurm-consumer", stack="dev", preview=preview, monitor=self
        )
        pulumi.runtime.set_all_config({f"slurm-consumer:{key}": value for key, value in config.items()})
        exported: dict[str, Any] = {}

        def program() -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pulumi, "export", exported.__setitem__)
                runpy.run_path(str(file), run_name="__main__")
            return pulumi.Output.all(**exported).apply(self.exports.update)

        # Without this wait a failing apply would not fail, and registrations would be missing.
        pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]

    def unknown(self, name: str) -> set[str]:
        """Return the inputs of a resource that are not known, or not entirely."""
        fields = self.asked[name].object.fields
        return {key for key, value in fields.items() if rpc.UNKNOWN in str(value)}


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the program's folder on the import path, as Pulumi does, and forget its imports afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def cluster(stack: str = "aws-p4de-inference", **changes: Any) -> dict[str, Any]:
    """Return the outputs of a stack that is up."""
    return {"cluster": built(stack_file(stack)) | changes, "login_ssh": "ssh x"}


# --- what it declares ------------------------------------------------------------------------------------


def test_the_job_is_one_command_over_the_way_in() -> None:
    login = {"address": "localhost", "ssh": "'/a checkout/cluster' ssh --stack local", "host_keys": []}
    consumer = Consumer(cluster("aws-cpu", login=login, shared="/run/shared folder"), nodes="2")
    assert consumer.engine.references == [REFERENCE]
    assert consumer.types() == {"hello": "slurm-consumer:index:SlurmJob", JOB: "command:local:Command"}
    assert consumer.parents()[JOB] == "hello"
    assert consumer.asked[JOB].deleteBeforeReplace
    inputs = consumer.inputs(JOB)
    assert inputs["create"] == inputs["update"] == f"{login['ssh']} sh -s submit"
    assert inputs["delete"].startswith(f"timeout 60 {login['ssh']} sh -s cancel || echo ")
    digest, incarnation = inputs["triggers"]
    assert incarnation == "c0ffee"
    folder = f"/run/shared folder/jobs/slurm-consumer-dev-hello/{digest}"
    assert f"folder='{folder}'" in inputs["stdin"]
    assert (EXAMPLE / "job.sh").read_text() in inputs["stdin"]
    assert "--partition=compute --nodes=2 job.sh" in inputs["stdin"]
    assert set(inputs) - {"create", "update", "delete", "triggers", "stdin"} <= {"addPreviousOutputInEnv"}
    assert consumer.exports == {"job_id": "7", "output": f"{folder}/job-7.out", "partition": "compute"}


def test_the_same_wish_is_the_same_job_and_another_is_another() -> None:
    wishes = [
        Consumer(cluster()),
        Consumer(cluster()),
        Consumer(cluster(), nodes="2"),
        Consumer(cluster(id="2")),
    ]
    triggers = [wish.inputs(JOB)["triggers"] for wish in wishes]
    assert triggers[0] == triggers[1]
    assert triggers[0][0] == triggers[3][0]
    assert len({tuple(t) for t in triggers}) == 3


@pytest.mark.parametrize(
    ("stack", "nodes", "gpus", "chosen"),
    [
        ("gcp-gpu", 8, 0, "debug"),
        ("gcp-gpu", 8, 1, "debug"),
        ("aws-p4de-inference", 1, 0, "compute-gpu"),
        ("aws-p4de-inference", 1, 1, "inference-gpu"),
        ("aws-p4de-inference", 1, 8, "compute-gpu"),
        ("aws-trn1", 1, 0, "compute-gpu"),
    ],
)
def test_the_partition_that_fits_is_chosen(stack: str, nodes: int, gpus: int, chosen: str) -> None:
    consumer = Consumer(cluster(stack), nodes=str(nodes), gpus=str(gpus))
    assert consumer.exports["partition"] == chosen
    assert (f"--gres=gpu:{gpus}" in consumer.inputs(JOB)["stdin"]) == (gpus > 0)


# --- what it refuses -------------------------------------------------------------------------------------

ELSEWHERE = f"stack {REFERENCE}, output `cluster`"


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize(
    ("outputs", "config", "said"),
    [
        ({}, {}, f"{ELSEWHERE}: there is no such output: that stack is not up"),
        (cluster(apiVersion="slurm-stacks/v2"), {}, "this reader knows slurm-stacks/v1. Update the reader"),
        ({"cluster": {"name": "x"}}, {}, f"{ELSEWHERE}: its apiVersion is nothing"),
        (cluster(partitions=[{}]), {}, "partitions[0].name: missing"),
        (
            cluster("gcp-gpu"),
            {"gpus": "2"},
            "no partition with nodes: 1, GPUs of each: 2, but: debug (nodes: 8, GPUs of each: 1",
        ),
        (
            cluster("gcp-gpu"),
            {"nodes": "9"},
            "no partition with nodes: 9, GPUs of each: 0, but: debug (nodes: 8, GPUs of each: 1",
        ),
        # Trainium is not a GPU.
        (cluster("aws-trn1"), {"gpus": "1"}, "no partition with nodes: 1, GPUs of each: 1"),
        (cluster(login=None), {}, "has no login machine: it is AWS Batch"),
        (cluster(shared=None), {}, "has no shared folder: it is AWS Batch"),
    ],
    ids=["down", "v2", "foreign", "broken", "gpus", "nodes", "trainium", "login", "shared"],
)
def test_what_cannot_work_ends_in_one_message_in_the_preview_already(
    outputs: dict[str, Any], config: dict[str, Any], said: str, preview: bool
) -> None:
    # Pulumi shows a RunError without a traceback.
    with pytest.raises(pulumi.RunError) as raised:
        Consumer(outputs, preview=preview, **config)
    assert said in str(raised.value)


# --- previews --------------------------------------------------------------------------------------------


def test_a_preview_shows_what_will_be_done() -> None:
    consumer = Consumer(cluster("aws-cpu"), preview=True)
    assert consumer.unknown(JOB) == set()
    assert consumer.inputs(JOB) == Consumer(cluster("aws-cpu")).inputs(JOB)
    assert consumer.exports == {}, "the job's id is not known before it is submitted"


def test_in_a_preview_of_a_cluster_that_is_not_made_yet_nothing_is_invented() -> None:
    consumer = Consumer(None, preview=True)
    assert JOB in consumer.types()
    assert consumer.unknown(JOB) == {"create", "update", "delete", "stdin", "triggers"}
    assert consumer.exports == {}


# --- the script on the login machine ---------------------------------------------------------------------


@pytest.fixture
def login(tmp_path: Path) -> Path:
    """A login machine with a fake Slurm that records its calls. A submission takes a moment."""
    for name, does in {
        "sbatch": 'sleep 0.2; echo "sbatch $*" >>"$LOG"; cp job.sh "$LOG.script"; grep -c sbatch "$LOG"',
        "scancel": 'echo "scancel $*" >>"$LOG"; test ! -e "$LOG.broken"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(login: Path, verb: str, script: str = "hostname", options: tuple[str, ...] = ()) -> Any:
    text = runpy.run_path(str(EXAMPLE / "slurm_job.py"))["_login_script"](
        str(login / "a folder"), script, list(options)
    )
    process = subprocess.Popen(
        ["sh", "-s", verb], cwd=login, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"PATH": f"{login}:{os.environ['PATH']}", "LOG": str(login / "log")},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    process.stdin = None
    return process


def done(login: Path, verb: str, script: str = "hostname", options: tuple[str, ...] = ()) -> tuple[str, str]:
    process = start(login, verb, script, options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out, err


def log(login: Path) -> list[str]:
    return (login / "log").read_text().splitlines()


def test_submitting_again_says_the_same_job(login: Path) -> None:
    assert done(login, "submit") == ("1\n", "")
    assert done(login, "submit") == ("1\n", "")
    assert log(login) == ["sbatch --parsable --output=job-%j.out job.sh"]


def test_two_submissions_at_once_are_one_job(login: Path) -> None:
    both = [start(login, "submit"), start(login, "submit")]
    assert [process.communicate(timeout=60)[0] for process in both] == ["1\n", "1\n"]
    assert len(log(login)) == 1


def test_the_script_and_the_options_arrive_as_they_are(login: Path) -> None:
    script = "#!/bin/bash\necho \"$HOME\" '`x`' \\$\nEND-OF-JOB\ncat <<'EOF'\n  $(y) {z} %j\nEOF\n\ttab"
    done(login, "submit", script, ("--comment=it's $mine; 2 words",))
    assert (login / "log.script").read_text() == f"{script}\n"
    assert shlex.split((login / "a folder" / "job.sh").read_text()) == shlex.split(script)
    assert log(login) == ["sbatch --parsable --output=job-%j.out --comment=it's $mine; 2 words job.sh"]


def test_a_cancelled_job_may_be_submitted_again(login: Path) -> None:
    done(login, "submit")
    assert done(login, "cancel") == ("", "")
    assert done(login, "cancel") == ("", ""), "cancelling twice is nothing"
    assert done(login, "submit") == ("2\n", "")
    assert [line.split()[0] for line in log(login)] == ["sbatch", "scancel", "sbatch"]
    assert log(login)[1] == "scancel --quiet 1"


def test_cancelling_on_a_cluster_that_does_not_know_the_job_is_nothing(login: Path) -> None:
    assert done(login, "cancel") == ("", "")
    assert not (login / "log").exists()


def test_a_job_that_cannot_be_cancelled_is_named_and_blocks_nothing(login: Path) -> None:
    done(login, "submit")
    (login / "log.broken").touch()
    assert done(login, "cancel") == ("", "job 1 was not cancelled\n")


def test_a_refusal_of_sbatch_is_a_failure_and_leaves_no_job(login: Path) -> None:
    good = (login / "sbatch").read_text()
    (login / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    process = start(login, "submit")
    assert process.communicate(timeout=60)[1] == "invalid partition\n"
    assert process.returncode != 0
    (login / "sbatch").write_text(good)
    assert done(login, "submit") == ("1\n", "")


# --- the project -----------------------------------------------------------------------------------------


def test_the_reader_in_it_is_ours_and_a_copy_is_complete(tmp_path: Path) -> None:
    """`cp -rL` makes a project that needs nothing else, as the page says."""
    subprocess.run(["cp", "-rL", str(EXAMPLE), str(tmp_path / "my-job")], check=True)
    copied = {path.name for path in (tmp_path / "my-job").iterdir() if not path.name.startswith(("_", "."))}
    assert (tmp_path / "my-job" / "slurm_stacks.py").read_text() == Path(contract.__file__).read_text()
    assert not any(path.is_symlink() for path in (tmp_path / "my-job").rglob("*"))
    assert {f"{name}.py" for name in MODULES} <= copied
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'my-job')!r}); import slurm_job"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_its_packages_are_those_that_it_is_tested_with() -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(metadata.version(wanted.name)), line


def test_its_stack_file_says_only_what_the_project_declares() -> None:
    declared = yaml.safe_load((EXAMPLE / "Pulumi.yaml").read_text())
    given = yaml.safe_load((EXAMPLE / "Pulumi.dev.yaml").read_text())["config"]
    assert {key.partition(":") for key in given} <= {
        (declared["name"], ":", key) for key in declared["config"]
    }
