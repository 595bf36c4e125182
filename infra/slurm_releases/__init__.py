"""The table of Slurm's releases: who maintains one, until when, and which advisories are open in it.

`releases.yaml` holds the facts, their sources and the date on which they were compared. A version is a text
as Slurm or the package manager prints it: `slurm-wlm 23.11.4`, `24.11.5-4+deb13u1`. No answer depends on a
clock: whoever asks says for which day, as a rule the table's.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from node.system import plurals

FILE = Path(__file__).with_name("releases.yaml")
FEATURES = {"accounting": "slurm.accounting", "oci": "containers: oci", "pyxis": "containers: pyxis"}
"""What a cluster may use that an advisory affects -> its name for people."""

_VERSION = re.compile(r"(?<![\d.])(\d\d\.\d\d)(?:\.(\d+))?(?:-(\S+))?")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Release(_Row):
    """A release of Slurm.

    Attributes:
        supported_until: The day on which SchedMD's support ends.
        takes_over_from: The releases whose state and database it can take over.
        note: Why the date is the one that it is, where the source is not clear.
    """

    supported_until: datetime.date
    takes_over_from: tuple[str, ...]
    note: str = ""


class Advisory(_Row):
    """A published vulnerability, or several that were fixed together.

    Attributes:
        affects: A key of `FEATURES` that a cluster must use to be open to it; `None` means every cluster.
        fixed: Release -> its first maintenance version with the fix.
        packages: Versions of packages that have the fix although their upstream version lacks it.
    """

    id: str
    date: datetime.date
    what: str
    affects: str | None = None
    fixed: dict[str, int]
    packages: tuple[str, ...] = ()

    def is_open(self, version: str) -> bool:
        """Say whether a version lacks the fix."""
        release, patch, revision = parse(version)
        done = patch >= self.fixed[release] if release in self.fixed else release > max(self.fixed)
        return not done and not any(
            (release, patch) == parse(fix)[:2] and _order(revision) >= _order(parse(fix)[2])
            for fix in self.packages
        )


class Maintainer(_Row):
    """Who brings fixes to a distribution's package, and until when."""

    name: str
    until: datetime.date


class Package(_Row):
    """Slurm's package in a distribution.

    Attributes:
        suite: The name of the distribution's release in its archive.
        version: The newest version there on the table's date.
        maintainer: `None` means that the distribution promises no fixes.
        pmix: Whether it is built with PMIx, for `srun --mpi=pmix`.
    """

    title: str
    suite: str
    version: str
    maintainer: Maintainer | None = None
    pmix: bool = True


class Table(_Row):
    """All that is known of Slurm's releases.

    Attributes:
        date: The day on which the facts were compared with their sources.
        packages: Distribution, as `image.source` names it, -> its package.
    """

    date: datetime.date
    sources: tuple[str, ...] = Field(min_length=1)
    releases: dict[str, Release]
    advisories: tuple[Advisory, ...]
    packages: dict[str, Package]

    def package_of_suite(self, suite: str | None) -> Package | None:
        """Return the package of an archive's suite; `None` if the table has none."""
        return next((package for package in self.packages.values() if package.suite == suite), None)

    def package_that_runs(self, version: str, suite: str | None) -> Package:
        """Return the package of a version that is installed.

        Args:
            suite: The distribution on which it runs. A machine may have another distribution's package, built
                from source: the one of the table with the same upstream version then.
        """
        own_package = self.package_of_suite(suite)
        candidates = [*([own_package] if own_package else []), *self.packages.values()]
        same = (known for known in candidates if parse(known.version)[:2] == parse(version)[:2])
        return next(same, Package(title=suite or "this machine", suite="", version=version))

    def takes_over(self, before: str, now: str) -> bool:
        """Say whether a release can take over the state and the database that another one has written.

        A release that the table does not know yet takes over from every older one.
        """
        known = self.releases.get(now)
        return before == now or (now > before if known is None else before in known.takes_over_from)

    def open_in(self, version: str, uses: Mapping[str, bool] | None = None) -> list[Advisory]:
        """Return the advisories that are open in a version, the oldest first.

        Args:
            uses: Key of `FEATURES` -> whether the cluster uses it. An advisory that affects something else is
                left out. `None` means that it is not known, and all are returned.
        """
        return [
            advisory
            for advisory in self.advisories
            if advisory.is_open(version)
            and (uses is None or advisory.affects is None or uses.get(advisory.affects, False))
        ]

    def maintained(self, package: Package, day: datetime.date | None = None) -> bool:
        """Say whether somebody brings fixes to a package, and has brought all that are due.

        Args:
            day: The day that counts; the table's date by default.
        """
        return self._maintainer(package, day or self.date) is not None and not self.open_in(package.version)

    def _maintainer(self, package: Package, day: datetime.date) -> Maintainer | None:
        """Return who maintains a package the longest; `None` if nobody does on that day."""
        known = [package.maintainer] if package.maintainer else []
        if (release := self.releases.get(parse(package.version)[0])) is not None:
            known.append(Maintainer(name="SchedMD", until=release.supported_until))
        current = [maintainer for maintainer in known if maintainer.until >= day]
        return max(current, key=lambda maintainer: maintainer.until, default=None)

    def described(
        self, package: Package, version: str | None = None, uses: Mapping[str, bool] | None = None
    ) -> str:
        """Name a package's Slurm, and who maintains it, in a line.

        Args:
            version: The version that runs, where it is known; the package's newest by default.
            uses: As for `open_in`.
        """
        version = version or package.version
        release, patch, _ = parse(version)
        text = f"Slurm {release}.{patch} ({version} of {package.title})"
        maintainer = self._maintainer(package, self.date)
        if maintainer is not None and not (unfixed := self.open_in(version, uses)):
            return f"{text}, maintained by {maintainer.name} until {maintainer.until:%B %Y}"
        if maintainer is not None:
            return f"{text}: {plurals.count(len(unfixed), 'published advisory', 'published advisories')} open"
        ended = self.releases[release].supported_until if release in self.releases else None
        return f"{text}, which nobody maintains" + (
            f": SchedMD's support ended in {ended:%B %Y}" if ended else ""
        )

    def open_lines(self, version: str, cure: str, uses: Mapping[str, bool] | None = None) -> list[str]:
        """Name what is open in a version, with the cure, in a line for each advisory.

        Args:
            cure: What to do about all of them.
            uses: As for `open_in`.
        """
        return [
            f"Slurm {parse(version)[0]}: {advisory.id} ({advisory.date}) is open: {advisory.what}; {cure}"
            for advisory in self.open_in(version, uses)
        ]


@functools.cache
def table() -> Table:
    """Return the table of the repository."""
    return Table.model_validate(
        yaml.load(FILE.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    )


def parse(version: str) -> tuple[str, int, str]:
    """Split a version into its release, its maintenance number and its package's revision.

    Raises:
        ValueError: The text has no version of Slurm.
    """
    match = _VERSION.search(version)
    if match is None:
        raise ValueError(f"no version of Slurm in {version.strip()!r}")
    return match[1], int(match[2] or 0), match[3] or ""


def release_in(text: str) -> str | None:
    """Return the release of a version, such as `23.11`; `None` if the text has no version of Slurm."""
    match = _VERSION.search(text)
    return match[1] if match is not None else None


def _order(revision: str) -> tuple[int, ...]:
    """Return the sort key of a package's revision: `4+deb13u1` comes after `4`."""
    return tuple(int(number) for number in re.findall(r"\d+", revision))
