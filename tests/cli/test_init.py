"""`./cluster init`: the shipped stack files by its options, its questions, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli import main as cli
from cli.commands.init import choices, commented, questions
from cli.commands.init.choices import Choices
from cli.hints import hint
from infra.config import ConfigError, load_file, parse
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE
from tests.support import sentences, shipped
from tests.support.checkout import ROOT

SHIPPED = shipped.stacks()
DATA = ROOT / "tests/cli/data/init_commands.sh"
LOCAL = ("--provider", "local", "--partition", "debug=local.small,nodes=0-4")
GPUS = ("--provider", "aws", "--region", "us-east-1", "--partition", "compute=g5.xlarge,nodes=0-2")


@dataclasses.dataclass
class Ended:
    code: int
    out: str
    err: str


Init = Callable[..., Ended]


def commands() -> dict[str, list[str]]:
    """Return the options of each command in the data file, by stack."""
    text = DATA.read_text(encoding="utf-8")
    lines = shlex.split(text.replace("\\\n", ""), comments=True)
    starts = [index for index, word in enumerate(lines) if word == "./cluster"] + [len(lines)]
    found = [lines[start + 2 : end] for start, end in itertools.pairwise(starts)]
    return {words[words.index("--stack") + 1]: words for words in found}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has what stack files name, and none of them."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    for names in questions.ENVIRONMENT.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    copy_project(folder)
    return folder


@pytest.fixture
def as_shipped(tmp_path: Path) -> Path:
    """A checkout with the stack files as they are shipped."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    copy_project(folder)
    for name, text in shipped.stack_files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def copy_project(folder: Path) -> None:
    """Copy what stack files name."""
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    for path in (ROOT / Path(source) for source in re.findall(r"source: (\S+\.sh)", DATA.read_text("utf-8"))):
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.relative_to(ROOT))


@pytest.fixture
def init(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    """Runs `./cluster init` in this process, without a terminal."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["cluster", "init", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as error:
            code = error.code or 0
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return Ended(code, text.out, text.err)

    return run


def files(project: Path) -> list[str]:
    return sorted(path.name for path in project.glob("Pulumi.?*.yaml"))


# --- what the options write --------------------------------------------------------------------------------


def test_the_data_file_has_a_command_for_each_shipped_stack() -> None:
    assert sorted(commands()) == SHIPPED


@pytest.mark.parametrize("stack", SHIPPED)
def test_options_reproduce_a_shipped_stack_file(
    init: Init, project: Path, as_shipped: Path, stack: str
) -> None:
    done = init(*commands()[stack])
    assert (done.code, done.out) == (0, ""), done.err
    written = project / f"Pulumi.{stack}.yaml"
    assert load_file(written, scripts=True) == load_file(as_shipped / written.name)
    assert hint("plan", stack) in done.err
    assert hint("up", stack) in done.err
    assert "USD an hour idle" in done.err
    text = written.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= commented.WIDTH or "http" in text or "-x " in text


def test_every_key_has_its_description_once_as_a_comment(init: Init) -> None:
    text = init("--stack", "x", "--dry-run", *GPUS, "--partition", "other=m5.large,nodes=0-1").out
    for description in ("AWS region, e.g. eu-central-1.", "Slurm's partitions.", "Static and dynamic nodes"):
        assert text.count(description) == 1
    head = text.partition("# More keys")[0]
    silent = [
        line
        for before, line in zip(head.splitlines(), head.splitlines()[1:], strict=False)
        if ":" in line.partition("#")[0] and "#" not in line and not before.lstrip().startswith("#")
    ]
    repeated = head[head.index("- name: other") :].splitlines()
    top = ["config:", "  slurm-stacks:cluster:"]
    assert [line for line in silent if line not in [*top, *repeated] and "- name: other" not in line] == []


def test_the_keys_that_a_cluster_could_have_are_named_in_a_comment(init: Init) -> None:
    text = init("--stack", "x", "--dry-run", *LOCAL).out
    rest = text.partition("# More keys")[2]
    assert "#   hooks: Post-install scripts." in rest
    assert "#   budget: " in rest
    assert not re.search(r"#   (aws|batch|scheduler|partitions):", rest), "what this provider has not"


@pytest.mark.parametrize(
    "value",
    [
        "yes", "n", "null", "~", "1e3", "0x10", "010", "24:00:00", "2024-01-01", ".5", ".inf", "a: b", "a #b",
        "- a", "*a", "&a", "!a", "@a", "%a", "", " a", "ä", "a\nb", 'quote"', "it's", "[a", "{a", "=", "<<",
        1, 2.5, True, None, ["a", 1], [], {}, "s3://bucket/x", "203.0.113.0/24", "plain", "/fsx", "a,b",
    ],
)  # fmt: skip
def test_any_value_is_read_as_it_was_written(tmp_path: Path, value: object) -> None:
    """By PyYAML as YAML 1.1 reads it, and as 1.2 does: no plain text looks like another type there."""
    config = {
        "slurm-stacks:cluster": {"provider": "aws", "batch": {"tags": {"k": value, "list": [value, "x"]}}}
    }
    text = commented.stack_file_text(config, "x")
    assert yaml.safe_load(text)["config"] == config
    written = re.search(r"^ *k: (.*)$", text, re.MULTILINE)
    assert written is not None
    if isinstance(value, str) and not written[1].startswith('"'):
        assert re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./@+-]*", value)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("a=t", {"instance_type": "t"}),
        ("a=t,nodes=3", {"instance_type": "t", "nodes": {"min": 0, "max": 3}}),
        ("a=t,nodes=1-3", {"instance_type": "t", "nodes": {"min": 1, "max": 3}}),
        ("a=t,nodes={max: 3}", {"instance_type": "t", "nodes": {"max": 3}}),
        ("a=t,nodes.max=3", {"instance_type": "t", "nodes": {"max": 3}}),
        ("a=t,accelerator=v100", {"instance_type": "t", "accelerator": {"type": "v100", "count": 1}}),
        ("a=t,accelerator=v100:2", {"instance_type": "t", "accelerator": {"type": "v100", "count": 2}}),
        ("a=t,zones=[x,y],spot=true", {"instance_type": "t", "zones": ["x", "y"], "spot": True}),
        ("a=t,time_limit=24:00:00", {"instance_type": "t", "time_limit": "24:00:00"}),
        ('a=t,time_limit="90"', {"instance_type": "t", "time_limit": "90"}),
    ],
)
def test_a_partition_in_one_option(text: str, partition: dict[str, Any]) -> None:
    cluster = Choices(stack="x", provider="aws", partitions=(text,)).config()["slurm-stacks:cluster"]
    assert cluster["partitions"] == [{"name": "a", **partition}]


def test_a_stacks_name_that_a_cluster_cannot_have(init: Init, project: Path) -> None:
    assert init("--stack", "My_Team.1", *LOCAL).code == 0
    assert load_file(project / "Pulumi.My_Team.1.yaml").cluster.name == "my-team-1"


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partition", "debug"), ["--partition", '"debug"', "NAME=TYPE"]),
        (("--partition", "debug=local.small,spot"), ["--partition debug", '"spot"', "KEY=VALUE"]),
        (("--partition", "debug=local.small,zones=[a"), ["--partition debug", "close its brackets"]),
        (("--storage", "home=nfs", "--storage", "home=efs"), ["--storage home", "each key once"]),
        (("--set", "budget.max_usd=3"), ["--set", "cluster.KEY=VALUE"]),
        (("--set", "cluster.name=a", "--set", "cluster.name=b"), ["--set cluster.name", "each key once"]),
        (("--set", "cluster.name=a", "--set", "cluster.name.x=b"), ["--set cluster.name.x", "name is given"]),
        (("--zone", "europe-west4-a"), ["--zone", "leave it out"]),
        (("--set", "cluster.budgt.max_usd=3"), ["slurm-stacks:cluster.budgt", "did you mean budget?"]),
        (("--partition", "gpu=local.large"), ["partitions[1].instance_type", "local.medium"]),
        (("--set", "cluster.hooks=[{role: all, source: no.sh}]"), ["hooks[0].source", "no.sh"]),
        (("--access", "ssm"), ["access.mode", "remove it"]),
        (("--benchmark", "9"), ["benchmark.nodes", "9"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_message_and_nothing_is_written(
    init: Init, project: Path, arguments: tuple[str, ...], said: list[str]
) -> None:
    done = init("--stack", "x", *LOCAL, *arguments)
    assert (done.code, done.out) == (EXIT_USAGE, "")
    for words in said:
        assert words in done.err
    assert files(project) == []


def test_of_a_new_stack_doctor_cannot_be_asked_yet(init: Init) -> None:
    place = ("--stack", "x", "--provider", "aws", "--region", "us-east-1")
    done = init(*place, "--partition", "a=z9.large")
    assert done.code == EXIT_USAGE
    assert "keeps the answer" in done.err
    assert "First write the file with a type that is known" in done.err
    facts = "cluster.instance_types={z9.large: {vcpus: 2, memory_mib: 8192}}"
    assert init(*place, "--partition", "a=z9.large", "--set", facts).code == 0


def test_what_is_missing_without_a_terminal_is_named(init: Init, project: Path) -> None:
    def missing(*arguments: str) -> set[str]:
        done = init(*arguments)
        assert (done.code, done.out) == (EXIT_USAGE, "")
        return set(re.findall(r"^  (--\S+) ", done.err, re.MULTILINE))

    assert missing() == {"--stack", "--provider", "--partition"}
    assert missing("--stack", "x", "--provider", "aws") == {"--region", "--partition"}
    assert missing("-s", "x", "--provider", "gcp", "--partition", "a=b") == {"--zone", "--project"}
    assert missing("-s", "x", "--provider", "local") == {"--partition"}
    assert missing("--provider", "local", "--set", "cluster.partitions=[]") == {"--stack"}
    assert files(project) == []


def test_a_file_is_replaced_with_force_only(init: Init, project: Path) -> None:
    file = project / "Pulumi.x.yaml"
    file.write_text("mine\n")
    done = init("--stack", "x", *LOCAL)
    assert (done.code, file.read_text()) == (EXIT_REFUSED, "mine\n")
    assert "--force" in done.err
    assert init("--stack", "x", *LOCAL, "--dry-run").code == 0
    assert file.read_text() == "mine\n"
    assert init("--stack", "x", *LOCAL, "--force").code == 0
    assert load_file(file).provider == "local"
    link = project / "Pulumi.y.yaml"
    link.symlink_to("nowhere")
    assert init("--stack", "y", *LOCAL).code == EXIT_REFUSED, "a link that leads nowhere is there, too"


@pytest.mark.parametrize("name", ["a/b", "", "Pulumi.x.yaml", "x" * 101])
def test_a_name_that_no_stack_can_have(init: Init, project: Path, name: str) -> None:
    assert init("--stack", name, *LOCAL).code == EXIT_USAGE
    assert files(project) == []


# --- questions ---------------------------------------------------------------------------------------------


class Terminal:
    """Answers `typer.prompt` and `typer.confirm`, by words of their questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | list[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {words: [text] if isinstance(text, str) else text for words, text in answers.items()}
        monkeypatch.setattr(typer, "prompt", self.prompt)
        monkeypatch.setattr(typer, "confirm", self.confirm)
        for stream in (sys.stdin, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)

    def prompt(self, question: str, default: str | None = None, err: bool = False) -> str:
        self.asked.append(question)
        assert err, "standard output is for the file"
        found = next((words for words in self._answers if words in question and self._answers[words]), None)
        if found is not None:
            answer = self._answers[found].pop(0)
            if answer == "^C":
                raise typer.Abort
            return answer
        assert default is not None, f"no answer to: {question}"
        return default

    def confirm(self, question: str, default: bool = False, err: bool = False) -> bool:
        return self.prompt(question, "y" if default else "n", err) == "y"


def asked(
    monkeypatch: pytest.MonkeyPatch, given: Choices, answers: dict[str, Any]
) -> tuple[Choices, Terminal]:
    terminal = Terminal(monkeypatch, answers)
    return questions.ask(given, lambda _name: None), terminal


@pytest.mark.parametrize("provider", ["aws", "gcp", "local"])
def test_enter_alone_makes_a_stack_that_can_be_planned(
    project: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    found, terminal = asked(monkeypatch, Choices(), {"Provider": provider})
    config = parse(found.config(), str(found.stack), project=project)
    assert (config.provider, config.stack) == (provider, provider)
    assert [p.nodes.min for p in config.cluster.partitions] == [0], "nothing runs, and costs, without a job"
    assert config.benchmark is not None
    assert len(terminal.asked) <= 16, "few questions"
    assert not found.missing()


@pytest.mark.parametrize("provider", ["aws", "gcp", "local"])
def test_answers_can_be_repeated_as_options(
    init: Init, project: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    found, _ = asked(monkeypatch, Choices(provider=provider), {})
    words = shlex.split(found.command_line())
    assert words[:2] == ["./cluster", "init"]
    assert init(*words[2:]).code == 0
    assert load_file(project / f"Pulumi.{found.stack}.yaml") == parse(found.config(), str(found.stack))


def test_answers_for_gpus_on_aws(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "Name of the stack": "big", "Region": "eu-west-1", "Accelerators": ["a10g", "none"],
        "Instance type": ["g5.48xlarge", "m5.xlarge"], "always up": ["1", "0"], "Most nodes": ["3", "5"],
        "Another": ["y", "n"], "scratch": "fsx_lustre", "GiB": "2400", "Way to log in": "ssh",
        "Network that": "10.1.2.3/32", "key pair": "mine", "training": "3",
    }  # fmt: skip
    found, _ = asked(monkeypatch, Choices(provider="aws"), answers)
    config = parse(found.config(), "big", project=project)
    first, second = config.cluster.partitions
    assert (first.instance_type, first.nodes.min, first.nodes.max) == ("g5.48xlarge", 1, 3)
    assert (first.placement, first.aws and first.aws.efa) == ("cluster", True)
    assert (second.name, second.instance_type, second.nodes.max) == ("compute2", "m5.xlarge", 5)
    assert config.cluster.storage.scratch is not None
    assert config.cluster.storage.scratch.size_gib == 2400
    access = config.cluster.access
    assert (access.mode, access.ssh_cidrs, access.key) == ("ssh", ["10.1.2.3/32"], "mine")
    assert config.benchmark is not None
    assert config.benchmark.nodes == 3


@pytest.mark.parametrize(
    ("provider", "answers", "network"),
    [
        (
            "aws",
            {"VPC": "vpc-0123456789abcdef0", "public subnet": "subnet-01234567",
             "private": "subnet-89abcdef"},
            {"vpc": "vpc-0123456789abcdef0", "public_subnet": "subnet-01234567",
             "private_subnets": ["subnet-89abcdef"]},
        ),
        ("gcp", {"VPC": "ours", "subnetwork": "nodes"}, {"network": "ours", "subnetwork": "nodes"}),
    ],
)  # fmt: skip
def test_the_controllers_type_and_an_existing_network_are_asked_for(
    init: Init,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    answers: dict[str, str],
    network: dict[str, Any],
) -> None:
    """What `pcluster configure` asks beside the nodes: the master's type, and which network."""
    machine = {"aws": "c5.2xlarge", "gcp": "n1-standard-4"}[provider]
    found, terminal = asked(
        monkeypatch, Choices(provider=provider), {"Machine of the controller": machine, **answers}
    )
    config = parse(found.config(), str(found.stack), project=project)
    assert config.cluster.controller.instance_type == machine
    chosen = getattr(config.cluster.network, provider)
    assert chosen is not None
    assert chosen.model_dump(exclude_defaults=True) == network
    assert init(*shlex.split(found.command_line())[2:]).code == 0, "the options say the same"
    _, terminal = asked(monkeypatch, Choices(provider=provider, controller=machine), {})
    assert not any("controller" in question.lower() for question in terminal.asked[:4])


def test_gpus_that_google_attaches(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "Zone": "europe-west4-a",
        "Project": "team-1",
        "Accelerators": "v100",
        "GPUs a node": ["3", "2"],
    }
    found, terminal = asked(monkeypatch, Choices(provider="gcp", stack="x"), answers)
    config = parse(found.config(), "x", project=project)
    accelerator = config.cluster.partitions[0].accelerator
    assert accelerator is not None
    assert (accelerator.type, accelerator.count) == ("v100", 2)
    assert sum("GPUs a node" in question for question in terminal.asked) == 2, "3 is no number of V100s"
    _, terminal = asked(monkeypatch, Choices(provider="gcp", stack="x", zone="us-east4-a"), {})
    assert not any("v100" in question for question in terminal.asked), "that zone has none"


@pytest.mark.parametrize(
    ("question", "wrong", "right"),
    [
        ("Provider", "azure", "aws"),
        ("Region", "eu-central-1a", "eu-central-1"),
        ("Name of the partition", "Big Nodes", "big"),
        ("Accelerators", "k80", "t4"),
        ("Instance type", "g5.huge", "m5.large"),
        ("Instance type", "p3.2xlarge", "m5.large"),
        ("Instance type", "m5.large,spot=true", "m5.large"),
        ("always up", "many", "0"),
        ("Most nodes", "0", "5"),
        ("Most nodes", "70000", "5"),
        ("Machine of the controller", "m5.huge", "m5.large"),
        ("VPC", "mine", "new"),
        ("Kind", "zfs", "efs"),
        ("Way to log in", "iap", "ssm"),
        ("training", "11", "10"),
    ],
)
def test_a_wrong_answer_is_explained_and_asked_again(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    question: str,
    wrong: str,
    right: str,
) -> None:
    answers = {question: [wrong, right]}
    if question != "Provider":
        answers["Provider"] = ["aws"]
    found, terminal = asked(monkeypatch, Choices(), answers)
    parse(found.config(), str(found.stack), project=project)
    assert sum(question in text for text in terminal.asked) == 2
    refusals = re.findall(r"^(?:\x1b\[33m)?  (.*allowed is .*)", capsys.readouterr().err, re.MULTILINE)
    assert len(refusals) == 1


@pytest.mark.parametrize(
    ("stack", "field"),
    [
        (stack, field)
        for stack, words in commands().items()
        for field in ("stack", "provider", "region", "zone", "project")
        if f"--{field}" in words
    ],
)
def test_a_needed_option_that_is_left_out_is_asked(
    init: Init, project: Path, as_shipped: Path, monkeypatch: pytest.MonkeyPatch, stack: str, field: str
) -> None:
    """The answer stands for the option, and the cluster is the same."""
    words = commands()[stack]
    place = words.index(f"--{field}")
    question = {"stack": "Name of the stack", "project": "Project id"}.get(field, field.capitalize())
    terminal = Terminal(monkeypatch, {question: words[place + 1]})
    done = init(*words[:place], *words[place + 2 :])
    assert done.code == 0, done.err
    assert any(question in text for text in terminal.asked)
    config, whole = (load_file(folder / f"Pulumi.{stack}.yaml") for folder in (project, as_shipped))
    assert (config.provider, config.region, config.zone) == (whole.provider, whole.region, whole.zone)
    assert config.cluster.partitions == whole.cluster.partitions
    assert config.cluster.batch == whole.cluster.batch
    assert config.benchmark == whole.benchmark


def test_a_wrong_option_is_refused_before_the_first_question(
    init: Init, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, {})
    for wrong in (("--region", "mars"), ("--access", "iap"), ("--storage", "home=zfs"), ("--set", "x=1")):
        done = init("--provider", "aws", *wrong)
        assert (done.code, terminal.asked) == (EXIT_USAGE, [])
        assert "the options of `init`: 1 mistake" in done.err


def test_a_name_that_is_taken_is_asked_again(
    init: Init, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "Pulumi.local.yaml").write_text("mine\n")
    terminal = Terminal(monkeypatch, {"Name of the stack": ["local", "a/b", "team"]})
    done = init("--provider", "local")
    assert done.code == 0
    assert sum("Name of the stack" in question for question in terminal.asked) == 3
    assert files(project) == ["Pulumi.local.yaml", "Pulumi.team.yaml"]
    assert "./cluster init --stack team --provider local" in done.err


def test_what_an_option_gives_is_not_asked(
    init: Init, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, {})
    done = init("--stack", "x", *GPUS, "--dry-run")
    assert (done.code, terminal.asked) == (0, [])
    assert "The same without questions" not in done.err
    done = init("--stack", "x", "--provider", "local", "--dry-run")
    assert [question.split()[0] for question in terminal.asked] == [
        "Name",
        "Instance",
        "Nodes",
        "Most",
        "Another",
        "Nodes",
    ]
    assert files(project) == []


@pytest.mark.parametrize("question", ["Provider", "Instance type", "Another", "training"])
def test_ctrl_c_writes_nothing(
    init: Init, project: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    Terminal(monkeypatch, {question: "^C"})
    done = init()
    assert done.code == EXIT_INTERRUPTED
    sentences.printed(done.err.splitlines()[-1], "init.interrupted")
    assert files(project) == []


def at_a_terminal(project: Path, keys: list[bytes]) -> tuple[int, str]:
    """Run `init` at a terminal of its own; each text is typed when a question has come, then Enter."""
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from cli.main import main; main()"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "init"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_STACKS_PROJECT": str(project)},
        start_new_session=True,
    )
    os.close(theirs)
    output, answered = b"", 0
    # The other end is closed when the process has ended: Linux then answers with EIO.
    with contextlib.suppress(OSError), contextlib.closing(os.fdopen(ours, "rb+", buffering=0)) as terminal:
        key = b""
        while True:
            # Python may get a Ctrl-C just before it begins to wait for a key. A person presses it again.
            while not select.select([terminal], [], [], 5.0)[0]:
                if key == b"\x03":
                    terminal.write(key)
            if not (piece := terminal.read(65536)):
                break
            output += piece
            if re.search(rb"\]: $", output[answered:]):
                answered, key = len(output), keys.pop(0) if keys else b"\n"
                terminal.write(key)
    return process.wait(timeout=60), output.decode().replace("\r\n", "\n")


def test_a_person_at_a_terminal(project: Path) -> None:
    code, screen = at_a_terminal(project, [b"aws\n", b"team\n", b"mars\n", b"eu-west-1\n"])
    assert code == 0, screen
    config = load_file(project / "Pulumi.team.yaml")
    assert (config.region, config.cluster.partitions[0].instance_type) == ("eu-west-1", "m5.large")
    assert '"mars": allowed is an AWS region' in screen
    assert "Pulumi.team.yaml is written." in screen
    code, screen = at_a_terminal(project, [b"\n", b"other\n", b"\x03"])
    assert code == EXIT_INTERRUPTED
    assert screen.endswith("[init.interrupted]\n")
    assert files(project) == ["Pulumi.team.yaml"]


def test_the_clouds_own_variables_are_the_defaults(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "AWS_DEFAULT_REGION", "eu-north-1")
    found, _ = asked(monkeypatch, Choices(provider="aws"), {})
    assert found.region == "eu-north-1"


def test_the_form_of_options_is_checked_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Choices(stack="x", partitions=("a", "b=c,d"), settings=("x",)).config()
    assert [mistake.path for mistake in caught.value.mistakes] == ["--partition", "--partition b", "--set"]
    assert set(choices.OPTIONS) <= {field.name for field in dataclasses.fields(Choices)}
