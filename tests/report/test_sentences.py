"""What the page says of the split, of the flow and of settings is so."""

from types import SimpleNamespace
from typing import Any

from ovo_clinic.html import cohort, record
from ovo_clinic.html.blocks import Table

SPLIT = {"by": "patient_id", "seed": 42, "stratify": True, "whole_patients": True, "column": None}
MANIFEST = {
    "kind": "binary",
    "title": "Death",
    "target": ["died"],
    "classes": ["alive", "dead"],
    "options": {},
    "patients_apart": 0,
    "key": "k",
    "digests": {},
}


def material(split: dict[str, Any], **comparison: Any) -> Any:
    prepared = SimpleNamespace(manifest={**MANIFEST, "split": split})
    given = {"prepared": prepared, "subject": "fusion heads", "heads": ["concat", "ovo"], "name": "study"}
    return SimpleNamespace(comparison=SimpleNamespace(**given, **comparison))


def texts(section: Any) -> str:
    return " ".join(block.text for block in section.blocks)


def test_test_patients_are_unseen_only_where_whole_patients_are_split() -> None:
    unseen = "on test patients that no model was trained or chosen on."
    assert unseen in texts(cohort.question(material(SPLIT)))
    single = texts(cohort.question(material({**SPLIT, "whole_patients": False, "stratify": False})))
    assert unseen not in single and "of patients that models were trained or chosen on" in single


def test_a_split_that_a_column_names_was_not_drawn() -> None:
    said = cohort._split_text({**MANIFEST, "split": {**SPLIT, "column": "part"}})
    assert "column part" in said and "seed" not in said
    assert "Split by patient (seed 42, stratified by outcome)" in cohort._split_text({**MANIFEST, "split": SPLIT})


def test_no_small_class_is_in_the_flow() -> None:
    steps = [
        {"rule": "all", "units": 2000, "patients": 1900, "positives": 20},
        {"rule": "adults", "units": 1900, "patients": 1800, "positives": 9},
    ]
    left = [step["left"] for step in cohort._steps(steps, "binary")]
    assert left == ["2,000 units, 1,900 patients, 20 positive", "1,900 units, 1,800 patients, <11 positive"]
    classes = {"rule": "all", "units": 90, "patients": 90, "positives": None, "classes": {"CN": 50, "MCI": 36, "AD": 4}}
    (step,) = cohort._steps([classes], "multiclass")
    assert step["left"] == "90 units, 90 patients, 50 CN, hidden MCI, <11 AD"


def result(head: str, rate: float, layers: int) -> dict[str, Any]:
    encoders = {"default": {"name": "mlp", "layers": layers}}
    model = {"dim": 64, "encoders": encoders, "fusion": {"name": head}}
    training = {"learning_rate": rate, "batch_size": 32}
    config = {"seed": 0, "data": {}, "split": {}, "modalities": None, "model": model, "training": training}
    return {"config": config, "seed": 0, "digests": {"code": "c"}, "git_commit": None, "versions": {}}


def test_settings_that_tuning_gave_to_one_model_are_its_own() -> None:
    arms = [SimpleNamespace(label=head, kind="head", baseline=None) for head in ("concat", "ovo")]
    results = {"concat": [result("concat", 0.01, 2)], "ovo": [result("ovo", 0.001, 2)]}
    section = record.settings(material(SPLIT, arms=arms, results=results, contenders=["concat", "ovo"]))
    tables = {block.caption: dict(block.rows) for block in section.blocks if isinstance(block, Table)}
    shared = tables["Settings that all models share"]
    assert shared["training.batch_size"] == "32" and shared["model.encoders.default.layers"] == "2"
    assert "training.learning_rate" not in shared and not any(key.startswith("model.fusion") for key in shared)
    assert tables["Options of the models"] == {
        "concat": "name=concat, training.learning_rate=0.01",
        "ovo": "name=ovo, training.learning_rate=0.001",
    }


def test_modalities_without_times_are_not_said_to_be_cut() -> None:
    manifest = {"options": {"prediction_hours": 24.0}, "modalities": {"labs": {}, "codes": {}}, "notes": {}}
    assert cohort._timeline_caption(manifest).endswith("is dropped, whatever the modality.")
    noted = {**manifest, "notes": {"codes": "known_before, every record is taken as known", "codes: blank": 3}}
    assert cohort._timeline_caption(noted).endswith("whatever the modality, but see the note on codes under Cohort.")
