"""The report's page in a real browser: nothing fails, nothing is fetched, everything is drawn and fits the screen."""

import base64
import json
import re
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.report.conftest import Reported

WIDTHS = (1280, 390)
MOST_HEIGHT = 16_000
OVERFLOW = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter(node =>
    !node.closest(".scroll, .skip") && node.getBoundingClientRect().right > edge + 1
).map(node => node.outerHTML.slice(0, 120));
"""
OVERLAPS = """
const boxes = [...document.querySelectorAll("h1, h2, p, table, figure, figcaption, .flow, nav")]
    .filter(node => !node.closest(".skip") && !(node.closest(".scroll") && node.tagName !== "TABLE"))
    .map(node => [node, node.getBoundingClientRect()]);
return boxes.flatMap(([a, first]) => boxes.filter(([b, second]) =>
    !a.contains(b) && !b.contains(a) && (a.compareDocumentPosition(b) & 4) &&
    second.top < first.bottom - 1 && first.top < second.bottom - 1 &&
    second.left < first.right - 1 && first.left < second.right - 1
).map(([b]) => a.outerHTML.slice(0, 80) + " and " + b.outerHTML.slice(0, 80)));
"""
FILLS = """
return [...new Set([...document.querySelectorAll("figure svg text")].map(node => getComputedStyle(node).fill))];
"""
FIGURES = """
return Object.fromEntries([...document.querySelectorAll("figure svg")].map(node =>
    [node.id, [node.getBoundingClientRect().width, node.getBoundingClientRect().height,
               node.querySelectorAll("path").length, node.getAttribute("aria-label") || ""]]));
"""


def opened(browser: webdriver.Chrome, page: Path, width: int, scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())


def screenshot(browser: webdriver.Chrome, file: Path, width: int) -> None:
    height = min(MOST_HEIGHT, browser.execute_script("return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    file.write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize("width", WIDTHS)
def test_page_in_a_browser(browser: webdriver.Chrome, binary: Reported, tmp_path: Path, width: int) -> None:
    opened(browser, binary.study.report, width)
    assert browser.get_log("browser") == []
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {r["params"]["request"]["url"] for r in requests if r["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith(("file:", "data:"))} == set()
    assert binary.study.report.as_uri() in urls
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(OVERFLOW) == []
    assert browser.execute_script(OVERLAPS) == []
    figures = browser.execute_script(FIGURES)
    assert len(figures) >= 11
    for name, (wide, high, paths, label) in figures.items():
        assert wide >= 300 and high >= 60 and paths > 3 and label, name
    screenshot(browser, tmp_path / f"report-{width}.png", width)


def test_light_and_dark(browser: webdriver.Chrome, binary: Reported, tmp_path: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        opened(browser, binary.study.report, WIDTHS[0], scheme)
        body = browser.find_element(By.TAG_NAME, "body")
        (fill,) = browser.execute_script(FILLS)
        colours[scheme] = [body.value_of_css_property("background-color"), fill]
        screenshot(browser, tmp_path / f"report-{scheme}.png", WIDTHS[0])
    assert colours["light"][0] == "rgba(255, 255, 255, 1)"
    brightness = {scheme: [sum(map(int, re.findall(r"\d+", c)[:3])) for c in own] for scheme, own in colours.items()}
    assert brightness["light"][0] > 700 > 200 > brightness["light"][1]
    assert brightness["dark"][0] < 150 < 600 < brightness["dark"][1]


def test_keyboard_reaches_the_contents_and_what_scrolls(browser: webdriver.Chrome, binary: Reported) -> None:
    opened(browser, binary.study.report, WIDTHS[1])
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the report" and skip.rect["x"] >= 0
    skip.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    region = browser.switch_to.active_element
    assert region.get_attribute("role") == "region" and region.get_attribute("aria-label")


@pytest.mark.slow
def test_other_kinds_of_task_in_a_browser(browser: webdriver.Chrome, several: Reported) -> None:
    opened(browser, several.study.report, WIDTHS[1])
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[1]
    assert browser.execute_script(OVERFLOW) == [] and browser.execute_script(OVERLAPS) == []
