"""Synthetic raw folders, the command line inside this process, and what every refusal has in common."""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ovo_clinic import cli
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import SYNTHETIC
from tests.bad_input.raw_files import CANARY, Change, linked, state
from tests.small_data import flat_files


@dataclass(frozen=True)
class Answer:
    """What a command came to; anything but an exit code of its own is a traceback, and fails the test."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line inside this process, with a state of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["ovo-clinic", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        found = capsys.readouterr()
        return Answer(int(ended.value.code or 0), found.out, found.err)

    return run


@dataclass(frozen=True)
class Source:
    """An undisturbed raw folder, what `prepare` makes of it, and ids of its patients that no message may show."""

    folder: Path
    task: str
    prepared: Prepared
    ids: frozenset[str]


class Broken:
    """A raw folder with one thing wrong, and what `prepare` makes of it."""

    def __init__(self, source: Source, change: Change, command: Command, tmp_path: Path) -> None:
        self.source, self.home = source, tmp_path / "home"
        self.folder = linked(source.folder, tmp_path / "raw")
        change(self.folder)
        before = state(self.folder)
        self.answer = command("prepare", source.task, "--raw", self.folder)
        assert state(self.folder) == before, "the raw folder was changed"
        told = re.findall(r"[\w-]+", self.answer.out + self.answer.err)
        assert not source.ids.intersection(told) and CANARY not in told, self.answer

    @property
    def prepared(self) -> Prepared:
        """What was prepared."""
        assert self.answer.code == 0, self.answer
        folders = [manifest.parent for manifest in self.home.glob("cache/*/*/manifest.json")]
        assert folders and not any(folder.suffix == ".partial" for folder in folders)
        # TADPOLE's task is also prepared under the options that are shown beside its own.
        options = self.source.prepared.manifest["options"]
        (found,) = (data for data in map(Prepared.open, folders) if data.manifest["options"] == options)
        return found

    def assert_refused(self, message: str) -> None:
        """One line on the mistake, and nothing left of the attempt."""
        assert_refused(self.answer, message)
        assert left_behind(self.home) == []

    def assert_same(self, but: Iterable[str] = ()) -> None:
        """The arrays of the undisturbed folder, to the last bit."""
        assert_same(self.prepared, self.source.prepared, but)


def assert_refused(answer: Answer, message: str) -> None:
    """Exit code 2 and one line that says so."""
    assert (answer.code, answer.out) == (2, ""), answer
    assert re.fullmatch(r"error: [^\n]+\n", answer.err), answer.err
    assert re.search(message, answer.err), answer.err
    assert len(answer.err) < 1000


def left_behind(home: Path) -> list[str]:
    """Files of a home other than empty locks."""
    return [str(path) for path in home.rglob("*") if path.is_file() and path.stat().st_size]


def assert_same(found: Prepared, expected: Prepared, but: Iterable[str] = ()) -> None:
    """Equal cohort, split and arrays, but for some modalities."""
    assert found.cohort.equals(expected.cohort)
    assert found.split.tolist() == expected.split.tolist()
    assert found.modalities == expected.modalities
    for name in set(found.modalities) - set(but):
        if found.manifest["modalities"][name]["kind"] == "text":
            assert found.texts(name).equals(expected.texts(name))
            continue
        ours, theirs = found.array(name), expected.array(name)
        assert ours.columns == theirs.columns, name
        for part in ("values", "present", "offsets", "index"):
            np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part), err_msg=f"{name} {part}")


@pytest.fixture
def broken(command: Command, tmp_path: Path) -> Callable[[Source, Change], Broken]:
    """A raw folder with one thing wrong, prepared."""
    return lambda source, change: Broken(source, change, command, tmp_path)


def _source(folder: Path, task: str) -> Source:
    """Prepares `folder / raw`."""
    from ovo_clinic import experiment
    from ovo_clinic.prepare import prepare_task

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        prepared = prepare_task(experiment.load(task), folder / "raw")
    ids = {str(value) for name in ("unit_id", "patient_id") for value in prepared.cohort[name]}
    return Source(folder / "raw", task, prepared, frozenset(found for found in ids if len(found) > 5))


@pytest.fixture(scope="session")
def eicu(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """eICU: six files of 80 people."""
    folder = tmp_path_factory.mktemp("eicu")
    SYNTHETIC.build("eicu", folder / "raw", options={"patients": 80, "seed": 3, "lab_rows_per_stay": 30})
    return _source(folder, "eicu_mortality_24h")


@pytest.fixture(scope="session")
def mimic(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """MIMIC-IV of 30 people, with DICOM X-rays and notes."""
    folder = tmp_path_factory.mktemp("mimic")
    options = {"patients": 30, "chart_rows_per_stay": 60, "lab_rows_per_stay": 30, "cxr": "dicom", "image_pixels": 64}
    SYNTHETIC.build("mimic", folder / "raw", options=options)
    return _source(folder, "mimic_phenotyping")


@pytest.fixture(scope="session")
def tadpole(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """TADPOLE: one file of 1,907 columns and 40 people."""
    folder = tmp_path_factory.mktemp("tadpole")
    SYNTHETIC.build("tadpole", folder / "raw", options={"patients": 40})
    return _source(folder, "tadpole_clean")


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A private data set in two flat files."""
    folder = tmp_path_factory.mktemp("flat")
    return _source(folder, str(flat_files(folder, "binary")))
