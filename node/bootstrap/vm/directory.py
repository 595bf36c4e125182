"""Users of a directory (LDAP or Active Directory), whom every machine asks by SSSD.

Connections are TLS with a known certificate, always. The password with which machines ask is in the secret
store; the controller reads it, and gives it to root of the other machines together with the munge key
(`node.bootstrap.key_server`).

A controller or login machine boots whether a server answers or not: SSSD goes on with what it has cached. A
node has cached nothing. A job of a user whom it does not know would fail there, so a node that cannot ask
does not become one, and its job waits with the cause.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from node.bootstrap.command import CommandError, Runner
from node.bootstrap.context import Context
from node.bootstrap.vm import clouds, first_login
from node.design.directory import CA_ARCHIVED, SECRET, Directory
from node.system import files, waiting

PACKAGES = ("sssd-ldap", "libnss-sss", "libpam-sss", "ldap-utils")
CONF = "etc/sssd/sssd.conf"
CA = "etc/ssl/slurm-stacks-directory.pem"
SYSTEM_CA = "/etc/ssl/certs/ca-certificates.crt"
PASSWORD = "etc/slurm-stacks/directory-password"
SSHD = "etc/ssh/sshd_config.d/09-slurm-stacks-directory.conf"
SSHD_TEXT = "# Written by slurm-stacks: users of the directory log in with their password{or_key}.\n"
SSHD_PASSWORD = "PasswordAuthentication yes\n"
SSHD_KEYS = "AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys\nAuthorizedKeysCommandUser nobody\n"
"""Keys in the directory's attribute sshPublicKey. On Google Cloud this command is OS Login's."""
UNIT = "sssd.service"
FIRST_ID = 1000
NETWORK_SECONDS = 3
ASK_SECONDS = 5.0
NODE_ATTEMPTS, NODE_PAUSE_SECONDS = 4, 5.0
CANNOT_CONTACT = 255
"""The exit status of OpenLDAP's programs where no server answers, or its certificate is not valid."""
TEXT = """\
# Written by slurm-stacks at each boot.
[sssd]
config_file_version = 2
services = nss, pam, ssh
domains = {domain}

[nss]
filter_users = root, slurm, munge
filter_groups = root, slurm, munge
default_shell = /bin/bash
shell_fallback = /bin/bash
allowed_shells = *

[domain/{domain}]
id_provider = ldap
auth_provider = ldap
chpass_provider = none
sudo_provider = none
autofs_provider = none
ldap_uri = {uris}
ldap_search_base = {base}
ldap_schema = {schema}
ldap_tls_reqcert = demand
ldap_tls_cacert = {ca}
ldap_network_timeout = {network}
ldap_opt_timeout = {network}
cache_credentials = true
enumerate = false
min_id = {first_id}
override_homedir = {shared}/%u
"""


def prepare(context: Context) -> None:
    """Have the machine ask the directory of the stack file, or none.

    Raises:
        ConnectionError: No server answers a node. The message says why.
    """
    directory = context.settings.design.access.directory
    conf = context.at(CONF)
    if directory is None:
        if context.at(PASSWORD).parent.exists() and conf.exists():
            _forget(context)
        return
    ca = _place_certificate(context, directory)
    files.folder(conf.parent, 0o711)
    text = conf_text(directory, context.settings.site.shared, ca, _password(context))
    changed = files.write(conf, text.encode(), 0o600)
    context.run("systemctl", "enable", UNIT)
    # A restart keeps what is cached.
    context.run("systemctl", "restart" if changed else "start", UNIT)
    if context.has_users:
        first_login.prepare(context)
        _configure_sshd(context)
    _look(context, directory, ca)


def _look(context: Context, directory: Directory, ca: str) -> None:
    """Note why nobody answers; on a node raise it."""

    def ask() -> None:
        if why := problem(directory, ca, context.run, password_file=str(context.at(PASSWORD))):
            raise ConnectionError(why)

    node = context.role == "compute"
    pauses = itertools.repeat(NODE_PAUSE_SECONDS, NODE_ATTEMPTS - 1 if node else 0)
    try:
        waiting.retry(ask, ConnectionError, pauses)
    except ConnectionError as error:
        if node:
            raise
        context.report.content["facts"]["directory"] = f"{error}; users whom SSSD has cached can log in"


def conf_text(directory: Directory, shared: str, ca: str, password: str) -> str:
    """Return the content of sssd.conf."""
    text = TEXT.format(
        domain=directory.domain,
        uris=", ".join(directory.uris),
        base=directory.search_base,
        schema=directory.ldap_schema,
        ca=ca,
        network=NETWORK_SECONDS,
        first_id=FIRST_ID,
        shared=shared,
    )
    order = []
    if directory.ldap_schema == "ad":
        text += "ldap_id_mapping = true\nldap_referrals = false\nldap_account_expire_policy = ad\n"
        order.append("expire")
    if directory.access_filter is not None:
        text += f"ldap_access_filter = {directory.access_filter}\n"
        order.insert(0, "filter")
    if order:
        text += f"access_provider = ldap\nldap_access_order = {', '.join(order)}\n"
    else:
        text += "access_provider = permit\n"
    if directory.bind_dn is not None:
        text += f"ldap_default_bind_dn = {directory.bind_dn}\nldap_default_authtok_type = password\n"
        text += f"ldap_default_authtok = {password}\n"
    return text


def problem(directory: Directory, ca: str, run: Runner, password_file: str | None = None) -> str:
    """Return why no server of the directory can be asked; empty if one can.

    Args:
        password_file: The file with the password; without it no server is asked as `bind_dn`, and a server
            that answers at all is well.
    """
    found = []
    for uri in directory.uris:
        command = ["ldapwhoami", "-x", "-H", uri, "-o", f"nettimeout={NETWORK_SECONDS}"]
        if password_file is not None and directory.bind_dn is not None:
            command += ["-D", directory.bind_dn, "-y", password_file]
        try:
            run(*command, env={"LDAPTLS_CACERT": ca, "LDAPTLS_REQCERT": "demand"}, timeout=ASK_SECONDS)
        except CommandError as error:
            if password_file is None and error.status not in (None, 127, CANNOT_CONTACT):
                return ""
            first, *lines = str(error).splitlines()
            found.append(f"{uri}: {next((line for line in lines if line.startswith('ldap')), first)}")
        else:
            return ""
    return f"the directory {directory.domain} does not answer ({'; '.join(found)})"


def _place_certificate(context: Context, directory: Directory) -> str:
    """Put the certificate where every user can read it, and return its path, or that of the machine's own."""
    if directory.ca_certificate is None:
        return SYSTEM_CA
    content = (Path(str(context.folders.code)) / CA_ARCHIVED).read_bytes()
    context.at(CA).parent.mkdir(parents=True, exist_ok=True)
    files.write(context.at(CA), content)
    return str(context.at(CA))


def certificate(directory: Directory) -> str:
    """Return the path of the certificates by which this machine knows the directory."""
    return SYSTEM_CA if directory.ca_certificate is None else f"/{CA}"


def _configure_sshd(context: Context) -> None:
    keys = context.settings.design.provider != "gcp"
    text = SSHD_TEXT.format(or_key=" or with a key of it" if keys else "") + SSHD_PASSWORD
    file = context.at(SSHD)
    file.parent.mkdir(parents=True, exist_ok=True)
    if files.write(file, (text + (SSHD_KEYS if keys else "")).encode()):
        context.run("systemctl", "try-reload-or-restart", "ssh.service")


def _forget(context: Context) -> None:
    """Ask no directory any longer. The homes stay."""
    context.run("systemctl", "disable", "--now", UNIT)
    for name in (CONF, PASSWORD, CA):
        context.at(name).unlink(missing_ok=True)
    if (sshd := context.at(SSHD)).exists():
        sshd.unlink()
        context.run("systemctl", "try-reload-or-restart", "ssh.service")


# --- the password -----------------------------------------------------------------------------------------


def needs_password(context: Context) -> bool:
    directory = context.settings.design.access.directory
    return directory is not None and directory.password_secret is not None


def take_from_store(context: Context) -> Path | None:
    """Read the password from the secret store, on the controller, and return its file; `None` without one.

    Raises:
        OSError: The store does not give it, and no earlier boot has left it here.
    """
    directory = context.settings.design.access.directory
    if directory is None or directory.password_secret is None:
        return None
    file = context.at(PASSWORD)
    name = SECRET if context.settings.design.provider == "local" else directory.password_secret
    try:
        password = clouds.of(context.settings).secret(name).get()
        if not password:
            raise OSError("it has no value")
    except OSError as error:
        if file.exists():
            print(f"going on with the directory's password of the last boot: {error}", flush=True)
            return file
        raise OSError(
            f"access.directory.password_secret: {directory.password_secret} cannot be read: {error}"
        ) from error
    keep(context, password)
    return file


def keep(context: Context, password: bytes) -> None:
    """Write the password for root alone.

    Raises:
        ValueError: It has several lines, which sssd.conf cannot hold.
    """
    text = password.rstrip(b"\r\n")
    if b"\n" in text or b"\0" in text or not text:
        raise ValueError("access.directory.password_secret: the secret must be a password, in one line")
    file = context.at(PASSWORD)
    files.folder(file.parent, 0o700)
    files.write(file, text, 0o600)


def _password(context: Context) -> str:
    return context.at(PASSWORD).read_text() if needs_password(context) else ""
