"""Without the CLI and with it, programs such as the local stack's run the same commands in the same cases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.console.events import ResourceDone
from cli.engine.automation import PulumiRunner
from cli.engine.plan import plan
from infra.errors import UserError
from infra.program.stack import Stack
from tests.support.project_file import project_file
from tests.support.tiny_project import ROOT, Run, Tiny, make

PROGRAM = """
    value = config.require("value")


    class Part(pulumi.ComponentResource):
        def __init__(self, name, kind, opts=None):
            super().__init__(f"slurm-stacks:index:{kind}", name, {}, opts)
            self.register_outputs({})


    def logged(name):
        return f"echo '{name}' >> '{LOG}'; echo out-'{name}'"


    def probe(name, update=True, **inputs):
        opts = ResourceOptions(**inputs.pop("opts", {}))
        if update:
            inputs["update"] = logged(name + "~")
        return Command(name, create=logged(name + "+"), delete=logged(name + "-"), **inputs, opts=opts)


    outer = Part("outer", "Outer")
    inner = Part("inner", "Inner", ResourceOptions(parent=outer))
    probe("changed", environment={"V": value}, opts={"parent": inner})
    probe("recreated", update=False, stdin=value)
    first = probe("first", triggers=[value, {"deep": [1, True]}], opts={"delete_before_replace": True})
    probe("notes", environment={"ID": first.id})

    probe("same")
    late = probe("late", opts={"depends_on": [first]})
    probe("on-late", opts={"deleted_with": late, "depends_on": [late]})
    if value == "1":
        base = probe("gone-base")
        probe("gone-top", opts={"depends_on": [base]})

    pulumi.export("texts", {"first": first.stdout, "list": [1, 2.5, None, value]})
"""


class Engine(Tiny):
    """Runs the same project with the CLI."""

    def up(self, *, benchmark: bool = True) -> Run:
        self.events = []
        outputs = PulumiRunner(self.stack, local=True).up(self.events.append, benchmark=benchmark)
        return Run(outputs, self.events)

    def destroy(self) -> Run:
        self.events = []
        PulumiRunner(self.stack, local=True).destroy(self.events.append)
        return Run(None, self.events)


@pytest.fixture
def pair(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tiny, Engine]:
    """One project for each runner. Both have the same paths inside."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    state = tmp_path / "state"
    mine = make(ours, monkeypatch)
    engine = Engine(theirs / "a project", mine.run_root)
    engine.path.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    return mine, engine


def write(project: Tiny, program: str, config: str = "config: {}") -> Tiny:
    project.write(program, config)
    (project.path / "Pulumi.yaml").write_text(project_file("tiny"))
    # The CLI looks here for the versions of the SDKs.
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, project.path)
    return project


def words(project: Tiny) -> list[str]:
    """Return what the commands wrote, one entry a line."""
    lines = project.log.read_text().splitlines() if project.log.exists() else []
    project.log.unlink(missing_ok=True)
    return lines


def order(lines: list[str], *names: str) -> list[str]:
    return [line.split()[0] for line in lines if line.split()[0] in names]


def test_the_same_programs_run_the_same_commands(pair: tuple[Tiny, Engine]) -> None:
    seen: dict[str, list[Any]] = {"ours": [], "theirs": []}
    for name, project in zip(seen, pair, strict=True):
        for value in ("1", "1", "2"):
            run = write(project, PROGRAM, f"config: {{value: '{value}'}}").up()
            lines = words(project)
            seen[name].append((value, sorted(lines), run.outputs, run.operations))
            if value == "2":
                assert order(lines, "first-", "first+") == ["first-", "first+"]
                assert order(lines, "gone-top-", "gone-base-") == ["gone-top-", "gone-base-"]
        run = project.destroy()
        lines = words(project)
        seen[name].append((sorted(lines), run.operations))
        assert order(lines, "late-", "first-") == ["late-", "first-"]
        assert "on-late-" not in " ".join(lines)
    for ours, theirs in zip(seen["ours"], seen["theirs"], strict=True):
        assert ours == theirs


def test_the_plan_lists_what_the_engine_registers(pair: tuple[Tiny, Engine]) -> None:
    _, engine = pair
    write(engine, PROGRAM, "config: {value: '1'}")
    engine.up()
    registered = {
        event.urn
        for event in engine.events
        if isinstance(event, ResourceDone) and "pulumi:providers" not in event.urn
    }
    assert {resource["urn"] for resource in plan(Stack(engine.path, "t"))["resources"]} == registered
    engine.destroy()


def test_a_failure_goes_the_same_way(pair: tuple[Tiny, Engine]) -> None:
    program = """
        a = command("a")
        b = command("b", create=say("b+") + "; echo because >&2; exit 3", opts={"depends_on": [a]})
        command("c", opts={"depends_on": [b]})
    """
    for project in pair:
        write(project, program, "config: {}")
        with pytest.raises(UserError) as raised:
            project.up()
        assert raised.value.exit_code == 1
        assert "b: " in str(raised.value)
        assert "exit status 3" in str(raised.value)
        assert "because" in str(raised.value)
        assert project.last.summary.failed == 1
        write(project, program.replace("; exit 3", ""), "config: {}").up()
        assert [line.split()[0] for line in words(project)] == ["a+", "b+", "b+", "c+"]
        project.destroy()
        assert [line.split()[0] for line in words(project)] == ["c-", "b-", "a-"]


def replaced_in_order(
    pair: tuple[Tiny, Engine], monkeypatch: pytest.MonkeyPatch, program: str, *values: str
) -> list[list[str]]:
    """Return what the real engine's commands wrote with each value, and at the end, one list a run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    _, engine = pair
    written = []
    for value in values:
        write(engine, program, f"config: {{value: '{value}'}}").up()
        written.append(engine.words)
    engine.destroy()
    return [*written, engine.words]


def test_a_network_is_replaced_after_what_stands_on_it(
    pair: tuple[Tiny, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head goes, then the nodes are ended, then the old subnet goes."""
    program = """
        from infra.clouds import cluster, commands
        from tests.support.aws_mocks import aws_design

        commands.line = lambda *_words: f"echo termination- >> '{LOG}'"
        cluster.INTERPRETER = ("/bin/sh", "-c")
        subnet = command("subnet", triggers=[config.require("value")])
        design = aws_design()
        ended = cluster.terminate_on_destroy("termination", "module", design, [subnet.id], [subnet], None)
        command("head", triggers=[cluster.behind(ended, subnet.id)], opts={"depends_on": [ended]})
    """
    assert replaced_in_order(pair, monkeypatch, program, "10.0.0.0/16", "10.0.0.0/16", "10.9.0.0/16") == [
        ["subnet+", "head+"],
        [],
        ["subnet+", "head-", "termination-", "head+", "subnet-"],
        ["head-", "termination-", "subnet-"],
    ]


def test_an_environment_of_batch_is_made_anew_after_what_uses_it(
    pair: tuple[Tiny, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
        from infra.clouds.cluster import behind

        first = {"delete_before_replace": True}
        machines = command("machines", triggers=[config.require("value")], opts=first)
        queue = command("queue", triggers=[behind(machines, "queue")], opts={"depends_on": [machines]})
        command("end", triggers=[behind(machines, "x")], opts={**first, "depends_on": [machines, queue]})
    """
    made, anew, _ = replaced_in_order(pair, monkeypatch, program, "one", "other")
    assert made == ["machines+", "queue+", "end+"]
    assert anew == ["end-", "queue-", "machines-", "machines+", "queue+", "end+"]
