"""The report's page as text: its numbers are those of the tables, and nothing in it is a patient's."""

import html
import re
from pathlib import Path

import pandas as pd
import pytest

from ovo_clinic import folds, report, studies, verbs
from ovo_clinic.errors import UserError
from ovo_clinic.html import results
from ovo_clinic.html.blocks import Table
from ovo_clinic.html.material import Material
from tests.report.conftest import NAME, STAYS, Reported
from tests.small_data import FIRST_UNIT, PERSON

ANCHORS = (
    "question cohort comparison curves calibration decision costs encoders subgroups modalities settings checklist"
).split()
DRAWINGS = {
    "binary": "patterns missingness condition intervals differences roc pr calibration decision costs subgroups "
    "subgroup-differences".split(),
    "other": "patterns intervals differences roc pr calibration decision costs subgroups subgroup-differences".split(),
}


def tables(page: str) -> dict[str, list[list[str]]]:
    """Caption -> rows of cells."""
    found = {}
    for body in re.findall(r"<table.*?</table>", page, re.DOTALL):
        caption = html.unescape(re.search(r"<caption>(.*?)</caption>", body, re.DOTALL)[1])
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        found[caption] = [
            [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows
        ]
    return found


def one(found: dict[str, list[list[str]]], start: str) -> list[list[str]]:
    (caption,) = [caption for caption in found if caption.startswith(start)]
    return found[caption]


def test_every_section_and_figure_is_there(binary: Reported) -> None:
    page = binary.html
    assert re.findall(r'<section id="([^"]+)"', page) == ANCHORS
    drawn = set(re.findall(r'<svg [^>]*id="figure-([^"]+)"', page))
    assert drawn == set(DRAWINGS["binary"])
    assert "no prediction time in hours" in page
    links = set(re.findall(r'href="#([^"]+)"', page))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert {link for link in links if not link.startswith("figure-")} <= set(ids) and len(ids) == len(set(ids))


def test_nothing_is_fetched(binary: Reported) -> None:
    page = re.sub(r'xmlns(:xlink)?="[^"]*"', "", binary.html)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert "@import" not in page and "<script" not in page and not re.findall(r"url\((?!#)", page)


def test_numbers_are_those_of_the_table(binary: Reported) -> None:
    found = tables(binary.html)
    classes = binary.study.comparison.prepared.manifest["classes"]
    printed = report.printable(binary.study.table, classes)
    own = one(found, report.caption(binary.study.comparison, binary.study.table)[:40])
    columns = [column for column in printed if not column.startswith("p ")]
    assert own == [columns, *printed[columns].values.tolist()]
    csv = pd.read_csv(binary.folder / "table.csv").set_index("model")
    row = dict(zip(own[0], next(line for line in own if line[0] == "ovo"), strict=True))
    mean, sd, low, high = (100 * csv.loc["ovo", f"auroc_{part}"] for part in ("mean", "sd", "low", "high"))
    assert row["AUROC"] == f"{mean:.1f} ± {sd:.1f} [{low:.1f}, {high:.1f}]"


def test_a_cross_validation_stands_with_the_comparison(binary: Reported, tmp_path: Path) -> None:
    scores = [
        {"model": model, "kind": "head", "fold": fold, "train": 90, "test": 30, "auroc": score}
        for model, own in {"concat": (0.7, 0.8), "ovo": (0.6, 0.8)}.items()
        for fold, score in enumerate(own)
    ]
    test = {"metric": "auroc", "model": "ovo", "against": "concat", "difference": -0.05, "statistic": -1, "p": 0.5}
    folds.FoldTables(pd.DataFrame(scores), pd.DataFrame([{**test, "p_holm": 0.25}])).save(tmp_path)
    crossed = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in folds.FILES}
    section = results.comparison(
        Material(binary.study.comparison, binary.study.table, [], {**crossed}),
    )
    (found,) = [block for block in section.blocks if isinstance(block, Table) and block.caption.startswith("Cross")]
    assert "over 2 folds" in found.caption and found.columns == ["model", "AUROC", "p AUROC"]
    assert found.rows == [["concat", "75.0 ± 7.1", ""], ["ovo", "70.0 ± 14.1", "0.25 vs concat"]]


def test_numbers_are_those_of_the_csv_files(binary: Reported) -> None:
    found = tables(binary.html)
    calibration = pd.read_csv(binary.folder / "calibration.csv")
    header, *lines = one(found, "Calibration of dead")
    assert len(lines) == 6
    for line in lines:
        model, method = line[0], {"as": "none", "te": "temperature", "is": "isotonic"}[line[1][:2]]
        rows = calibration[(calibration["model"] == model) & (calibration["recalibration"] == method)]
        rows = rows.set_index("metric")
        for title, metric in {"Brier score": "brier", "slope": "slope", "ECE": "ece"}.items():
            mean, low, high = rows.loc[metric, ["mean", "low", "high"]]
            assert line[header.index(title)] == f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    groups = pd.read_csv(binary.folder / "subgroups.csv").query("metric == 'auroc'")
    header, *lines = one(found, "AUROC by subgroup")
    assert len(lines) == groups[["variable", "level"]].drop_duplicates().shape[0]
    row = groups.query("variable == 'sex' and level == 'M' and model == 'ovo'").iloc[0]
    line = next(line for line in lines if line[0] == "Sex: M")
    expected = f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}] (p {row['p_holm']:.2g})"
    assert line[header.index("ovo")] == expected and line[header.index("units")] == str(row["units"])
    header, *lines = one(found, "Table one")
    assert lines == pd.read_csv(binary.folder / "table_one.csv").values.tolist()


def test_settings_and_hashes(binary: Reported) -> None:
    found, manifest = tables(binary.html), binary.study.comparison.prepared.manifest
    settings = dict(one(found, "Settings that all models share")[1:])
    assert settings["training.epochs"] == "2" and settings["dataset"] == "ward.spec.yaml"
    hashes = dict(one(found, "Hashes")[1:])
    assert hashes["data"] == manifest["key"] and hashes["split"] == manifest["digests"]["split"]


def test_flow_has_every_rule_with_its_counts(binary: Reported) -> None:
    flow = re.search(r'<ol class="flow".*?</ol>', binary.html, re.DOTALL)[0]
    for step in binary.study.comparison.prepared.manifest["attrition"]:
        assert f"<strong>{step['rule']}</strong><br>{step['units']:,} units, {step['patients']:,} patients" in flow


def secrets() -> list[str]:
    return [PERSON, NAME, *map(str, range(FIRST_UNIT, FIRST_UNIT + STAYS))]


def test_nothing_on_the_page_or_beside_it_is_a_patients(binary: Reported) -> None:
    texts = {
        path.name: path.read_text() for path in binary.folder.iterdir() if path.suffix in (".html", ".csv", ".json")
    }
    assert {"report.html", "subgroups.csv", "study.json"} <= set(texts)
    assert [(name, secret) for name, text in texts.items() for secret in secrets() if secret in text] == []
    assert str(binary.folder.parents[2]) not in texts["report.html"]


def test_mlflow_has_the_report_and_its_tables(binary: Reported) -> None:
    stored = {path.name: path for path in (binary.folder.parents[1] / "mlflow_artifacts").rglob("*") if path.is_file()}
    for name in ("report.html", "subgroups.csv", "calibration.csv", "reliability.csv", "table_one.csv"):
        assert stored[name].read_bytes() == (binary.folder / name).read_bytes()


@pytest.mark.slow
def test_other_kinds_of_task_have_a_page(several: Reported) -> None:
    page = several.html
    assert set(re.findall(r'<svg [^>]*id="figure-([^"]+)"', page)) == set(DRAWINGS["other"])
    found = tables(page)
    if several.kind == "multiclass":
        header, *lines = one(found, "AUROC of every class")
        classes = pd.read_csv(several.folder / "classes.csv").query("metric == 'auroc' and model == 'ovo'")
        numbers = classes[["mean", "low", "high"]].itertuples(index=False)
    else:
        header, *lines = one(found, "AUROC of every label")
        labels = pd.read_csv(several.folder / "labels.csv").query("model == 'ovo'")
        numbers = labels[["auroc", "auroc_low", "auroc_high"]].itertuples(index=False)
    for line, (mean, low, high) in zip(lines, numbers, strict=True):
        assert line[header.index("ovo")] == f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    assert not [secret for secret in secrets() if secret in page]


def test_the_report_is_written_anew_from_the_runs(binary: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(binary.folder.parents[1]))
    before = {path: path.read_bytes() for path in binary.folder.glob("*.csv") if path.name != "costs.csv"}
    binary.study.report.unlink()
    assert {studies.find(name) for name in (None, binary.folder.name, str(binary.folder))} == {binary.folder}
    assert verbs.write_report() == binary.study.report and binary.study.report.is_file()
    assert {path: path.read_bytes() for path in before} == before


def test_a_study_that_is_not_there(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no study in"):
        studies.find()
    with pytest.raises(UserError, match="no study 'other'"):
        studies.find("other")
    with pytest.raises(UserError, match="holds no study.json"):
        studies.read(tmp_path)
