"""`./cluster list` and `down --cluster`: every cluster of this user, here and, if asked, on clouds."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli import main
from cli.changes.decision import ClusterControl
from cli.commands import list_clusters
from cli.console.progress import Console
from cli.providers.clouds import known_clusters
from cli.providers.local import clusters as local_clusters
from cli.providers.local import running
from infra import config
from infra.clouds.commands import ClusterRef
from infra.design import design
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.instance_types.catalog import catalog
from infra.program import clusters, locations, owner
from infra.program.stack import Stack
from node.system import rpc
from operations.gcp import account as google
from operations.local import agent
from operations.local.agent import end_cluster
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto, nobody
from tests.support.checkout import ROOT
from tests.support.fake_google import Project
from tests.support.fake_google import project as google_project
from tests.support.job_lines import inner, kind, told

__all__ = ["account", "moto", "nobody"]

JOBS = "held=debug\n7|ann|debug|debug-[0-1]|RUNNING||train\n8|ann|debug||PENDING||later\n"


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout of the caller, which has no stack file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "run")
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(tmp_path / "here"))
    return tmp_path / "here"


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["cluster", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code


def made(folder: Path, stack: str = "test") -> Stack:
    """A stack of a checkout, with a cluster that the embedded runner owns."""
    folder.mkdir(exist_ok=True)
    owner.claim(Stack(folder, stack), owner.EMBEDDED)
    return Stack(folder, stack)


def serve(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Any]) -> None:
    """Let every local cluster be up, with two nodes, one of which runs, and this elastic daemon."""
    monkeypatch.setattr(agent, "controller_is_dead", lambda _run: False)
    monkeypatch.setattr(rpc, "call", lambda *_arguments: answer())
    for record in (each for each in clusters.recorded() if each.provider == "local"):
        run = RunDirectory(record.run_dir)
        run.cloud.mkdir(exist_ok=True)
        run.cluster_file.write_text("lab")
        machines = [
            {"tags": {"role": role}, "state": state}
            for role, state in (("controller", "running"), ("compute", "running"), ("compute", "pending"))
        ]
        (run.cloud / "machines.json").write_text(json.dumps({"machines": machines}))


def test_nothing_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "list") == 0
    assert capsys.readouterr().out.startswith("No cluster is known here.")
    assert command(monkeypatch, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_all_checkouts_clusters_are_listed_those_of_deleted_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, gone = made(tmp_path / "a"), made(tmp_path / "b", "other")
    known_clusters.note_cluster(Stack(tmp_path / "a", "aws"), ClusterRef("c", "eu-west-1"))
    ids = [record.id for record in clusters.recorded()]
    shutil.rmtree(gone.project)
    serve(monkeypatch, lambda: {"node_hours": 1.5, "usd": 0.25})
    assert command(monkeypatch, "list", "--json") == 0
    here, left, cloud = json.loads(capsys.readouterr().out)
    assert here.pop("since").startswith("20")
    assert here == {
        "id": ids[0], "checkout": str(first.project), "gone": False, "provider": "local", "cluster": "lab",
        "stack": "test", "state": "up", "nodes": 1, "node_hours": 1.5, "usd": 0.25, "place": "",
    }  # fmt: skip
    assert (left["stack"], left["checkout"], left["gone"]) == ("other", str(gone.project), True)
    assert (cloud["provider"], cloud["cluster"], cloud["place"]) == ("aws", "c", "eu-west-1")
    assert (cloud["state"], cloud["nodes"], cloud["usd"]) == ("not asked", None, None)
    assert command(monkeypatch, "list") == 0
    out = capsys.readouterr().out
    assert "(gone)" in out
    assert f"`./cluster down --cluster {ids[1]}` ends it" in out
    assert "1.50 node-hours, 0.25 USD" in out
    assert "`./cluster list --clouds`" in out


def test_a_cluster_that_is_off_or_silent_is_listed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "a")
    assert [each.listed.state for each in list_clusters.find(tmp_path, clouds=False)[0]] == ["off"]

    def silent() -> None:
        raise rpc.RpcUnavailableError("no answer")

    serve(monkeypatch, silent)
    (found,), problems = list_clusters.find(tmp_path, clouds=False)
    assert (found.listed.state, found.listed.nodes, found.listed.usd, problems) == ("silent", 1, None, [])


def test_a_slow_daemon_costs_all_clusters_together_half_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked at the same time, and no longer than that."""
    asked: list[float] = []
    for name in "abcdef":
        made(tmp_path / name)
    serve(monkeypatch, dict)
    together = threading.Barrier(6, timeout=60)

    def call(_socket: str, method: str, seconds: float) -> Any:
        assert method == "cost"
        asked.append(seconds)
        together.wait()
        raise rpc.RpcUnavailableError("no answer")

    monkeypatch.setattr(rpc, "call", call)
    assert len(list_clusters.find(tmp_path, clouds=False)[0]) == 6
    assert asked == [0.5] * 6


def test_a_list_without_clouds_loads_no_clouds_library(checkout: Path) -> None:
    """It takes as long as `status` does: the libraries would take a second."""
    made(checkout)
    known_clusters.note_cluster(Stack(checkout, "aws"), ClusterRef("c", "eu-west-1"))
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['cluster', 'list', '--json']\n"
        "from cli import main\n"
        "try: main.main()\n"
        "finally: print([n for n in ('boto3', 'google.auth', 'pulumi', 'requests') if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


# --- clouds ----------------------------------------------------------------------------------------------


def stack_file(checkout: Path, name: str, text: str) -> None:
    (checkout / "Pulumi.yaml").write_text("name: p\nruntime: python\n")
    (checkout / f"Pulumi.{name}.yaml").write_text(
        f"config:\n  slurm-stacks:cluster: {{provider: {name}}}\n{text}"
    )


def test_aws_is_asked_by_tag_in_every_known_region(checkout: Path, account: Account) -> None:
    made_here = Stack(checkout, "mine")
    known_clusters.note_cluster(made_here, ClusterRef("c", REGION, f"{REGION}a"))
    known_clusters.note_cluster(Stack(checkout, "ended"), ClusterRef("was", REGION))
    (since,) = {record.since for record in clusters.recorded() if record.stack == "mine"}
    account.head()
    account.nodes("cpu-[0-1]", 2)
    (stopped,) = account.nodes("cpu-2", 1)
    account.ec2.stop_instances(InstanceIds=[stopped])
    account.head(cluster="theirs")
    (ended,) = account.nodes("cpu-0", 1, cluster="old")
    account.ec2.terminate_instances(InstanceIds=[ended])
    account.ec2.create_security_group(
        GroupName="batch", Description="x",
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": [{"Key": "slurm-stacks:cluster", "Value": "jobs"}]}
        ],
    )  # fmt: skip
    stack_file(checkout, "aws", f"  aws:region: {REGION}\n")
    found, problems = list_clusters.find(checkout, clouds=True)
    assert problems == []
    by_name = {each.listed.cluster: each for each in found}
    assert set(by_name) == {"c", "theirs", "jobs", "was"}
    mine = by_name["c"]
    assert mine.record is not None
    assert (mine.record.home, mine.listed.since) == (made_here, since)
    assert (mine.listed.state, mine.listed.nodes, mine.listed.place) == ("up", 2, REGION)
    assert mine.listed.usd is not None
    assert by_name["theirs"].record is None
    assert (by_name["jobs"].listed.state, by_name["jobs"].listed.since) == ("off", None)
    assert by_name["was"].listed.state == "not found"


def test_a_cloud_that_cannot_be_asked_is_a_line_and_no_failure(
    checkout: Path, nobody: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known_clusters.note_cluster(Stack(checkout, "mine"), ClusterRef("c", REGION))
    made(checkout)
    assert command(monkeypatch, "list", "--clouds", "--json") == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"aws {REGION} was not asked: there are no credentials for AWS here.")
    assert [each["state"] for each in json.loads(out)] == ["not asked", "off"]


@pytest.fixture
def google_account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with google_project() as there:
        monkeypatch.setattr(google, "of", lambda _project: there.account)
        yield there


def test_google_cloud_is_asked_by_label(checkout: Path, google_account: Project) -> None:
    region, zone = "europe-west4", "europe-west4-a"
    project = google_account.account.project
    known_clusters.note_cluster(Stack(checkout, "mine"), ClusterRef("c", region, zone, project))
    google_account.head()
    google_account.node("cpu-0", zone=zone)
    google_account.node("cpu-0", cluster="far", zone="us-central1-a")
    stack_file(checkout, "gcp", f"  gcp:project: {project}\n  gcp:region: {region}\n")
    (found,), problems = list_clusters.find(checkout, clouds=True)
    assert problems == []
    assert found.record is not None
    assert (found.listed.cluster, found.listed.nodes, found.listed.state) == ("c", 1, "up")
    assert found.listed.place == f"{project}/{region}"


# --- down --cluster --------------------------------------------------------------------------------------


class Slurm:
    """The cluster's Slurm: it records the lines that are run, and answers each with the same jobs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answer: str | UserError = JOBS

    def run(self, line: str, _seconds: float) -> str:
        self.lines.append(inner(line))
        if isinstance(self.answer, UserError):
            raise self.answer
        return told(self.answer)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    there = Slurm()
    published = design(config.load_file(ROOT / "Pulumi.local.yaml"), catalog())
    monkeypatch.setattr(running, "published", lambda _run: published)
    monkeypatch.setattr(running, "control", lambda *_arguments: ClusterControl(there.run))
    return there


@pytest.fixture
def gone(tmp_path: Path) -> clusters.Cluster:
    """A cluster whose checkout is gone. None of its processes runs."""
    shutil.rmtree(made(tmp_path / "gone").project)
    (record,) = clusters.recorded()
    return record


def down(cluster: str, *, yes: bool = False) -> None:
    main.down(Stack(ROOT, "test"), cluster, yes)


def test_its_jobs_are_named_and_have_their_time(
    gone: clusters.Cluster, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    down(gone.id)
    output = capsys.readouterr().err.splitlines()
    assert output[:3] == [
        "2 jobs end with the cluster:",
        "  job 7 train (ann, RUNNING on debug-[0-1])",
        "  job 8 later (ann, PENDING on debug)",
    ]
    assert "no further job starts" in output, "there is no ./cluster exec that would let them start again"
    assert [kind(line) for line in slurm.lines] == ["look", "hold DOWN", "end"]
    end = slurm.lines[2]
    assert end.startswith("scancel --quiet 7; "), "SIGTERM"
    assert "end=$(($(date +%s) + 45)); until" in end, "and the grace"
    assert output[-1] == "nothing is left"
    assert not locations.run_root().exists()
    assert clusters.recorded() == []


def test_on_a_terminal_it_asks_and_who_keeps_the_jobs_keeps_the_cluster(
    gone: clusters.Cluster, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(Console, "live", property(lambda _console: True))
    monkeypatch.setattr(typer, "confirm", lambda *_arguments, **_options: False)
    with sentences.raises("down.not-agreed") as caught:
        down(gone.id)
    assert caught.value.exit_code == EXIT_REFUSED
    assert clusters.recorded() == [gone]
    assert [kind(line) for line in slurm.lines] == ["look"], "nothing is touched before the consent"
    down(gone.id, yes=True)
    assert clusters.recorded() == []


def test_what_is_left_is_named_and_another_call_finds_it(
    gone: clusters.Cluster, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (gone.run_dir / owner.OWNER).write_text("file:///elsewhere\n")
    monkeypatch.setattr(local_clusters, "end_cluster", lambda _run: None)
    with pytest.raises(UserError) as caught:
        down(gone.id)
    assert str(caught.value).splitlines() == [
        "these are left of stack test:",
        f"  folder {gone.run_dir}",
        f"Run `./cluster down --cluster {gone.id}` again.",
    ]
    assert "nothing" not in capsys.readouterr().err
    monkeypatch.setattr(local_clusters, "end_cluster", end_cluster)
    down(gone.id)
    output = capsys.readouterr().err.splitlines()
    assert output[-2] == "nothing else is left"
    assert output[-1].startswith("Pulumi's backend file:///elsewhere still has the stack")


def test_a_cluster_whose_checkout_is_there_is_ended_there(tmp_path: Path) -> None:
    stack = made(tmp_path / "it's here")
    (record,) = clusters.recorded()
    with sentences.raises("list.checkout-there", stack.project, varies=[record.id]) as caught:
        down(record.id)
    assert caught.value.exit_code == EXIT_REFUSED
    with sentences.raises("list.cluster-unknown", varies=[record.id]) as caught:
        down("0000000000")
    assert caught.value.exit_code == EXIT_USAGE


def test_a_running_cluster_whose_checkout_is_gone_is_named(
    gone: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_clusters.gone_messages() == [], "a reboot has ended it"
    monkeypatch.setattr(RunDirectory, "pids", lambda _run: [1])
    (message,) = local_clusters.gone_messages()
    assert message.endswith(f"`./cluster down --cluster {gone.id}`")


def test_a_clouds_cluster_without_its_checkout_is_looked_for(
    tmp_path: Path, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    known_clusters.note_cluster(Stack(tmp_path / "gone", "aws"), ClusterRef("c", REGION))
    shutil.rmtree(tmp_path / "gone")
    (record,) = clusters.recorded()
    (machine,) = account.nodes("cpu-0", 1)
    with sentences.raises("list.state-left", "`./cluster down --stack aws`", varies=[machine, record.id]):
        down(record.id)
    account.ec2.terminate_instances(InstanceIds=[machine])
    for volume in account.ec2.describe_volumes()["Volumes"]:
        account.ec2.delete_volume(VolumeId=volume["VolumeId"])
    down(record.id)
    assert capsys.readouterr().err.endswith("nothing is left\n")
    assert clusters.recorded() == []
