"""The pages in a browser, at the width of a desk and of a hand, in light and dark."""

import dataclasses
import os
import shutil
from pathlib import Path

import psutil
import pytest
from patience import patience
from PIL import Image

from trw_pipeline.reporting import report
from trw_pipeline.reporting.comparison import comparison_page
from trw_pipeline.reporting.computational_summary import computational_table
from trw_pipeline.reporting.report import report_page, write_report
from trw_pipeline.reporting.run_record import RunRecord, Stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WIDTHS = {"desk": 1280, "hand": 390}
EVIL = "<img src=x onerror='window.obeyed=1'><script>window.obeyed=1</script>"
LONG = "a_name_without_an_end_" * 12
RUNNING_S = 60  # in which a browser does what takes it a second

SIZES = [250 * (37 * i % 40) for i in range(40)]
"""Of layers: 0 to 9,750, in no order; by their letters 9,750 would come after 500."""

IN_CI = "CI" in os.environ


def programs():
    """The browser and its driver; without them the tests are left out, but not where they must run."""
    try:
        import selenium  # noqa: F401  (of the extra dev)
    except ImportError:
        why = "selenium is not installed"
    else:
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        driver = shutil.which("chromedriver")
        if browser and driver:
            return browser, driver
        why = "there is no chromium with chromedriver: apt-get install chromium chromium-driver"
    if IN_CI:
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(autouse=True)
def _nothing_left():
    """Not after each test, but after the last one: the browser starts and ends processes as it likes."""
    return


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests; none of its processes is left at its end."""
    executable, driver = programs()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = executable
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    before = psutil.Process().children(recursive=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        made = webdriver.Chrome(options=options, service=Service(driver))
        try:
            made.set_page_load_timeout(RUNNING_S * patience())
            yield made
        finally:
            ours = [child for child in psutil.Process().children(recursive=True) if child not in before]
            made.quit()
            _, left = psutil.wait_procs(ours, timeout=10 * patience())
            for process in left:
                process.kill()
    assert not left, "processes of the browser are left"


def entry(epoch, name):
    loop = {"nb_samples": 4000.0, "time_s": 2.0, "samples_per_s": 2000.0 - epoch, "wait_s": 0.5, "wait_share": 0.25}
    figures = {
        "overall_loss": {"loss": 1.0 / (epoch + 1)},
        name: {"loss": 0.5 / (epoch + 1), "classification error": 0.01 * (epoch - 7) ** 2},
        "info": loop,
        "resources": {"cpu_rss": 0.5, "cpu_percent": 80.0 + epoch},
    }
    return {"digits": {"train": figures, "valid": figures}}


def record(**changed):
    statistics = {"epoch_items": 4000.0, "items_per_s": 1234.5, "workers": 2.0, "load": 0.5, "job_s_p50": 0.001}
    stages = Stages(
        limit="The consumer limits.", description="SequenceArray\n  .map(load)", figures={"1:load": statistics}
    )
    given = {
        "name": "digits_r0",
        "state": "completed",
        "updated": 0.0,
        "started": 0.0,
        "elapsed_s": 75.0,
        "nb_epochs": 12,
        "epochs": [entry(epoch, "digit") for epoch in range(12)],
        "final": entry(11, "digit"),
        "learning_rates": [{"digits": 0.1 / (epoch + 1)} for epoch in range(12)],
        "stages": {"digits/train": stages},
        "model": [("", "Net", 1234, 1000), *((f"layers.{i}", "Linear(1, 2)", size, 0) for i, size in enumerate(SIZES))],
        "options": {"workflow_options.current_logging_directory": "/somewhere/deep/" * 12},
        "versions": {"torch": "2.13.0"},
    }
    return RunRecord(**{**given, **changed})


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with all there is, one with names that nobody expects, and a comparison."""
    folder = tmp_path_factory.mktemp("run")
    for name, size in (("digit-digits-valid-cm.png", (800, 600)), ("explained/s1.png", (28, 28))):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", size, "teal").save(folder / name)
    (folder / "explained" / "s1.txt").write_text(f"uid: 1\nname: {LONG}\n")
    (folder / "digit-digits-valid-report.txt").write_text("recall " * 60)
    (folder / "logs").mkdir()
    table = computational_table({"Training data loading (s)": [0.01], "Forward (s)": [0.03]})
    (folder / "logs" / "computational.tsv").write_text(table)
    whole = record()
    epochs = [entry(epoch, EVIL) | {LONG: entry(epoch, LONG)["digits"]} for epoch in range(3)]
    stages = Stages(limit=EVIL, description=LONG, figures={EVIL: {"workers": 1.0}, LONG: {"workers": 1.0}})
    strange = record(
        name=f"{EVIL}{LONG}",
        state="interrupted",
        error=f"{EVIL}{LONG}",
        epochs=epochs,
        final=None,
        stages={LONG: stages},
        model=[(LONG, EVIL, 1, 1)] * 2,
        options={LONG: EVIL, EVIL: LONG},
        versions={LONG: LONG},
    )
    other = record(epochs=[entry(epoch, "digit") for epoch in range(5)], options={"lr": LONG})
    texts = {
        "report": report_page(whole, folder),
        "strange": report_page(strange, folder),
        "comparison": comparison_page({Path("/a/r0"): whole, Path(f"/a/{LONG}"): other}),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(params=WIDTHS)
def opened(request, browser, pages):
    """Opens a page at a width, in a mode."""

    def open_page(name, mode="light"):
        browser.get_log("browser")  # of the page before
        features = [{"name": "prefers-color-scheme", "value": mode}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width = WIDTHS[request.param]
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": request.param == "hand"}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((pages / f"{name}.html").as_uri())
        return browser

    return open_page


@pytest.mark.parametrize("name", ["report", "strange", "comparison"])
def test_there_is_no_error_and_nothing_is_wider_than_the_page_or_loaded_or_obeyed(opened, name):
    page = opened(name)
    assert page.get_log("browser") == []
    assert page.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.execute_script("return performance.getEntriesByType('resource').map(one => one.name)") == []
    assert page.execute_script("return window.obeyed") is None


def test_all_images_are_shown(opened):
    page = opened("report")
    widths = page.execute_script("return [...document.images].map(image => image.naturalWidth)")
    assert widths == [800, 28]


def test_a_picture_takes_the_whole_width_at_a_click(opened):
    page = opened("report")
    button = page.find_element("css selector", "#explanations button")
    script = "const figure = arguments[0].closest('figure'); return figure.offsetWidth / figure.parentNode.offsetWidth"
    assert page.execute_script(script, button) < 0.5
    page.execute_script("arguments[0].click()", button)
    assert page.execute_script(script, button) == 1
    assert button.get_attribute("aria-expanded") == "true"
    page.execute_script("arguments[0].click()", button)
    assert page.execute_script(script, button) < 0.5


def rows(page, column):
    script = """
    const table = [...document.querySelectorAll("#model table")][0];
    return [...table.tBodies[0].rows].map(row => row.cells[arguments[0]].textContent);
    """
    return page.execute_script(script, column)


def test_tables_are_sorted_by_a_click_and_by_a_key(opened):
    from selenium.webdriver.common.keys import Keys

    page = opened("report")
    head = page.find_elements("css selector", "#model thead th")[2]
    button = head.find_element("css selector", "button")
    page.execute_script("arguments[0].click()", button)
    sizes = [f"{size:,}" for size in sorted(SIZES)]
    assert rows(page, 2) == sizes[::-1], "numbers, the greatest first"
    assert head.get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    assert rows(page, 2) == sizes
    assert head.get_attribute("aria-sort") == "ascending"
    name = page.find_element("css selector", "#model thead th button")
    name.send_keys(Keys.SPACE)
    assert rows(page, 0)[:3] == ["layers.0", "layers.1", "layers.2"], "names by the numbers in them, not by letters"
    assert head.get_attribute("aria-sort") is None


def test_every_part_that_does_something_is_reached_by_the_keyboard(opened):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = opened("report")
    wanted = page.execute_script("""
        window.wanted = [...document.querySelectorAll("a[href], button, summary, svg[data-epochs], .scroll")]
            .filter(one => one.checkVisibility());
        window.reached = new Set();
        document.addEventListener("focusin", event => window.reached.add(event.target));
        return window.wanted.length;
    """)
    assert wanted > 30
    tabs = ActionChains(page, duration=0)
    for _ in range(wanted + 10):
        tabs.send_keys(Keys.TAB)
    tabs.perform()
    script = "return window.wanted.filter(one => !window.reached.has(one)).map(one => one.outerHTML.slice(0, 80))"
    assert page.execute_script(script) == []


def test_the_values_of_an_epoch_are_told_by_the_arrow_keys(opened):
    from selenium.webdriver.common.keys import Keys

    page = opened("report")
    chart = page.find_element("css selector", "svg[data-epochs]")
    page.execute_script("arguments[0].focus()", chart)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.find_element("css selector", "figure output").text == "epoch 1: train 0.5, valid 0.5"


CONTRASTS = """
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
        const [r, g, b] = colour.slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => {
        for (; one; one = one.parentElement) {
            const colour = rgba(getComputedStyle(one).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255];
    };
    const low = new Set();
    for (const one of document.body.querySelectorAll("*")) {
        const texts = [...one.childNodes].filter(node => node.nodeType === 3 && node.textContent.trim());
        if (!texts.length || !one.checkVisibility() || one.tagName === "SCRIPT") continue;
        const style = getComputedStyle(one);
        const colour = one instanceof SVGElement ? style.fill : style.color;
        const [a, b] = [light(rgba(colour)), light(behind(one))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) low.add(`${one.tagName}.${one.getAttribute("class")}: ${contrast.toFixed(2)}`);
    }
    return [...low];
"""


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "strange", "comparison"])
def test_all_text_is_readable_in_light_and_dark(opened, name, mode):
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least."""
    page = opened(name, mode)
    assert page.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches") == (mode == "dark")
    assert page.execute_script(CONTRASTS) == []


def wait_for(page, text):
    """Waits until the head of the page has a text, also while the browser changes pages."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    script = "return document.querySelector('header').innerText"
    wait = WebDriverWait(page, RUNNING_S * patience(), ignored_exceptions=[WebDriverException])
    wait.until(lambda page: text in page.execute_script(script))


def test_the_page_of_a_training_that_goes_on_follows_it(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REFRESH_S", 1.0)
    running = record(state="running", nb_epochs=20)
    browser.get(write_report(tmp_path, running).as_uri())
    wait_for(browser, "Running")
    write_report(tmp_path, dataclasses.replace(running, state="completed", nb_epochs=12))
    wait_for(browser, "Completed")
    assert not browser.find_elements("css selector", "meta[http-equiv=refresh]"), "it is read no more"


def test_a_training_that_was_killed_is_told_by_its_silence(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REFRESH_S", 1e6)  # not while the test looks
    browser.get(write_report(tmp_path, record(state="running", updated=1e9)).as_uri())
    note = browser.find_element("css selector", "[data-updated]")
    assert note.is_displayed()
    assert "the training may have been killed" in note.text
    browser.get(write_report(tmp_path, record(state="running", updated=4e9)).as_uri())
    assert not browser.find_element("css selector", "[data-updated]").is_displayed()
