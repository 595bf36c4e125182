"""Programs of the user as the benchmark on a real cluster: they communicate, report, fail, or are silent."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import Checkout

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{price_hour: 36}}
        partitions:
          - {{name: debug, instance_type: {machine}, nodes: {{max: 4}}, default: true}}
        slurm: {{suspend_time: 4}}
      slurm-stacks:benchmark: {benchmark}
"""

TALKS = """
    import json, os, socket, sys
    from pathlib import Path
    import greeting  # lies beside the script

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    assert len(set(workers)) == size and f"{address[0]}:{address[1]}" not in workers
    assert json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": rank}
    # Each task can listen on its own port of TF_CONFIG.
    own = socket.create_server(("", int(workers[rank].rpartition(":")[2])))
    if rank == 0:
        # Without SO_REUSEADDR, as a program may do it.
        server = socket.socket()
        server.bind(("", address[1]))
        server.listen()
        heard = []
        for _ in range(size - 1):
            with server.accept()[0] as peer:
                heard.append(peer.recv(100).decode())
        with open(os.environ["SLURM_STACKS_PROGRESS"], "a") as progress:
            for epoch in (1, 2):
                print(json.dumps({"epoch": epoch, "epochs": 2, "loss": 1 / epoch}), file=progress, flush=True)
        Path(os.environ["SLURM_STACKS_RESULT"]).write_text(json.dumps(
            {"heard": ",".join(sorted(heard)), "read": Path("data/words.txt").read_text().strip(),
             "arguments": " ".join(sys.argv[1:])}))
    else:
        import time
        for _ in range(600):
            try:
                peer = socket.create_connection(address)
                break
            except OSError:
                time.sleep(0.1)
        place = (rank, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["NODE_RANK"])
        peer.sendall(greeting.of(*place).encode())
"""

FAILS = """
    import os, sys, time
    if os.environ["RANK"] == "1":
        sys.exit(5)
    time.sleep(60)
"""

AGAIN = """\
    #!/bin/sh
    # Slurm starts it twice; the second start finds what the first one has saved.
    [ -e saved ] && exec true
    command -v python
    touch saved
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
"""


def program(checkout: Checkout, name: str, text: str) -> Path:
    path = checkout.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def kept(checkout: Checkout) -> list[dict[str, Any]]:
    return checkout.results()


def job_of(failed: subprocess.CompletedProcess[str]) -> int:
    """Return the number of the job that `up` says has failed."""
    assert failed.returncode == 1
    (found,) = set(re.findall(r"job (\d+) ended \(FAILED", failed.stderr))
    return int(found)


@pytest.mark.timeout(600)
def test_tasks_on_two_nodes_meet_and_their_words_are_the_result(
    make_checkout: Callable[..., Checkout],
) -> None:
    benchmark = (
        "{nodes: 2, tasks_per_node: 2, script: code/talk.py, files: [code/greeting.py, data], "
        'arguments: [--lr, 0.1, "two words"]}'
    )
    checkout = make_checkout(STACK.format(benchmark=benchmark, machine="local.medium"))
    checkout.shorten_training()
    program(checkout, "code/talk.py", TALKS)
    program(checkout, "code/greeting.py", "def of(*place): return '/'.join(map(str, place))\n")
    program(checkout, "data/words.txt", "from a file\n")
    up = checkout.cluster("up", check=True)
    (record,) = kept(checkout)
    assert record["apiVersion"] == "slurm-stacks/program-result/v1"
    assert record["values"] == {
        "heard": "1/1/2/0,2/0/2/1,3/1/2/1",
        "read": "from a file",
        "arguments": "--lr 0.1 two words",
    }
    assert record["history"] == [
        {"epoch": 1, "epochs": 2, "loss": 1.0},
        {"epoch": 2, "epochs": 2, "loss": 0.5},
    ]
    assert (record["script"], record["arguments"]) == ("code/talk.py", ["--lr", "0.1", "two words"])
    assert (record["nodes"], record["workers"], record["exit_status"], record["notes"]) == (2, 4, 0, [])
    assert (record["stack"], record["partition"], record["machine"]) == ("test", "debug", "local.medium")
    assert record["start_latency_seconds"] > 0
    # 36 USD an hour is a cent a second, for each of the two nodes.
    assert record["cost_usd"] == pytest.approx(record["seconds_total"] * 0.02, abs=1e-3)
    assert "accuracy" not in record
    assert f"Result of job {record['job_id']}" in up.stdout
    assert "heard" in up.stdout
    assert "two words" in up.stdout

    # A sweep stages the files only once, and also measures one node.
    ran = checkout.cluster("run", "--nodes", "1,2", check=True)
    assert "Medians of code/talk.py --lr 0.1 two words on debug (local.medium)" in ran.stdout
    assert sorted(one["workers"] for one in kept(checkout)) == [2, 4, 4]
    page, table = (Path(line) for line in ran.stdout.splitlines()[-2:])
    assert "Your own programs" in page.read_text()
    # Two nodes of two CPUs share the cores of a smaller host, and are then not compared with one.
    shared = any(one["cores_shared"] for one in kept(checkout))
    assert ("talk.py --lr 0.1 two words: speed-up" in page.read_text()) != shared
    assert all(one["cores"] for one in kept(checkout))
    assert table.read_text().count("code/talk.py") == 3

    # The other task ends by SIGTERM, whose status is higher.
    program(checkout, "code/fail.py", FAILS)
    checkout.write_stack(STACK.format(benchmark="{nodes: 2, script: code/fail.py}", machine="local.medium"))
    failed = checkout.cluster("up")
    assert "code/fail.py, exit status 5, after " in failed.stderr
    assert "Traceback" not in failed.stderr
    # Nothing changed, so no resource runs. But the user wants a result, so the run is tried again.
    again = checkout.cluster("up")
    assert job_of(again) == job_of(failed) + 1
    assert len(kept(checkout)) == 3, "no result of either"


@pytest.mark.wide
def test_a_program_that_fails_and_one_that_starts_twice_and_says_nothing(
    make_checkout: Callable[..., Checkout],
) -> None:
    checkout = make_checkout(STACK.format(benchmark="{script: run.sh}", machine="local.small"))
    checkout.shorten_training()
    program(checkout, "run.sh", "#!/bin/sh\necho half >$SLURM_STACKS_RESULT\necho no such luck\nexit 7\n")
    failed = checkout.cluster("up")
    assert failed.returncode == 1
    assert "job 1 ended (FAILED: run.sh, exit status 7, after " in failed.stderr
    assert " USD) without a result" in failed.stderr
    assert "no such luck" in failed.stderr
    assert kept(checkout) == []
    (work,) = checkout.run_directory.glob("shared/bench/*/*/work")
    assert json.loads((work.parent / "progress.json").read_text())["exit_status"] == 7

    # Its saved files stay where they are: the corrected program is another run.
    program(checkout, "run.sh", AGAIN)
    up = checkout.cluster("up", check=True)
    (record,) = kept(checkout)
    assert (record["script"], record["values"], record["history"], record["notes"]) == ("run.sh", {}, [], [])
    assert (record["exit_status"], record["restarts"]) == (0, 1)
    assert "exit status 0" in up.stdout
    (output,) = Path(up.stdout.split("benchmark_result")[1].split()[0]).parent.glob("out-program.txt")
    assert output.read_text().splitlines()[2].endswith("/bin/python"), "that of the environment"
