"""MLflow's own comparison of a study's heads in a real browser: what is there, and that nothing else is asked for."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
from mlflow import MlflowClient
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.report.conftest import Reported
from tests.report.test_browser import screenshot
from tests.servers import free_port, running
from tests.unit.test_tracking_server import answers

pytestmark = pytest.mark.slow
SECONDS = 60
# MLflow draws only the rows of a long table that are in sight.
SCROLL = """
for (const box of document.querySelectorAll('*'))
    if (box.scrollHeight > box.clientHeight + 5) box.scrollTop = arguments[0] ? 0 : box.scrollTop + 150;
return document.body.innerText;
"""


def shown(browser: webdriver.Chrome, text: str) -> bool:
    """Whether a text comes into sight when every part of the page is scrolled through."""
    browser.execute_script(SCROLL, True)
    wait = WebDriverWait(browser, SECONDS, poll_frequency=0.3)
    return bool(wait.until(lambda driver: text in driver.execute_script(SCROLL, False), f"{text} is not shown"))


@pytest.fixture
def pages(binary: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address at which `ui` shows the study's store."""
    monkeypatch.setenv("OVO_CLINIC_HOME", str(binary.folder.parents[1]))
    port = free_port()
    command = [str(Path(sys.executable).with_name("ovo-clinic")), "ui", "--port", str(port)]
    with running(command, lambda: answers(f"http://127.0.0.1:{port}/health"), tmp_path / "log"):
        yield f"http://127.0.0.1:{port}"


def test_the_comparison_of_heads(browser: webdriver.Chrome, binary: Reported, pages: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{binary.folder.parents[1] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ward").experiment_id
    heads = client.search_runs([experiment], "tags.kind = 'head'")
    assert {run.info.run_name for run in heads} == {"concat", "ovo"}
    screen = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for log in ("browser", "performance"):
        browser.get_log(log)
    runs, experiments = (quote(json.dumps(ids)) for ids in ([run.info.run_id for run in heads], [experiment]))
    browser.get(f"{pages}/#/compare-runs?runs={runs}&experiments={experiments}")
    row = binary.study.table.rows.set_index("model").loc["ovo"]
    plots = "return document.querySelectorAll('.js-plotly-plot svg.main-svg').length"
    WebDriverWait(browser, SECONDS).until(lambda driver: driver.execute_script(plots))
    for text in ("concat", "ovo", "auprc_mean", "auroc_mean", "delta_macs", f"{row['auroc_mean']:.3f}".rstrip("0")):
        assert shown(browser, text)
    browser.execute_script(SCROLL, True)
    screenshot(browser, tmp_path / "mlflow-comparison.png", 1280)
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    # MLflow asks a server without accounts who is looking, and is told that there is no such thing.
    assert [message for message in severe if "/mlflow/users/current" not in message] == []
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {r["params"]["request"]["url"] for r in requests if r["method"] == "Network.requestWillBeSent"}
    assert len(urls) > 5
    assert {url for url in urls if urlparse(url).hostname not in ("127.0.0.1", None)} == set()
