"""What people change in Slurm at run time: what is a change of theirs, and what the next slurm.conf keeps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.elastic import reconfiguration
from node.elastic.runtime import RuntimeChanges
from node.slurm import closing, conf, hardware, runtime
from node.slurm.answers import parse_nodes
from node.slurm.configure import closed_by_command, configure, read_changes, write_changes
from node.slurm.control import LAST_WEIGHT
from node.slurm.runtime import Designed, Difference, Fields, Record
from node.slurm.states import NodeState
from node.system import files
from tests.node.slurm_cluster import design, partition
from tests.support.doubles import FakeControl, settings
from tests.support.whole_boot import short_folder

RELEASE = "slurm-wlm 22.05.8"
NODES = {f"debug-{i}": {"Feature": "tiny,ondemand", "Weight": "10", "CpuBind": ""} for i in range(4)}
DEBUG = {"Nodes": "debug-[0-3]", "Default": "YES", "DefMem": "DefMemPerCPU=500"}


def designed(
    partitions: Mapping[str, Fields] | None = None,
    controller: Fields | None = None,
    nodes: Mapping[str, Fields] | None = None,
) -> Designed:
    return Designed(
        partitions or {"debug": DEBUG}, {**NODES, **(nodes or {})}, controller or runtime.CONTROLLER
    )


def changed(**options: tuple[str, str]) -> Record:
    return Record(partitions={"debug": {key: Difference(*values) for key, values in options.items()}})


# --- one spelling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "minutes"),
    [
        ("INFINITE", None), ("UNLIMITED", None), ("90", "90"), ("01:30:00", "90"), ("1-00:00:00", "1440"),
        ("2-12", "3600"), ("1-01:01", "1501"), ("5:30", "6"), ("00:00:01", "1"), ("soon", "soon"),
    ],
)  # fmt: skip
def test_times_have_one_spelling(written: str, minutes: str | None) -> None:
    assert runtime.partition({"MaxTime": written}).get("MaxTime") == minutes


def test_what_nobody_has_set_is_no_option_and_what_is_unknown_stays_out() -> None:
    shown = (
        "PartitionName=p AllowGroups=domain users AllowAccounts=ALL QoS=N/A Default=NO MaxNodes=UNLIMITED "
        "Nodes=debug-3,debug-[0-2] OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=8 TRES=cpu=4 "
        "JobDefaults=DefCpuPerGPU=2 DefMemPerNode=UNLIMITED MaxMemPerCPU=7 Invented=1 SuspendTime=GLOBAL \n"
    )
    assert runtime.shown_partitions(shown) == {
        "p": {
            "AllowGroups": "domain users",
            "Nodes": "debug-[0-3]",
            "JobDefaults": "DefCpuPerGPU=2",
            "MaxMem": "MaxMemPerCPU=7",
        }
    }


def test_slurm_of_26_05_spells_exclusive_partitions_otherwise() -> None:
    of_design = runtime.partition({"OverSubscribe": "EXCLUSIVE"})
    assert runtime.partition({"Exclusive": "NODE", "OverSubscribe": "NO"}) == of_design
    assert runtime.partition({"Exclusive": "USER", "OverSubscribe": "NO"}) == {"Exclusive": "USER"}
    assert runtime.partition({"Exclusive": "TOPO", "OverSubscribe": "NO"}) == {"Exclusive": "TOPO"}


def test_no_words_of_a_node_pass_for_another_nodes_line() -> None:
    line = (
        "NodeName=a Arch=x86_64 AvailableFeatures=tiny ActiveFeatures=tiny Gres=(null) OS=Linux RealMemory=1 "
        "State=IDLE TmpDisk=0 Weight=7 Owner=N/A Comment=x NodeName=b AvailableFeatures=f TmpDisk=0 Weight=9 "
        "Owner=N/A"
    )
    assert runtime.shown_nodes(parse_nodes(line)) == {"a": {"Feature": "tiny", "Weight": "7", "CpuBind": ""}}


# --- what is a change of theirs ---------------------------------------------------------------------------


def test_what_slurm_has_besides_the_stack_file_is_theirs() -> None:
    shown = designed(
        {"debug": {**DEBUG, "MaxTime": "30", "State": "DOWN"}, "own": {"Nodes": "debug-0"}},
        {**runtime.CONTROLLER, "DebugFlags": "Power,Backfill"},
        {"debug-1": {**NODES["debug-1"], "Weight": "3"}},
    )
    says = designed(controller={**runtime.CONTROLLER, "DebugFlags": "Power"})
    record = runtime.compare(shown, says, Record())
    assert record == Record(
        own={"own": {"Nodes": "debug-0"}},
        partitions={"debug": {"MaxTime": Difference("UNLIMITED", "30"), "State": Difference("UP", "DOWN")}},
        nodes={"debug-1": {"Weight": Difference("10", "3")}},
        controller={"DebugFlags": Difference("Power", "Power,Backfill")},
    )
    kept = runtime.merge(record, says)
    assert (kept.partitions["debug"], kept.own, kept.replaced) == (
        {"MaxTime": "30", "State": "DOWN"},
        {"own": {"Nodes": "debug-0"}},
        [],
    )


def test_nodes_that_share_their_options_are_each_compared() -> None:
    plain, other = {"Weight": "10"}, {"Weight": "3"}
    says = designed(nodes={"debug-0": plain, "debug-1": plain, "debug-2": other, "debug-3": other})
    shown = designed(nodes=dict.fromkeys((*NODES, "unknown"), plain))
    change = {"Weight": Difference("3", "10")}
    assert runtime.compare(shown, says, Record()).nodes == {"debug-2": change, "debug-3": change}


@pytest.mark.parametrize("state", ["UP", "DRAIN"])
def test_what_the_daemon_closes_for_a_moment_is_nobodys_wish(state: str) -> None:
    before = Record(
        own={"own": {"Nodes": "debug-0", "State": state} if state != "UP" else {"Nodes": "debug-0"}}
    )
    if state != "UP":
        before = dataclasses.replace(before, partitions={"debug": {"State": Difference("UP", state)}})
    shown = designed({"debug": {**DEBUG, "State": "DOWN"}, "own": {"Nodes": "debug-0", "State": "DOWN"}})
    assert runtime.compare(shown, designed(), before, lambda _name: True) == before


# --- what the next slurm.conf keeps -----------------------------------------------------------------------


def test_a_key_that_has_changed_in_the_stack_file_is_stronger_and_that_is_said() -> None:
    record = changed(MaxTime=("60", "30"), AllowGroups=("ALL", "staff"))
    kept = runtime.merge(record, designed({"debug": {**DEBUG, "MaxTime": "120"}}))
    assert kept.partitions == {"debug": {"AllowGroups": "staff"}}
    assert kept.replaced == ["partition debug: MaxTime was 30 at run time: the stack file's 120 replaces it"]
    # Nothing is said where both want the same.
    assert runtime.merge(record, designed({"debug": {**DEBUG, "MaxTime": "30"}})).replaced == []


def test_lists_keep_what_people_have_added_and_removed() -> None:
    record = Record(
        nodes={"debug-0": {"Feature": Difference("tiny,spot", "tiny,mine")}},
        controller={"SuspendExcNodes": Difference("debug-[0-1]", "debug-[1-2]")},
    )
    will = designed(
        controller={**runtime.CONTROLLER, "SuspendExcNodes": "debug-[0-1],debug-3"},
        nodes={"debug-0": {**NODES["debug-0"], "Feature": "huge,spot"}},
    )
    kept = runtime.merge(record, will)
    assert kept.nodes == {"debug-0": {"Feature": "huge,mine"}}
    assert kept.controller == {"SuspendExcNodes": "debug-1,debug-3,debug-2"}


def test_nodes_and_names_that_the_stack_file_takes_are_its_own() -> None:
    record = Record(
        own={
            "half": {"Nodes": "debug-[2-5]"},
            "gpu": {"Nodes": "debug-0"},
            "every": {"NodeSets": "ALL", "Nodes": "debug-9"},
        }
    )
    kept = runtime.merge(record, designed({"debug": DEBUG, "gpu": {"Nodes": "debug-1"}}))
    assert kept.own["half"] == {"Nodes": "debug-[2-3]"}
    assert dict(runtime.lines(kept.own["every"])) == {"Nodes": "ALL"}, "also the nodes that come later"
    assert [sentence.split(":")[0] for sentence in kept.replaced] == [
        "partition half, made at run time, loses debug-[4-5], which the cluster has no more",
        "partition gpu was made at run time",
    ]


@pytest.mark.parametrize(
    ("record", "partitions", "default"),
    [
        (Record(own={"own": {"Default": "YES"}}), {"debug": {}, "b": {}}, ["own"]),
        (Record(own={"own": {"Default": "YES"}}), {"debug": {"Default": "YES"}, "b": {}}, ["debug"]),
        (
            Record(
                {"own": {"Default": "YES"}},
                {"debug": {"Default": Difference("YES", "NO")}},
            ),
            {"debug": {"Default": "YES"}, "b": {}},
            ["own"],
        ),
        (
            Record(
                {},
                {"debug": {"Default": Difference("YES", "NO")}, "b": {"Default": Difference("NO", "YES")}},
            ),
            {"debug": {}, "b": {}, "c": {"Default": "YES"}},
            ["c"],
        ),
    ],
)
def test_there_is_one_default_partition(
    record: Record, partitions: dict[str, Fields], default: list[str]
) -> None:
    kept = runtime.merge(record, designed(partitions))
    whole = {name: {**options, **kept.partitions.get(name, {})} for name, options in partitions.items()}
    assert [n for n, options in {**whole, **kept.own}.items() if options.get("Default") == "YES"] == default


@pytest.mark.parametrize("text", ['x"', "a\nPluginDir=/tmp", "a\rb", "a\\", "a\tb", "a\x0cb"])
def test_nothing_that_is_recorded_writes_another_line_of_slurm_conf(text: str) -> None:
    known = settings(Path("/srv/x"), design(partition(nodes=2)))
    one, two = Difference("ALL", text), Difference("tiny", text)
    record = Record(
        own={text: {"Nodes": "debug-0"}, "own": {"AllowGroups": text}},
        partitions={"debug": {"AllowGroups": one, "State": Difference("UP", "DOWN")}},
        nodes={"debug-0": {"Feature": two}},
        controller={"DebugFlags": Difference("Power", text), "PluginDir": Difference("", "/tmp")},
    )
    kept = runtime.merge(record, conf.designed(known))
    assert (kept.own, kept.nodes, kept.partitions) == ({}, {}, {"debug": {"State": "DOWN"}})
    rendered = conf.render(known, (22, 5), kept=kept)["slurm.conf"]
    assert text not in rendered
    assert "PluginDir" not in rendered
    assert len(kept.replaced) >= 5, "and each is said"


@pytest.mark.parametrize(
    ("value", "line"),
    [("staff", "staff"), ("domain users", '"domain users"'), ("a#b", '"a\\#b"'), ("CPU=2.0", '"CPU=2.0"')],
)
def test_what_is_not_simple_is_quoted(value: str, line: str) -> None:
    assert dict(runtime.lines({"AllowGroups": value})) == {"AllowGroups": line}


# --- the files --------------------------------------------------------------------------------------------


class Controller:
    """A controller's folders, with a slurmctld that has what the test says."""

    def __init__(self, root: Path, plan: ClusterDesign) -> None:
        self.settings = settings(root, plan)
        self.folders = Folders(self.settings)
        for folder in (self.folders.etc, self.folders.elastic, self.folders.state):
            Path(folder).mkdir(parents=True)
        self.lib, self.state = Path(self.folders.elastic), Path(self.folders.state)
        self.control = Told()
        self.changes = RuntimeChanges(self.settings, self.control, self.lib)

    def start(self) -> list[str]:
        """Does what happens before each start of slurmctld, and returns slurm.conf's partitions."""
        configure(self.settings, RELEASE, files.write)
        text = Path(self.folders.slurm_conf).read_text()
        return [line for line in text.splitlines() if line.startswith("PartitionName")]


class Told(FakeControl):
    """A slurmctld that started just now."""

    config = "BOOT_TIME               = 99999999999\n"
    text = ""
    lines = ""

    def show_partitions(self) -> str:
        return self.text

    def nodes(self) -> Mapping[str, NodeState]:
        return parse_nodes(self.lines)

    def show_config(self) -> str:
        return self.config


@pytest.fixture
def controller() -> Iterator[Controller]:
    # The path is short, because slurm.conf has sockets below it.
    with short_folder() as folder:
        told = Controller(folder, design(partition(nodes=2)))
        told.start()
        told.control.text = (
            "PartitionName=debug Nodes=debug-[0-1] Default=YES DefMemPerCPU=500 MaxTime=30 State=UP\n"
            "PartitionName=own Nodes=debug-1 State=UP\n"
        )
        yield told


def test_the_record_is_beside_slurms_state_and_the_next_start_has_it(controller: Controller) -> None:
    saved = controller.state / "part_state"
    saved.touch()
    controller.changes.once()
    assert (controller.state / runtime.FILE).stat().st_mode & 0o777 == 0o600
    assert controller.start() == [
        "PartitionName=debug Nodes=debug-[0-1] Default=YES MaxTime=30 OverSubscribe=NO DefMemPerCPU=500 "
        "State=UP",
        "PartitionName=own Nodes=debug-1 State=UP",
    ]
    assert not saved.exists(), "from 23.11 on slurmctld would believe it, and not slurm.conf"


def test_a_slurmctld_that_has_not_read_this_slurm_conf_says_nothing_about_it(controller: Controller) -> None:
    controller.control.config = "BOOT_TIME               = 1\n"
    controller.changes.once()
    assert read_changes(controller.state) is None
    controller.control.config = Told.config
    controller.changes.once()
    # The next `up` has written another file: partitions are still those of the design that this daemon knows.
    controller.control.config = "BOOT_TIME               = 1\n"
    controller.control.text += "PartitionName=later Nodes=debug-0 State=UP\n"
    controller.changes.once()
    record = read_changes(controller.state)
    assert record is not None
    assert sorted(record.own) == ["later", "own"]


def test_a_slurmctld_without_partitions_is_starting_and_takes_nothing_away(controller: Controller) -> None:
    controller.changes.once()
    before = read_changes(controller.state)
    controller.control.text = ""
    controller.changes.once()
    controller.changes.partitions()
    assert read_changes(controller.state) == before


@pytest.mark.parametrize("file", [reconfiguration.CLOSED, hardware.CLOSED])
def test_partitions_that_the_daemon_has_closed_open_at_the_next_start(
    controller: Controller, file: str
) -> None:
    (controller.lib / file).write_text('["debug", "own"]')
    controller.control.text = controller.control.text.replace("State=UP", "State=DOWN")
    controller.changes.once()
    assert [line.rpartition(" ")[2] for line in controller.start()] == ["State=UP", "State=UP"]
    assert not (controller.lib / hardware.CLOSED).exists()


MARK = """\
command=down
who=ann@desk
process=
checkout=c
token=t
at={at}
partitions= debug:DOWN:UP own:DOWN:UP
"""


def states(controller: Controller) -> list[str]:
    """Returns the partitions' states in the slurm.conf of the next start."""
    return [line.rpartition("State=")[2] for line in controller.start()]


@pytest.mark.parametrize("at", [0.0, time.time()], ids=["old", "young"])
def test_what_a_command_has_closed_is_closed_as_long_as_its_mark_is_there(
    controller: Controller, at: float
) -> None:
    """As of the soak: slurmctld starts after the command has opened, and before anybody has recorded that."""
    mark = controller.state / closing.MARK
    controller.changes.once()
    mark.write_text(MARK.format(at=at))
    opened = controller.control.text
    controller.control.text = opened.replace("State=UP", "State=DOWN")
    controller.changes.partitions()
    record = read_changes(controller.state)
    assert record is not None
    assert record.closed == {"debug": "DOWN", "own": "DOWN"}
    assert "State" not in {*record.partitions["debug"], *record.own["own"]}
    assert states(controller) == ["DOWN", "DOWN"], "the command is not done"
    mark.unlink()
    assert states(controller) == ["UP", "UP"], "the record is older than the opening"
    # What people close stays, also beside what a command closes.
    controller.changes.partitions()
    assert states(controller) == ["DOWN", "DOWN"]
    mark.write_text(MARK.format(at=at).replace("debug:DOWN:UP", "debug:INACTIVE:DOWN"))
    controller.control.text = controller.control.text.replace("State=DOWN", "State=INACTIVE", 1)
    controller.changes.partitions()
    assert states(controller) == ["INACTIVE", "DOWN"]
    mark.unlink()
    assert states(controller)[0] == "DOWN"


def test_what_people_open_by_hand_is_open_whatever_an_old_mark_says(controller: Controller) -> None:
    (controller.state / closing.MARK).write_text(MARK.format(at=0))
    controller.control.text = controller.control.text.replace("State=UP", "State=DOWN")
    controller.changes.once()
    assert states(controller) == ["DOWN", "DOWN"]
    controller.control.text = controller.control.text.replace("State=DOWN", "State=UP", 1)
    controller.changes.partitions()
    assert states(controller) == ["UP", "DOWN"]
    # Nothing but the two states of our own commands gets into slurm.conf.
    (controller.state / closing.MARK).write_text(MARK.format(at=0).replace(":DOWN:", ":UP#x:"))
    assert "#" not in "".join(controller.start())


@pytest.mark.parametrize(("at", "closed"), [(1000.0, True), (900.0, False), (4600.0, False)])
def test_only_a_mark_of_just_now_counts_without_the_record(at: float, closed: bool) -> None:
    mark = closing.parse(MARK.format(at=at))
    found = closed_by_command(Record(), mark, 1005.0)
    assert found == ({"debug": "DOWN", "own": "DOWN"} if closed else {})


def test_a_command_that_ends_while_slurm_is_asked_has_closed_all_the_same(controller: Controller) -> None:
    mark = controller.state / closing.MARK
    mark.write_text(MARK.format(at=0))
    controller.control.text = controller.control.text.replace("State=UP", "State=DOWN")

    class Ending(Told):
        def show_partitions(self) -> str:
            mark.unlink()
            return controller.control.text

    RuntimeChanges(controller.settings, Ending(), controller.lib).once()
    record = read_changes(controller.state)
    assert record is not None
    assert "State" not in record.partitions["debug"]


def test_a_reconfigure_opens_nothing_that_a_command_has_closed() -> None:
    record = Record(partitions={"debug": {"State": Difference("UP", "DRAIN")}}, closed={"debug": "DOWN"})
    assert list(runtime.commands(record, Designed({"debug": {"State": "DOWN"}}, {}, {}))) == []


def test_the_weight_of_what_slurm_is_to_choose_last_is_ours(controller: Controller) -> None:
    line = (
        "NodeName={} Arch=x AvailableFeatures=tiny,ondemand ActiveFeatures=x State=IDLE TmpDisk=0 Weight={} "
        "Owner=N/A\n"
    )
    controller.control.lines = line.format("debug-0", LAST_WEIGHT) + line.format("debug-1", 3)
    controller.changes.once()
    record = read_changes(controller.state)
    assert record is not None
    assert record.nodes == {"debug-1": {"Weight": Difference("10", "3")}}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"own": 1}', b'{"more": {}}', b"[" * 10_000, b"\xff"]
)
def test_a_record_that_cannot_be_read_stops_no_start(
    controller: Controller, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (controller.state / runtime.FILE).write_bytes(content)
    assert len(controller.start()) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_partitions_of_people_are_closed_as_long_as_nodes_of_theirs_are_not_looked_at(
    controller: Controller,
) -> None:
    write_changes(controller.state, Record(own={"own": {"Nodes": "debug-1"}, "other": {}}))
    plan = controller.settings.design
    larger = dataclasses.replace(plan.partitions[0], cpus=8)
    controller.settings = dataclasses.replace(
        controller.settings, design=dataclasses.replace(plan, partitions=(larger,))
    )
    assert [line.split()[0][14:] for line in controller.start() if line.endswith("State=DOWN")] == [
        "debug",
        "own",
    ]


def test_what_a_reconfigure_has_lost_is_set_again() -> None:
    record = Record(
        own={"own": {"Nodes": "debug-0", "DefMem": "DefMemPerCPU=7", "JobDefaults": "DefCpuPerGPU=2"}},
        # A command that has ended since the record has opened it.
        partitions={"debug": {"AllowGroups": Difference("ALL", "staff"), "State": Difference("UP", "DOWN")}},
        nodes={
            f"debug-{i}": {"Weight": Difference("10", "3"), "Feature": Difference("a", "b")} for i in (1, 2)
        },
        controller={
            "DebugFlags": Difference("Power", "Backfill"),
            "SlurmctldDebug": Difference("info", "debug"),
            "SuspendExcParts": Difference("", "own"),
        },
    )
    lost = Designed(
        {"own": {"Nodes": "debug-0"}, "debug": {}},
        {f"debug-{i}": {"Weight": "10", "Feature": "a"} for i in (1, 2)},
        {**runtime.CONTROLLER, "DebugFlags": "Power"},
    )
    assert [" ".join(words) for words in runtime.commands(record, lost)] == [
        "update PartitionName=own DefMemPerCPU=7 JobDefaults=DefCpuPerGPU=2",
        "update PartitionName=debug AllowGroups=staff",
        "update NodeName=debug-[1-2] Weight=3 AvailableFeatures=b ActiveFeatures=b",
        "setdebugflags +Backfill",
        "setdebugflags -Power",
        "setdebug debug",
        "update SuspendExcParts=own",
    ]


@pytest.mark.parametrize("name", ["default", "DEFAULT", "Default"])
def test_a_partition_with_the_name_of_slurm_confs_defaults_changes_no_other(name: str) -> None:
    known = settings(Path("/srv/x"), design(partition(nodes=2)))
    kept = runtime.merge(Record(own={name: {"MaxTime": "1"}, "own": {}}), conf.designed(known))
    assert sorted(kept.own) == ["own"]
    assert len(kept.replaced) == 1


def test_a_pass_shares_its_reading_unless_slurmctld_may_have_another_slurm_conf(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    control = controller.control

    def nodes_since(begun: float) -> Mapping[str, NodeState]:
        asked.append(begun)
        return control.nodes()

    monkeypatch.setattr(control, "nodes_since", nodes_since)
    controller.changes.once(5.0)
    assert asked.pop() == math.inf, "it may have started after the reading"
    controller.changes.once(5.0)
    assert asked.pop() == 5.0
    control.config = "BOOT_TIME               = 99999999998\n"
    controller.changes.once(5.0)
    assert asked.pop() == math.inf
    controller.changes.reconfigure()
    assert asked == [math.inf, math.inf], "what was set is compared with what is now"
    controller.changes.once(5.0)
    assert 5.0 < asked.pop() <= time.monotonic(), "read since it was reconfigured"
    controller.changes.once()
    assert asked.pop() == math.inf


def test_what_the_stack_file_says_is_worked_out_once(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out = []
    work_out = conf.designed

    def spied(its: Settings, lines: hardware.Lines) -> Designed:
        worked_out.append(lines.kept)
        return work_out(its, lines)

    monkeypatch.setattr(conf, "designed", spied)
    controller.changes.once()
    controller.changes.once()
    assert worked_out == [{}]
    kept = hardware.Hardware.of(controller.settings.design.partitions[0])
    record = SimpleNamespace(kept=lambda _: {"debug-0": kept}, seen=["debug-0"])
    monkeypatch.setattr(hardware, "read", lambda _: record)
    controller.changes.once()
    assert worked_out == [{}, {"debug-0": kept}], "a node keeps its former line"
