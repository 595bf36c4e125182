"""What a benchmark runs, by its content: staged files and a script. And what it needs of a login machine.

The files are the built-in training's, or a program of the user's own with the launcher that starts its tasks.
Both are staged in one way: `<shared>/bench/<digest>/workload`. The user's files are in its folder `files`.

The component (`infra.slurm_cluster.Benchmark`) is apart, because commands that only ask about a run start
without Pulumi. The templates of the scripts are imported where one is rendered, because whoever checks or
stages files needs none.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from infra import bundle, environments
from infra.errors import EXIT_USAGE, UnusableFileError, UserError
from infra.program import mode, project_files
from infra.program.project_files import ProjectFile, ProjectFileError, Wrong
from node.design.model import BenchmarkDesign, ClusterDesign
from node.system import executables
from workload.program import FILES, LAUNCHER

if TYPE_CHECKING:
    import pulumi

    from workload.script import Job

MOST_FILES = 2000
MOST_BYTES = 32 << 20
"""The most bytes of all files. They are code, not data, and travel over SSH in one piece, in base64."""
MIB = 1 << 20
OF_BATCH = ("batch/", "resnet/")
"""The folders of `workload/` that are in the container image of AWS Batch, and on no Slurm cluster."""
ENTRY = "__main__.py"
"""The file that Python runs if it is given a folder."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of the workload: its name below `workload/`, its content, and whether it may be executed."""

    name: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """The staged files, in the order of their names."""

    files: tuple[StagedFile, ...]

    @property
    def digest(self) -> str:
        """The digest of names, contents and modes. Times and the file system's order do not count."""
        total = hashlib.sha256()
        for file in self.files:
            kind = "x" if file.executable else "-"
            total.update(f"{file.name}\0{len(file.content)}\0{kind}\0".encode())
            total.update(file.content)
        return total.hexdigest()

    @classmethod
    def of(cls, project: Path | None = None, program: Sequence[str] = ()) -> Workload:
        """Return the workload of a project.

        Args:
            project: The folder in which the stack file is; `None` means the program's.
            program: The paths of the user's program, the script first. Empty means the built-in training.

        Raises:
            UserError: A file of the user's is missing or cannot be staged; the message names it.
        """
        project = project or mode.folder()
        workload = environments.code_of(project) / "workload"
        built_in = [file for file in bundle.tree(workload) if not file[0].startswith(OF_BATCH)]
        if not program:
            return cls(tuple(StagedFile(name, content) for name, content in built_in))
        launcher = [StagedFile(name, content) for name, content in built_in if name in LAUNCHER]
        try:
            theirs = program_files(project, program)
        except UnusableFileError as error:
            raise UserError(
                f"slurm-stacks:benchmark: {program[error.index]!r} cannot be staged: {error}",
                EXIT_USAGE,
                code="benchmark.not-staged",
            ) from None
        return cls(tuple(sorted([*launcher, *theirs], key=lambda file: file.name)))

    def archive(self) -> bytes:
        """Return the files as a tar archive, with `workload/` in their names.

        A folder would not do: Pulumi's hash of a folder includes the byte code that Python leaves in it, so
        that every run would be a change. The archive is not compressed: releases of zlib compress
        differently, and equal files would then differ.
        """
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for file in self.files:
                entry = tarfile.TarInfo(f"workload/{file.name}")
                entry.size, entry.mode = len(file.content), 0o755 if file.executable else 0o644
                archive.addfile(entry, io.BytesIO(file.content))
        return buffer.getvalue()


def program_files(project: Path, program: Sequence[str]) -> list[StagedFile]:
    """Return the user's files, below `files/`, each once.

    Args:
        program: Paths of files and folders relative to the project; the first is the script.

    Raises:
        UnusableFileError: A path is missing, leads outside of the project, or is too large.
    """
    staged: dict[str, StagedFile] = {}
    total = 0
    for index, name in enumerate(program):
        for relative in _files(project, name, index):
            key = f"{FILES}/{relative}"
            if key in staged:
                continue
            file = _read(project, relative, index, MOST_BYTES - total)
            total += len(file.content)
            if len(staged) >= MOST_FILES:
                raise _too_much(index)
            staged[key] = StagedFile(key, file.content, file.executable)
    _check_script(project, program[0], staged)
    return list(staged.values())


def _read(project: Path, relative: str, index: int, most: int) -> ProjectFile:
    try:
        return project_files.read(project, relative, most)
    except ProjectFileError as error:
        if error.wrong is Wrong.LARGE:
            raise _too_much(index) from None
        if error.wrong is Wrong.OUTSIDE:
            allowed = f"files of {project} only"
            raise UnusableFileError(index, allowed, f"{relative}: {error}: copy the file") from None
        raise UnusableFileError(index, "files that can be read", f"{relative}: {error}") from None


def _too_much(index: int) -> UnusableFileError:
    return UnusableFileError(
        index,
        f"files of at most {MOST_BYTES // MIB} MiB together, {MOST_FILES} at most: they are copied to the "
        "cluster for each version",
        "copy data to the cluster beforehand and give its path in arguments",
    )


def _files(project: Path, name: str, index: int) -> Iterator[str]:
    """Yield the paths of the files of one path, a folder's without the byte code and caches of Python."""
    try:
        is_folder = project_files.is_folder(project, name)
    except ProjectFileError as error:
        if error.wrong is Wrong.MISSING:
            raise UnusableFileError(index, f"a file or folder in {project}") from None
        if error.wrong is Wrong.KIND:
            raise UnusableFileError(index, "a file or folder, no device or socket") from None
        allowed = f"a file or folder inside {project}, not what a link outside leads to"
        if error.wrong is Wrong.OUTSIDE:
            raise UnusableFileError(index, allowed) from None
        raise UnusableFileError(index, "a file or folder that can be read", str(error)) from None
    path = PurePosixPath(name)
    if not is_folder:
        yield str(path)
        return
    count = 0
    for below in sorted((project / path).rglob("*")):
        parts = below.relative_to(project / path).parts
        # What the names lead to is looked at when the files are read.
        if bundle.SKIPPED.intersection(parts) or below.suffix == ".pyc" or not below.is_file():
            continue
        count += 1
        yield str(path.joinpath(*parts))
    if not count:
        raise UnusableFileError(index, "a folder with files in it", "it is empty")


def _check_script(project: Path, script: str, found: dict[str, StagedFile]) -> None:
    """Refuse a script that the cluster could not start."""
    path = project / PurePosixPath(script)
    inside = PurePosixPath(FILES) / PurePosixPath(script)
    if path.is_dir():
        if str(inside / ENTRY) not in found:
            raise UnusableFileError(
                0,
                f"a program, or a folder with {ENTRY}, which Python runs",
                f"name the file to run, script: {PurePosixPath(script) / 'train.py'}, and the folder "
                f"in files: [{script}]",
            )
        inside = inside / ENTRY
    content = found[str(inside)].content
    if inside.suffix == ".py":
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnusableFileError(
                0, "Python in UTF-8", f"byte {error.start + 1} is no UTF-8: save the file as UTF-8"
            ) from None
    elif (fault := executables.fault(content, script)) is not None:
        allowed = "a .py file, a folder, or a program that Linux can execute"
        raise UnusableFileError(0, allowed, str(fault))


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """What is to run, by its content: the digests name its folder.

    Attributes:
        script: The text of the `sbatch` script.
        workload_digest: The digest of the workload's files.
        own: The paths of a user's program, relative to the project. Empty means the built-in training.
    """

    script: str
    workload_digest: str
    own: tuple[str, ...] = ()

    @property
    def staged(self) -> str:
        """The staged workload's folder, relative to `<shared>/bench`."""
        return self.workload_digest[:16]

    @property
    def folder(self) -> str:
        """The run's folder, relative to `<shared>/bench`. Equal settings are one run."""
        return f"{self.staged}/{hashlib.sha256(self.script.encode()).hexdigest()[:12]}"

    @classmethod
    def of(
        cls, design: ClusterDesign, training: BenchmarkDesign, layout: Layout, project: Path | None = None
    ) -> BenchmarkRun:
        """Return the run that a stack file asks for, with the workload of this project.

        Args:
            project: The folder in which the stack file is; `None` means the program's.

        Raises:
            UserError: A file of the user's program is missing or cannot be staged.
        """
        digest = Workload.of(project, training.staged).digest
        make = _program if training.own else _training
        return cls(make(design, training, layout, digest), digest, training.staged)


def _training(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> str:
    from workload.script import Training, render

    options = Training(
        epochs=training.epochs,
        profile=training.profile,
        data=training.data,
        batch=training.batch,
        seed=training.seed,
        learning_rate=training.learning_rate,
        average_every=training.average_every,
        cache=f"{layout.apps}/data",
    )
    return render(_job(design, training, layout, digest), options)


def _program(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> str:
    from workload.script import render_program

    job = replace(_job(design, training, layout, digest), tasks_per_node=training.tasks_per_node)
    return render_program(job, (training.script, *training.arguments), training.container)


def _job(design: ClusterDesign, training: BenchmarkDesign, layout: Layout, digest: str) -> Job:
    """Return the job that any benchmark is."""
    from workload.script import Job, Pool

    partition, *others = design.pools_of(training.partition)
    pools = [
        Pool(p.name, p.pool, p.instance_type, p.price_hour)
        for p in (partition, *others)
        if p.pool is not None
    ]
    return Job(
        partition=training.partition,
        nodes=training.nodes,
        python=interpreter(layout),
        code=f"{layout.shared}/bench/{digest[:16]}",
        gpus_per_node=training.gpus_per_node,
        stack=design.stack,
        machine=None if pools else partition.instance_type,
        digest=digest,
        price_hour=None if pools else partition.price_hour,
        pools=tuple(pools),
    )


class Layout(Protocol):
    """The folders on a provider's login machine."""

    @property
    def apps(self) -> str:
        """The folder of shared software."""
        ...

    @property
    def shared(self) -> str:
        """The folder that every machine shares and that holds benchmark runs."""
        ...

    @property
    def environment(self) -> str:
        """The digest of the training environment's lock file."""
        ...


class Shell(Layout, Protocol):
    """The way to a provider's login machine. Each method declares a resource."""

    def prepare(self, name: str, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Make the training environment if it is missing."""
        ...

    def stage(self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Copy the workload to `<shared>/bench/<digest>`."""
        ...

    def submit(
        self, name: str, run: BenchmarkRun, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, pulumi.Output[str]]:
        """Submit on create, cancel on delete; the second value is the job's id."""
        ...

    def guard(self, name: str, queue: pulumi.Input[str], opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Refuse the deletion while there are jobs (`operations.guard`).

        Args:
            queue: The id of what holds the queue. Before it goes, the engine deletes this resource, because
                it cannot stay with another one.
        """
        ...


def interpreter(layout: Layout) -> str:
    """Return the training environment's Python, on the cluster."""
    return f"{layout.apps}/envs/{layout.environment}/bin/python"
