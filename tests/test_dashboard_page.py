"""The page in a real browser: it draws, it grows by itself, it asks nobody else, and it never lies about silence."""

import re
import time

import pytest

from tests.dashboard_server import serving
from tests.fake_run import FakeRun

pytestmark = pytest.mark.browser


@pytest.fixture
def fake(tmp_path):
    fake = FakeRun(tmp_path / "demo")  # its last line lies a minute ahead: however slow this machine, the run is not silent
    fake.play(240)
    return fake


@pytest.fixture
def page(browser):
    """A page that fails its test for a console error, an exception, or a request to another host."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    wrong = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("http://127.0.0.1:", "data:", "blob:")) else wrong.append(request.url),
    )
    yield page
    context.close()
    assert wrong == []


def until(page, expression, seconds=10.0):
    """Waits for a JavaScript expression to hold; Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def loss_points(page):
    """The numbers of the raw loss line, as Plotly draws them."""
    return page.evaluate(
        """() => (document.querySelector("#chart-loss .figure").data ?? []).filter((trace) => trace.meta === "raw")
        .flatMap((trace) => [...trace.y])"""
    )


def open_run(page, address, name="demo"):
    page.goto(f"{address}/runs/{name}")
    page.locator("#chart-loss").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-loss .main-svg")


def test_the_loss_is_drawn_and_grows_by_itself(page, fake):
    with serving(fake.folder.parent) as address:
        page.goto(address)
        page.wait_for_selector("#chart-loss .main-svg")
        assert len(loss_points(page)) == 240
        assert page.locator("#chart-loss path.js-line").count() > 0
        began = time.monotonic()
        fake.clock = time.time()
        fake.steps(3, loss=3.25)
        fake.sample()
        until(page, "document.querySelector('#chart-loss .caption').textContent.replace(/\\D/g, '') === '243'")
        assert time.monotonic() - began < 6  # the budget is 2 s; a busy machine's browser gets more
        assert loss_points(page)[-3:] == [3.25, 3.25, 3.25]
        assert page.locator("#live").inner_text().startswith("live")


def test_the_verdict_and_the_flow_say_it_in_words(page, fake):
    with serving(fake.folder.parent) as address:
        open_run(page, address)
        assert page.locator("h1").inner_text() == "The target holds the run back: busy 95 %."
        assert page.locator(".stage").count() == 4
        assert page.locator(".queue").count() == 3
        assert page.locator(".stage.holds h3").inner_text() == "Target"
        shares = page.evaluate("""[...document.querySelectorAll(".stage .shares")].map((bar) =>
            [...bar.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0))""")
        assert shares == pytest.approx([100] * 4, abs=0.5)
        assert page.locator(".parts li").first.inner_text().endswith("busy")
        page.locator("#chart-devices").scroll_into_view_if_needed()
        until(page, "document.querySelector('#chart-devices .empty').textContent.startsWith('No GPU')")


def test_silence_is_said_and_ages_without_the_server(page, tmp_path):
    fake = FakeRun(tmp_path / "demo", started=time.time() - 120)
    fake.play(40)
    with serving(tmp_path) as address:
        open_run(page, address)
        first = page.locator("#live").inner_text()
        assert re.match(r"no sample for \d.min \d+.s", first)
        until(page, f"document.getElementById('live').textContent !== {first!r}")
        assert page.locator("h1").inner_text().startswith("No sample for")
        assert "Its last word: The target holds" in page.locator(".verdict .more").inner_text()


def test_nan_a_spike_and_a_resume_stay_visible(page, tmp_path):
    fake = FakeRun(tmp_path / "demo")
    fake.steps(3000)
    fake.steps(1, loss=float("nan"))
    fake.steps(1, loss=50.0)
    fake.steps(98)
    fake.resume(3050)
    fake.steps(1000)
    with serving(tmp_path) as address:
        open_run(page, address)
        top = page.evaluate(
            """Math.max(...document.querySelector("#chart-loss .figure").data
            .filter((trace) => trace.fill === "toself").flatMap((trace) => trace.y.filter((value) => value !== null)))"""
        )
        assert top == 50.0
        legend = page.locator("#chart-loss .legend").inner_text()
        assert "NaN or infinite" in legend
        assert "overtaken by a resume" in legend
        assert re.match(r"4.100 points, min/max of [\d\s\u202f]+ buckets", page.locator("#chart-loss .caption").inner_text())


def test_keys_and_zoom(page, fake):
    with serving(fake.folder.parent) as address:
        open_run(page, address)
        title = page.locator("#chart-loss .xtitle")
        assert title.text_content() == "step"
        page.keyboard.press("x")
        until(page, "document.querySelector('#chart-loss .xtitle').textContent === 'context tokens'")
        page.keyboard.press("l")
        until(page, "document.querySelector('#chart-loss .figure').layout.yaxis.type === 'log'")
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        box = page.locator("#chart-loss .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
        page.mouse.up()
        until(page, "document.querySelector('#chart-loss .figure').data.find((trace) => trace.meta === 'raw').y.length < 100")
        page.keyboard.press("Escape")
        until(page, "document.querySelector('#chart-loss .figure').data.find((trace) => trace.meta === 'raw').y.length === 240")


def test_what_a_run_says_is_text_and_never_markup(page, tmp_path):
    fake = FakeRun(tmp_path / "demo", started=time.time())
    fake.play(8)
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    fake.event("failed", evil, stage=evil, error=evil, traceback=evil)
    with serving(tmp_path) as address:
        open_run(page, address)
        assert evil in page.locator("#events .failure p").inner_text()
        assert page.locator("#events img, #events script").count() == 0
        assert page.title() == "demo · Draftscope"


def test_a_page_waits_for_a_run_that_is_not_there_yet(browser, tmp_path):
    page = browser.new_page()
    with serving(tmp_path / "runs") as address:
        page.goto(address)
        page.wait_for_selector("#notice:not([hidden])")
        assert "No runs yet" in page.locator("#notice").inner_text()
        FakeRun(tmp_path / "runs" / "first").play(8)
        page.wait_for_selector("#chart-loss .main-svg", timeout=10_000)
    page.close()


def test_a_phone_gets_one_column_and_no_sideways_scrolling(browser, fake):
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    with serving(fake.folder.parent) as address:
        open_run(page, address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        left, right = (page.locator(f"#chart-{name}").bounding_box() for name in ("loss", "acceptance"))
        assert left["x"] == right["x"]
    page.close()
