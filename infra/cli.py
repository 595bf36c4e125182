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
from infra.options import DEFAULT, UNNAMED, Json, Stack, checked, known_stacks, load, load_up, project
from infra.runner import interrupt

COMPLETION = "_CLUSTER_COMPLETE"
"""The environment variable by which a shell asks what could come next."""

app = typer.Typer(
    name="cluster",
    help="Elastic Slurm clusters for distributed training: one stack file, on AWS, on Google Cloud, or here.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"slurm-stacks {version()}")
        raise typer.Exit


@app.callback()
def main_options(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Say the version and exit.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Elastic Slurm clusters for distributed training: one stack file, on AWS, on Google Cloud, or here."""


def version() -> str:
    """This checkout's version, as pyproject.toml has it."""
    import tomllib

    found = tomllib.loads((project() / "pyproject.toml").read_text(encoding="utf-8"))
    return str(found["project"]["version"])


@app.command()
def up(
    stack: Stack = UNNAMED,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make changes too that end running jobs or delete files.")
    ] = False,
    no_benchmark: Annotated[
        bool,
        typer.Option("--no-benchmark", help="Leave the benchmark as it is: no submit, no wait."),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, progress on standard error.")
    ] = False,
) -> None:
    """Bring a stack up, run its benchmark, wait for the result."""
    from infra import asking
    from infra.console.progress import Console
    from infra.operate import bring_up

    answer = asking.learn(project(), stack)
    for line in (*answer.known, *answer.unknown):
        Console().say(line)
    config = load(stack, scripts=True)
    made = bring_up(
        project(), config, Console(), replace=replace, benchmark=not no_benchmark, quiet=json_output
    )
    if json_output:
        print(json.dumps(made, indent=1))


@app.command()
def down(
    stack: Stack = UNNAMED,
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
        from infra import providers

        found = providers.of_cluster(project(), stack)
        if found is None:
            raise
        name, which = found, "local cluster" if found == "local" else "cluster"
        console.say(f"{error}\nThis does not keep the {which} of stack {stack} from going down.", "yellow")
    take_down(project(), stack, name, console, yes=yes)
    for text in abandoned.sentences(project()):
        console.say(text, "yellow")


@app.command()
def plan(stack: Stack = UNNAMED, json_output: Json = False) -> None:
    """What `up` would make, and its cost. Needs no network and no credentials."""
    from infra.operate import make_plan

    made = make_plan(project(), load(stack, scripts=True))
    if json_output:
        print(json.dumps(made, indent=1))
        return
    from infra.console.tables import show_plan

    show_plan(made)


@app.command()
def status(stack: Stack = UNNAMED, json_output: Json = False) -> None:
    """Nodes, jobs, and why any of them waits; cost so far."""
    from infra.access import cluster_status

    found = cluster_status(project(), load_up(stack))
    if json_output:
        print(json.dumps(found, indent=1))
        return
    from infra.console.tables import show_status

    show_status(found, stack)


@app.command(
    "exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
)
def execute(
    command: Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)],
    stack: Stack = UNNAMED,
) -> None:
    """Run a command on the login machine: ./cluster exec -- squeue"""
    from infra.access import replace_process

    replace_process(project(), load_up(stack), command)


@app.command(context_settings={"allow_interspersed_args": False})
def ssh(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Run this instead; the shell there reads it, as with ssh.", show_default=False),
    ] = None,
    stack: Stack = UNNAMED,
) -> None:
    """A shell on the login machine."""
    from infra.access import replace_process

    config = load_up(stack)
    if sys.stdin.isatty() and not command:
        print(f"Slurm's commands act on stack {stack} here; `exit` leaves.", file=sys.stderr)
    replace_process(project(), config, ["sh", "-c", " ".join(command)] if command else [])


@app.command()
def outputs(stack: Stack = UNNAMED) -> None:
    """The stack's outputs as JSON, for other programs."""
    from infra import runner

    found = runner.select(project(), stack, load_up(stack).provider).outputs()
    if found is None:
        raise UserError(f"stack {stack} is not up: bring it up with `./cluster up --stack {stack}`")
    print(json.dumps(found, indent=1))


@app.command("cp", short_help="Copy files to the login machine, and from it.", no_args_is_help=True)
def copy(
    sources: Annotated[
        list[str], typer.Argument(metavar="SRC", help="What to copy; :PATH is there.", show_default=False)
    ],
    goal: Annotated[str, typer.Argument(metavar="DST", help="Where to.", show_default=False)],
    stack: Stack = UNNAMED,
) -> None:
    """Copy files to the login machine, and from it: ./cluster cp data/ :inputs

    A path on the login machine begins with a colon, or with `login:`; what follows is relative to the home
    folder that all machines of the cluster share. Folders are copied whole. As with scp and cp, what is
    copied goes into DST where that is a folder, and gets its name where not.
    """
    from infra import transfer

    transfer.copy(project(), load_up(stack), sources, goal)


@app.command("ssh-config", short_help="A stanza for OpenSSH: scp, rsync, editors reach the stack.")
def ssh_config(stack: Stack = UNNAMED) -> None:
    """Print a stanza for OpenSSH's configuration, with which scp, rsync and editors reach the login machine.

    It names the user, the way there and the host key that the cluster published. Exit 3 for a stack whose
    machines are processes of this machine: those have no SSH server.
    """
    from infra import transfer

    print(transfer.stanza(project(), load_up(stack)), end="")


@app.command("run", short_help="The benchmark on several numbers of nodes; ends in the report.")
def run_sweep(
    stack: Stack = UNNAMED,
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
            show_default=DEFAULT,
            callback=checked,
            autocompletion=known_stacks,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report.html and report.csv.")
    ] = None,
) -> None:
    """A page with plots and a table: our results beside the published ones."""
    from infra import report as reports

    made = reports.make(stack or [], output, project=project())
    print(made.page)
    print(made.table)


@app.command(short_help="What would stop `up` here, and its cure.")
def doctor(stack: Stack = UNNAMED, json_output: Json = False) -> None:
    """What would stop `up` here, and its cure; exit 1 if anything would."""
    from infra import doctor as doctors

    sys.exit(doctors.run(project(), stack, as_json=json_output))


@app.command(short_help="Last lines of the controller, a node and its boot, a job.")
def logs(
    what: Annotated[
        str | None,
        typer.Argument(help="controller (default), a node's name, or a job's id.", show_default=False),
    ] = None,
    stack: Stack = UNNAMED,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Lines of each log.", min=1)] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow.")] = False,
) -> None:
    """The last lines of the controller, of a node and its boot, of a job."""
    from infra import logs as log_files

    status = log_files.show(project(), load_up(stack), what, lines=lines, follow=follow)
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
        bool, typer.Option("--all", help="The widest tests too, such as the soak.")
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
                # The shell's completion goes by a command's name, whatever folder it was called in.
                app(prog_name="cluster" if _completes() else "./cluster")
            finally:
                # Here, where a reader that has gone is expected, and not as the interpreter ends.
                sys.stdout.flush()
    except UserError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except RuntimeError as error:
        # Python before 3.12 makes one of what ends the making of a class, as Ctrl-C does during an import.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
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


def _completes() -> bool:
    return COMPLETION in os.environ or sys.argv[1:2] in (["--install-completion"], ["--show-completion"])


def _fail(message: str, code: int) -> Any:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if code == EXIT_INTERRUPTED and sys.stderr.isatty():
            print(file=sys.stderr)  # behind the terminal's own ^C
        print(message, file=sys.stderr)
    sys.exit(code)
