"""The command line: thin commands over the runner, the provider and the console.

Imports are inside the commands: `exec` and `status` must start at once, and only `up`, `down` and `plan` need
Pulumi.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from cli import hints
from cli.commands import chaos, env
from cli.commands import init as new_stack
from cli.engine import interrupt
from cli.options import (
    UNNAMED,
    Json,
    Output,
    OutputsOption,
    StackOption,
    StacksOption,
    SweepGpusOption,
    SweepNodesOption,
    SweepPartitionsOption,
    SweepRepeatOption,
    load,
    load_to_make,
    load_up,
    note_json,
    project,
)
from infra.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from infra.program.files import named

COMPLETION = "_CLUSTER_COMPLETE"
"""The environment variable with which a shell asks for completions."""

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
        typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Elastic Slurm clusters for distributed training: one stack file, on AWS, on Google Cloud, or here."""


def version() -> str:
    """Return this checkout's version, as pyproject.toml has it."""
    import tomllib

    settings = tomllib.loads((project() / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["project"]["version"])


init = app.command("init", epilog=new_stack.EPILOG)(new_stack.init)


@app.command()
def up(
    stack: StackOption = UNNAMED,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also make changes that end running jobs or delete files.")
    ] = False,
    no_benchmark: Annotated[
        bool,
        typer.Option("--no-benchmark", help="Leave the benchmark as it is: no submit, no wait."),
    ] = False,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json",
            callback=note_json,
            help="One JSON object on standard output, progress on standard error.",
        ),
    ] = False,
) -> None:
    """Bring a stack up, run its benchmark, wait for the result."""
    from cli.commands.operate import bring_up
    from cli.console.progress import Console
    from cli.providers import instance_type_lookup

    answer = instance_type_lookup.look_up_missing(stack)
    for line in (*answer.known, *answer.unknown):
        Console().say(line)
    summary = bring_up(
        stack,
        load_to_make(stack),
        Console(),
        replace=replace,
        benchmark=not no_benchmark,
        quiet=json_output,
    )
    if json_output:
        print(json.dumps(summary, indent=1))


@app.command()
def down(
    stack: StackOption = UNNAMED,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", help="An id from `list`: a cluster whose checkout is gone.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="End jobs without a question.")] = False,
) -> None:
    """Destroy a stack, then look for leftovers."""
    from cli.commands.operate import agree, take_down
    from cli.console.progress import Console
    from operations.access import StackUp

    console = Console()
    if cluster is not None:
        from cli.commands import list_clusters

        list_clusters.take_down(cluster, console, lambda name, jobs: agree(name, console, yes, jobs))
        return
    try:
        up = StackUp.of(stack, load(stack))
    except UserError as error:
        # A cluster that is up comes down whatever its stack file says by now.
        from cli.providers import provider

        provider_name = provider.of_cluster(stack)
        if provider_name is None:
            raise
        up, which = StackUp(stack, provider_name), "local cluster" if provider_name == "local" else "cluster"
        console.say(
            f"{error}\n`down` does not need the file: it destroys the {which} of stack {stack.name}.",
            "yellow",
        )
    take_down(up, console, yes=yes)
    if up.provider == "local":
        from cli.providers.local import clusters

        for text in clusters.gone_messages():
            console.say(text, "yellow")


@app.command("list", short_help="Show all of your clusters: stack, checkout, nodes, cost so far.")
def list_clusters(
    clouds: Annotated[
        bool, typer.Option("--clouds", help="Ask AWS and Google Cloud for clusters, by their tags.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show all of your clusters, those of other checkouts and of deleted ones too.

    Without --clouds no cloud is asked: the answer comes from this machine's records, and from the local
    clusters themselves.
    """
    from cli.commands import list_clusters

    known, problems = list_clusters.find(project(), clouds=clouds)
    for problem in problems:
        print(hints.from_here(problem), file=sys.stderr)
    if json_output:
        print(json.dumps([cluster.as_json() for cluster in known], indent=1))
    else:
        list_clusters.show(known, clouds=clouds)


@app.command()
def plan(stack: StackOption = UNNAMED, json_output: Json = False) -> None:
    """Show what `up` would make, and its cost. Needs no network and no credentials."""
    from cli.commands.operate import make_plan

    result = make_plan(stack, load(stack, scripts=True))
    if json_output:
        print(json.dumps(result, indent=1))
        return
    from cli.console.plan import show_plan

    show_plan(result)


@app.command()
def status(stack: StackOption = UNNAMED, outputs: OutputsOption = None, json_output: Json = False) -> None:
    """Show nodes, jobs, why any of them waits, and the cost so far."""
    from cli.providers import provider

    known = load_up(stack, outputs)
    chosen = provider.of(known)
    shown = chosen.status(known)
    if json_output:
        print(json.dumps(shown, indent=1))
    else:
        chosen.show_status(known, shown)


@app.command(short_help="Show what users, accounts, partitions or jobs have cost.")
def cost(
    stack: StackOption = UNNAMED,
    outputs: OutputsOption = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="user|account|partition|job",
            help="What the rows are. Default: user, or without accounting partition.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="2026-11-01, 2026-11-01T08:00 (UTC), or how long ago: 12h, 7d, 4w. Default: the beginning.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="Likewise. Default: now.", show_default=False),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="A table for spreadsheets.")] = False,
    json_output: Json = False,
) -> None:
    """Show what users, accounts, partitions or jobs have cost: each job its share of its nodes.

    What nobody had, such as idle nodes and boots that failed, has rows of its own, so the sum is the cost
    that `status` shows.
    """
    from cli.commands import cost as costs
    from cli.providers import provider

    asked = costs.Asked.of(by, since, until, csv=csv, json=json_output)
    known = load_up(stack, outputs)
    bill = provider.biller(known, "cost").bill(known, *asked)
    costs.show(known, bill, as_csv=csv, as_json=json_output)


@app.command(
    "exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
)
def execute(
    command: Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)],
    stack: StackOption = UNNAMED,
    outputs: OutputsOption = None,
) -> None:
    """Run a command on the login machine: ./cluster exec -- squeue"""
    from cli.providers import login_machine, provider

    known = load_up(stack, outputs)
    login_machine.replace_process(provider.machine(known, "exec"), known, command)


@app.command(context_settings={"allow_interspersed_args": False})
def ssh(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Run this instead; the remote shell reads it, as with ssh.", show_default=False),
    ] = None,
    stack: StackOption = UNNAMED,
    outputs: OutputsOption = None,
) -> None:
    """Open a shell on the login machine."""
    from cli.providers import login_machine, provider

    known = load_up(stack, outputs)
    if outputs is not None and not command:
        login_machine.read_terminal(outputs)
    shell = sys.stdin.isatty() and not command
    greeting = f"Slurm's commands act on {known.named} here; `exit` leaves." if shell else ""
    words = ["sh", "-c", " ".join(command)] if command else []
    login_machine.replace_process(provider.machine(known, "ssh"), known, words, greeting)


@app.command()
def outputs(stack: StackOption = UNNAMED) -> None:
    """Print the stack's outputs as JSON, for other programs."""
    from cli import engine

    known = engine.select(stack, load_up(stack).provider).outputs()
    if known is None:
        raise UserError(
            f"stack {stack.name} is not up: bring it up with `./cluster up --stack {stack.name}`",
            code="cluster.not-up",
        )
    print(json.dumps(known, indent=1))


@app.command("cp", short_help="Copy files to the login machine, and from it.", no_args_is_help=True)
def copy(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC", help="What to copy; :PATH is on the login machine.", show_default=False
        ),
    ],
    goal: Annotated[str, typer.Argument(metavar="DST", help="Where to copy it.", show_default=False)],
    stack: StackOption = UNNAMED,
    outputs: OutputsOption = None,
) -> None:
    """Copy files to the login machine, and from it: ./cluster cp data/ :inputs

    A path on the login machine begins with a colon, or with `login:`; what follows is relative to the home
    folder that all machines of the cluster share. Folders are copied whole. As with scp and cp, what is
    copied goes into DST where that is a folder, and gets its name where not.
    """
    from cli.commands import cp

    cp.copy(load_up(stack, outputs), sources, goal)


@app.command("ssh-config", short_help="Print an OpenSSH configuration for scp, rsync and editors.")
def ssh_config(stack: StackOption = UNNAMED, outputs: OutputsOption = None) -> None:
    """Print a stanza for OpenSSH's configuration, with which scp, rsync and editors reach the login machine.

    It names the user, the way there and the host key that the cluster published. Exit 3 for a stack whose
    machines are processes of this machine: those have no SSH server.
    """
    from cli.commands import cp

    print(cp.stanza(load_up(stack, outputs)), end="")


@app.command(short_help="Save Slurm's state and accounting, to a file here or to a bucket.")
def backup(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The file to write; a name with the cluster and the time by default.", show_default=False
        ),
    ] = None,
    stack: StackOption = UNNAMED,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="Write it to the bucket of controller.backup in the stack file.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the backups in that bucket.")] = False,
    json_output: Json = False,
) -> None:
    """Save Slurm's state and accounting while jobs go on, to a file here or to a bucket.

    Slurm's commands wait for a moment. The backup holds secrets: scripts and environments of jobs, and the
    controller's SSH host keys.
    """
    from cli.commands import backup as backups

    made = (
        backups.list_all(load_up(stack)) if list_them else backups.make(load_up(stack), file, bucket=bucket)
    )
    backups.show(made, as_json=json_output)


@app.command(short_help="Restore a backup into a new cluster of the same name.")
def restore(
    source: Annotated[
        str | None,
        typer.Argument(
            help="The backup's file; with --bucket a name there, the newest by default.", show_default=False
        ),
    ] = None,
    stack: StackOption = UNNAMED,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="Take it from the bucket of controller.backup in the stack file.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Also into a cluster that has had jobs: it forgets them, and they end."
        ),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up the restore that is under way and not in its place yet.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Restore a backup into a new cluster of the same name, which is up and has had no job.

    Everything is checked before anything is changed. Job ids go on upwards; jobs that ran at the backup are
    queued again.
    """
    from cli.commands import backup as backups

    act = backups.cancel if cancel else backups.restore
    restored = act(load_up(stack), source, bucket=bucket, replace=replace)
    backups.show(restored, as_json=json_output)


@app.command("run", short_help="Run the benchmark on several numbers of nodes; ends in the report.")
def run_sweep(
    stack: StackOption = UNNAMED,
    nodes: SweepNodesOption = None,
    partition: SweepPartitionsOption = None,
    gpus: SweepGpusOption = None,
    repeat: SweepRepeatOption = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the sweep that is under way.")] = False,
) -> None:
    """Run the benchmark on several numbers of nodes, one run after another; ends in the report.

    With several partitions or numbers of GPUs, every combination is run. All runs are submitted at the start,
    and go on without this command: interrupt it as you like, and `./cluster run` without numbers watches the
    sweep that is under way. The cluster must be up.
    """
    from cli.console.progress import Console
    from cli.providers import provider
    from cli.providers.interface import Runs
    from operations import packages
    from operations.access import StackUp

    if cancel and any(given is not None for given in (nodes, repeat, partition, gpus)):
        raise UserError(
            "--cancel ends the sweep that is under way: it takes no other option",
            EXIT_USAGE,
            code="sweep.cancel-alone",
        )
    if not cancel:
        packages.provide("report")
    known = StackUp.of(stack, load(stack))
    chosen = provider.of(known)
    if cancel:
        chosen.cancel(known, Console())
    else:
        chosen.run(known, Console(), Runs(nodes, repeat, partition, gpus))


@app.command(short_help="Make plots and a table: our results beside the published ones.")
def report(
    stack: StacksOption = UNNAMED,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for report.html and report.csv."),
    ] = None,
) -> None:
    """Make a page with plots and a table: our results beside the published ones."""
    from cli.commands.report import command as reports
    from operations import packages

    packages.provide("report")
    files = reports.make(stack, output, project())
    print(files.page)
    print(files.table)


@app.command(short_help="Find what would stop `up` here, and its cure.")
def doctor(stack: StackOption = UNNAMED, json_output: Json = False) -> None:
    """Find what would stop `up` here, and its cure; exit 1 if anything would."""
    from cli.commands import doctor as doctors

    sys.exit(doctors.run(stack, as_json=json_output))


@app.command(short_help="Show the last lines of the controller, a node and its boot, a job.")
def logs(
    what: Annotated[
        str | None,
        typer.Argument(help="controller (default), a node's name, or a job's id.", show_default=False),
    ] = None,
    stack: StackOption = UNNAMED,
    outputs: OutputsOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="Lines of each log.", min=1)] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs as they grow.")] = False,
) -> None:
    """Show the last lines of the controller, of a node and its boot, of a job."""
    from cli.providers import provider

    known = load_up(stack, outputs)
    status = provider.of(known).logs(known, what, lines=lines, follow=follow)
    if status == EXIT_INTERRUPTED:
        # Without a message, because Ctrl-C is the normal end of following.
        os._exit(status)
    sys.exit(status)


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tests(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments for pytest; without any, the whole suite runs.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run the widest tests too, such as the soak.")
    ] = False,
) -> None:
    """Run the tests that this machine can run; with a file, all of that file's."""
    from operations import packages

    packages.provide("dev")
    from cli.commands import run_tests as suites

    sys.exit(suites.run(project(), arguments or [], everything=everything))


def main() -> None:
    """Run the command line. A mistake of the user ends in one message and its exit code."""
    # A command imports thousands of classes that live as long as it does, such as a cloud's SDK. The garbage
    # collector finds nothing in them, and would take a fifth of the time of a plan. A plan makes 250,000
    # objects and ends; a command that goes on lets go of garbage before there is twice as much.
    gc.set_threshold(400_000, 50, 100)
    try:
        _run()
    finally:
        _let_go()
        # As Python ends, it would look for garbage among all of them: a tenth of the time of a plan.
        gc.freeze()


def _let_go() -> None:
    """Drop the output that a closed terminal did not take.

    Python would try again as it ends, fail, and choose an exit code of its own.
    """
    # A stream that was closed when Python began is None.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@functools.cache
def commands() -> Any:
    """Return all commands. Typer makes them from the functions' signatures."""
    app.add_typer(chaos.app, name="chaos")
    app.add_typer(env.app, name="env")
    return typer.main.get_command(app)


def _run() -> None:
    Output.json = False
    try:
        with interrupt.as_keyboard_interrupt():
            try:
                with _named_output():
                    # The shell's completion needs the command's name without a folder.
                    commands()(prog_name="cluster" if _completes() else hints.program())
            finally:
                # Flushed here, where a closed pipe is expected, and not at the interpreter's end.
                with named(_output()):
                    sys.stdout.flush()
    except UserError as error:
        _refuse(error)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except RuntimeError as error:
        # Before 3.12 Python turns an exception while a class is made, such as a Ctrl-C, into a RuntimeError.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ended:
        # Only Typer uses this code, for a KeyboardInterrupt.
        if ended.code == EXIT_INTERRUPTED:
            _fail("interrupted", EXIT_INTERRUPTED)
        raise
    except BrokenPipeError:
        # The reader of the output has ended (`./cluster plan | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from infra.os_errors import explain

        _refuse(explain(error))


class _NamedOutput:
    """Standard output, whose errors name its file: what is longer than the buffer is written at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with named(_output()):
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _named_output() -> Iterator[None]:
    stream = sys.stdout
    if stream is not None:  # it was closed when Python began
        sys.stdout = cast("TextIO", _NamedOutput(stream))
    try:
        yield
    finally:
        sys.stdout = stream


def _output() -> Path:
    """Return the file to which standard output goes, for the message that its disk is full."""
    try:
        return Path("/proc/self/fd/1").readlink()
    except OSError:
        return Path("standard output")


def _completes() -> bool:
    return COMPLETION in os.environ or sys.argv[1:2] in (["--install-completion"], ["--show-completion"])


def _refuse(error: UserError) -> Any:
    """End with a message, which has the error's code; for a program that reads JSON, with an object, too."""
    if Output.json:
        with contextlib.suppress(OSError):
            message = {**error.as_json(), "message": hints.from_here(str(error))}
            print(json.dumps({"error": message}, indent=1), flush=True)
    _fail(error.printed, error.exit_code)


def _fail(message: str, code: int) -> Any:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if code == EXIT_INTERRUPTED and sys.stderr.isatty():
            print(file=sys.stderr)  # behind the terminal's own ^C
        print(hints.from_here(message), file=sys.stderr)
    sys.exit(code)
