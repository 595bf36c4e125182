"""The checks of a node's devices, on outputs in the forms that their makers document.

NVIDIA: `nvidia-smi --help-query-gpu`, `nvidia-smi nvlink --status`, the Xid catalog
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), DCGM's own tests of `dcgmi diag -j`
(github.com/NVIDIA/DCGM, testing/python3/tests/test_dcgm_diag.py). AWS: the Neuron LS user guide
(awsdocs-neuron, tools/neuron-sys-tools/neuron-ls), and the kernel's /sys/class/infiniband.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.design.accelerators import Accelerator
from node.design.health import CHECKS, Health, JobScript
from node.design.model import AwsPartition, Partition, SlurmSettings
from node.elastic.replacements import Replacements
from node.health import nvidia
from node.health.check import Expected, When, expected, faults, in_a_line
from node.health.tools import runner
from node.slurm.conf import render
from node.system.subprocesses import Ran
from tests.node.test_slurm_conf import FLEET, options, part, settings

H100 = Accelerator("h100", 8)
RECOVERY = "GPU recovery action changed from {} to {}"
REBOOT = RECOVERY.format("0x0 (None)", "0x2 (Node Reboot Required)")
XID = "[ 2012.3] NVRM: Xid (PCI:0000:{bus}:00): {code}, {text}"


def smi(**broken: str) -> Ran:
    """Return nvidia-smi's output for eight GPUs, the last of which has other values in some fields."""
    good = {"ecc": "0", "failure": "No", "pending": "No", "retired": "[N/A]", "hot": "Not Active"}
    rows = [f"{i}, 00000000:{i + 16:02X}:00.0, " + ", ".join(good.values()) for i in range(7)]
    return Ran(0, "\n".join([*rows, "7, 00000000:17:00.0, " + ", ".join({**good, **broken}.values())]) + "\n")


def links(off: int = 0) -> Ran:
    lines = []
    for gpu in range(8):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [
            f"\t Link {i}: {'<inactive>' if gpu == 7 and i < off else '26.562 GB/s'}" for i in range(18)
        ]
    return Ran(0, "\n".join(lines) + "\n")


def diag(status: str, **warning: Any) -> Ran:
    result = {"entity_group": "GPU", "entity_id": 3, "status": status}
    if warning:
        result["warnings"] = [warning]
    test = {"name": "software", "results": [result], "test_summary": {"status": status}}
    category = {"category": "Deployment", "tests": [test]}
    return Ran(
        226 if status == "Fail" else 0, json.dumps({"DCGM Diagnostic": {"test_categories": [category]}})
    )


class Tools:
    """Tools with given answers. One that has none is not installed."""

    def __init__(self, **answers: Ran) -> None:
        self.answers = {"smi": smi(), "nvlink": links(), "dmesg": Ran(0)} | answers
        self.asked: list[str] = []

    def __call__(self, *argv: str, seconds: float) -> Ran:
        name = {"nvidia-smi": "nvlink" if "nvlink" in argv else "smi"}.get(argv[0], argv[0].partition("-")[0])
        self.asked.append(name)
        if name not in self.answers:
            raise FileNotFoundError(argv[0])
        return self.answers[name]


def found(tools: Tools, *skip: str, when: When = When.BOOT) -> list[str]:
    return faults(Expected(H100, 0, frozenset(skip)), when, tools)


GPU = "GPU 7 (00000000:17:00.0): "
BROKEN: dict[str, tuple[dict[str, Ran], str, str]] = {
    "too few": (
        {"smi": Ran(0, "\n".join(smi().output.splitlines()[:7]))},
        "gpus",
        "nvidia-smi shows 7 of 8 GPUs",
    ),
    "lost": ({"smi": smi(ecc="[GPU requires reset]")}, "gpus", GPU + "nvidia-smi says [GPU requires reset]"),
    "ECC": ({"smi": smi(ecc="2")}, "ecc", GPU + "2 uncorrected memory errors (ECC)"),
    "no row left": (
        {"smi": smi(failure="Yes")},
        "memory_rows",
        GPU + "a broken memory row could not be remapped (remapped_rows.failure)",
    ),
    "row pending": (
        {"smi": smi(pending="Yes")},
        "memory_rows",
        GPU + "a remapped memory row waits for a reset of the GPU (remapped_rows.pending)",
    ),
    "page pending": (
        {"smi": smi(retired="Yes")},
        "memory_rows",
        GPU + "a retired memory page waits for a reset of the GPU (retired_pages.pending)",
    ),
    "hot": (
        {"smi": smi(hot="Active")},
        "thermal",
        GPU + "it is too hot and runs at half its clock or less (hw_thermal_slowdown)",
    ),
    "NVLink": ({"nvlink": links(2)}, "nvlink", "GPU 7: 2 of 18 NVLinks inactive"),
    "Xid": (
        {"dmesg": Ran(0, XID.format(bus="17", code=79, text="pid='<unknown>', GPU has fallen off the bus."))},
        "xid",
        "Xid 79 on 0000:17:00: the GPU has fallen off the bus",
    ),
    "recovery": (
        {"dmesg": Ran(0, XID.format(bus="17", code=154, text=REBOOT))},
        "xid",
        "Xid 154 on 0000:17:00: Node Reboot Required",
    ),
    "DCGM": (
        {"dcgmi": diag("Fail", warning="a  pending page\nretirement", error_severity=2)},
        "dcgm",
        "DCGM's test software failed: a pending page retirement",
    ),
    "hangs": ({"smi": Ran(None)}, "", "nvidia-smi did not answer within 20 s"),
    "no driver": (
        {"smi": Ran(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")},
        "",
        "nvidia-smi failed with status 9: NVIDIA-SMI has failed because it couldn't communicate with the "
        "NVIDIA driver.",
    ),
}


@pytest.mark.parametrize(("answers", "check", "said"), BROKEN.values(), ids=BROKEN)
def test_each_fault_is_a_sentence_and_can_be_left_out(answers: dict[str, Ran], check: str, said: str) -> None:
    assert found(Tools(**answers)) == [said]
    if check:
        assert check in CHECKS
        assert found(Tools(**answers), check) == []


def test_a_sound_machine_has_no_fault_whatever_else_the_log_says() -> None:
    harmless = [
        XID.format(bus="17", code=13, text="Graphics Exception"),
        XID.format(bus="17", code=31, text="MMU Fault"),
        XID.format(bus="17", code=63, text="Row Remapper: New row marked for remapping"),
        XID.format(bus="17", code=94, text="Contained memory error"),
        XID.format(
            bus="17", code=154, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
        ),
    ]
    setup = diag("Fail", warning="Persistence mode for GPU 3 is disabled", error_severity=5)
    for answers in (
        {"dmesg": Ran(0, "\n".join(harmless)), "dcgmi": diag("Pass")},
        {"dmesg": Ran(1, errors="dmesg: read kernel buffer failed: Operation not permitted"), "dcgmi": setup},
        {"dcgmi": Ran(1, "Error: unable to establish a connection to the specified host: localhost")},
    ):
        assert found(Tools(**answers)) == []
    assert "dcgmi" not in (jobs := Tools(dcgmi=diag("Fail"))).asked
    assert found(jobs, when=When.INTERVAL) == [], "DCGM's tests are not run beside jobs"


def test_a_driver_that_hangs_is_asked_once_and_an_older_one_without_its_missing_field() -> None:
    hangs = Tools(smi=Ran(None), dcgmi=diag("Pass"))
    found(hangs)
    assert hangs.asked == ["smi", "dmesg"]
    assert found(hangs, *nvidia.QUERIED, "nvlink") == [], "nothing is left to ask it for"

    queries = []

    def older(*argv: str, seconds: float) -> Ran:
        queries.append(argv[1])
        if nvidia.HOT in argv[1]:
            return Ran(2, f'Field "{nvidia.HOT}" is not a valid field to query.\n')
        return Ran(0, "0, 00000000:00:1E.0, 0, [N/A], [N/A], No\n")

    assert list(nvidia.gpus(older, 1, frozenset())) == []
    assert len(queries) == 2


def test_other_machines_have_links_that_lead_nowhere() -> None:
    four = Tools(smi=Ran(0, "\n".join(smi().output.splitlines()[:4])), nvlink=links(18))
    assert faults(Expected(Accelerator("v100", 4), 0, frozenset()), When.BOOT, four) == []


def test_efa_interfaces_are_counted_by_their_driver_and_must_be_active(tmp_path: Path) -> None:
    for name, driver, state in (
        ("rdmap16s27", "efa", "4: ACTIVE"),
        ("rdmap32s27", "efa", "1: DOWN"),
        ("mlx5_0", "mlx5_core", "1: DOWN"),
    ):
        device = tmp_path / "sys/class/infiniband" / name
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/state").write_text(f"{state}\n")
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "device").mkdir()
        (device / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    said = ["EFA interface rdmap32s27: its port is 1: DOWN"]
    assert faults(Expected(None, 2, frozenset()), When.PROLOG, Tools(), tmp_path) == said
    assert faults(Expected(None, 4, frozenset()), When.PROLOG, Tools(), tmp_path) == [
        "the kernel has 2 of 4 EFA interfaces",
        *said,
    ]
    assert faults(Expected(None, 4, frozenset({"efa"})), When.PROLOG, Tools(), tmp_path) == []


def test_neuron_devices_are_counted_in_dev_and_by_neuron_ls(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(15):
        (tmp_path / "dev" / f"neuron{number}").touch()
    wanted = Expected(Accelerator("trainium", 16, gres="neuron"), 0, frozenset())
    devices = [{"neuron_device": i, "bdf": f"{i:02x}:1c.0", "nc_count": 2} for i in range(16)]
    tools = Tools(neuron=Ran(0, json.dumps(devices)))
    assert faults(wanted, When.INTERVAL, tools, tmp_path) == ["/dev has 15 of 16 Neuron devices"]
    (tmp_path / "dev" / "neuron15").touch()
    assert faults(wanted, When.INTERVAL, tools, tmp_path) == []
    for answer, said in (
        (Ran(0, json.dumps(devices[:15])), "neuron-ls shows 15 of 16 Neuron devices"),
        (Ran(None), "neuron-ls did not answer within 20 s"),
        (Ran(1, errors="no neuron device found\n"), "neuron-ls failed with status 1: no neuron device found"),
    ):
        assert faults(wanted, When.INTERVAL, Tools(neuron=answer), tmp_path) == [said]


def test_a_tool_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho begun\nsleep 3600 &\necho $! >{tmp_path}/child\nwait\n")
    tool.chmod(0o755)
    ran = runner({"PATH": f"{tmp_path}:/usr/bin:/bin"})("nvidia-smi", seconds=1.0)
    assert (ran.status, ran.output) == (None, "begun\n")
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 60
    while _state(child) != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_only_nodes_with_devices_are_checked() -> None:
    made = replace(settings().design, health=Health(skip=("dcgm",)))
    assert expected(made, "cpu-0") is None
    assert expected(made, "v100-1") == Expected(Accelerator("v100", 8), 1, frozenset({"dcgm"}))
    assert expected(settings().design, "v100-1") is None, "nobody asked for it"
    assert expected(replace(made, partitions=(part("fast", aws=AwsPartition(efa=4)),)), "fast-0") is not None
    assert (str(made.health), str(Health(9))) == ("every 300 s, without dcgm", "every 9 s"), (
        "as `plan` shows it"
    )
    assert in_a_line(["a", "b"]) == "a; b"
    assert in_a_line([*"abcde"]) == "a; b; c; and 2 more"


CHECKED = {"HealthCheckProgram", "HealthCheckInterval", "HealthCheckNodeState", "Prolog", "PrologFlags"}
SCRIPT = JobScript("site/own.sh")
CPUS = (part(default=True),)


@pytest.mark.parametrize(
    ("partitions", "health", "slurm", "keys"),
    [
        # A cluster of CPUs has none of these lines, even if the design has checks.
        (CPUS, Health(), SlurmSettings(), set()),
        (FLEET, None, SlurmSettings(), set()),
        (FLEET, Health(60), SlurmSettings(), CHECKED),
        (CPUS, None, SlurmSettings(prolog=SCRIPT), {"Prolog", "PrologFlags"}),
        (CPUS, None, SlurmSettings(epilog=SCRIPT), {"Epilog"}),
    ],
)
def test_slurm_conf_has_only_what_was_asked_for(
    partitions: tuple[Partition, ...], health: Health | None, slurm: SlurmSettings, keys: set[str]
) -> None:
    plain = settings(partitions=partitions)
    asked = replace(plain.design, health=health, slurm=slurm)
    before, after = (render(one, (22, 5))["slurm.conf"] for one in (plain, replace(plain, design=asked)))
    assert options(after).keys() - options(before).keys() == keys
    # Without it Slurm would hold the job whose prolog failed.
    assert ("nohold_on_prolog_fail" in after) == ("Prolog" in keys)
    if not keys:
        assert after == before
    if health and keys:
        assert options(after)["HealthCheckInterval"] == "60"


def test_a_partition_pauses_after_the_fourth_replacement_in_an_hour() -> None:
    brake = Replacements()
    assert [brake.replaced("gpu", at) for at in (0.0, 600.0, 1200.0)] == [0.0] * 3
    assert brake.replaced("other", 1200.0) == 0.0
    assert brake.replaced("gpu", 1800.0) == 1800.0, "until the first is an hour old"
    # After the pause one replacement is tried. If it fails too, the partition pauses again.
    assert brake.replaced("gpu", 3700.0) == 500.0
    assert brake.replaced("gpu", 9000.0) == 0.0
