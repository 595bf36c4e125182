"""A real directory of users: OpenLDAP's slapd with TLS, by an authority of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkout import until
from tests.support.cloud_authority import Authority

ROOT = Path(os.environ.get("SLURM_STACKS_TEST_LDAP", "/"))
"""The folder with the unpacked packages slapd and ldap-utils, where this machine has them elsewhere."""
BASE, READER, PASSWORD = "dc=example,dc=com", "cn=reader,dc=example,dc=com", "a reader's secret: 100 %"
CONF = """\
include {schema}/core.schema
include {schema}/cosine.schema
include {schema}/nis.schema
include {schema}/inetorgperson.schema
attributetype ( 2.25.4711.1 NAME 'sshPublicKey' EQUALITY octetStringMatch SYNTAX {octets} )
objectclass ( 2.25.4711.2 NAME 'ldapPublicKey' SUP top AUXILIARY MAY sshPublicKey )
modulepath {modules}
moduleload back_mdb
TLSCACertificateFile {folder}/authority.pem
TLSCertificateFile {folder}/server.pem
TLSCertificateKeyFile {folder}/server.pem
database mdb
suffix "{base}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{reader}" read by anonymous auth by * none
"""
HEAD = f"""\
dn: {BASE}
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: {READER}
objectClass: person
cn: reader
sn: reader
userPassword: {PASSWORD}
"""
USER = """
dn: uid={name},{base}
objectClass: inetOrgPerson
objectClass: posixAccount
objectClass: ldapPublicKey
uid: {name}
cn: {name}
sn: {name}
uidNumber: {uid}
gidNumber: {uid}
homeDirectory: /nonexistent/{name}
loginShell: /bin/bash
userPassword: {name}'s password
sshPublicKey: {key}

dn: cn={name},{base}
objectClass: posixGroup
cn: {name}
gidNumber: {uid}
"""
GROUP = """
dn: cn={name},{base}
objectClass: posixGroup
cn: {name}
gidNumber: {gid}
memberUid: {member}
"""


def missing() -> str:
    """Return why there is no slapd here; empty if there is one."""
    there = (ROOT / "usr/sbin/slapd").exists() and shutil.which("openssl") is not None
    return "" if there else "slapd is not installed (packages slapd and ldap-utils)"


needs_slapd = pytest.mark.skipif(bool(missing()), reason=missing())


class Slapd:
    """A server of a directory.

    Args:
        folder: For its files.
        address: Where it listens.
        entries: LDIF after the base and the reader.
        enter: A command line's prefix that puts the server into a network.
    """

    def __init__(
        self, folder: Path, address: str, entries: str, *, port: int = 636, enter: Sequence[str] = ()
    ) -> None:
        self.uri = f"ldaps://{address}:{port}"
        self._enter, self._conf = enter, folder / "slapd.conf"
        self.authority = Authority(folder, [], [address])
        (folder / "data").mkdir()
        self._conf.write_text(
            CONF.format(
                schema=ROOT / "etc/ldap/schema", modules=ROOT / "usr/lib/ldap", folder=folder, base=BASE,
                reader=READER, octets="1.3.6.1.4.1.1466.115.121.1.40",
            )
        )  # fmt: skip
        (folder / "entries.ldif").write_text(HEAD + entries)
        self._server: subprocess.Popen[bytes] | None = None
        self._run("-Tadd", "-l", str(folder / "entries.ldif")).wait(60)

    def start(self) -> None:
        self._server = self._run("-d", "0", "-h", self.uri)
        host, _, port = self.uri.removeprefix("ldaps://").partition(":")
        listening = ["sh", "-c", f"exec 3<>/dev/tcp/{host}/{port}"]
        listening[0] = "bash"
        until(lambda: subprocess.run([*self._enter, *listening], check=False).returncode == 0, 30, "slapd")

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(30)
            self._server = None

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        libraries = ROOT / "usr/lib/x86_64-linux-gnu"
        env = {**os.environ, **({"LD_LIBRARY_PATH": str(libraries)} if Path("/") != ROOT else {})}
        command = [*self._enter, str(ROOT / "usr/sbin/slapd"), *words, "-f", str(self._conf)]
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)


def user(name: str, uid: int, key: str = "none") -> str:
    return USER.format(name=name, uid=uid, key=key, base=BASE)


def group(name: str, gid: int, member: str) -> str:
    return GROUP.format(name=name, gid=gid, member=member, base=BASE)
