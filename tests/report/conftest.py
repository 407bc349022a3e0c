"""Small studies with subgroups, made once for the tests of the study report."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from ovo_clinic import verbs
from ovo_clinic.verbs import Study
from tests.conftest import unavailable
from tests.small_data import QUICK, flat_files

STAYS = 700
NAME = "canary-name-"


def with_groups(folder: Path, kind: str) -> Path:
    """The private data set of `small_data` with sex, age, site and name of each stay's person; the config."""
    config = flat_files(folder, kind, STAYS)
    random = np.random.default_rng(8)
    file = folder / "raw" / "stays.csv"
    stays = pd.read_csv(file)
    number = stays["person"].str.rsplit("-", n=1).str[1].astype(int)
    stays["sex"] = np.where(number % 2 == 0, "F", "M")
    stays["site"] = random.choice(["North", "South", "East", "Annex"], STAYS, p=[0.5, 0.3, 0.17, 0.03])
    stays["age_years"] = np.where(number % 7 == 0, np.nan, 20 + number % 70)
    stays["name"] = NAME + number.astype(str)
    stays.to_csv(file, index=False)
    spec_file = folder / "ward.spec.yaml"
    spec = yaml.safe_load(spec_file.read_text())
    columns = {"sex": "text", "site": "text", "age_years": "number", "name": "text"}
    spec["tables"]["stays"]["columns"] |= columns
    spec["tasks"]["ward"]["options"]["cohort"]["columns"] = list(columns)
    spec_file.write_text(yaml.safe_dump(spec))
    return config


@dataclass(frozen=True)
class Reported:
    """A study of kind `kind`, its report and its data."""

    kind: str
    study: Study

    @property
    def folder(self) -> Path:
        return self.study.comparison.folder

    @property
    def html(self) -> str:
        return self.study.report.read_text(encoding="utf-8")

    @property
    def test_units(self) -> pd.DataFrame:
        """Test units by unit id: what the cohort holds of them."""
        prepared = self.study.comparison.prepared
        cohort = prepared.cohort.to_pandas().set_index("unit_id")
        return cohort.iloc[prepared.rows("test")]

    def predictions(self, head: str, split: str = "test") -> list[pd.DataFrame]:
        """One frame a seed of the probabilities by unit id, from the runs' own files."""
        frames = []
        for folder in self.study.comparison.run_folders[head]:
            frame = pl.read_parquet(folder / "predictions.parquet").to_pandas()
            frame = frame[frame["split"] == split].set_index("unit_id")
            frames.append(frame[[name for name in frame if name.startswith("probability_")]])
        return frames


def reported(folder: Path, kind: str, *settings: str, seeds: int = 1) -> Iterator[Reported]:
    config = with_groups(folder / "files", kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        overrides = [*QUICK, "split.train=0.5", "split.validation=0.15", "split.test=0.35", *settings]
        raw = config.parent / "raw"
        yield Reported(kind, verbs.compare(str(config), overrides, raw=raw, fusion=["concat", "ovo"], seeds=seeds))


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    yield from reported(
        tmp_path_factory.mktemp("binary"),
        "binary",
        "compare.unimodal=true",
        "compare.missing=[0.5]",
        "training.condition_numbers=true",
        seeds=2,
    )


@pytest.fixture(scope="session", params=["multiclass", "multilabel"])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    yield from reported(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        unavailable("chromium and chromedriver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(str(driver)))
    yield started
    started.quit()
