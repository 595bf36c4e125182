"""The bill: from sacct's records, the daemon's answer and the record of machines to rows that add up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from node.billing import bill as bills
from node.billing import job_runs
from node.billing.bill import BillError
from node.design.accelerators import Accelerator
from node.design.folders import Folders
from node.design.model import Partition, Settings, SlurmSettings
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
from node.elastic.machine_record import MachineLife
from node.slurm.control import SlurmError
from node.slurm.fields import RECORDED
from node.slurm.phases import surely_ran
from node.system import rpc
from tests.support.doubles import FakeControl, design, settings
from tests.test_job_states import KNOWN

CHEAP = Partition("cheap", "small", 2, 1000, 0, 4, price_hour=1.0)
DEAR = Partition("dear", "large", 8, 8000, 0, 4, price_hour=10.0, accelerator=Accelerator("v100", 4))
FREE = Partition("free", "local", 1, 100, 0, 4, price_hour=None)
HOUR = 3600.0
NOW = 10 * HOUR


def record(
    job: str = "1",
    user: str = "ann",
    account: str = "physics",
    start: object = 0,
    end: object = int(HOUR),
    state: str = "COMPLETED",
    nodes: str = "cheap-0",
    tres: str = "billing=1,cpu=1,mem=100M,node=1",
) -> list[str]:
    return [job, user, account, str(start), str(end), state, nodes, tres]


class Accounting(FakeControl):
    """slurmdbd's answers."""

    def __init__(self, *records: list[str]) -> None:
        super().__init__()
        self.records = records

    def run(self, *command: str) -> str:
        super().run(*command)
        options = dict(word.partition("=")[::2] for word in command[1:])
        assert options["--format"].split(",") == list(RECORDED)
        mark = options["--delimiter"]
        return "".join("".join(f"{value}{mark}" for value in values) + "\n" for values in self.records)


class Cluster:
    """A cluster with a ledger, whose daemon answers.

    Attributes:
        now: Seconds since the epoch.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, accounting: bool = True) -> None:
        made = design(CHEAP, DEAR, FREE, slurm=SlurmSettings(accounting=accounting))
        self.settings: Settings = settings(folder, made)
        self.elastic = Path(str(Folders(self.settings).elastic))
        self.elastic.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(self.elastic / "ledger.json", made)
        self.now, self.count = NOW, 0
        self.machines: list[Machine] = []
        monkeypatch.setattr("node.billing.bill.time.time", lambda: self.now)
        monkeypatch.setattr(rpc, "call", self.call)

    def call(self, _path: str, method: str, _seconds: float) -> Any:
        assert method == "lives"
        return json.loads(json.dumps(self.ledger.lives(self.now)))

    def ran(self, node: str, launched: float, ended: float, *, up: bool = True) -> None:
        self.count += 1
        machine = Machine(f"m-{self.count}", node, MachineState.RUNNING, launched)
        others = [m for m in self.machines if m.node != node]
        self.ledger.see([*others, machine], launched, {node} if up else ())
        self.machines = others if ended < NOW else [*others, machine]
        self.ledger.see(self.machines, ended)

    def bill(self, *records: list[str], by: str | None = None, **period: float) -> dict[str, Any]:
        since, until = period.get("since"), period.get("until")
        return bills.bill(self.settings, Accounting(*records), by, since, until)

    def usd(self, *records: list[str], by: str = "account", **period: float) -> dict[tuple[str, str], float]:
        made = self.bill(*records, by=by, **period)
        return {(row["kind"], row["name"]): row["usd"] for row in made["rows"]}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def test_rows_add_up_to_what_the_ledger_counts(cluster: Cluster) -> None:
    cluster.ran("cheap-0", 0.0, 2 * HOUR)
    cluster.ran("dear-0", 3 * HOUR, 4 * HOUR, up=False)
    cluster.ran("dear-0", 5 * HOUR, NOW)
    jobs = [
        record("1", start=0, end=int(HOUR)),
        record("2", account="chemistry", user="bo", start=int(HOUR), end=2 * int(HOUR), tres="cpu=2,node=1"),
        record(
            "3_7", nodes="dear-0", start=6 * int(HOUR), end="Unknown", state="RUNNING",
            tres="cpu=2,gres/gpu=4,gres/gpu:v100=4,mem=1.50G,node=1",
        ),
    ]  # fmt: skip
    assert cluster.usd(*jobs) == {
        ("jobs", "physics"): 40.5,
        ("jobs", "chemistry"): 1.0,
        ("idle", ""): 10.5,
        ("failed boots", ""): 10.0,
    }
    assert cluster.usd(*jobs, by="user") == {
        ("jobs", "ann"): 40.5, ("jobs", "bo"): 1.0, ("idle", ""): 10.5, ("failed boots", ""): 10.0,
    }  # fmt: skip
    assert cluster.usd(*jobs, by="partition") == {
        ("jobs", "dear"): 40.0, ("jobs", "cheap"): 1.5,
        ("idle", "dear"): 10.0, ("idle", "cheap"): 0.5, ("failed boots", "dear"): 10.0,
    }  # fmt: skip
    assert cluster.usd(*jobs, by="job")["jobs", "3_7"] == 40.0
    row = cluster.bill(*jobs, by="job")["rows"][0]
    assert (row["user"], row["account"], row["partition"], row["jobs"]) == ("ann", "physics", "dear", 1)
    made = cluster.bill(*jobs)
    assert (made["by"], made["total"]["usd"], made["notes"]) == ("user", cluster.ledger.cost(NOW)["usd"], [])
    assert made["total"]["node_hours"] == cluster.ledger.cost(NOW)["node_hours"]


def test_a_period_has_its_own_part(cluster: Cluster) -> None:
    cluster.ran("cheap-0", 0.0, 2 * HOUR)
    job = record(start=0, end=2 * int(HOUR), tres="cpu=2")
    assert cluster.usd(job, since=HOUR, until=1.5 * HOUR) == {("jobs", "physics"): 0.5}
    assert cluster.usd(job, since=3 * HOUR) == {}


def test_what_ended_before_the_record_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    total = {"seconds": 7200.0, "usd": 20.0, "unpriced": 0.0}
    earlier = {"closed": {"dear": total, "free": {**total, "usd": 0.0, "unpriced": 7200.0}}, "open": {}}
    (cluster.elastic / "ledger.json").write_text(json.dumps({**earlier, "newest": {}}))
    cluster = Cluster(tmp_path, monkeypatch)
    assert cluster.bill()["recorded_since"] is None
    cluster.ran("cheap-0", HOUR, 2 * HOUR)
    made = cluster.bill()
    assert [(row["kind"], row["usd"], row["at_least_usd"]) for row in made["rows"]] == [
        ("idle", 1.0, 1.0),
        ("not recorded", None, 20.0),
    ]
    assert (made["total"]["usd"], made["total"]["at_least_usd"], made["unknown"]) == (None, 21.0, ["free"])
    assert made["recorded_since"] == HOUR
    assert "ended machines are recorded since 1970-01-01 01:00:00 UTC" in made["notes"][0]
    assert cluster.usd(by="partition") == {
        ("idle", "cheap"): 1.0, ("not recorded", "dear"): 20.0, ("not recorded", "free"): None,
    }  # fmt: skip
    assert cluster.usd(since=HOUR) == {("idle", ""): 1.0}, "a later period has none of it"


def test_without_accounting_there_are_partitions_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, accounting=False)
    cluster.ran("cheap-0", 0.0, HOUR)
    cluster.ran("dear-0", 0.0, HOUR, up=False)
    made = cluster.bill()
    assert made["by"] == "partition"
    assert [(row["kind"], row["name"], row["usd"]) for row in made["rows"]] == [
        ("nodes", "cheap", 1.0),
        ("failed boots", "dear", 10.0),
    ]
    with pytest.raises(BillError) as caught:
        cluster.bill(by="account")
    assert str(caught.value) == (
        "this cluster keeps no accounting, so there are bills by partition and by pool only, and none by "
        "account: write "
        "slurm: {accounting: true} in Pulumi.test.yaml and run `./cluster up --stack test`. From then on "
        "Slurm records who has which nodes"
    )


def test_an_unknown_price_makes_a_sum_the_least(cluster: Cluster) -> None:
    cluster.ran("free-0", 0.0, HOUR)
    made = cluster.bill(record(nodes="free-0"))
    assert (made["rows"][0]["usd"], made["rows"][0]["at_least_usd"], made["unknown"]) == (None, 0.0, ["free"])
    assert made["rows"][0]["node_hours"] == 1.0


def test_machines_of_a_restored_backup_are_in_the_bill_and_named(cluster: Cluster) -> None:
    cluster.ran("cheap-0", HOUR, 2 * HOUR)
    life = MachineLife("old", "dear-1", "dear", 0.0, HOUR, HOUR, 10.0, 8, 8000)
    file = cluster.elastic / "machines" / "restored-0a-1969-12-31.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(asdict(life)).encode() + b"\n"))
    made = cluster.bill(record(nodes="dear-1", tres="cpu=8"))
    assert made["total"]["usd"] == 11.0
    assert any("1 machine of a restored backup, 10.00 USD in all" in note for note in made["notes"])


def test_who_does_not_answer_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise SlurmError(["sacct"], 1, "Connection refused")

    cluster.ran("cheap-0", 0.0, HOUR)
    monkeypatch.setattr(job_runs, "read", refuses)
    with pytest.raises(BillError, match="the accounting, which knows the jobs, does not answer: sacct"):
        bills.of_cluster(cluster.settings, None, None, None)

    def silent(*_: object) -> None:
        raise rpc.RpcUnavailableError("no socket")

    monkeypatch.setattr(rpc, "call", silent)
    with pytest.raises(BillError, match=r"the elastic daemon.*no socket.*elastic\.log"):
        bills.of_cluster(cluster.settings, None, None, None)


@pytest.mark.parametrize(
    ("config", "private"),
    [("PrivateData             = none\n", False), ("A = jobs\nPrivateData = accounts,jobs,usage\n", True)],
)
def test_hidden_jobs_are_a_note(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, config: str, private: bool
) -> None:
    monkeypatch.setattr(Accounting, "show_config", lambda _: config)
    assert any("PrivateData=jobs" in note for note in cluster.bill()["notes"]) is private


# --- sacct's records --------------------------------------------------------------------------------------


def read(*records: list[str]) -> tuple[list[Any], int]:
    runs, left_out = job_runs.read(Accounting(*records), 0.0, NOW)
    return runs, len(left_out)


def test_a_record_is_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    ((run,), left_out) = read(
        record("7+1", nodes="dear-[0-1]", tres="billing=6,cpu=6,gres/gpu=2,mem=3G,node=2", end="Unknown")
    )
    assert left_out == 0
    assert (run.job, run.nodes, run.end) == ("7+1", ("dear-0", "dear-1"), None)
    assert (run.cpus, run.memory_mib, run.gres) == (3.0, 1536.0, {"gpu": 1.0})


def test_a_run_without_an_end_was_over_when_its_job_ran_again() -> None:
    """slurmdbd's database was killed as it began, so the record stays RUNNING."""
    later = [record("7", start=start, end=end) for start, end in ((300, 400), (200, 250))]
    runs, _ = read(record("7", start=100, end="Unknown"), *later, record("8", start=50, end="Unknown"))
    assert [(run.start, run.end) for run in runs] == [(100, 200), (300, 400), (200, 250), (50, None)]


@pytest.mark.parametrize(
    "values", [record(start="Unknown"), record(start="None"), record(nodes="None assigned"), record(nodes="")]
)
def test_a_job_without_nodes_is_none(values: list[str]) -> None:
    assert read(values) == ([], 0)


def test_accounts_and_users_may_be_any_text() -> None:
    text = 'a|b\n\n"=x", 12|\\'
    ((run, plain), left_out) = read(record("1", user=text, account=text), record("2"))
    assert (run.user, run.account, plain.job, left_out) == (text, text, "2", 0)


@pytest.mark.parametrize(
    "values", [record(tres="cpu=many"), record(nodes="x["), record("1 2"), record(tres="cpu=1,mem=5X")]
)
def test_a_record_that_is_none_is_counted_and_named(
    values: list[str], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.ran("cheap-0", 0.0, HOUR)
    made = cluster.bill(values, record("2"))
    assert capsys.readouterr().err.startswith("sacct: a record is left out: ")
    assert any("1 record of the accounting cannot be read" in note for note in made["notes"])
    assert made["rows"][0]["jobs"] == 1


def test_the_words_that_say_that_a_script_began() -> None:
    assert {word for word in KNOWN if surely_ran(word)} == {
        "COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY",
    }  # fmt: skip


# --- whatever happens -------------------------------------------------------------------------------------

moments = st.integers(0, 20).map(lambda tenth: tenth * HOUR / 2)
fleets = st.lists(
    st.tuples(st.sampled_from(["cheap-0", "cheap-1", "dear-0", "free-0"]), moments, moments, st.booleans()),
    max_size=6,
)
accounts = st.lists(
    st.builds(
        lambda job, user, start, seconds, nodes, tres: record(
            job, user, start=int(start), end=int(start + seconds), nodes=nodes, tres=tres
        ),
        st.sampled_from("123"),
        st.sampled_from(["ann", "bo"]),
        moments,
        moments,
        st.sampled_from(["cheap-0", "cheap-[0-1]", "dear-0", "gone-0"]),
        st.sampled_from(["cpu=1", "cpu=2,mem=500M", "cpu=8,gres/gpu=2", "node=1"]),
    ),
    max_size=5,
)


@examples(max_examples=40)
@given(
    fleets, accounts, st.sampled_from(["user", "account", "partition", "job"]), st.sampled_from([1.7, 1e4])
)
def test_every_bill_adds_up_to_the_ledger(
    tmp_path_factory: pytest.TempPathFactory,
    fleet: Iterable[tuple[str, float, float, bool]],
    jobs: list[list[str]],
    by: str,
    hours: float,
) -> None:
    """However long the periods are by which it is read."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        cluster = Cluster(tmp_path_factory.mktemp("bill"), monkeypatch)
        monkeypatch.setattr(bills, "PERIOD_SECONDS", hours * HOUR)
        for node, launched, ended, up in fleet:
            cluster.ran(node, launched, max(launched, ended), up=up)
        made, counted = cluster.bill(*jobs, by=by), cluster.ledger.account(NOW)
        monkeypatch.setattr(bills, "PERIOD_SECONDS", 1e9)
        whole = cluster.bill(*jobs, by=by)
    assert {(row["kind"], row["name"]): row["node_hours"] for row in made["rows"]} == pytest.approx(
        {(row["kind"], row["name"]): row["node_hours"] for row in whole["rows"]}, abs=1e-4
    )
    assert made["total"]["at_least_usd"] == pytest.approx(counted.usd, abs=1e-5)
    assert made["total"]["node_hours"] == pytest.approx(counted.node_hours, abs=1e-5)
    assert made["total"]["usd"] == (None if counted.unpriced else made["total"]["at_least_usd"])
    assert fsum(row["at_least_usd"] for row in made["rows"]) == pytest.approx(counted.usd, abs=1e-4)
    assert all(row["node_hours"] >= 0 and row["at_least_usd"] >= 0 for row in made["rows"])
    assert all(row["kind"] != "not recorded" for row in made["rows"])
