"""A cluster that a script brings up with `nohup ./cluster up &` is like every other one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

from tests.support.checkout import Checkout

BACKGROUND = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""The signals that programs ignore when `nohup` or a script starts them in the background."""
HOOK = """#!/bin/sh
kill -s HUP -- "-$(cat "$1")"
"""
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 4}
        hooks: [{role: controller, source: hooks/hang-up.sh, args: [GROUP]}]
"""


def default(status: str, numbers: tuple[signal.Signals, ...]) -> bool:
    """Return whether this content of /proc/self/status shows that none of these signals is ignored."""
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return not any(int(mask, 16) >> (number - 1) & 1 for number in numbers)


def test_it_outlives_its_terminal_and_its_jobs_have_their_signals(
    make_checkout: Callable[..., Checkout],
) -> None:
    checkout = make_checkout()
    group = checkout.folder.parent / "group"
    checkout.write_stack(STACK.replace("GROUP", str(group)))
    (checkout.folder / "hooks").mkdir()
    # The terminal in which `up` was started is closed while the controller boots.
    (checkout.folder / "hooks" / "hang-up.sh").write_text(HOOK)

    def in_the_background() -> None:
        for number in BACKGROUND:
            signal.signal(number, signal.SIG_IGN)
        group.write_text(str(os.getpid()))

    up = subprocess.run(
        [checkout.folder / "cluster", "up", "--stack", checkout.stack],
        env=checkout.env,
        cwd=checkout.folder.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        preexec_fn=in_the_background,
        check=False,
    )
    assert up.returncode == 0, up.stderr
    assert f"`kill {group.read_text()}` interrupts it" in up.stderr
    script = "#!/bin/sh\ncat /proc/self/status\n"
    step = checkout.execute("srun", "-N1", "cat", "/proc/self/status")
    assert default(step, BACKGROUND)
    out = checkout.folder.parent / "out"
    job = checkout.folder.parent / "job.sh"
    job.write_text(script)
    checkout.execute("sbatch", "--wait", f"--output={out}", str(job))
    assert default(out.read_text(), BACKGROUND)
