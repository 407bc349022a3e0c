"""Folders that cannot be read or written, and a disk that is full."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bad_input.conftest import Answer, Command, assert_refused, left_behind
from tests.bad_input.raw_files import cases
from tests.conftest import REPOSITORY, unavailable
from tests.small_data import SIMULATION, flat_files

UNPRIVILEGED = "-dac_override,-dac_read_search"
SMALL = ("simulation", *SIMULATION)


def unprivileged(home: Path, *words: object, folder: Path) -> Answer:
    """Runs the command line as a user whom permissions hold back, as they do not hold back root."""
    line = [sys.executable, "-B", "-m", "ovo_clinic.cli", *map(str, words)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            unavailable("setpriv, which takes root's privileges away, is not installed")
        line = ["setpriv", f"--bounding-set={UNPRIVILEGED}", f"--inh-caps={UNPRIVILEGED}", *line]
    environment = os.environ | {"OVO_CLINIC_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True)
    return Answer(done.returncode, done.stdout, done.stderr)


def _home_not_writable(folder: Path) -> list[object]:
    _shut(folder / "home")
    return ["prepare", *SMALL]


def _home_in_a_folder_not_writable(folder: Path) -> list[object]:
    folder.chmod(0o555)
    return ["prepare", *SMALL]


def _cache_of_someone_else(folder: Path) -> list[object]:
    (folder / "home").mkdir(mode=0o700)
    _shut(folder / "home" / "cache")
    return ["prepare", *SMALL]


def _raw_folder_not_readable(folder: Path) -> list[object]:
    config = _flat(folder)
    config.with_name("raw").chmod(0o000)
    return ["prepare", config, "--raw", config.with_name("raw")]


def _raw_file_not_readable(folder: Path) -> list[object]:
    config = _flat(folder)
    (config.with_name("raw") / "labs.csv").chmod(0o000)
    return ["prepare", config, "--raw", config.with_name("raw")]


def _config_not_readable(folder: Path) -> list[object]:
    config = _flat(folder)
    config.chmod(0o000)
    return ["prepare", config, "--raw", config.with_name("raw")]


def _out_not_writable(folder: Path) -> list[object]:
    return ["synth", "eicu", "--out", _shut(folder / "shut") / "raw", "--patients", "20"]


def _export_not_writable(folder: Path) -> list[object]:
    return ["export", *SMALL, "--out", _shut(folder / "shut") / "tables"]


def _shut(folder: Path) -> Path:
    """A folder that can be read only."""
    folder.mkdir(mode=0o555)
    return folder


def _flat(folder: Path) -> Path:
    return flat_files(folder / "private", "binary", stays=40)


FORBIDDEN: dict[str, tuple[Callable[[Path], list[object]], str]] = {
    "the home cannot be written": (_home_not_writable, "OVO_CLINIC_HOME: .*home cannot be written"),
    "the home cannot be made": (_home_in_a_folder_not_writable, "OVO_CLINIC_HOME: .*home cannot be made"),
    "the cache cannot be written": (_cache_of_someone_else, "cache.*Permission denied"),
    "the raw folder cannot be read": (_raw_folder_not_readable, "raw.*Permission denied"),
    "a raw file cannot be read": (_raw_file_not_readable, r"labs\.csv: cannot be read .Permission denied"),
    "the config cannot be read": (_config_not_readable, r"ward\.yaml.*Permission denied"),
    "the synthetic folder cannot be made": (_out_not_writable, "Permission denied"),
    "the tables cannot be written": (_export_not_writable, "Permission denied"),
}


@pytest.mark.parametrize("case", cases(FORBIDDEN, ["the home cannot be made", "a raw file cannot be read"]))
def test_what_is_forbidden_is_said_in_one_line(tmp_path: Path, case: str) -> None:
    arrange, message = FORBIDDEN[case]
    words = arrange(tmp_path)
    answer = unprivileged(tmp_path / "home", *words, folder=tmp_path)
    assert_refused(answer, message)
    tmp_path.chmod(0o700)
    assert not list(tmp_path.rglob("*.partial*"))


def test_raw_files_need_only_be_readable(tmp_path: Path) -> None:
    """Shared data are mounted read-only."""
    config = _flat(tmp_path)
    for path in (config.with_name("raw"), *config.with_name("raw").iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    words = ("prepare", config, "--raw", config.with_name("raw"), "split.train=0.5", "split.test=0.4")
    answer = unprivileged(tmp_path / "home", *words, folder=tmp_path)
    assert answer.code == 0, answer


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of some size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            unavailable(f"no file system can be mounted here: {done.stderr.decode().strip()}")
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)  # a store may still be open


@pytest.mark.parametrize("size", ["4k", "16k", "64k", "200k"])
def test_a_full_disk_leaves_nothing_half_written(
    command: Command, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    disk = small_disk(size)
    monkeypatch.setenv("OVO_CLINIC_HOME", str(disk / "home"))
    assert_refused(command("prepare", "simulation", "data.samples=3000"), "No space left on device")
    assert left_behind(disk) == [] and not list(disk.rglob("*.partial"))


def test_a_full_disk_while_a_synthetic_folder_is_written(command: Command, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("300k")
    assert_refused(command("synth", "eicu", "--out", disk / "raw", "--patients", "300"), "No space left on device")
    assert list(disk.iterdir()) == []


def test_a_full_disk_while_tables_are_exported(command: Command, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("32k")
    answer = command("export", "simulation", "data.samples=3000", "--out", disk / "tables")
    assert_refused(answer, "No space left on device")
    assert list(disk.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("free", [20, 300, 900])
def test_a_full_disk_while_a_model_is_trained(
    command: Command, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """The store and the data are there; what is left of the disk, in KiB, does not hold a run."""
    disk = small_disk("20m")
    monkeypatch.setenv("OVO_CLINIC_HOME", str(disk / "home"))
    assert command("train", *SMALL).code == 0
    available = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, available.f_bavail * available.f_frsize - free * 1024)))
    answer = command("train", *SMALL, "seed=7", "model.dim=128")
    assert_refused(answer, "No space left on device|disk is full")
    filler.unlink()
    assert command("train", *SMALL, "seed=7", "model.dim=128").code == 0


HOMES: dict[str, Callable[[Path], Path]] = {
    "a file": lambda folder: _made(folder / "home", Path.touch),
    "inside a file": lambda folder: _made(folder / "home", Path.touch) / "home",
    "a loop of symbolic links": lambda folder: _made(folder / "home", lambda path: path.symlink_to(path)),
    "of a user who is none": lambda folder: Path("~nobody-of-this-name"),
    "a name too long": lambda folder: folder / ("x" * 300),
    "a device": lambda folder: Path("/dev/null"),
    "no name for an address": lambda folder: folder / "mine?",
    "one that an address changes": lambda folder: folder / "50%20",
}


def _made(path: Path, make: Callable[[Path], object]) -> Path:
    make(path)
    return path


@pytest.mark.parametrize("case", HOMES)
def test_a_home_that_cannot_be_one(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(HOMES[case](tmp_path)))
    assert_refused(command("prepare", *SMALL), "OVO_CLINIC_HOME: ")


RAW: dict[str, Callable[[Path], Path]] = {
    "nowhere": lambda folder: folder / "nowhere",
    "a file": lambda folder: _made(folder / "raw", Path.touch),
    "empty": lambda folder: _made(folder / "raw", Path.mkdir),
    "a loop of symbolic links": lambda folder: _made(folder / "raw", lambda path: path.symlink_to(path)),
    "of a user who is none": lambda folder: Path("~nobody-of-this-name"),
    "a name too long": lambda folder: folder / ("x" * 300),
    "a device": lambda folder: Path("/dev/null"),
}


@pytest.mark.parametrize("task", ["eicu_mortality_24h", "mimic_phenotyping", "tadpole_clean"])
@pytest.mark.parametrize("case", RAW)
def test_a_raw_folder_that_is_none(command: Command, tmp_path: Path, task: str, case: str) -> None:
    assert_refused(command("prepare", task, "--raw", RAW[case](tmp_path)), "raw|has no|nobody-of-this-name")
    assert left_behind(tmp_path / "home") == []


def test_files_named_by_their_errors() -> None:
    """Not every error of the system is a mistake of the user: a missing file may be a fault of the program."""
    from ovo_clinic.errors import of_the_machine

    assert of_the_machine(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "here")) is not None
    assert of_the_machine(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "here")) is None
    assert of_the_machine(KeyError("OSError")) is None
