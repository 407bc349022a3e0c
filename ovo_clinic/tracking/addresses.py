"""Where an MLflow store is, and whether it may be used: only what surely lies on this machine, unless allowed."""

import os
from pathlib import Path
from urllib.parse import unquote, urlparse

from sqlalchemy import make_url

from ovo_clinic import resources
from ovo_clinic.errors import UserError

_CREDENTIALS = {"user", "username", "password", "passwd", "pwd", "sslpassword", "token"}


def tracking_uri(given: str | None, allow_remote: bool) -> str:
    """The store: the given one, else MLFLOW_TRACKING_URI, else sqlite under OVO_CLINIC_HOME.

    Raises:
        UserError: the store may be on another machine and `allow_remote` was not given.
    """
    return permitted(_named(given), allow_remote, "--tracking-uri")


def database_uri(given: str | None, allow_remote: bool) -> str:
    """The store as in `tracking_uri`, where it has no pages of its own.

    Raises:
        UserError: it is a server, or as in `tracking_uri`.
    """
    uri = permitted(_named(given), True, "--tracking-uri")
    if urlparse(uri).scheme in ("http", "https"):
        raise UserError(f"--tracking-uri: {without_credentials(uri)} is a server; open it in a browser")
    return permitted(uri, allow_remote, "--tracking-uri")


def _named(given: str | None) -> str:
    return given or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{resources.home() / 'mlflow.db'}"


def permitted(uri: str, allow_remote: bool, option: str) -> str:
    """The address of a store, where it may be used.

    Raises:
        UserError: it is no address, or it may be on another machine and `allow_remote` was not given.
    """
    try:
        local = _is_local(uri)
    except ValueError:  # neither the address nor the reason is repeated: they may hold a password
        raise UserError(f"{option}: is no address of a store; give one such as sqlite:////data/mlflow.db") from None
    if not allow_remote and not local:
        raise UserError(
            f"{option}: {without_credentials(uri)} may be another machine; only aggregates are sent, but add "
            "--allow-remote-tracking if that is meant"
        )
    return uri


def _is_local(uri: str) -> bool:
    """Whether a store surely lies on this machine: a file, or a server under a loopback name."""
    parts = urlparse(uri)
    if parts.scheme in ("", "file", "sqlite"):
        return not parts.hostname and not uri.startswith("databricks")
    # A database takes `?host=` for its server.
    return parts.hostname in ("localhost", "127.0.0.1", "::1") and "host" not in parts.query


def without_credentials(uri: str) -> str:
    """The address of a store without a user's name and password, which a database also takes after the `?`."""
    parts = urlparse(uri)
    shown = uri.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1) if "@" in parts.netloc else uri
    settings = parts.query.split("&")
    kept = [setting for setting in settings if unquote(setting.partition("=")[0]).lower() not in _CREDENTIALS]
    if kept == settings:
        return shown
    return shown.replace(f"?{parts.query}", f"?{'&'.join(kept)}" if kept else "", 1)


def sqlite_file(uri: str) -> Path | None:
    """The file of a sqlite database; None where the store is another one, or in memory."""
    name = make_url(uri).database if urlparse(uri).scheme == "sqlite" else None
    return None if name in (None, "", ":memory:") or name.startswith("file:") else Path(name)
