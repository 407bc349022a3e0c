"""Servers on the loopback interface: any process that answers, and a real PostgreSQL."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import unavailable

SERVER_USER = "postgres"  # PostgreSQL refuses to run as root
SECONDS = 180


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], ready: Callable[[], bool], log: Path, **options: object) -> Iterator[subprocess.Popen]:
    """A process that is asked to end by SIGINT, once `ready` says that it answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
        try:
            deadline = time.monotonic() + SECONDS
            while not ready():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.3)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


@contextmanager
def postgresql(log: Path) -> Iterator[str]:
    """Address of an empty database on a PostgreSQL server of its own."""
    programs = [Path(found).parent for found in [shutil.which("initdb")] if found]
    programs += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        unavailable("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    import psycopg

    root = os.geteuid() == 0
    # As the server's user may not enter pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="ovo_clinic-postgresql-"))
    if root:
        shutil.chown(folder, SERVER_USER, SERVER_USER)
    options = {"user": SERVER_USER, "group": SERVER_USER, "extra_groups": []} if root else {}
    data, port = folder / "data", free_port()
    owner = SERVER_USER if root else getpass.getuser()
    address = f"postgresql://{owner}@127.0.0.1:{port}/postgres"

    def ready() -> bool:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        made = [programs[0] / "initdb", "--pgdata", data, "--auth", "trust", "--encoding", "UTF8", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **options)
        command = [str(programs[0] / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
        with running([*command, "-h", "127.0.0.1", "-c", "fsync=off"], ready, log, cwd=folder, **options):
            yield address
    finally:
        shutil.rmtree(folder)
