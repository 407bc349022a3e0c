"""Configs, specs, options, split lists and checkpoints with one thing wrong."""

import pickle
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.bad_input.conftest import Command, Source, assert_refused, left_behind
from tests.bad_input.raw_files import CANARY
from tests.small_data import SIMULATION, flat_files

OPTIONS = {
    "simulation.yml": "'simulation.yml' is not known",
    "simulation data.samples=-3": "data.samples: -3: ",
    "simulation data.samples=many": "data.samples: 'many': ",
    "simulation data.samples=3000000000000000000000": "data.samples: ",
    "simulation data=3": "data: 3: input should be a valid dictionary",
    "simulation data=[1]": "data: ",
    "simulation model=": "model: ",
    "simulation model.dim=64.5": "model.dim: 64.5: ",
    "simulation model.dim=nan": "model.dim: ",
    "simulation .=3": "no such setting",
    "simulation training..epochs=3": "training.: no such setting",
    "simulation training.learning_rate=.inf": "training.learning_rate: inf: ",
    "simulation training.learning_rate=0": "training.learning_rate: 0: ",
    "simulation training.imbalance=weights": "training.imbalance: 'weights': input should be 'none', ",
    "simulation training.epochs=2020-13-45": "the value is not valid YAML",
    "simulation training.epochs=0x_": "the value is not valid YAML",
    f"simulation training.epochs={'[' * 500}": "the value is not valid YAML",
    f"simulation training.epochs={'9' * 5000}": "the value is not valid YAML",
    "simulation training.epochs={a:": "the value is not valid YAML",
    "simulation training.epochs=!!python/object/apply:os.getcwd": "the value is not valid YAML",
    "simulation {epochs: 3}": "should look like key=value",
    "simulation =3": "should look like key=value",
    "simulation seed=-1": "seed: -1: ",
    "simulation seed=99999999999999999999": "seed: ",
    "simulation split.seed=-1": "split.seed: -1: ",
    "simulation split.train=0.9": "split: train, validation and test should sum to 1",
    "simulation split.folds=1": "split.folds: 1: ",
    "simulation split.fold=7": "split: fold: 7 is not one of folds",
    "simulation split.by=ward": "split.by: the cohort has no column 'ward'",
    "simulation split.whole_patients=false split.stratify=false": "only a task marked `leaky` may",
    "simulation dataset=simulatoin": "'simulatoin' is not known; did you mean 'simulation'",
    "simulation dataset=nowhere.yaml": "nowhere.yaml does not exist",
    "simulation task=simulations": "has no task 'simulations'; valid: simulation",
    "simulation folder=/tmp": "folder: is the config's own",
    "simulation --memory nonsense": "--memory: 'nonsense' should be a size",
    "simulation --memory -4GB": "--memory",
    "simulation --memory 4XB": "--memory: '4XB' should be",
    "simulation --memory 0.0001": "--memory: '0.0001' should be",
    f"simulation --memory {'9' * 400}T": "--memory: ",
    f"{'x' * 300}.yaml": "does not exist|File name too long",
    f"{'x' * 300}": "is not known|File name too long",
    "~nobody-of-this-name/mine.yaml": "does not exist",
    "eicu_mortality_24h data.prediction_hours=3 --raw .": "has no file patient.csv|at 24 or later",
    "mimic_phenotyping data.timestep_hours=1e-9 --raw .": "data.timestep_hours: 1e-09: |has no file",
    "simulation --split-lists nowhere.csv": "--split-lists: .*nowhere.csv cannot be read",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_options(command: Command, tmp_path: Path, words: str) -> None:
    given = words.split() if "{epochs" not in words else ["simulation", "{epochs: 3}"]
    assert_refused(command("prepare", *given), OPTIONS[words])
    assert left_behind(tmp_path / "home") == []


YAMLS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "should hold settings as `key: value` lines; it holds nothing"),
    "blank": (b"\n# nothing\n", "it holds nothing"),
    "a list": (b"- dataset\n- task\n", "it holds a list"),
    "a text": (b"dataset\n", "it holds a str"),
    "no yaml": (b"dataset: [simulation\n", "is not valid YAML"),
    "tabs": (b"dataset: simulation\nmodel:\n\tdim: 3\n", "is not valid YAML"),
    "web page": (b"<html>\n<body>: {</body></html>\n", "is not valid YAML|it holds"),
    "latin-1": ("dataset: simulation\n# caf\xe9\n".encode("latin-1"), "is not valid YAML|is not UTF-8"),
    "utf-16": ("dataset: simulation\n".encode("utf-16"), "is not UTF-8|is not valid YAML"),
    "binary": (bytes(range(256)), "is not valid YAML|is not UTF-8"),
    "a date that is none": (b"dataset: simulation\nseed: 2020-13-45\n", "is not valid YAML"),
    "an object of python": (b"dataset: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    "too deep": (b"dataset: " + b"[" * 500, "is not valid YAML"),
    "a key twice": (b"dataset: simulation\nseed: 1\nseed: 2\n", "'seed' stands twice"),
    "a key twice inside": (b"dataset: simulation\ntraining:\n  epochs: 1\n  epochs: 2\n", "'epochs' stands twice"),
    "a number as key": (b"dataset: simulation\n3: 4\n", "3: no such setting|3: "),
    "a null as key": (b"dataset: simulation\n~: 4\n", "no such setting|None: "),
    "a key that is a list": (b"dataset: simulation\n? [a]\n: 4\n", "is not valid YAML"),
    "no data set": (b"task: simulation\n", "dataset: is required and not given"),
    "data set of another type": (b"dataset: [simulation]\n", "dataset: "),
    "misspelt": (b"dataset: simulation\ntraning: {epochs: 3}\n", "traning: no such setting; did you mean 'training'"),
    "itself": (b"dataset: mine.yaml\n", "mine.yaml: .*no such setting|is required"),
    "an anchor in itself": (b"dataset: simulation\ntraining: &a {epochs: *a}\n", "training.epochs: |is not valid YAML"),
}


@pytest.mark.parametrize("case", YAMLS)
def test_config_files(command: Command, tmp_path: Path, case: str) -> None:
    content, message = YAMLS[case]
    (tmp_path / "mine.yaml").write_bytes(content)
    assert_refused(command("prepare", "mine.yaml"), message)


def test_a_folder_that_ends_like_a_config(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").mkdir()
    assert_refused(command("prepare", "mine.yaml"), "mine.yaml does not exist|is a folder")


def test_a_loop_of_symbolic_links_as_config(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").symlink_to("mine.yaml")
    assert_refused(command("prepare", "mine.yaml"), "mine.yaml does not exist")


Spec = dict[str, object]
SPECS: dict[str, tuple[Callable[[Spec], object], str]] = {
    "no table": (lambda spec: spec.update(tables={}), "no table 'stays'"),
    "a type that is none": (
        lambda spec: spec["tables"]["stays"]["columns"].update(age="float"),  # type: ignore[index]
        "tables.stays.columns.age: 'float': input should be 'integer', 'number' or 'text'",
    ),
    "a pipeline that is none": (lambda spec: spec.update(pipeline="flat_file"), "did you mean 'flat_files'"),
    "a pipeline that is no Python": (lambda spec: spec.update(pipeline="broken.py"), "broken.py, line 2: SyntaxError"),
    "a pipeline without tables": (lambda spec: spec.update(pipeline="blank.py"), "has no function 'tables'"),
    "a pipeline that fails": (lambda spec: spec.update(pipeline="fails.py"), "fails.py, line 2: ZeroDivisionError"),
    "modalities without a name": (lambda spec: spec.update(modalities={}), "data.modalities: "),
    "tasks that are a list": (lambda spec: spec.update(tasks=["ward"]), "tasks: "),
    "a list that is not there": (lambda spec: spec.update(lists={"codes": "codes.csv"}), "codes.csv cannot be read"),
    "a list that is no text": (lambda spec: spec.update(lists={"codes": "binary.csv"}), "binary.csv cannot be read"),
    "a list of one long cell": (lambda spec: spec.update(lists={"codes": "long.csv"}), "long.csv cannot be read"),
    "a list that is a folder": (lambda spec: spec.update(lists={"codes": "raw"}), "raw cannot be read"),
    "lists of another type": (lambda spec: spec.update(lists=["codes.csv"]), "lists: "),
    "a banned feature": (lambda spec: spec.update(banned=["age"]), "'age' is an id, a label or banned"),
    "a key that is none": (lambda spec: spec.update(tabels={}), "tabels: no such setting; did you mean 'tables'"),
    "a file outside": (
        lambda spec: spec["tables"]["stays"].update(file="../../stays"),  # type: ignore[index]
        r"has no file \.\./\.\./stays\.csv",
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_spec_files(command: Command, tmp_path: Path, case: str) -> None:
    change, message = SPECS[case]
    config = flat_files(tmp_path / "private", "binary", stays=30)
    path = config.with_name("ward.spec.yaml")
    spec = yaml.safe_load(path.read_text())
    change(spec)
    path.write_text(yaml.safe_dump(spec))
    (path.parent / "broken.py").write_text("import os\ndef tables(:\n")
    (path.parent / "blank.py").write_text("")
    (path.parent / "fails.py").write_text("def tables(raw, spec, *, cohort, modalities):\n    return 1 / 0\n")
    (path.parent / "binary.csv").write_bytes(bytes(range(256)))
    (path.parent / "long.csv").write_text("code\n" + "x" * 200_000 + "\n")
    assert_refused(command("prepare", config, "--raw", config.with_name("raw")), message)
    assert left_behind(tmp_path / "home") == []


LISTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "holds no row"),
    "header alone": (b"subject_id,split\n", "holds no row"),
    "web page": (b"<html>\n<body></body></html>\n", "line 1: should hold a patient and a part|holds no"),
    "packed": (b"\x1f\x8b\x08" + bytes(range(200)), "cannot be read"),
    "utf-16": ("1,test\n".encode("utf-16"), "cannot be read"),
    "one long cell": (b"subject_id,split\n" + b"1" * 200_000 + b",test\n", "cannot be read"),
    "columns the other way round": (f"test,{CANARY}\n".encode() * 3, "line 2: |no part"),
    "three columns": (b"1,2,test\n", "line 1: should hold a patient and a part"),
    "a patient of two parts": (b"1,test\n1,train\n", "line 2: its patient stands in the list with another part"),
    "of other data": (b"1,test\n2,train\n3,validation\n", "no unit of the cohort is of the part 'train'"),
    "flags without a part": (b"1,0\n2,1\n", "needs a file name that says of which part"),
}


@pytest.mark.parametrize("case", LISTS)
def test_split_lists(command: Command, flat: Source, tmp_path: Path, case: str) -> None:
    content, message = LISTS[case]
    (tmp_path / "list.csv").write_bytes(content)
    answer = command("prepare", flat.task, "--raw", flat.folder, "--split-lists", "list.csv")
    assert_refused(answer, message)
    assert CANARY not in answer.err
    assert left_behind(tmp_path / "home") == []


SMALL = ("simulation", *SIMULATION)
TRAINING = {
    "train model.fusion.=3": "model.fusion.: no such setting",
    "train model.fusion=ovoo": "fusion head 'ovoo' is not known; did you mean 'ovo'",
    "train 'model.fusion={nam: ovo}'": "model.fusion",
    "train model.fusion=[ovo]": "model.fusion",
    "train 'model.fusion={name: ovo, heads: 3}'": "heads|divi",
    "train 'model.fusion={name: ovo, heads: 0}'": "heads: 0 does not divide dim",
    "train 'model.fusion={name: ovo, attention: softmaxx}'": "attention mechanism 'softmaxx' is not known",
    "train model.encoders.modality_1=mpl": "encoder 'mpl' is not known",
    "train model.encoders.modality_77=mlp": "model.encoders: no modality is named modality_77",
    "train 'model.encoders.default={name: mlp, layers: 9}'": "layers: 9: ",
    "train 'model.encoders.default={name: precomputed}'": "file: is required and not given",
    "train 'model.encoders.default={name: precomputed, file: nowhere.npz}'": "nowhere.npz does not exist",
    "train 'model.encoders.default={name: lstm}'": "lstm",
    "train 'model.encoders.default={name: vit}'": "vit",
    "train 'model.encoders.default={name: text, checkpoint: nowhere}'": "nowhere holds no transformers model|text",
    "train modalities=[nothing]": "modalities: nothing: not in the data set",
    "train modalities=[]": "modalities",
    "train training.monitor=accuracyy": "training.monitor: 'accuracyy' is not a metric of this task",
    "train training.precision=8-bit": "training: .*precision=8-bit cannot be had here",
    "train training.devices=none": "training: .*devices=none",
    "train training.accelerator=abacus": "training: accelerator=abacus",
    "train --tracking-uri nonsense://here": "--tracking-uri: ",
    "compare --fusion ovo,ovo": "compare: ovo stands twice; name every model once",
    "compare --fusion concat --seeds 0": "'--seeds'",
    "compare --fusion concat --seeds one": "'--seeds'",
    "compare --fusion concat --baselines logistics": "'logistics' is not known; did you mean 'logistic'",
    "compare --fusion concat --missing 0,2": "--missing: ",
    "compare --fusion concat --missing 0,half": "--missing: ",
    "compare --fusion concat --missing 0.5 --pattern nature": "pattern",
    "compare --fusion concat --folds 1": "'--folds'",
    "compare --fusion concat --folds 1000": "folds",
    "compare --fusion concat --workers -1": "'--workers'",
    "compare --fusion concat --gpus 1": "--gpus: shares out the GPUs of a cluster",
    "compare --fusion concat --tuned nowhere.yaml": "--tuned: .*nowhere.yaml does not exist",
    "compare --fusion concat --tuned .": "--tuned: ",
    "compare --fusion concat --tuned web.yaml": "is not valid YAML|web.yaml: ",
    "compare --fusion concat --tuned other.yaml": "--tuned: the settings were found for task 'eicu_paper'",
    "compare --fusion concat --tuned pickle.yaml": "is not valid YAML|is not UTF-8",
    "tune --fusion concat --sampler best": "'--sampler'",
    "tune --fusion concat --trials 0": "'--trials'",
    "tune --fusion concat tune.space={}": "tune.space: ",
    "tune --fusion concat 'tune.space={seed: [1, 2]}'": "tune.space.seed: ",
    "tune --fusion concat 'tune.space={training.learning_rate: {low: 1, high: 0}}'": "low should be below high",
    "tune --fusion concat --storage nonsense://x": "storage",
    "predict nowhere --raw .": "nowhere",
    "predict empty --raw .": "empty",
    "predict pickles --raw .": "pickles",
    "report nowhere": "nowhere",
    "report empty": "empty",
    "report pickles": "pickles",
    "evaluate-challenge empty --submission out.csv": "is not the folder of a finished run",
    "flops nothing": "'nothing' is not known",
    "flops": "give a task",
    "flops simulation --modalities many": "--modalities: 'many'",
    "flops simulation --modalities 0,99": "modalities",
}


COMMANDS_OF_A_TASK = ("train", "compare", "tune")


@pytest.mark.slow
@pytest.mark.parametrize("words", TRAINING)
def test_training_commands(command: Command, tmp_path: Path, words: str) -> None:
    for folder in ("empty", "pickles"):
        (tmp_path / folder).mkdir()
    pickled = pickle.dumps({"a": np.zeros(3)})
    for name in ("result.json", "study.json", "model.safetensors", "preprocessing.json", "inputs.json", "MLmodel"):
        (tmp_path / "pickles" / name).write_bytes(pickled)
    (tmp_path / "pickle.yaml").write_bytes(pickled)
    (tmp_path / "web.yaml").write_text("<html>: {</html>\n")
    found = {"settings": {}, "validation": 0.5, "completed": 1, "pruned": 0, "failed": 0, "epochs": 1}
    other = {"task": "eicu_paper", "split": "x", "sampler": "tpe", "trials": 1, "monitor": "auroc"}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**other, "models": {"concat": found}}))
    verb, *rest = shlex.split(words)
    task = SMALL if verb in COMMANDS_OF_A_TASK else ()
    assert_refused(command(verb, *task, *rest), TRAINING[words])
