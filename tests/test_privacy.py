"""No command uses the network, what holds rows of patients is its owner's alone, and no pickle is ever loaded."""

import ast
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from ovo_clinic import experiment, scrub
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from tests.small_data import QUICK, flat_files

REPOSITORY = Path(__file__).resolve().parent.parent
HOOK = """
import os, socket, sys

WATCHED = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
           "socket.gethostbyaddr", "socket.getnameinfo"}

def refuse(event, arguments):
    if event not in WATCHED:
        return
    if isinstance(arguments[0], socket.socket) and arguments[0].family == socket.AF_UNIX:
        return
    with open(os.environ["NETWORK_LOG"], "a") as log:
        log.write(f"{event} {arguments!r} by {sys.argv}\\n")
    raise PermissionError("there is no network here")

sys.addaudithook(refuse)
"""
RUNNER = """
import json, sys
from pathlib import Path
from ovo_clinic import cli

for line in Path(sys.argv[1]).read_text().splitlines():
    words = json.loads(line)
    if "RUN" in words:
        (run,) = {path.parent.name for path in Path("home/runs").glob("*/result.json")} - set(sys.argv[2:])
        words[words.index("RUN")] = run
    print("$", *words, flush=True)
    code = cli.app(words, standalone_mode=False)
    assert code in (0, None), (words, code)
"""
TASK = ["eicu_mortality_24h", *QUICK, "training.epochs=1", "training.accelerator=cpu", "--raw", "raw"]
QUICK_ONES = [
    ["synth", "eicu", "--out", "raw", "--patients", "150"],
    ["prepare", *TASK],
    ["train", *TASK],
    ["predict", "RUN", "--raw", "raw"],
    ["export", *TASK, "--out", "home/exported"],
    ["scrub"],
]
ALL = [
    *QUICK_ONES[:-1],
    ["doctor", *TASK],
    ["compare", *TASK, "--fusion", "concat,ovo", "--seeds", "1", "--workers", "2", "--baselines", "logistic"],
    ["tune", *TASK, "--fusion", "ovo", "--trials", "2", "--workers", "2"],
    ["report"],
    ["audit", *TASK],
    ["flops", "simulation", "--fusion", "concat", "--modalities", "2"],
    ["list", "fusion"],
    ["scrub"],
]


def environment(folder: Path, log: Path) -> dict[str, str]:
    """Of a process, and all that it starts, in which every use of the network is refused and written down."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), str(REPOSITORY)])
    return {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "PYTHONPATH": path,
        "NETWORK_LOG": str(log),
        "OVO_CLINIC_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }


@dataclass(frozen=True)
class Studied:
    """A home in which every command was run.

    Attributes:
        folder: that holds `home` and `raw`.
        told: all that was printed.
        network: what was tried on the network.
    """

    folder: Path
    told: str
    network: str


def studied_in(folder: Path, commands: list[list[str]]) -> Studied:
    log = folder / "network.log"
    log.touch()
    (folder / "commands").write_text("".join(json.dumps(words) + "\n" for words in commands))
    program = [sys.executable, "-c", RUNNER, "commands"]
    done = subprocess.run(
        program, cwd=folder, env=environment(folder, log), capture_output=True, text=True, umask=0o022
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("$ ") == len(commands)
    return Studied(folder, done.stdout + done.stderr, log.read_text())


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studied]:
    folder = tmp_path_factory.mktemp("private")
    yield studied_in(folder, QUICK_ONES)
    shutil.rmtree(folder)


def test_no_command_uses_the_network(studied: Studied) -> None:
    assert studied.network == ""


@pytest.mark.slow
def test_no_study_uses_the_network_or_opens_its_files(tmp_path: Path) -> None:
    studied = studied_in(tmp_path, ALL)
    assert studied.network == ""
    assert_closed(studied.folder / "home")
    assert_removed(studied)
    assert_nothing_told(studied)


@pytest.mark.parametrize(
    "program",
    [
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import socket; socket.gethostbyname('localhost')",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', "
        "'import socket; socket.create_connection((\"127.0.0.1\", 9))']))",
    ],
)
def test_the_network_is_watched(program: str, tmp_path: Path) -> None:
    """What the test above relies on."""
    log = tmp_path / "network.log"
    done = subprocess.run([sys.executable, "-c", program], env=environment(tmp_path, log), capture_output=True)
    assert done.returncode != 0 and "socket." in log.read_text()


def test_rows_of_patients_are_their_owners_alone(studied: Studied) -> None:
    home = studied.folder / "home"
    files = assert_closed(home)
    for kind in ("cohort.parquet", "predictions.parquet", "lab.npy", ".csv", "exported/lab.csv.gz"):
        assert any(name.endswith(kind) for name in files), kind


def assert_closed(home: Path) -> set[str]:
    """Folders are 0700 and files with rows 0600; their names."""
    for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
        shown = folder.relative_to(home.parent).as_posix()
        if not shown.startswith("home/mlflow_artifacts/"):  # MLflow makes these, of aggregates
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, shown
    found = [file for item in scrub_of(home) for file in ([item.path] if item.path.is_file() else item.path.rglob("*"))]
    files = {file.relative_to(home).as_posix(): stat.S_IMODE(file.stat().st_mode) for file in found if file.is_file()}
    assert {name: oct(mode) for name, mode in files.items() if mode != 0o600} == {}
    return set(files)


def scrub_of(home: Path) -> list[scrub.Holding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(home))
        return scrub.holdings()


def test_scrub_lists_and_removes_rows_and_leaves_the_rest(studied: Studied) -> None:
    assert {"result.json", "model.safetensors"} <= assert_removed(studied)


def assert_removed(studied: Studied) -> set[str]:
    """On a copy of the home; the names of files that stay, as they were."""
    listed = {line.partition("files  ")[2] for line in studied.told.splitlines() if " files  " in line}
    home = studied.folder / "home"
    assert {f"{item.kind}: {item.path.relative_to(home)}" for item in scrub_of(home)} == listed
    copy = studied.folder / "copy"
    shutil.copytree(home, copy)
    folders = [path for path in copy.iterdir() if path.name in scrub.AGGREGATES]
    kept = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    kept |= {path: path.read_bytes() for path in copy.glob("runs/*/*") if path.name != "predictions.parquet"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(copy))
        assert scrub.remove(scrub.holdings()) == []
    left = {path for path in copy.rglob("*") if path.is_file()}
    assert {path: path.read_bytes() for path in kept} == kept
    assert {path.name for path in left - set(kept) if path.suffix != ".lock"} <= {"mlflow.db", "tuning.db"}
    return {path.name for path in kept}


def test_nothing_of_a_patient_is_printed(studied: Studied) -> None:
    assert_nothing_told(studied)


def assert_nothing_told(studied: Studied) -> None:
    patients = pl.read_csv(studied.folder / "raw" / "patient.csv.gz", infer_schema=False)
    for column in ("patientunitstayid", "patienthealthsystemstayid", "uniquepid"):
        values = [value for value in patients[column].unique() if len(value) > 4]
        assert values and not [value for value in values if value in studied.told], column


def replaced(column: str, value: str) -> pl.Expr:
    """The column with another value in its tenth row."""
    return pl.when(pl.int_range(pl.len()) == 9).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)


MISTAKES = {
    "text in a number": replaced("age", "canary-age"),
    "text in an id": replaced("stay_id", "canary-id"),
    "an id twice": pl.when(pl.int_range(pl.len()) == 9).then(pl.col("stay_id").first()).otherwise("stay_id"),
    "an id lacking": replaced("stay_id", ""),
    "another class": replaced("died", "48151623"),
    "text in a label": replaced("died", "canary-label"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_messages_hold_no_cell_of_a_table(mistake: str, tmp_path: Path, home: Path) -> None:
    config = flat_files(tmp_path, "binary")
    file = tmp_path / "raw" / "stays.csv"
    table = pl.read_csv(file, infer_schema=False).with_columns(MISTAKES[mistake])
    table.write_csv(file)
    with pytest.raises(UserError) as found:
        prepare_task(experiment.load(str(config)), tmp_path / "raw")
    told = str(found.value).replace(str(tmp_path), "")
    cells = {cell for column in table.columns for cell in table[column].unique() if cell and len(cell) > 2}
    assert {"canary-person-1"} <= cells and [cell for cell in cells if cell in told] == []


PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
LOADERS = {"read_pickle", "unsafe_load", "full_load", "load_all", "load_from_checkpoint"}


def called(call: ast.Call) -> str:
    """`name`, `name.name`, or `.name` of what is called on anything else."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
        case ast.Attribute(attr=name):
            return f".{name}"
    return ""


def option(call: ast.Call, name: str) -> str | None:
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return ast.unparse(found[0]) if found else None


def test_no_code_loads_pickles() -> None:
    files = [path for folder in ("ovo_clinic", "pipelines") for path in (REPOSITORY / folder).rglob("*.py")]
    assert len(files) > 100
    nodes = [(path, node) for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    for path, node in nodes:
        match node:
            case ast.Import(names=names):
                assert not {alias.name.split(".")[0] for alias in names} & PICKLES, path
            case ast.ImportFrom(module=str(module)):
                assert module.split(".")[0] not in PICKLES, path
    loads = 0
    for path, call in ((path, node) for path, node in nodes if isinstance(node, ast.Call)):
        name, where = called(call), (path, call.lineno)
        assert name.rpartition(".")[2] not in LOADERS, where
        assert name not in ("eval", "exec"), where
        if name == "torch.load" or (name.endswith(".fit") and option(call, "ckpt_path") is not None):
            assert option(call, "weights_only") == "True", where
            loads += 1
        if name in ("np.load", "numpy.load"):
            assert option(call, "allow_pickle") in ("False", None), where
    assert loads >= 3


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.file,)


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[Bomb]:
    armed = Bomb(tmp_path / "went off")
    pickle.loads(pickle.dumps(armed))
    assert armed.file.exists(), "the test would see nothing"
    armed.file.unlink()
    yield armed
    assert not armed.file.exists(), "a pickle was loaded"


def test_a_checkpoint_that_is_a_pickle_is_not_resumed(bomb: Bomb, home: Path) -> None:
    from ovo_clinic import runs, training
    from tests.small_data import SIMULATION

    settings = experiment.load("simulation", [*SIMULATION, "training.epochs=1", "training.accelerator=cpu"])
    prepared = prepare_task(settings, None)
    folder = runs.run_folder(settings, prepared)
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("best.ckpt", "last.ckpt"):
        torch.save({"state_dict": {}, "bomb": bomb}, folder / "checkpoints" / name)
    assert len(training.train(settings, prepared, folder)["history"]) == 1


def test_a_model_that_is_a_pickle_is_refused(bomb: Bomb, tmp_path: Path) -> None:
    from ovo_clinic.encoders.checkpoints import load_model
    from tests.tiny_models import tiny_bert

    folder = tiny_bert(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    torch.save({"bomb": bomb}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read"):
        load_model(folder)


def test_embeddings_that_are_pickles_are_refused(bomb: Bomb, tmp_path: Path) -> None:
    from ovo_clinic.encoders.precomputed import embeddings

    array = np.empty(1, dtype=object)
    array[0] = bomb
    np.savez(tmp_path / "objects.npz", unit_id=np.array([1]), values=array)
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(bomb))
    (tmp_path / "pickle.parquet").write_bytes(pickle.dumps(bomb))
    for name in ("objects.npz", "pickle.npz", "pickle.parquet"):
        with pytest.raises(UserError, match="cannot be read"):
            embeddings(tmp_path / name, pl.Series([1]))


def test_yaml_that_calls_python_is_refused(bomb: Bomb, tmp_path: Path) -> None:

    config = tmp_path / "task.yaml"
    config.write_text(f"dataset: !!python/object/apply:os.mknod ['{bomb.file}']\ntask: t\n")
    with pytest.raises(UserError, match="is not valid YAML"):
        experiment.load(str(config))
    with pytest.raises(UserError, match="not valid YAML"):
        experiment.load("simulation", [f"seed=!!python/object/apply:os.mknod ['{bomb.file}']"])
