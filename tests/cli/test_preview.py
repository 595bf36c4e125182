"""`up` on a cloud has the engine preview the change first, and does nothing if the provider refuses it."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console as RichConsole

from cli import engine as runner
from cli.changes.decision import CheckedChanges
from cli.commands import operate
from cli.console.events import ResourceDone, ResourceStarted, Summary
from cli.console.progress import Console
from cli.engine.automation import PulumiRunner
from cli.engine.plan import plan
from cli.providers import provider
from cli.providers.batch.provider import BatchProvider
from cli.providers.interface import InstallsHere
from infra.aws.batch import environment
from infra.config import load_file
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.program import locations
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.fake_pulumi import called, install
from tests.support.provider_checks import refused
from tests.support.stack_values import values
from tests.support.tiny_project import make


class Engine:
    """An engine with providers that check what the program declares, by the facts of their sources."""

    name = "fake"

    def __init__(self, stack: Stack, did: list[str]) -> None:
        self._stack = stack
        self._did = did
        self.fails: UserError | None = None
        self.lost: tuple[str, ...] = ()

    @contextlib.contextmanager
    def changing(self, verb: str, _on_event: Any) -> Iterator[None]:
        self._did.append(f"lock for {verb}")
        yield
        self._did.append("unlock")

    def outputs(self) -> dict[str, Any]:
        return {}

    def preview(self, on_event: Any, *, benchmark: bool = True) -> Summary:
        self._did.append("preview" if benchmark else "preview without the benchmark")
        if self.fails is not None:
            raise self.fails
        declared = plan(self._stack)["resources"]
        for one in declared:
            on_event(ResourceStarted(one["urn"], one["name"], one["type"], "created"))
        if wrong := [
            f"{one['name']}: {line}"
            for one in declared
            for line in refused(one["type"], one["name"], one["inputs"])
        ]:
            raise UserError("Pulumi: " + "\n".join(wrong), code="test.cause")
        for one in declared:
            on_event(ResourceDone(one["urn"], one["name"], one["type"], "created", 0.0))
        return Summary({"created": len(declared), "unchanged": 1})

    def up(self, _on_event: Any, *, benchmark: bool = True, lost: tuple[str, ...] = ()) -> dict[str, Any]:
        self._did.append("up")
        self.lost = lost
        return {}


class Provider(BatchProvider, InstallsHere):
    """A provider that notes what it is asked to do."""

    def __init__(self, did: list[str]) -> None:
        self._did = did

    def check_host(self, design: ClusterDesign) -> None: ...

    def check_changes(self, *_arguments: Any, **_options: Any) -> CheckedChanges:
        self._did.append("check")
        return CheckedChanges(
            end_jobs=lambda: self._did.append("end jobs"),
            release=lambda: self._did.append("release"),
            lost=("controller",),
        )

    def prepare(self, *_arguments: Any) -> None:
        self._did.append("prepare")

    def repair(self, *_arguments: Any) -> None: ...


class Scene:
    """A Batch stack on this fake cloud."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for file in ("Pulumi.yaml", "__main__.py"):
            (folder / file).write_bytes((ROOT / file).read_bytes())
        self.stack = Stack(folder, "test")
        self.stack.file.write_text(yaml.safe_dump({"config": values("batch")}))
        self.did: list[str] = []
        self.engine = Engine(self.stack, self.did)
        self._said = io.StringIO()
        monkeypatch.setattr(runner, "select", lambda *_: self.engine)
        monkeypatch.setattr(provider, "load", lambda *_: Provider(self.did))

    def up(self) -> None:
        console = Console(RichConsole(file=self._said, width=300, soft_wrap=True))
        operate.bring_up(self.stack, load_file(self.stack.file), console, benchmark=False, quiet=True)

    @property
    def said(self) -> str:
        return self._said.getvalue()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_up_makes_nothing_and_ends_no_job_if_the_provider_refuses_a_value(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is the one that AWS Batch had here: AWS takes up to 7200, the provider 360."""
    monkeypatch.setattr(environment, "LONGEST_UPDATE_MINUTES", 7200)
    with sentences.raises("change.preview-failed", "Pulumi.test.yaml") as caught:
        scene.up()
    assert scene.did == ["lock for up", "check", "preview without the benchmark"]
    assert caught.value.exit_code == EXIT_REFUSED
    first, value, *_, last = str(caught.value).splitlines()
    assert first == "nothing was changed: the preview of this change fails"
    assert "batch-environment-compute: " in value
    assert "updatePolicy.jobExecutionTimeoutMinutes to be in the range (1 - 360), got 7200" in value
    assert last.endswith("report it with these lines.")


def test_what_the_provider_accepts_is_made_and_jobs_end_only_then(scene: Scene) -> None:
    scene.up()
    assert scene.did == [
        "lock for up", "check", "preview without the benchmark", "prepare", "end jobs", "up", "release",
        "unlock",
    ]  # fmt: skip
    assert scene.engine.lost == ("controller",), "the engine gets to know which machines are gone"
    made = len(plan(scene.stack)["resources"])
    assert f"the provider accepts it: create {made}\n" in scene.said
    assert "created" not in scene.said, "nothing is, as yet"


def test_ctrl_c_in_the_preview_ends_no_job_either(scene: Scene) -> None:
    scene.engine.fails = UserError("interrupted; nothing was changed", EXIT_INTERRUPTED, code="test.cause")
    with pytest.raises(UserError) as caught:
        scene.up()
    assert (caught.value.exit_code, str(caught.value)) == (
        EXIT_INTERRUPTED, "interrupted; nothing was changed",
    )  # fmt: skip
    assert "end jobs" not in scene.did


# --- the Automation API -----------------------------------------------------------------------------------

REFUSED = (
    "aws:batch/computeEnvironment:ComputeEnvironment resource 'e' has a problem: expected "
    "update_policy.0.job_execution_timeout_minutes to be in the range (1 - 360), got 7200. "
    "Examine values at 'e.updatePolicy.jobExecutionTimeoutMinutes'."
)
URN = "urn:pulumi:t::tiny::aws:batch/computeEnvironment:ComputeEnvironment::e"
CHANGES = {"create": 2, "same": 1}
SUMMARY = {"maybeCorrupt": False, "durationSeconds": 1, "resourceChanges": CHANGES, "PolicyPacks": {}}
JOB = "urn:pulumi:t::tiny::slurm-stacks:index:Benchmark$command:local:Command::a-benchmark-job"


def test_the_sdks_preview_says_what_the_provider_refuses_and_leaves_no_stack_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make(tmp_path, monkeypatch).write("command('a')")
    (tiny.path / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
    refusal = {"diagnosticEvent": {"message": REFUSED, "color": "never", "severity": "error", "urn": URN}}
    failed = {"diagnosticEvent": {"message": "preview failed", "color": "never", "severity": "error"}}
    calls = install(tmp_path, monkeypatch, [refusal, failed], 255)
    with pytest.raises(UserError) as caught:
        PulumiRunner(tiny.stack, local=False).preview()
    assert str(caught.value) == f"Pulumi: e: {REFUSED}"
    assert called(calls, "preview"), "the SDK has asked for it"
    assert not called(calls, "up")
    assert not (locations.state_dir(tiny.stack) / "engine").exists(), "as before"


def test_a_salt_that_pulumi_wrote_for_another_passphrase_is_left_out_of_our_own_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pulumi stack init` writes it into the checkout's file, for the user's login of that day."""
    tiny = make(tmp_path, monkeypatch).write("command('a')", "encryptionsalt: v1:theirs\nconfig: {a: '1'}\n")
    calls = install(tmp_path, monkeypatch, [{"summaryEvent": SUMMARY}], 0)
    engine = locations.state_dir(tiny.stack) / "engine"
    for backend, salt in (("file:///theirs", True), ("", False)):
        monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
        engine.mkdir(parents=True, exist_ok=True)
        (engine / tiny.stack.file.name).write_text("encryptionsalt: v1:ours\n")
        calls.unlink(missing_ok=True)
        PulumiRunner(tiny.stack, local=False).preview()
        ((words, _),) = called(calls, "preview")
        if salt:
            assert "--config-file" not in words, "the checkout's own"
            continue
        given = yaml.safe_load(Path(words[words.index("--config-file") + 1]).read_text())
        assert given == {"encryptionsalt": "v1:ours", "config": {"a": "1"}}
    assert "v1:theirs" in tiny.stack.file.read_text(), "and not changed there"


def test_the_sdks_preview_leaves_out_what_up_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make(tmp_path, monkeypatch).write("command('a')")
    calls = install(tmp_path, monkeypatch, [{"summaryEvent": SUMMARY}], resources=[{"urn": JOB}])
    found = PulumiRunner(tiny.stack, local=False).preview(benchmark=False)
    assert found.counts == {"created": 2, "unchanged": 1}
    ((words, kept),) = called(calls, "preview")
    assert shlex.join(["--exclude", JOB]) in shlex.join(words)
    assert kept == "{}", "the program does not declare it"
