"""The Pulumi CLI as a runner, through the Automation API, from the same checkout.

*Backend*: the one that the user is logged in to. A user who is logged in nowhere gets a file backend in the
stack's state folder, with a generated passphrase.

*The stack file stays as it is*: with a passphrase the CLI would write `encryptionsalt` into the stack
file. Therefore the stack is initialized in its own folder in the state folder, and every operation gets
`--config-file` with a copy of the stack file that has the salt; the program runs in the checkout. A stack
file that names its encryption is used as it is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import yaml

from cli import selection
from cli.console.events import Message, OnEvent, Summary, ignore
from cli.engine import backend, lock, plugins
from cli.engine.project import REDACTED
from cli.engine.runner import Look, nobody
from infra.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program import folders, locations, mode, owner
from infra.program.stack import Stack
from node.system import foreign
from node.system.processes import children
from operations import programs
from operations.signals import handled

if TYPE_CHECKING:
    from cli.engine.engine_events import Translator

PLUGIN = "command"
PLUGIN_SECONDS = 120
"""Seconds for the download of the command plugin; after that the local stack runs without the CLI."""
PROVIDER_SECONDS = 1800
"""Seconds for the download of a plugin without which the stack cannot be made: a cloud's is large."""
ENDS = re.compile(
    r"(preview|update|destroy) failed"
    r"|an unhandled error occurred: program exited with non-zero exit code: \d+"
)
"""What the engine says at the end of a failure, whose cause it has said before."""
REFUSED = "the configuration of stack "
"""The head of the program's message about a configuration with mistakes (`infra.config.load.parse`)."""
ENCRYPTION = ("encryptionsalt", "encryptedkey", "secretsprovider")


class PulumiRunner:
    """One stack of a checkout, run by the Pulumi CLI.

    Args:
        local: Whether this is a local stack, whose cluster only one engine may own.
        packages: The Pulumi packages that the stack's program uses.
    """

    name = "pulumi"

    def __init__(self, stack: Stack, *, local: bool, packages: Sequence[str] = (PLUGIN,)) -> None:
        self._stack = replace(stack, project=stack.project.resolve())
        self._local = local
        self._packages = packages
        self._interrupted = threading.Event()
        # A stack that began in our own backend stays there until it is destroyed, even if the user logs in.
        fallback = Path(owner.fallback_url(self._stack).removeprefix("file://"))
        self._fallback = fallback.exists() or owner.logged_in(self._stack.project) is None
        if self._fallback and stack.named_organization is not None:
            raise UserError(
                f"{stack.engine_name} is a stack of an organization, and you are not logged in to the "
                "backend that has it: `pulumi login`",
                EXIT_REFUSED,
                code="stack.organization-without-login",
            )

    @property
    def backend(self) -> str:
        """The URL of the backend that holds the state."""
        if self._fallback:
            return owner.fallback_url(self._stack)
        return owner.backend_url(self._stack.project)

    @contextlib.contextmanager
    def changing(self, verb: Literal["up", "down"], on_event: OnEvent = ignore) -> Iterator[None]:
        """See `cli.engine.Runner.changing`."""
        with lock.locked(self._stack, verb):
            if self._local:
                check = owner.check_claim if verb == "up" else owner.check
                check(self._stack, self.backend)
            if self._fallback:
                self._break_stale_lock(on_event)
            elif not backend.refuse_if_locked_here(self._stack, self.backend):
                with self._operation(verb, on_event, create=False) as (stack, _, config):
                    if stack is not None:
                        backend.refuse_if_updating(self._stack, self.backend, stack, config)
            yield

    def preview(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> Summary:
        """Report what `up` would do. The providers check every value that is known by then.

        Args:
            benchmark: As for `up`.

        Raises:
            UserError: The program, the engine or a provider's check failed.
        """
        fresh = self._fallback and not self._engine_dir.exists()
        with self._operation("preview", on_event, create=True) as (stack, translator, config):
            assert stack is not None
            try:
                self._spare_downloads(stack, on_event)
                more = {} if benchmark else self._without_benchmark(stack)
                stack.preview(on_event=translator, color="never", config_file=config, **more)
            finally:
                if fresh:
                    self._forget()
        return Summary(translator.summary.counts, 0, translator.summary.seconds)

    def up(
        self, on_event: OnEvent = ignore, *, benchmark: bool = True, lost: Collection[str] = ()
    ) -> dict[str, Any]:
        """Bring the stack up, or up to date, and return its outputs; secrets are `[secret]`.

        Args:
            benchmark: Whether to include the benchmark's resources. If not, the program does not declare
                them, and the engine excludes them.
            lost: The hosts on a cloud whose machines are gone. The engine asks the cloud for their resources,
                by their ids, forgets those that are gone, and so makes them again.

        Raises:
            UserError: The program or the engine failed, or the cluster belongs to the embedded runner
                (exit 3).
        """
        if self._local:
            owner.check_claim(self._stack, self.backend)
        unowned = self._local and not owner.has_claimed(self._stack, self.backend)
        with (
            self._operation("up", on_event, create=True) as (stack, translator, config),
            self._claimed(stack),
        ):
            if unowned and (known := _resources(stack)):
                self._refuse_protected(known)
                # For the engine nothing has changed, so it would create nothing.
                on_event(Message("the run directory is gone: all of the stack is created again", "warning"))
                stack.destroy(color="never", show_secrets=False, config_file=config)
            if lost and (targets := resources_of(_resources(stack), lost)):
                stack.refresh(target=targets, color="never", show_secrets=False, config_file=config)
                for resource in _resources(stack):
                    if resource["urn"] in targets and resource["type"] in MACHINES:
                        name = str(resource["urn"]).rpartition("::")[2]
                        on_event(Message(f"the cloud still has the machine of {name}: it stays", "warning"))
            self._spare_downloads(stack, on_event)
            more = {} if benchmark else self._without_benchmark(stack)
            result = stack.up(
                on_event=translator, color="never", show_secrets=False, config_file=config, **more
            )
            return _outputs(result.outputs)

    @contextlib.contextmanager
    def _claimed(self, stack: Any) -> Iterator[None]:
        """Own a local cluster, from the moment at which the backend has answered.

        An operation that fails before it has made anything leaves a cluster without an owner if it had none.
        """
        if not self._local:
            yield
            return
        unowned = owner.read(self._stack) is None
        owner.claim(self._stack, self.backend)
        try:
            yield
        except BaseException:
            if unowned and not _made(stack):
                owner.release(self._stack)
                self._forget()
            raise

    def _spare_downloads(self, stack: Any, on_event: OnEvent) -> None:
        """Have the engine download no plugin, if all that the stack uses are installed."""

        def install(plugin: plugins.Plugin) -> None:
            on_event(Message(f"installing Pulumi's {plugin.name} plugin {plugin.version}"))
            _pulumi_plugin("install", "resource", *plugin, seconds=PROVIDER_SECONDS)

        if plugins.NO_DOWNLOADS in os.environ:
            return
        if plugins.all_there(self._packages, _resources(stack), install):
            stack.workspace.env_vars[plugins.NO_DOWNLOADS] = "true"

    def _without_benchmark(self, stack: Any) -> dict[str, list[str]]:
        """Have the program leave the benchmark out, and return the arguments that make the engine do so."""
        left_out = [r["urn"] for r in _resources(stack) if mode.is_benchmarks(r["urn"])]
        kept = mode.of_benchmark(_outputs(stack.outputs()))
        stack.workspace.env_vars[mode.KEPT_VARIABLE] = json.dumps(kept)
        # An older CLI does not know the option.
        return {"exclude": left_out} if left_out else {}

    def destroy(self, on_event: OnEvent = ignore, look: Look = nobody) -> None:
        """Destroy the stack. A stack that was never up is no error.

        The engine forgets first what has ended with hosts that are gone, because its deletion could fail, and
        all that depends on it would stay. A host may also go meanwhile, or a disk: so a destroy that fails is
        tried once more if the engine finds that something of the hosts is gone.

        Args:
            look: Tells which of the stack's hosts are gone. If it cannot tell, the engine asks for all.

        Raises:
            UserError: The engine failed.
        """
        if self._local:
            owner.check(self._stack, self.backend)
        with self._operation("down", on_event, create=False) as (stack, translator, config):
            if stack is not None:
                self._delete(stack, translator, config, look)
                if self._fallback:
                    # Without preserve_config the CLI would remove the stack file from the checkout.
                    stack.workspace.remove_stack(self._stack.engine_name, preserve_config=True)
            self._forget()
            if self._local:
                owner.release(self._stack)

    def check_destroy(self) -> None:
        """See `cli.engine.Runner.check_destroy`."""
        with self._operation("down", ignore, create=False) as (stack, _, _):
            if stack is not None:
                self._refuse_protected(_resources(stack))

    def _refuse_protected(self, resources: Sequence[Mapping[str, Any]]) -> None:
        if protected := protected_in(resources):
            names = ", ".join(urn.rpartition("::")[2] for urn in protected)
            lines = "".join(
                f"\n  pulumi state unprotect {shlex.quote(urn)} --stack {self._stack.engine_name}"
                for urn in protected
            )
            raise UserError(
                f"nothing was changed: Pulumi does not delete what is protected in the state of stack "
                f"{self._stack.name}: {names}. Where it may go:{lines}",
                EXIT_REFUSED,
                code="runner.protected",
            )

    def _delete(self, stack: Any, translator: Translator, config: str | None, look: Look) -> None:
        """Delete the stack's resources.

        Raises:
            CommandError: The engine failed, and nothing of the hosts is gone.
            UserError: Exit 130; it was interrupted before anything was deleted.
        """
        from pulumi.automation.errors import CommandError

        hosts = [] if self._local else hosts_of(_resources(stack))
        lost = look(hosts) if hosts else ()
        if self._interrupted.is_set():
            raise _unchanged()
        self._refresh(stack, config, hosts if lost is None else lost)
        try:
            stack.destroy(on_event=translator, color="never", show_secrets=False, config_file=config)
        except CommandError:
            if self._local or self._interrupted.is_set() or not self._refresh(stack, config, hosts):
                raise
            translator.again("something of the head is gone: its resources are forgotten, and the rest goes")
            stack.destroy(on_event=translator, color="never", show_secrets=False, config_file=config)

    def _refresh(self, stack: Any, config: str | None, hosts: Collection[str]) -> bool:
        """Have the engine ask for what ends with hosts, and return whether something of it is gone.

        An engine that cannot ask can hardly delete: what it says of that is the better answer.
        """
        from pulumi.automation.errors import CommandError

        targets = resources_of(_resources(stack), hosts)
        if not targets:
            return False
        with contextlib.suppress(CommandError):
            stack.refresh(target=targets, color="never", show_secrets=False, config_file=config)
        return not {*targets} <= {resource["urn"] for resource in _resources(stack)}

    def outputs(self) -> dict[str, Any] | None:
        """Return the stack's outputs; `None` if it is not up."""
        if self._fallback and not self._engine_dir.exists():
            return None
        with _explained():
            stack = self._select()
            return None if stack is None else (_outputs(stack.outputs()) or None)

    @property
    def _engine_dir(self) -> Path:
        return locations.state_dir(self._stack) / "engine"

    @contextlib.contextmanager
    def _operation(
        self, verb: str, on_event: OnEvent, *, create: bool
    ) -> Iterator[tuple[Any, Any, str | None]]:
        """Hold the lock for the body, and yield the stack (or `None`), its events, and the stack file."""
        from cli.engine.engine_events import Translator

        translator = Translator(on_event)
        with lock.locked(self._stack, verb), _patient(on_event) as interrupted:
            self._interrupted = interrupted
            if self._fallback and create and verb != "preview":
                on_event(Message(f"the state is kept here, with no login to Pulumi, in {self.backend}"))
            try:
                self._break_stale_lock(on_event)
                with _explained(translator), self._interruptible(verb):
                    stack = self._select()
                    if stack is None and create:
                        self._initialize()
                        stack = self._select()
                    yield stack, translator, self._config_file()
            finally:
                translator.finish()

    @contextlib.contextmanager
    def _interruptible(self, verb: str) -> Iterator[None]:
        """Say what a failure means that follows from an interrupt."""
        from pulumi.automation.errors import CommandError

        try:
            yield
        except CommandError:
            if not self._interrupted.is_set():
                raise
            if verb == "preview":
                raise _unchanged() from None
            raise UserError(
                f"interrupted; what was done is recorded: `./cluster {verb} --stack {self._stack.name}` "
                "continues where this stopped.",
                EXIT_INTERRUPTED,
                code="runner.interrupted",
            ) from None

    def _break_stale_lock(self, on_event: OnEvent) -> None:
        """Remove a lock that a killed CLI left in our own backend, whose users all hold the stack's lock.

        Raises:
            UserError: Exit 3; only `./cluster` was killed, and the CLI still works.
        """
        locks = locations.state_dir(self._stack) / "backend" / ".pulumi" / "locks"
        for file in locks.rglob("*.json") if self._fallback else ():
            pid = _holder(file)
            if pid is not None:
                raise UserError(
                    f"the Pulumi CLI (process {pid}) still works on stack {self._stack.name} for a "
                    f"`./cluster` that was killed. Wait for its end, or end it (kill -INT {pid}).",
                    EXIT_REFUSED,
                    code="runner.pulumi-busy",
                )
            on_event(Message("the Pulumi CLI was killed as it worked on this stack: going on there"))
            file.unlink(missing_ok=True)

    def _environment(self) -> Mapping[str, str]:
        # The program's own environment has uv, which the project's toolchain asks for.
        env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        if self._fallback:
            folder = folders.make_state_dir(self._stack)
            backend, passphrase = folder / "backend", folder / "passphrase"
            backend.mkdir(mode=0o700, exist_ok=True)
            if not passphrase.exists():
                descriptor = os.open(passphrase, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(secrets.token_urlsafe(32))
            env |= {"PULUMI_BACKEND_URL": self.backend, "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase)}
            if "PULUMI_CONFIG_PASSPHRASE" in os.environ:
                # The CLI prefers it to the file, and it may be another one tomorrow.
                env["PULUMI_CONFIG_PASSPHRASE"] = passphrase.read_text(encoding="utf-8")
        return env

    def _workspace(self, folder: Path) -> Any:
        from pulumi import automation
        from pulumi.automation.errors import InvalidVersionError

        try:
            return automation.LocalWorkspace(work_dir=str(folder), env_vars=self._environment())
        except InvalidVersionError as error:
            raise UserError(
                f"the Pulumi CLI on PATH does not fit: {error}", EXIT_REFUSED, code="runner.pulumi-version"
            ) from error

    def _initialize(self) -> None:
        """Create the stack, which does not exist, from outside the checkout.

        What is left there of an earlier stack of this name, such as its salt, belongs to another passphrase.
        """
        from pulumi import automation
        from pulumi.automation.errors import StackAlreadyExistsError

        folder = self._engine_dir
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / self._stack.file.name).unlink(missing_ok=True)
        settings = yaml.safe_load((self._stack.project / "Pulumi.yaml").read_text(encoding="utf-8"))
        kept = {k: settings[k] for k in ("name", "runtime", "backend") if k in settings}
        (folder / "Pulumi.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")
        with contextlib.suppress(StackAlreadyExistsError):
            automation.Stack.create(self._stack.engine_name, self._workspace(folder))

    def _select(self) -> Any:
        """Select the stack in the checkout; `None` if the backend has no such stack."""
        from pulumi import automation
        from pulumi.automation.errors import StackNotFoundError

        try:
            with selection.kept(self._stack.project):
                return automation.Stack.select(self._stack.engine_name, self._workspace(self._stack.project))
        except StackNotFoundError:
            return None

    def _config_file(self) -> str | None:
        """Write the stack file with the salt of our initialization; `None` if the checkout's file has one.

        In our own backend the passphrase is ours, and a salt in the checkout's file belongs to another one.
        Nothing is taken of a file that nobody can read: a destroy needs none of it.
        """
        source, text = self._stack.file, ""
        written: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError, yaml.YAMLError):
            parsed = yaml.safe_load(read := source.read_text(encoding="utf-8"))
            text, written = (read, parsed) if isinstance(parsed, dict) else ("", {})
        if set(ENCRYPTION) & set(written):
            if not self._fallback:
                return None
            # Its other lines stay as they are: the engine reads some otherwise than PyYAML writes them.
            text = re.sub(rf"(?m)^({'|'.join(ENCRYPTION)}):.*\n?", "", text)
        copy = self._engine_dir / source.name
        content = yaml.safe_load(copy.read_text(encoding="utf-8")) or {} if copy.exists() else {}
        kept = {k: content[k] for k in ENCRYPTION if k in content}
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy.write_text(text + ("\n" + yaml.safe_dump(kept) if kept else ""), encoding="utf-8")
        return str(copy)

    def _forget(self) -> None:
        """Remove our own files and our own backend of a stack that is not up.

        The user's own backend keeps the stack with its history. The next operation writes the salt anew.
        """
        shutil.rmtree(self._engine_dir, ignore_errors=True)
        if self._fallback:
            folder = locations.state_dir(self._stack)
            shutil.rmtree(folder / "backend", ignore_errors=True)
            (folder / "passphrase").unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(translator: Translator | None = None) -> Iterator[None]:
    """Turn a failure of the CLI in the body into a message.

    Args:
        translator: Has the errors that the engine has reported.

    Raises:
        UserError: The CLI failed. Exit 2 if the program refuses the stack's configuration.
    """
    from pulumi.automation.errors import CommandError

    try:
        yield
    except CommandError as error:
        # The error's text is all that the CLI printed; what it calls errors comes last.
        # The engine's last one only says that the operation failed.
        reported = [] if translator is None else translator.errors
        errors = [line for line in reported if not ENDS.fullmatch(line)]
        text = "\n".join(errors or reported) or str(error).rpartition("stderr: ")[2].strip()
        text = text or "the CLI failed, and said nothing"
        refused = any(REFUSED in line.partition("\n")[0] for line in errors)
        exit_code = EXIT_USAGE if refused else EXIT_FAILED
        raise UserError(f"Pulumi: {text}", exit_code, code="runner.pulumi-failed") from error


def _unchanged() -> UserError:
    return UserError(
        "interrupted; nothing was changed", EXIT_INTERRUPTED, code="runner.interrupted-unchanged"
    )


def _resources(stack: Any) -> list[dict[str, Any]]:
    """Return the resources of a stack's state, as the CLI exports them."""
    recorded: list[dict[str, Any]] = (stack.export_stack().deployment or {}).get("resources") or []
    return recorded


def _made(stack: Any) -> bool:
    """Return whether anything of a stack may exist: its state has more than components and providers."""
    from pulumi.automation.errors import CommandError

    try:
        recorded = _resources(stack)
    except CommandError:
        return True  # nobody knows
    kinds = (str(each.get("type")) for each in recorded if each.get("custom"))
    return any(not kind.startswith(plugins.PROVIDERS) for kind in kinds)


def protected_in(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the URNs of the resources that Pulumi refuses to delete, by a stack's state."""
    return [str(resource["urn"]) for resource in resources if resource.get("protect")]


HEADS = ("slurm-stacks:index:AwsHead", "slurm-stacks:index:GcpHead")
"""The components whose children are hosts' machines and root disks: `<component>-<host>[-disk]`."""
MACHINES = ("aws:ec2/instance:Instance", "gcp:compute/instance:Instance")
ATTACHMENTS = "slurm-stacks:index:AwsDisks"
"""The component whose children attach the controller's disks. A disk itself is never among the lost."""


def resources_of(resources: Sequence[Mapping[str, Any]], hosts: Collection[str]) -> list[str]:
    """Return the URNs of what ends with the machines of hosts, by a stack's state.

    These are the machines, their root disks, and the attachments of the controller's other disks, whose
    deletion would fail without the machine (hashicorp/terraform-provider-aws#20165). No disk with data is
    among them, because one that is made again is empty.
    """
    components = {resource["urn"]: resource["type"] for resource in resources if not resource.get("custom")}
    urns = []
    for resource in resources:
        kind = components.get(str(resource.get("parent", "")))
        name, parent = (str(urn).rpartition("::")[2] for urn in (resource["urn"], resource.get("parent", "")))
        part = name.removeprefix(f"{parent}-")
        if (kind in HEADS and part.removesuffix("-disk") in hosts) or (
            kind == ATTACHMENTS and "controller" in hosts
        ):
            urns.append(str(resource["urn"]))
    return urns


def hosts_of(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hosts whose machines, or the attachments of their disks, are in a stack's state."""
    types = {resource["urn"]: resource["type"] for resource in resources}
    hosts = []
    for resource in resources:
        kind, parent = types.get(resource.get("parent", "")), str(resource.get("parent", ""))
        name = str(resource["urn"]).rpartition("::")[2].removeprefix(f"{parent.rpartition('::')[2]}-")
        if kind in HEADS and resource["type"] in MACHINES:
            hosts.append(name)
        elif kind == ATTACHMENTS:
            hosts.append("controller")
    return list(dict.fromkeys(hosts))


def _holder(file: Path) -> int | None:
    """Return the pid of the running CLI that made a lock of the file backend; `None` if it has ended."""
    try:
        pid = int(foreign.record(file)["pid"])
        program = Path(f"/proc/{pid}/exe").readlink().name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if program == "pulumi" else None


def command_plugin(on_event: OnEvent) -> str | None:
    """Install the plugin that runs local commands. Returns `None`, or why that is not possible."""
    version = importlib.metadata.version("pulumi-command")
    try:
        listed = json.loads(_pulumi_plugin("ls", "--json") or "[]")
        if any(p.get("name") == PLUGIN and p.get("version") == version for p in listed):
            return None
        on_event(Message(f"installing Pulumi's {PLUGIN} plugin {version}"))
        _pulumi_plugin("install", "resource", PLUGIN, version)
    except (UserError, ValueError) as error:
        return str(error)
    return None


def _pulumi_plugin(*arguments: str, seconds: float = PLUGIN_SECONDS) -> str:
    done = programs.capture(["pulumi", "plugin", *arguments, "--non-interactive"], seconds=seconds)
    if done.status == programs.TIMED_OUT:
        raise UserError(f"its download took over {seconds:g} s", code="runner.plugin-late")
    if done.failed:
        lines = done.err.strip().splitlines()
        raise UserError(
            lines[-1] if lines else f"`pulumi plugin` ended with status {done.status}",
            code="runner.plugin-failed",
        )
    return done.out


def _outputs(values: Any) -> dict[str, Any]:
    return {k: REDACTED if v.secret else v.value for k, v in sorted(values.items())}


@contextlib.contextmanager
def _patient(on_event: OnEvent) -> Iterator[threading.Event]:
    """Wait for the CLI after a signal: it ends its work and then itself.

    The event is set after a signal. Ctrl-C in the terminal reaches the CLI; other signals are passed on as
    SIGINT.
    """
    interrupted = threading.Event()
    waiting = Message("interrupted: waiting for Pulumi to end (again: at once)", "warning")

    def handle(number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        if number != signal.SIGINT:
            for child in children(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGINT)
        # In a thread, because a handler must not wait for locks that the interrupted code may hold.
        threading.Thread(target=on_event, args=[waiting], daemon=True).start()

    with handled(handle):
        yield interrupted
