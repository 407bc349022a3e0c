"""What the doctor says of folders that are well, lack something, are cut off, or are another release."""

import gzip
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from ovo_clinic import resources
from ovo_clinic.doctor import Check, contents, examine, files, machine
from ovo_clinic.doctor.contents import read_through
from ovo_clinic.doctor.releases import release_checks
from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.settings import TrainingConfig
from tests.small_data import flat_files

CPU = ("training.accelerator=cpu",)


@pytest.fixture(scope="module")
def eicu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "eicu"
    SYNTHETIC.get("eicu")(folder, patients=60, seed=0)
    return folder


@pytest.fixture
def copy(eicu: Path, tmp_path: Path) -> Path:
    """A folder with the same files that a test may change."""
    folder = tmp_path / "2.0"
    folder.mkdir()
    for file in eicu.glob("*.csv.gz"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def told(checks: Sequence[Check], state: str) -> dict[str, str]:
    return {check.subject: check.told for check in checks if check.state == state}


def test_a_folder_that_is_well(eicu: Path, home: Path) -> None:
    checks = examine("eicu_mortality_24h", CPU, raw=eicu)
    assert told(checks, "wrong") == {}
    well = told(checks, "ok")
    rows = pl.read_csv(eicu / "patient.csv.gz", infer_schema=False).height
    assert f", {rows:,} rows, " in well["patient.csv.gz"] and "read to its end" in well["patient.csv.gz"]
    assert set(well) >= {"raw folder", "lab.csv.gz", "apacheApsVar.csv.gz", "disk", "memory", "OVO_CLINIC_HOME", "CPU"}
    assert "of no release known here" in told(checks, "note")["release"]


def test_everything_that_is_wrong_is_told_at_once(copy: Path, home: Path) -> None:
    (copy / "treatment.csv.gz").unlink()
    for name, content in {
        "lab.csv.gz": (copy / "lab.csv.gz").read_bytes()[:-3000],
        "diagnosis.csv.gz": gzip.compress(b"<html>please log in</html>"),
        "medication.csv.gz": gzip.compress(b"patientunitstayid,drugname\n1,x\n"),
    }.items():
        (copy / name).write_bytes(content)
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    wrong = told(examine("eicu_mortality_24h", CPU, raw=copy), "wrong")
    assert set(wrong) == {"treatment", "lab.csv.gz", "diagnosis", "medication", "OVO_CLINIC_HOME"}
    assert "has no file treatment.csv or treatment.csv.gz" in wrong["treatment"]
    assert "is cut off or damaged" in wrong["lab.csv.gz"]
    assert "is a web page" in wrong["diagnosis"]
    assert "has no column drugorderoffset" in wrong["medication"]
    assert f"run: chmod 700 {home}" in wrong["OVO_CLINIC_HOME"]


def test_large_files_are_sampled_unless_all_is_asked_for(
    copy: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHEAP", 1000)
    sampled = told(examine("eicu_mortality_24h", CPU, raw=copy), "ok")["lab.csv.gz"]
    assert "sampled at start, middle and end; rows not counted" in sampled
    full = told(examine("eicu_mortality_24h", CPU, raw=copy, full=True), "ok")["lab.csv.gz"]
    assert f"{pl.read_csv(copy / 'lab.csv.gz', infer_schema=False).height:,} rows" in full
    lab = copy / "lab.csv.gz"
    lab.write_bytes(lab.read_bytes()[:-3000])
    cut = told(examine("eicu_mortality_24h", CPU, raw=copy), "wrong")
    assert cut == {"lab.csv.gz": f"{lab}: is cut off; copy or download the file again"}
    header, _, rows = gzip.decompress((copy / "patient.csv.gz").read_bytes()).partition(b"\n")
    (copy / "patient.csv.gz").unlink()
    (copy / "patient.csv").write_bytes(header + b"\n" + rows * 20 + bytes(1 << 17) + rows * 20)
    assert "holds zeros in place of data" in told(examine("eicu_mortality_24h", CPU, raw=copy), "wrong")["patient.csv"]


def test_the_publishers_checksums_are_compared(copy: Path, home: Path) -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in copy.glob("*.csv.gz")}
    digests["lab.csv.gz"] = "0" * 64
    (copy / "SHA256SUMS.txt").write_text("".join(f"{digest} {name}\n" for name, digest in digests.items()))
    wrong = told(examine("eicu_mortality_24h", CPU, raw=copy), "wrong")
    assert set(wrong) == {"lab.csv.gz"} and "is not the published file" in wrong["lab.csv.gz"]


def test_releases_are_told_by_their_rows() -> None:
    releases = {"1.0": {"patient": 10, "lab": 70}, "2.0": {"patient": 12, "lab": 80, "drug": 5}}
    names = {"patient": "patient.csv.gz", "lab": "lab.csv", "drug": "drug.csv"}
    assert release_checks(releases, {"patient": 12, "drug": 5}, names) == [
        Check("ok", "release", "2.0, by the rows of patient, drug")
    ]
    cut = release_checks(releases, {"patient": 10, "lab": 69}, names)
    assert cut[0] == Check("ok", "release", "1.0, by the rows of patient")
    assert cut[1].subject == "lab.csv" and cut[1].told.startswith("69 rows where 1.0 has 70")
    assert [check.state for check in release_checks(releases, {"patient": 11}, names)] == ["note"]
    assert release_checks(releases, {"other": 1}, names) == release_checks({}, {"patient": 1}, names) == []


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b"a,b\n1,2\n3,4\n", 2),
        (b"a,b\r\n1,2\r\n3,4", 2),
        (b'a,b\n1,"two\nlines, ""quoted"" and\nmore"\n3,4\n', 2),
        (b"a,b\n", 0),
        (b"", 0),
    ],
)
def test_rows_and_checksum_of_a_file_read_through(text: bytes, rows: int, tmp_path: Path) -> None:
    for name, content in {"t.csv": text, "t.csv.gz": gzip.compress(text)}.items():
        file = tmp_path / name
        file.write_bytes(content)
        found = read_through(file)
        assert (found.rows, found.sha256) == (rows, hashlib.sha256(content).hexdigest())


def test_quotes_across_pieces_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_PIECE", 7)
    file = tmp_path / "notes.csv"
    pl.DataFrame({"id": range(200), "text": [f'line\n"{n}"\n\n' * (n % 5) for n in range(200)]}).write_csv(file)
    assert read_through(file).rows == pl.read_csv(file).height == 200


def test_parquet_is_counted(tmp_path: Path) -> None:
    pl.DataFrame({"a": range(17)}).write_parquet(tmp_path / "t.parquet")
    assert read_through(tmp_path / "t.parquet").rows == 17


def test_the_open_demo_of_eicu(shared: Path, home: Path) -> None:
    """Its laboratory table is a part of the published one: the doctor finds that, and nothing else."""
    checks = examine("eicu_mortality_24h", CPU, raw=shared / "data" / "eicu-demo")
    assert told(checks, "ok")["release"].startswith("demo of eICU 2.0, by the rows of patient, diagnosis")
    assert told(checks, "wrong") == {
        "lab.csv.gz": "29,961 rows where demo of eICU 2.0 has 434,660; copy or download the file again"
    }


def test_the_open_demo_of_mimic(shared: Path, home: Path) -> None:
    """Its chart events were made anew: checksum and number of rows tell."""
    checks = examine("mimic_mortality_48h", CPU, raw=shared / "data" / "mimic-iv-demo")
    assert told(checks, "ok")["release"].startswith("demo of MIMIC-IV 2.2, by the rows of patients, admissions")
    wrong = [check for check in checks if check.state == "wrong"]
    assert {check.subject for check in wrong} == {"chartevents.csv.gz"} and len(wrong) == 2
    assert "download 'cxr'" in told(checks, "note") and "download 'note'" in told(checks, "note")


def test_tadpole_and_flat_files(tmp_path: Path, home: Path) -> None:
    SYNTHETIC.get("tadpole")(tmp_path / "tadpole", patients=30, seed=0)
    assert told(examine("tadpole_clean", CPU, raw=tmp_path / "tadpole"), "wrong") == {}
    config = flat_files(tmp_path / "flat", "binary")
    assert told(examine(str(config), CPU, raw=tmp_path / "flat" / "raw"), "wrong") == {}
    (tmp_path / "flat" / "raw" / "labs.csv").unlink()
    assert "labs" in told(examine(str(config), CPU, raw=tmp_path / "flat" / "raw"), "wrong")


def test_a_data_set_without_raw_files(home: Path) -> None:
    assert told(examine("simulation", CPU), "wrong") == {}
    with pytest.raises(UserError, match="--raw: data set 'eicu' has raw files"):
        examine("eicu_mortality_24h")
    with pytest.raises(UserError, match="is not a folder"):
        examine("eicu_mortality_24h", raw=home / "nowhere")


def test_space(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "raw.csv.gz"
    with file.open("wb") as stream:
        stream.truncate(1 << 43)
    wrong = told(machine.space_checks([file]), "wrong")
    assert "set OVO_CLINIC_HOME to a larger disk" in wrong["disk"]
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 20)
    assert "1 MB free" in told(machine.space_checks([]), "wrong")["memory"]


def test_a_control_groups_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(machine, "_CGROUP", ((limit, used),))
    unlimited = machine.available_memory()
    limit.write_text("max\n")
    used.write_text("1000\n")
    assert machine.available_memory() == pytest.approx(unlimited, rel=0.3)
    limit.write_text("6000\n")
    assert machine.available_memory() == 5000


def test_a_gpu_that_is_asked_for_and_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    wrong = told(examine("simulation", ["training.accelerator=gpu"]), "wrong")
    assert "set training.accelerator=cpu" in wrong["GPU"]
    assert "GPU" in told(examine("simulation"), "note")


@pytest.mark.parametrize(
    ("able", "precision", "state"),
    [(True, "bf16-mixed", "ok"), (False, "bf16-mixed", "wrong"), (False, "32-true", "note")],
)
def test_a_gpu_and_what_it_computes_in(able: bool, precision: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of torch are made up: there need be no GPU."""
    import torch

    found = SimpleNamespace(name="H200", total_memory=141 << 30)
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda number: found,
        "is_bf16_supported": lambda including_emulation: able,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    checks = machine.processor_checks(TrainingConfig(accelerator="gpu", precision=precision))
    assert told(checks, "ok")["GPU"] == "H200, 141.0 GB"
    assert "bf16" in told(checks, state)


def test_checkpoints_are_loaded(tmp_path: Path, home: Path) -> None:
    from tests.tiny_models import tiny_bert

    folder = tiny_bert(tmp_path / "bert")
    encoder = "model.encoders.text={name: text, checkpoint: " + str(folder) + "}"
    raw = tmp_path / "mimic"
    SYNTHETIC.get("mimic")(raw, patients=5, seed=0)
    good = examine("mimic_phenotyping", [*CPU, encoder], raw=raw)
    assert "loads (Bert" in told(good, "ok")["encoder of text"]
    (next(folder.glob("*.safetensors"))).write_bytes(b"cut")
    bad = told(examine("mimic_phenotyping", [*CPU, encoder], raw=raw), "wrong")
    assert set(bad) == {"encoder of text"} and "cannot be read" in bad["encoder of text"]
    compared = "compare.encoders={text: [{label: mine, encoder: {name: text, checkpoint: nowhere}}]}"
    wrong = told(examine("mimic_phenotyping", [*CPU, encoder, compared], raw=raw), "wrong")
    assert "no config.json" in wrong["encoder mine of text"]
    absent = "model.encoders.text={name: text, checkpoint: nowhere}"
    assert "no config.json" in told(examine("mimic_phenotyping", [*CPU, absent], raw=raw), "wrong")["encoder of text"]


@pytest.mark.parametrize(("name", "option"), [("precomputed", "file"), ("text", "checkpoint")])
def test_a_home_folder_of_nobody_is_told(name: str, option: str, home: Path) -> None:
    encoder = f"model.encoders.default={{name: {name}, {option}: ~nobody_at_all/there}}"
    wrong = told(examine("simulation", [*CPU, encoder]), "wrong")
    assert wrong and all("~nobody_at_all/there: there is no user of this name" in line for line in wrong.values())


def test_a_home_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    wrong = told(machine.home_checks(), "wrong")["OVO_CLINIC_HOME"]
    assert "cannot be written" in wrong
    monkeypatch.undo()
    assert resources.home().is_dir()


def test_the_command_tells_line_by_line(copy: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ovo_clinic import cli

    words = ["doctor", "eicu_mortality_24h", *CPU, "--raw", str(copy)]
    assert cli.app(words, standalone_mode=False) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "Nothing stands in the way."
    assert {line[:5] for line in lines} == {"ok   ", "note "}
    (copy / "lab.csv.gz").unlink()
    assert cli.app(words, standalone_mode=False) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"1 of {len(lines)} are not as they should be"
    assert [line for line in lines if line.startswith("WRONG  lab: ")]
