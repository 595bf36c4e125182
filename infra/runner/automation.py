"""The Pulumi CLI as a runner, driven through the Automation API from the same checkout.

Two things need care. *Backend*: the one that the user is logged in to; a user who is logged in nowhere gets a
file backend in the state folder with a generated passphrase. *Nothing is written into the checkout*: with a
passphrase the CLI writes `encryptionsalt` into the stack file. So the stack is initialized in a folder of its
own in the state folder, and every operation gets `--config-file` with a copy of the stack file that carries
the salt; the program itself runs in the checkout. A stack file that names its encryption is used as it is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, UserError
from infra.node.processes import children
from infra.runner import folders, interrupt, locations, lock, mode, owner, selection
from infra.runner.events import Message, OnEvent, Summary, ignore
from infra.runner.project import REDACTED

PLUGIN = "command"
PLUGIN_SECONDS = 120
"""How long the download of the command plugin may take before the local stack is run without the CLI."""
ENCRYPTION = ("encryptionsalt", "encryptedkey", "secretsprovider")


class PulumiRunner:
    """One stack of a checkout, run by the Pulumi CLI.

    Args:
        local: whether this is a local stack, whose cluster only one engine may own.
    """

    name = "pulumi"

    def __init__(self, project_dir: Path, stack: str, *, local: bool) -> None:
        self._project_dir = project_dir.resolve()
        self._stack = stack
        self._local = local
        # A stack that began in our own backend stays there, whoever logs in meanwhile, until it is destroyed.
        ours = Path(owner.fallback_url(self._project_dir, stack).removeprefix("file://"))
        self._fallback = ours.exists() or owner.logged_in(self._project_dir) is None

    @property
    def backend(self) -> str:
        """The URL of the backend that holds the state."""
        if self._fallback:
            return owner.fallback_url(self._project_dir, self._stack)
        return owner.backend_url(self._project_dir)

    def preview(self, on_event: OnEvent = ignore) -> Summary:
        """What `up` would do.

        Raises:
            UserError: the program or the engine failed.
        """
        fresh = self._fallback and not self._engine_dir.exists()
        with self._operation("preview", on_event, create=True) as (stack, translator, config):
            assert stack is not None
            try:
                stack.preview(on_event=translator, color="never", config_file=config)
            finally:
                if fresh:
                    self._forget()
        return Summary(translator.summary.counts, 0, translator.summary.seconds)

    def up(self, on_event: OnEvent = ignore, *, benchmark: bool = True) -> dict[str, Any]:
        """Bring the stack up, or up to date; its outputs, secrets as `[secret]`.

        Args:
            benchmark: False leaves the benchmark's resources as they are: the program does not declare them,
                and the engine is told to leave them out.

        Raises:
            UserError: the program or the engine failed, or the cluster is the embedded runner's (exit 3).
        """
        lost = self._local and owner.read(self._project_dir, self._stack) is None
        if self._local:
            owner.claim(self._project_dir, self._stack, self.backend)
        with self._operation("up", on_event, create=True) as (stack, translator, config):
            assert stack is not None
            if lost and (stack.export_stack().deployment or {}).get("resources"):
                # Nothing of it has changed for the engine: it would create nothing.
                on_event(Message("the run directory is gone: all of the stack is created again", "warning"))
                stack.destroy(color="never", show_secrets=False, config_file=config)
            left_out: list[str] = []
            if not benchmark:
                there = (stack.export_stack().deployment or {}).get("resources") or []
                left_out = [r["urn"] for r in there if mode.is_benchmarks(r["urn"])]
                said = mode.of_benchmark(_outputs(stack.outputs()))
                stack.workspace.env_vars[mode.KEPT_VARIABLE] = json.dumps(said)
            result = stack.up(
                on_event=translator,
                color="never",
                show_secrets=False,
                config_file=config,
                # An older CLI does not know the option.
                **({"exclude": left_out} if left_out else {}),
            )
            return _outputs(result.outputs)

    def destroy(self, on_event: OnEvent = ignore) -> None:
        """Destroy the stack; a stack that was never up: no-op.

        Raises:
            UserError: the engine failed.
        """
        if self._local:
            owner.check(self._project_dir, self._stack, self.backend)
        with self._operation("down", on_event, create=False) as (stack, translator, config):
            if stack is not None:
                stack.destroy(on_event=translator, color="never", show_secrets=False, config_file=config)
                if self._fallback:
                    # Without preserve_config the CLI would remove the stack file from the checkout.
                    stack.workspace.remove_stack(self._stack, preserve_config=True)
            self._forget()
            if self._local:
                owner.release(self._project_dir, self._stack)

    def outputs(self) -> dict[str, Any] | None:
        """The stack's outputs; None: it is not up."""
        if self._fallback and not self._engine_dir.exists():
            return None
        stack = self._select()
        return None if stack is None else (_outputs(stack.outputs()) or None)

    @property
    def _engine_dir(self) -> Path:
        return locations.state_dir(self._project_dir, self._stack) / "engine"

    @contextlib.contextmanager
    def _operation(
        self, verb: str, on_event: OnEvent, *, create: bool
    ) -> Iterator[tuple[Any, Any, str | None]]:
        """The lock, the stack (None: there is none), the translator of its events, the stack file to use."""
        from pulumi.automation.errors import CommandError

        from infra.runner.engine_events import Translator

        translator = Translator(on_event)
        with lock.held(self._project_dir, self._stack, verb), _patient(on_event) as interrupted:
            if self._fallback and create:
                on_event(Message(f"the state is kept here, with no login to Pulumi, in {self.backend}"))
            try:
                self._break_stale_lock(on_event)
                if create:
                    self._initialize()
                stack = self._select()
                yield stack, translator, self._config_file()
            except CommandError as error:
                if interrupted.is_set():
                    raise UserError(
                        f"interrupted; what was done is recorded: `./cluster {verb} --stack {self._stack}` "
                        "continues where this stopped.",
                        EXIT_INTERRUPTED,
                    ) from None
                # The error's text is all that the CLI printed; what it calls errors comes last.
                text = "\n".join(translator.errors) or str(error).rpartition("stderr: ")[2].strip()
                raise UserError(f"Pulumi: {text}") from error
            finally:
                translator.finish()

    def _break_stale_lock(self, on_event: OnEvent) -> None:
        """In our own backend, whose users all hold our own lock, a lock is that of a CLI that was killed.

        Raises:
            UserError: exit 3; only `./cluster` was killed, and the CLI works on.
        """
        locks = locations.state_dir(self._project_dir, self._stack) / "backend" / ".pulumi" / "locks"
        for file in locks.rglob("*.json") if self._fallback else ():
            pid = _holder(file)
            if pid is not None:
                raise UserError(
                    f"the Pulumi CLI (process {pid}) still works on stack {self._stack} for a `./cluster` "
                    f"that was killed. Wait for its end, or end it (kill -INT {pid}).",
                    EXIT_REFUSED,
                )
            on_event(Message("the Pulumi CLI was killed as it worked on this stack: going on there"))
            file.unlink(missing_ok=True)

    def _environment(self) -> Mapping[str, str]:
        # The program's own environment has uv, which the project's toolchain asks for.
        env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        if self._fallback:
            folder = folders.make_state_dir(self._project_dir, self._stack)
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
            raise UserError(f"the Pulumi CLI on PATH does not fit: {error}", EXIT_REFUSED) from error

    def _initialize(self) -> None:
        """Create the stack where it is not there yet, from outside the checkout."""
        from pulumi.automation import Stack
        from pulumi.automation.errors import StackAlreadyExistsError

        folder = self._engine_dir
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = yaml.safe_load((self._project_dir / "Pulumi.yaml").read_text(encoding="utf-8"))
        kept = {k: settings[k] for k in ("name", "runtime", "backend") if k in settings}
        (folder / "Pulumi.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")
        with contextlib.suppress(StackAlreadyExistsError):
            Stack.create(self._stack, self._workspace(folder))

    def _select(self) -> Any:
        """The stack in the checkout; None: there is no such stack in the backend."""
        from pulumi.automation import Stack
        from pulumi.automation.errors import StackNotFoundError

        try:
            with selection.kept(self._project_dir):
                return Stack.select(self._stack, self._workspace(self._project_dir))
        except StackNotFoundError:
            return None

    def _config_file(self) -> str | None:
        """The stack file with the salt that our own initialization made; None: the checkout's says it all."""
        source = self._project_dir / f"Pulumi.{self._stack}.yaml"
        text = source.read_text(encoding="utf-8") if source.exists() else ""
        if set(ENCRYPTION) & set(yaml.safe_load(text) or {}):
            return None
        copy = self._engine_dir / source.name
        made = yaml.safe_load(copy.read_text(encoding="utf-8")) or {} if copy.exists() else {}
        kept = {k: made[k] for k in ENCRYPTION if k in made}
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy.write_text(text + ("\n" + yaml.safe_dump(kept) if kept else ""), encoding="utf-8")
        return str(copy)

    def _forget(self) -> None:
        """Remove our own backend with a stack that is not up. In the user's backend the history is theirs."""
        if self._fallback:
            folder = locations.state_dir(self._project_dir, self._stack)
            shutil.rmtree(folder / "backend", ignore_errors=True)
            (folder / "passphrase").unlink(missing_ok=True)
            shutil.rmtree(self._engine_dir, ignore_errors=True)


def _holder(file: Path) -> int | None:
    """The living CLI that has made a lock of the file backend."""
    try:
        pid = int(json.loads(file.read_text(encoding="utf-8"))["pid"])
        program = Path(f"/proc/{pid}/exe").readlink().name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if program == "pulumi" else None


def command_plugin(on_event: OnEvent) -> str | None:
    """Have the plugin that runs local commands; None: it is there, else why it cannot be had."""
    version = importlib.metadata.version("pulumi-command")
    try:
        listed = json.loads(_pulumi("plugin", "ls", "--json") or "[]")
        if any(p.get("name") == PLUGIN and p.get("version") == version for p in listed):
            return None
        on_event(Message(f"installing Pulumi's {PLUGIN} plugin {version}"))
        _pulumi("plugin", "install", "resource", PLUGIN, version)
    except subprocess.TimeoutExpired:
        return f"its download took over {PLUGIN_SECONDS} s"
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"`pulumi plugin` ended with status {error.returncode}"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _pulumi(*arguments: str) -> str:
    return subprocess.run(
        ["pulumi", *arguments, "--non-interactive"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PLUGIN_SECONDS,
    ).stdout


def _outputs(values: Any) -> dict[str, Any]:
    return {k: REDACTED if v.secret else v.value for k, v in sorted(values.items())}


@contextlib.contextmanager
def _patient(on_event: OnEvent) -> Iterator[threading.Event]:
    """Ctrl-C reaches the CLI, which ends its work and then itself: we wait and do not leave it alone.

    The event is set after a signal. One that was not the terminal's is passed on as Ctrl-C.
    """
    interrupted = threading.Event()
    said = Message("interrupted: waiting for Pulumi to end (again: at once)", "warning")

    def handle(number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        if number != signal.SIGINT:
            for child in children(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGINT)
        # In a thread: a handler must not wait for locks that the interrupted code may hold.
        threading.Thread(target=on_event, args=[said], daemon=True).start()

    with interrupt.handled(handle):
        yield interrupted
