"""Which stack a command means that names none; hints that name theirs; what a shell completes."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import hints, selection
from cli import main as cli
from cli.hints import hint
from cli.providers import login_machine, provider
from cli.providers.local.provider import LocalProvider
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support.checkout import ROOT, SMALL, sources

VARIABLES = (selection.VARIABLE, selection.PULUMI_VARIABLE)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with three stacks, of which nothing has selected any."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "9.8.7"\n')
    for stack in ("local", "team-a", "team-b"):
        (tmp_path / f"Pulumi.{stack}.yaml").write_text(SMALL)
    hints._default.cache_clear()
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cluster", *arguments])
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"stack": "team-a"}, "team-a"),
        ({"stacks": {"file:///mine": "team-b"}}, "team-b"),
        ({"stack": "team-a", "stacks": {"file:///mine": "team-b"}}, "team-b"),
        ({"stack": "team-a", "stacks": {"file:///other": "team-b"}}, "team-a"),
        ({"stacks": {"file:///other": "team-b"}}, None),
        ({"stacks": ["team-b"]}, None),
        ({"stacks": {"file:///mine": 1}}, None),
        ([], None),
    ],
)
def test_newer_clis_remember_a_stack_for_each_backend(
    project: Path, monkeypatch: pytest.MonkeyPatch, record: object, expected: str | None
) -> None:
    """The form is that of pkg/workspace/settings.go of github.com/pulumi/pulumi, since 3.256."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///mine")
    select(project, "").write_text(json.dumps(record))
    assert selection.selected(project) == expected


def select(project: Path, stack: str) -> Path:
    """As `pulumi stack select` does."""
    note = selection.note(project)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"stack": stack}, indent=4))
    return note


def test_the_stack_of_a_bare_command(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert selection.default(project) == selection.Chosen("local")
    select(project, "ada/slurm-stacks/team-a")
    assert selection.default(project) == selection.Chosen("ada/slurm-stacks/team-a", "`pulumi stack select`")
    select(project, "no-file-here")
    assert selection.default(project) == selection.Chosen("local"), "it is not one of this checkout's"
    select(project, "local")
    assert selection.default(project) == selection.Chosen("local"), "nothing to tell anybody"
    monkeypatch.setenv("PULUMI_STACK", "ada/team-b")
    assert selection.default(project) == selection.Chosen("ada/team-b", "$PULUMI_STACK")
    monkeypatch.setenv("SLURM_STACKS_STACK", "team-a")
    assert selection.default(project) == selection.Chosen("team-a", "$SLURM_STACKS_STACK")


def test_pulumis_note_is_where_the_cli_writes_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_HOME", "/p")
    # sha1sum of the path of Pulumi.yaml.
    (project / "Pulumi.yaml").write_text('name: "other"\n')
    digest = subprocess.run(
        ["sha1sum"], input=f"{project.resolve()}/Pulumi.yaml", capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert selection.note(project) == Path(f"/p/workspaces/other-{digest}-workspace.json")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stack": 7}', '{"stack": ""}'])
def test_a_note_that_says_nothing_selects_nothing(project: Path, text: str) -> None:
    select(project, "team-a").write_text(text)
    assert selection.selected(project) is None


@pytest.mark.parametrize("before", [None, b'{"stack": "team-a"}'])
def test_what_the_cli_selects_for_us_does_not_stay(project: Path, before: bytes | None) -> None:
    note = select(project, "x")
    note.unlink()
    if before is not None:
        note.write_bytes(before)
    with contextlib.suppress(RuntimeError), selection.kept(project):
        select(project, "team-b")
        raise RuntimeError("whatever comes")
    assert (note.read_bytes() if note.exists() else None) == before


def test_a_command_says_which_stack_was_chosen_and_by_what(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def status(_machine: object, up: StackUp) -> dict[str, Any]:
        seen.append(up.stack.name)
        return {}

    monkeypatch.setattr(login_machine, "cluster_status", status)
    assert run(monkeypatch, "status", "--json") == 0
    assert capsys.readouterr().err == "", "the usual one needs no words"
    monkeypatch.setenv("SLURM_STACKS_STACK", "team-b")
    assert run(monkeypatch, "status", "--json") == 0
    assert capsys.readouterr() == ("{}\n", "stack team-b, chosen by $SLURM_STACKS_STACK\n")
    assert run(monkeypatch, "status", "--json", "-s", "team-a") == 0
    assert capsys.readouterr().err == ""
    assert seen == ["local", "team-b", "team-a"]
    monkeypatch.setenv("SLURM_STACKS_STACK", "no such/stack")
    assert run(monkeypatch, "status") == 2
    assert "cannot be a stack's name" in capsys.readouterr().err


# --- a cluster that is up, and a stack file with a mistake -----------------------------------------------


@pytest.mark.parametrize(
    "text", ["config: [\n", "config: {slurm-stacks:cluster: {provider: local, nmae: x}}\n"]
)
def test_what_is_up_is_acted_on_whatever_its_file_says_by_now(
    project: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "Pulumi.local.yaml").write_text(text)
    seen: list[Any] = []
    monkeypatch.setattr(login_machine, "cluster_status", lambda _machine, up: seen.append(up) or {})  # type: ignore[func-returns-value]
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_: [])
    assert run(monkeypatch, "status", "--json") == 2, "nothing is up: the mistake is what matters"
    capsys.readouterr()
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_: ["process 1"])
    assert run(monkeypatch, "status", "--json") == 0
    assert seen == [StackUp(Stack(project, "local"), "local")]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Pulumi.local.yaml")
    assert said.endswith("This is the cluster as it was brought up before.")
    assert ("nmae" in said) == ("nmae" in text)


def test_a_clouds_cluster_is_known_by_what_was_noted_of_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cli.providers.clouds import known_clusters
    from infra.clouds.commands import ClusterRef

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_: [])
    (project / "Pulumi.team-a.yaml").write_text("config: [\n")
    assert provider.of_cluster(Stack(project, "team-a")) is None
    known_clusters.note_cluster(Stack(project, "team-a"), ClusterRef("c", "eu-west-1"))
    assert provider.of_cluster(Stack(project, "team-a")) == "aws"
    known_clusters.note_cluster(
        Stack(project, "team-b"), ClusterRef("c", "europe-west1", "europe-west1-b", "p")
    )
    (project / "Pulumi.team-b.yaml").unlink()
    assert provider.of_cluster(Stack(project, "team-b")) == "gcp"


# --- hints -----------------------------------------------------------------------------------------------


def test_a_hint_names_its_stack_unless_a_bare_command_means_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hint("exec", "team-b", "-- squeue") == "./cluster exec --stack team-b -- squeue"
    assert hint("status", "local") == "./cluster status"
    monkeypatch.setenv("SLURM_STACKS_STACK", "team-b")
    hints._default.cache_clear()
    assert hint("status", "local") == "./cluster status --stack local"
    assert hint("status", "team-b") == "./cluster status --stack team-b", "it is read elsewhere, too"
    hints._default.cache_clear()


# Texts on a command itself, for whichever stack.
GENERAL = (
    "./cluster plan` needs none", "./cluster exec -- squeue", "./cluster cp data/ :inputs",
    "./cluster chaos` changes it", "another `./cluster run` of stack", "./cluster plan | head",
    "./cluster outputs` as JSON", "by ./cluster", "for a `./cluster`", "./cluster run` without numbers",
    "./cluster status` shows it", "./cluster logs` shows", "sudo ./cluster", "./cluster test",
)  # fmt: skip


def test_every_hint_in_the_code_names_its_stack() -> None:
    """A command that acts on a stack, as somebody would copy it out of a message."""
    acts = re.compile(
        r"\./cluster (?:up|down(?! --cluster)|status|exec|ssh|outputs|run|logs|doctor|chaos \w+|plan|cp"
        r"|report)\b[^`]*"
    )
    found = []
    for path in sources():
        if "./cluster" not in (written := path.read_text()):
            continue
        tree = ast.parse(written)
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        documentation |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        inside = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        for node in ast.walk(tree):
            if id(node) in documentation or id(node) in inside:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if any(general in text for general in GENERAL):
                continue
            found += [
                f"{path.relative_to(ROOT)}: {m[0]}" for m in acts.finditer(text) if "--stack" not in m[0]
            ]
    assert found == []


# --- version, help, completion ---------------------------------------------------------------------------


def test_the_version_is_the_checkouts(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr() == ("slurm-stacks 9.8.7\n", "")


def test_h_is_help_everywhere(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_STACKS_STACK", "team-b")
    commands = [c.name or c.callback.__name__ for c in cli.app.registered_commands if c.callback]
    for words in ([], *([name] for name in commands if name not in ("main_options",)), ["chaos", "kill"]):
        names = [{"execute": "exec"}.get(word, word) for word in words]
        assert run(monkeypatch, *names, "-h") == 0, names
        out, err = capsys.readouterr()
        assert out.startswith(" ".join(["Usage: ./cluster", *names])), names
        assert err == "", "no stack is chosen for a help"


def completed(project: Path, line: str, command: str = "./cluster") -> list[str]:
    """What bash offers for the last word of a line, by the script that `--show-completion` prints."""
    source = ROOT / "cluster"
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    script = f"""
cd {ROOT}
source <("{source}" --show-completion bash)
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
spec=$(complete -p cluster)
function=${{spec##*-F }}
${{function%% *}} {command} "${{COMP_WORDS[COMP_CWORD]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


def test_bash_completes_commands_options_and_stacks() -> None:
    assert {"status", "ssh-config", "chaos"} <= set(completed(ROOT, "./cluster "))
    assert completed(ROOT, "./cluster stat") == ["status"]
    stacks = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.?*.yaml")}
    assert set(completed(ROOT, "./cluster status --stack ")) == stacks
    assert completed(ROOT, "./cluster exec -s local-m") == ["local-machines"]
    assert "--no-benchmark" in completed(ROOT, "./cluster up --")
