"""The published sbatch script of docs/own_training.md, submitted as the page says, on any local stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.support.checkout import ROOT, Checkout, until

SCRIPT = ROOT / "examples" / "run_keras.sh"
PROGRAM = "import sys; print('prefix', sys.prefix)\n"
PREPARE = "rm -rf $HOME/tf-venv; python3 -m venv --without-pip $HOME/tf-venv && cat >keras.py && echo $HOME"


def check(checkout: Checkout, state: Callable[[str], str], env: Mapping[str, str] | None = None) -> None:
    """The page's script runs in its environment; as it was printed it does not, and `logs` says why.

    Args:
        state: Gives a job's state by its number.
        env: Variables of the caller.
    """

    def run(*command: str, stdin: str | None = None) -> str:
        return checkout.cluster("exec", "--", *command, stdin=stdin, env=env, check=True).stdout

    def output(script: str) -> tuple[str, list[str]]:
        number = run("sbatch", "--parsable", stdin=script).strip()
        until(lambda: state(number) == "COMPLETED", 120, "the published job")
        return number, run("cat", "out-keras.txt").splitlines()

    home = run("sh", "-c", PREPARE, stdin=PROGRAM).strip()
    text = SCRIPT.read_text()
    _, lines = output(text)
    assert lines[0].startswith("debug-")
    assert lines[1].startswith("debug-[")
    assert lines[2:] == [f"prefix {home}/tf-venv"] * 2
    number, lines = output(text.replace("#!/bin/bash", "#!/bin/sh", 1))
    assert lines[2].endswith("source: not found")
    assert len(lines) == 5
    assert f"prefix {home}/tf-venv" not in lines
    assert "let it begin with #!/bin/bash" in checkout.cluster("logs", number, check=True).stdout
