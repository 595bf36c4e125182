"""The command line: thin commands over the runner, the provider and the console.

Imports are inside the commands: `exec` and `status` must start at once, and only `up`, `down` and `plan` need
Pulumi.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from infra import chaos
from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from infra.options import Json, Stack, checked, load, project
from infra.runner import interrupt

app = typer.Typer(
    name="cluster",
    help="Elastic Slurm clusters for distributed training: one stack file, on AWS, on Google Cloud, or here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def up(
    stack: Stack = "local",
    replace: Annotated[
        bool, typer.Option("--replace", help="Make changes too that end running jobs or delete files.")
    ] = False,
) -> None:
    """Bring a stack up, run its benchmark, wait for the result."""
    from infra.console.progress import Console
    from infra.operate import bring_up

    bring_up(project(), load(stack, scripts=True), Console(), replace=replace)


@app.command()
def down(
    stack: Stack = "local",
    checkout: Annotated[
        Path | None,
        typer.Option("--checkout", help="Of a checkout that is gone: its old path.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="End jobs without a question.")] = False,
) -> None:
    """Destroy a stack, then look for leftovers."""
    from infra.console.progress import Console
    from infra.local import abandoned
    from infra.operate import take_down

    console = Console()
    if checkout is not None:
        if left := abandoned.end(checkout, stack):
            console.say(left, "yellow")
        console.say("its processes and its run directory are gone")
        return
    try:
        name: str = load(stack).cluster.provider
    except UserError as error:
        # A cluster that is up comes down whatever its stack file says by now.
        from infra.config import stack_file
        from infra.local.provider import LocalProvider
        from infra.runner import embedded

        if LocalProvider().leftovers(project(), stack, dict) or embedded.remembers(project(), stack):
            name, which = "local", "local cluster"
        elif (said := stack_file.provider(project() / f"Pulumi.{stack}.yaml")) in ("aws", "gcp"):
            name, which = said, "cluster"
        else:
            raise
        console.say(f"{error}\nThis does not keep the {which} of stack {stack} from going down.", "yellow")
    take_down(project(), stack, name, console, yes=yes)
    for text in abandoned.sentences(project()):
        console.say(text, "yellow")


@app.command()
def plan(stack: Stack = "local", json_output: Json = False) -> None:
    """What `up` would make, and its cost. Needs no network and no credentials."""
    from infra.operate import make_plan

    made = make_plan(project(), load(stack, scripts=True))
    if json_output:
        print(json.dumps(made, indent=1))
        return
    from infra.console.tables import show_plan

    show_plan(made)


@app.command()
def status(stack: Stack = "local", json_output: Json = False) -> None:
    """Nodes, jobs, and why any of them waits; cost so far."""
    from infra.access import cluster_status

    found = cluster_status(project(), load(stack))
    if json_output:
        print(json.dumps(found, indent=1))
        return
    from infra.console.tables import show_status

    show_status(found)


@app.command(
    "exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
)
def execute(
    command: Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)],
    stack: Stack = "local",
) -> None:
    """Run a command on the login machine: ./cluster exec -- squeue"""
    from infra.access import replace_process

    replace_process(project(), load(stack), command)


@app.command(context_settings={"allow_interspersed_args": False})
def ssh(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Run this instead; the shell there reads it, as with ssh.", show_default=False),
    ] = None,
    stack: Stack = "local",
) -> None:
    """A shell on the login machine."""
    from infra.access import replace_process

    config = load(stack)
    if sys.stdin.isatty() and not command:
        print(f"Slurm's commands act on stack {stack} here; `exit` leaves.", file=sys.stderr)
    replace_process(project(), config, ["sh", "-c", " ".join(command)] if command else [])


@app.command()
def outputs(stack: Stack = "local") -> None:
    """The stack's outputs as JSON, for other programs."""
    from infra import runner

    found = runner.select(project(), stack, load(stack).cluster.provider).outputs()
    if found is None:
        raise UserError(f"stack {stack} is not up: bring it up with `./cluster up --stack {stack}`")
    print(json.dumps(found, indent=1))


@app.command("run", short_help="The benchmark on several numbers of nodes; ends in the report.")
def run_sweep(
    stack: Stack = "local",
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            "-n",
            help="Numbers of nodes. Without: 1,2,4, as far as the partition has them.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", help="How often each. Without: once.", min=1, max=100, show_default=False),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the sweep that is under way.")] = False,
) -> None:
    """The benchmark on several numbers of nodes, one run after another; ends in the report.

    All runs are submitted at the start, and go on without this command: interrupt it as you like, and
    `./cluster run` without numbers watches the sweep that is under way. The cluster must be up.
    """
    from infra import sweep
    from infra.console.progress import Console

    if cancel and (nodes is not None or repeat is not None):
        raise UserError("--cancel ends the sweep that is under way: no --nodes, no --repeat", EXIT_USAGE)
    if cancel:
        sweep.cancel(project(), load(stack), Console())
    else:
        sweep.run(project(), load(stack), Console(), nodes=nodes, repeat=repeat)


@app.command(short_help="Plots and a table: our results beside the published ones.")
def report(
    stack: Annotated[
        list[str] | None,
        typer.Option(
            "--stack",
            "-s",
            help="The stack, repeatable to compare stacks.",
            show_default="local",
            callback=checked,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report.html and report.csv.")
    ] = None,
) -> None:
    """A page with plots and a table: our results beside the published ones."""
    from infra import report as reports

    made = reports.make(stack or ["local"], output, project=project())
    print(made.page)
    print(made.table)


@app.command(short_help="What would stop `up` here, and its cure.")
def doctor(stack: Stack = "local", json_output: Json = False) -> None:
    """What would stop `up` here, and its cure; exit 1 if anything would."""
    from infra import doctor as doctors

    sys.exit(doctors.run(project(), stack, as_json=json_output))


@app.command(short_help="Last lines of the controller, a node and its boot, a job.")
def logs(
    what: Annotated[
        str | None,
        typer.Argument(help="controller (default), a node's name, or a job's id.", show_default=False),
    ] = None,
    stack: Stack = "local",
    lines: Annotated[int, typer.Option("--lines", "-n", help="Lines of each log.", min=1)] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow.")] = False,
) -> None:
    """The last lines of the controller, of a node and its boot, of a job."""
    from infra import logs as log_files

    status = log_files.show(project(), load(stack), what, lines=lines, follow=follow)
    if status == EXIT_INTERRUPTED:
        # Without a word: Ctrl-C is how following ends.
        os._exit(status)
    sys.exit(status)


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tests(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For pytest; none runs the suite.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The widest tests too, such as the soak, and branch coverage.")
    ] = False,
) -> None:
    """The tests that this machine can run; with a file, all of that file's."""
    from infra.checks import run_checks

    sys.exit(run_checks(project(), arguments or [], everything=everything))


def main() -> None:
    """Run the command line; a mistake of the user ends in one message and its exit code."""
    try:
        _run()
    finally:
        _let_go()


def _let_go() -> None:
    """Give up what a terminal that was closed did not take.

    Python would try again as it ends, fail, and choose an exit code of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> None:
    if not app.registered_groups:
        app.add_typer(chaos.app, name="chaos")
    try:
        with interrupt.raised():
            try:
                app(prog_name="./cluster")
            finally:
                # Here, where a reader that has gone is expected, and not as the interpreter ends.
                sys.stdout.flush()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ended:
        # Typer's word for a KeyboardInterrupt, and nobody else's.
        if ended.code == EXIT_INTERRUPTED:
            _fail("interrupted", EXIT_INTERRUPTED)
        raise
    except BrokenPipeError:
        # The reader of our output has gone (`./cluster plan | head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from infra.trouble import explain

        explained = explain(error)
        _fail(str(explained), explained.exit_code)


def _fail(message: str, code: int) -> Any:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if code == EXIT_INTERRUPTED and sys.stderr.isatty():
            print(file=sys.stderr)  # behind the terminal's own ^C
        print(message, file=sys.stderr)
    sys.exit(code)
