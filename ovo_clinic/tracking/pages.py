"""MLflow's own pages of a store."""

import os
import signal
import subprocess
import sys

from ovo_clinic import resources

_SECONDS_TO_END = 30


def serve(uri: str, port: int) -> int:
    """Runs MLflow's own pages of a store on this machine until they are interrupted; returns the exit code.

    Args:
        uri: from `database_uri`.
        port: of the loopback interface.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # Not in the command line, which others on the machine can read: an address may hold a password.
    stores = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_REGISTRY_STORE_URI": uri}
    environment = {**os.environ, **stores, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    artifacts = (resources.home() / "mlflow_artifacts").as_uri()
    command += ["--default-artifact-root", artifacts]
    # In a group of its own, all of which is ended: the server starts further processes.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # anew: polars lets a wait go on after Ctrl-C
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
            raise
