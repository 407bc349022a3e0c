"""The command line as a user meets it: exit codes, one line for a mistake, Ctrl-C, lists, nothing of a patient."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ovo_clinic import cli, verbs
from tests.small_data import FIRST_UNIT, PERSON, QUICK, SIMULATION, flat_files

SCRIPT = Path(sys.executable).with_name("ovo-clinic")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def shell(home: Path, tmp_path: Path) -> Callable[..., Answer]:
    """Runs the installed command in a process of its own: for what needs no heavy import."""

    def run(*words: str) -> Answer:
        done = subprocess.run([SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def lasting_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for many commands, as making an MLflow store takes seconds."""
    return tmp_path_factory.mktemp("command") / "home"


@pytest.fixture
def command(
    lasting_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Runs the command inside this process, where the heavy libraries are loaded once."""
    monkeypatch.setenv("OVO_CLINIC_HOME", str(lasting_home))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["ovo-clinic", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        found = capsys.readouterr()
        return Answer(int(ended.value.code or 0), found.out, found.err)

    return run


def is_one_line(answer: Answer, message: str) -> None:
    assert (answer.code, answer.out) == (2, ""), answer
    assert re.fullmatch(r"error: [^\n]+\n", answer.err), answer.err
    assert message in answer.err


SEPARATELY = {
    "tran simulation": "No such command 'tran'. Did you mean 'train'?",
    "compare simulation --seeds 0": "'--seeds': Input should be greater than or equal to 1",
    "prepare simulation training.epoch=3": "training.epoch: no such setting; did you mean 'epochs'?",
    "prepare eicu_mortality_24h --raw nowhere": "--raw: nowhere is not a folder",
    "export eicu_mortality_24h --out out": "is not prepared in",
}
TOGETHER = {
    "prepare": "Missing argument 'task'",
    "compare simulation --seed 3": "No such option: --seed",
    "compare simulation --workers 0": "'--workers'",
    "list heads": "'heads' is not one of 'fusion'",
    "prepare eicu_mortality": "'eicu_mortality' is not known; did you mean 'eicu_mortality_24h'?",
    "prepare nothing.yaml": "nothing.yaml does not exist",
    "synth mimic --out x verson=3.1": "verson: no such setting; did you mean 'version'?",
    "prepare simulation data.sample=3": "data.sample: no such setting; did you mean 'samples'?",
    "prepare simulation training.epochs=many": "training.epochs: 'many': input should be a valid integer",
    "prepare simulation training.learning_rate=-1": "training.learning_rate: -1: input should be greater than 0",
    "prepare simulation epochs": "'epochs': should look like key=value",
    "prepare eicu_mortality_24h --raw empty": "patient.csv",
    "prepare eicu_mortality_24h": "is not prepared in",
}
SMALL = " ".join(("simulation", *SIMULATION))
COMPARING = {
    f"compare {SMALL} --fusion concat,ovoo": "fusion head 'ovoo' is not known; did you mean 'ovo'?",
    f"compare {SMALL} --fusion ,": "compare.fusion: ",
    f"compare {SMALL} --fusion self_attention_reference": "model.allow_unsafe=true",
    f"compare {SMALL} --fusion concat model.fusion.tokns=8": "model.fusion.tokns: no such setting; did you mean",
    f"compare {SMALL} --fusion ovo model.fusion.tokens=1": "tokens: ovo needs at least 2",
    f"compare {SMALL} --pattern natural": "--pattern: says what goes missing together; give --missing, too",
    "flops --paper --fusion ovo": "flops: --paper counts the published heads; leave out",
    f"compare {SMALL} --tracking-uri http://mlflow.example.org": "--allow-remote-tracking",
    f"train {SMALL} --tracking-uri sqlite:///text.db": "text.db cannot be opened",
    f"train {SMALL} --tracking-uri nonsense://": "--tracking-uri: ",
}


@pytest.mark.parametrize("words", SEPARATELY)
def test_a_mistake_is_one_line_and_code_2(shell: Callable[..., Answer], words: str) -> None:
    is_one_line(shell(*words.split()), SEPARATELY[words])


@pytest.mark.parametrize("words", TOGETHER | COMPARING)
def test_further_mistakes(command: Callable[..., Answer], tmp_path: Path, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.db").write_text("this is no database, however long one looks at it " * 40)
    is_one_line(command(*words.split()), (TOGETHER | COMPARING)[words])


def test_synth_takes_the_options_of_its_data_set(shell: Callable[..., Answer], tmp_path: Path) -> None:
    answer = shell("synth", "mimic", "--out", "raw", "--patients", "3", "version=3.1", "cxr=none", "notes=false")
    assert answer.code == 0, answer.err
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {"SYNTHETIC.json", "iv", "oracle.csv.gz"}
    size = sum(path.stat().st_size for path in (tmp_path / "raw" / "iv").rglob("*") if path.is_file())
    assert f"raw/iv  {size:,} bytes\n" in answer.out
    assert json.loads((tmp_path / "raw" / "SYNTHETIC.json").read_text())["options"]["version"] == "3.1"


def test_export_overwrites_nothing(shell: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    is_one_line(shell("export", "simulation", "data.samples=100", "--out", "out"), "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_home_that_cannot_be_made_is_a_mistake(
    shell: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path / "file" / "home"))
    is_one_line(shell("prepare", "simulation", "data.samples=100"), "OVO_CLINIC_HOME: ")


def test_without_a_command_the_help_is_shown(shell: Callable[..., Answer]) -> None:
    bare, asked = shell(), shell("--help")
    assert bare.code == asked.code == 0 and bare.err == asked.err == ""
    assert bare.out.split() == asked.out.split()
    for name in ("demo", "synth", "prepare", "export", "new-dataset", "train", "compare", "list"):
        assert re.search(rf"^  {name} +\w.*\.$", asked.out, re.MULTILINE), name
    assert "..." not in asked.out.partition("Commands:")[2], "a description is cut off"


LISTS = {
    "fusion": {"concat", "self_attention", "cross_attention", "ovo", "ovo_reference", "bottleneck", "late"},
    "baselines": {"logistic", "gradient_boosting"},
    "attention": {"softmax"},
    "encoders": {"mlp"},
    "datasets": {"eicu", "simulation"},
    "configs": {"eicu_mortality_24h", "eicu_paper", "simulation"},
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_have_one_line_each(shell: Callable[..., Answer], kind: str) -> None:
    answer = shell("list", kind)
    assert (answer.code, answer.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in answer.out.splitlines()]
    assert LISTS[kind] <= {name for name, _ in lines}
    assert all(len(line) == 2 and len(line[1]) > 15 for line in lines)


def test_nothing_of_a_patient_is_printed(command: Callable[..., Answer], tmp_path: Path) -> None:
    config = str(flat_files(tmp_path / "files", "binary"))
    raw = ("--raw", str(tmp_path / "files" / "raw"))
    settings = [*QUICK, "split.train=0.6", "split.test=0.3"]
    answers = [
        command("prepare", config, *settings, *raw),
        command("export", config, *settings, "--out", str(tmp_path / "out")),
        command("train", config, *settings),
        command("compare", config, *settings, "--fusion", "concat,ovo", "--seeds", "1", "--workers", "1"),
    ]
    assert [answer.code for answer in answers] == [0, 0, 0, 0]
    assert "240 units" in answers[0].out and "[made-up] stays" in answers[0].out
    assert "AUROC" in answers[3].out and "mlflow ui --backend-store-uri sqlite:///" in answers[3].out
    stays = tmp_path / "files" / "raw" / "stays.csv"
    stays.write_text(stays.read_text() + stays.read_text().splitlines()[1] + "\n")
    answers.append(command("prepare", config, *settings, *raw))
    is_one_line(answers[-1], "stay_id")
    for answer in answers:
        assert PERSON not in answer.out + answer.err
        assert str(FIRST_UNIT)[:6] not in answer.out + answer.err


def _finished(home: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (home / "runs").glob("*/result.json")}


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["data.samples=200", "data.modalities=3", "model.dim=8", "training.epochs=25", "training.patience=25"]
    words = [SCRIPT, "compare", "simulation", *settings, "--fusion", "concat,ovo", "--seeds", "3", "--workers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    process = subprocess.Popen(words, start_new_session=True, **pipes)
    deadline = time.monotonic() + 240
    while not _finished(home) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert re.fullmatch(r"interrupted; [^\n]+\n", err)
    kept = _finished(home)
    assert 1 <= len(kept) < 6
    with pytest.raises(ProcessLookupError):
        _wait_for_the_end_of(process.pid)

    again = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert kept.items() <= _finished(home).items() and len(_finished(home)) == 6
    (table,) = (home / "studies").glob("*/table.csv")
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path / "undisturbed"))
    study = verbs.compare("simulation", settings, fusion=["concat", "ovo"], seeds=3, workers=2)
    assert (study.comparison.folder / "table.csv").read_bytes() == table.read_bytes()


def _wait_for_the_end_of(group: int) -> None:
    """Returns after 10 s at the latest.

    Raises:
        ProcessLookupError: no process of the group is left.
    """
    for _ in range(100):
        os.killpg(group, 0)
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_ends_train_with_code_130(home: Path, tmp_path: Path) -> None:
    words = [SCRIPT, "train", "simulation", *SIMULATION, "training.epochs=100000", "training.patience=100000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(home.glob("runs/*/checkpoints/last.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"interrupted; [^\n]+\n", err)
