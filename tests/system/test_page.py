"""The page in a real browser: it draws, it grows by itself, it asks nobody else, and it never lies about silence."""

import re
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

from tests.support.dashboard_server import serving
from tests.support.fake_run import FakeRun

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="document.title=1"><script>document.title=1</script>'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(root):
    """One dashboard for all tests, over runs that are made when they are first needed."""
    with serving(root) as address:
        yield address


@pytest.fixture(scope="module")
def demo(root):
    """A run of 240 steps whose trainer goes on sampling."""
    fake = FakeRun(root / "demo", started=time.time() - 60)
    fake.play(240)
    ended = threading.Event()

    def ticks() -> None:
        while not ended.wait(0.5):
            fake.clock = time.time()
            fake.tick()

    trainer = threading.Thread(target=ticks)
    trainer.start()
    yield fake
    ended.set()
    trainer.join()


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    """Instead of the guard of that name: the shared dashboard starts threads when it needs them, and ends them all."""


@pytest.fixture(scope="module")
def context(browser):
    """One profile for all pages, so that Plotly is fetched and compiled once."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.add_init_script("localStorage.clear()")  # what one page chose is not to be another's start
    yield context
    context.close()


@contextmanager
def watched_page(context):
    """A page that fails for a console error, an exception, or a request to another host."""
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if re.match("http://127.0.0.1:|data:|blob:", asked.url) else wrong.append(asked.url))
    yield page
    page.close()
    assert wrong == []


@pytest.fixture
def page(context):
    with watched_page(context) as page:
        yield page


@pytest.fixture
def refused_page(context):
    """A page whose console may tell of requests that fail."""
    page = context.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def demo_page(context, address, demo):
    """A page of the demo run that several tests look at, one after the other."""
    with watched_page(context) as page:
        open_run(page, address)
        yield page


def until(page, expression, seconds=10.0):
    """Waits for a JavaScript expression to hold; Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(30)


LOSS = "document.querySelector('#chart-loss .figure')"
RAW = f"{LOSS}.data.find((trace) => trace.meta === 'raw')"


def open_run(page, address, name="demo"):
    page.goto(f"{address}/runs/{name}")
    page.wait_for_selector("#chart-loss .main-svg")


def open_words(page, address, name):
    """Only as far as the words: a dozen charts take seconds to draw."""
    page.goto(f"{address}/runs/{name}", wait_until="commit")
    page.wait_for_selector("#verdict h1")


def test_the_verdict_and_the_flow_say_it_in_words(demo_page):
    page = demo_page
    assert page.locator("h1").inner_text() == "The target holds the run back: busy 95 %."
    assert "of-target" in page.locator("#verdict").get_attribute("class")
    assert page.locator(".stage").count() == 4
    assert page.locator(".queue").count() == 3
    assert page.locator(".stage.holds h3").inner_text() == "Target"
    assert page.locator(".stage .tag").all_inner_texts() == ["holds the run back"]
    shares = page.evaluate("""[...document.querySelectorAll(".stage .shares")].map((bar) =>
        [...bar.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0))""")
    assert shares == pytest.approx([100] * 4, abs=0.5)
    assert page.locator(".parts li").first.inner_text().endswith("busy")
    assert page.locator("#live").inner_text().startswith("live")
    until(page, "document.querySelector('#chart-devices .empty').textContent.startsWith('No GPU')")
    until(page, "document.querySelectorAll('.panel .main-svg').length >= 8")


def test_news_leave_selections_focus_and_scrolling_alone(demo_page):
    page = demo_page
    page.evaluate("""() => {
        const title = document.querySelector("h1");
        title.kept = true;
        getSelection().selectAllChildren(title);
        document.querySelector(".shares i").kept = true;
        document.querySelector(".events li").kept = true;
    }""")
    before = page.locator(".tile b").all_inner_texts()
    until(page, f"[...document.querySelectorAll('.tile b')].map((tile) => tile.innerText).join() !== {','.join(before)!r}")
    assert page.evaluate("[...document.querySelectorAll('h1, .shares i, .events li')].filter((node) => node.kept).length") == 3
    assert page.evaluate("getSelection().toString()").startswith("The target holds")
    page.evaluate("getSelection().removeAllRanges()")


def test_the_loss_is_drawn_and_grows_by_itself(demo_page, demo):
    page = demo_page
    assert page.evaluate(f"{RAW}.y.length") == 240
    assert page.locator("#chart-loss path.js-line").count() > 0
    demo.steps(3, loss=3.25)
    until(
        page, "document.querySelector('#chart-loss .caption').textContent.replace(/\\D/g, '') === '243'", seconds=6
    )  # the budget is 2 s
    assert page.evaluate(f"{RAW}.y.slice(-3)") == [3.25, 3.25, 3.25]


def test_keys_and_dialogs(demo_page):
    page = demo_page
    assert page.locator("#chart-loss .xtitle").text_content() == "step"
    page.keyboard.press("x")
    until(page, "document.querySelector('#chart-loss .xtitle').textContent === 'context tokens'")
    until(page, f"{LOSS}.layout.yaxis.type === 'log'")  # the first steps' losses would flatten the rest
    page.keyboard.press("l")
    until(page, f"{LOSS}.layout.yaxis.type === 'linear'")
    page.keyboard.press("l")
    page.keyboard.press("?")
    box = page.locator("#help").bounding_box()
    page.mouse.click(box["x"] + 4, box["y"] + 4)  # its edge is a part of it
    assert page.locator("#help").is_visible()
    page.locator("#help .close").click()
    assert not page.locator("#help").is_visible()


def test_the_focus_stays_with_its_run_while_the_list_changes(demo_page, root):
    page = demo_page
    FakeRun(root / "older", started=time.time() - 500)
    page.keyboard.press("r")
    page.locator("a.run[href$=older]").focus()
    FakeRun(root / "newest").steps(1)
    until(page, "document.querySelectorAll('a.run[href$=newest]').length === 1")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/runs/older"
    page.locator("#runs .close").click()


def drag(page, begin, end):
    box = page.locator("#chart-loss .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * begin, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 60, steps=4)
    page.mouse.up()


def test_zoom(demo_page):
    page = demo_page
    points = page.evaluate(f"{RAW}.y.length")
    drag(page, 0.4, 0.6)
    until(page, f"{RAW}.y.length < 100")
    assert page.locator("#zoom-words").inner_text().startswith("Zoomed to")
    page.keyboard.press("Escape")
    until(page, f"{RAW}.y.length === {points}")


def test_a_range_that_cannot_be_read_says_so_and_changes_nothing(refused_page, address, demo):
    page = refused_page
    open_run(page, address)
    points = page.evaluate(f"{RAW}.y.length")
    page.route("**/series?*from=*", lambda route: route.fulfill(status=500, json={"detail": "The disk is away."}))
    drag(page, 0.4, 0.6)
    until(page, "document.getElementById('problem').innerText.endsWith('The disk is away.')")
    page.wait_for_timeout(300)  # ticks go on and must not wipe it away
    assert page.locator("#problem").is_visible()
    assert not page.locator("#zoom").is_visible()
    assert page.evaluate(f"{RAW}.y.length") >= points


def test_silence_is_said_and_ages_without_the_server(page, address, root):
    FakeRun(root / "silent", started=time.time() - 40).play(40)
    open_words(page, address, "silent")
    first = page.locator("#live").inner_text()
    assert re.fullmatch(r"no telemetry for \d\d\ss", first)
    assert page.locator("#live").get_attribute("aria-live") == "off"
    until(page, f"document.getElementById('live').textContent !== {first!r}")
    assert page.locator("#announced").inner_text().startswith("no telemetry for")
    assert page.locator("h1").inner_text().startswith("No telemetry for")
    assert "The target holds" in page.locator(".verdict .more").inner_text()


def test_nan_a_spike_and_a_resume_stay_visible(page, address, root):
    fake = FakeRun(root / "spiky")
    fake.steps(3000)
    fake.steps(1, loss=float("nan"))
    fake.steps(1, loss=50.0)
    fake.steps(98)
    fake.resume(3050)
    fake.steps(500)
    fake.steps(1, loss=-0.5)
    fake.steps(499)
    open_run(page, address, "spiky")
    band = f"{LOSS}.data.filter((trace) => trace.fill === 'toself').flatMap((trace) => trace.y.filter((value) => value !== null))"
    assert page.evaluate(f"Math.max(...{band})") == 50.0
    legend = page.locator("#chart-loss .legend").inner_text()
    assert "NaN or infinite" in legend
    assert "overtaken by a resume" in legend
    assert re.match(r"4,100 points, min/max of [\d,]+ buckets", page.locator("#chart-loss .caption").inner_text())
    until(page, "/ means of /.test(document.querySelector('#chart-positions .caption').innerText)")
    assert page.evaluate(f"Math.min(...{band})") > 0
    assert "1 bucket holds values ≤ 0" in page.locator("#chart-loss .caption").inner_text()


def traces(page, name):
    """x and y of the traces of the acceptance chart that draw one number; those that a resume overtook bear no name."""
    return page.evaluate(f"""document.querySelector('#chart-acceptance .figure').data.filter((trace) => trace.meta === {name!r})
        .map(({{ x, y }}) => ({{ x, y }}))""")


def test_measured_acceptance_stands_beside_the_estimates_and_grows_by_itself(page, address, root):
    fake = FakeRun(root / "measured", started=time.time() - 100)
    fake.play(300, evaluate_every=100)
    fake.resume(250)
    fake.play(60)
    open_run(page, address, "measured")
    page.wait_for_selector("#chart-acceptance .main-svg")
    legend = page.locator("#chart-acceptance .legend .item span:nth-child(2)").all_inner_texts()
    assert [words for words in ("estimated (training)", "measured", "estimated (held out)") if words in legend] == legend[:3]
    assert [trace["x"] for trace in traces(page, "measured_length")] == [[100, 200]]
    assert [trace["x"] for trace in traces(page, "held_out_estimated_length")] == [[100, 200]]
    faint = page.evaluate("document.querySelector('#chart-acceptance .figure').data.filter((t) => t.opacity === 0.45 && t.marker)")
    assert [trace["x"] for trace in faint] == [[300], [300]]
    fake.evaluate(measured_length=4.5, acceptance_by_position=[0.75, 0.5, *[None] * 5])
    until(page, "document.querySelector('.tiles').innerText.includes('measured at step 310')", seconds=6)
    assert "4.50" in page.locator(".tiles").inner_text()
    until(page, "document.querySelector('#chart-acceptance .caption').innerText.includes('measured at step 310')")
    assert traces(page, "measured_length")[0]["x"] == [100, 200, 310]
    assert traces(page, "measured_length")[0]["y"][-1] == 4.5
    assert traces(page, "kept")[0]["y"] == [0.75, 0.5, *[None] * 5]
    page.keyboard.press("x")  # context tokens
    until(page, "document.querySelector('#chart-acceptance .figure').data.find((t) => t.meta === 'measured_length').x[0] > 90000")
    assert len(traces(page, "measured_length")[0]["x"]) == 3
    page.keyboard.press("r")
    until(page, "document.getElementById('runs-list').innerText.includes('acceptance length 4.50 measured')")


def test_an_ending_is_told_in_the_trainers_words_and_never_as_markup(page, address, root):
    fake = FakeRun(root / "failed", started=time.time())
    fake.play(8)
    fake.event("failed", f"Failed in the target stage: {EVIL}", stage=EVIL, error=EVIL, traceback=EVIL)
    open_words(page, address, "failed")
    assert page.locator("h1").inner_text().startswith("Failed in the target stage")
    assert EVIL in page.locator("#events .failure p").inner_text()
    assert page.locator("#events img, #events script, #verdict img").count() == 0
    assert page.title() == "failed · Draftscope"


def test_a_page_waits_for_its_run_and_says_when_it_is_gone(refused_page, address, root):
    page = refused_page
    page.goto(f"{address}/runs/late")
    page.wait_for_selector("#notice:not([hidden])")
    assert "There is no run “late”" in page.locator("#notice").inner_text()
    FakeRun(root / "late").play(8)
    page.wait_for_selector("#chart-loss .main-svg", timeout=10_000)
    shutil.rmtree(root / "late")
    FakeRun(root / "late", started=time.time() - 3).steps(3)
    until(page, f"{RAW}.y.length === 3")  # another run in its place, and nothing of the one before


def test_a_refused_stream_is_told_in_the_dashboards_words(refused_page, address, demo):
    page = refused_page
    page.route("**/events?*", lambda route: route.fulfill(status=503, json={"detail": "32 pages are live; close one."}))
    page.goto(f"{address}/runs/demo")
    until(page, "document.getElementById('live').textContent === '32 pages are live; close one.'")


def test_a_phone_gets_one_column_and_no_sideways_scrolling(page, address, demo):
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    open_run(page, address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len({page.locator(f"#chart-{name}").bounding_box()["x"] for name in ("loss", "acceptance")}) == 1
    assert page.evaluate("getComputedStyle(document.querySelector('.top')).position") == "static"
    until(page, "document.querySelector('#chart-positions .figure').layout?.yaxis2.domain[1] < 0.5")  # bars below the lines
