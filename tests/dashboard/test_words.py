"""What the page says, asked of its own modules in a real browser: the terminal's words, each once."""

import pytest

from tests.support.dashboard_server import serving
from trainer import formatting

pytestmark = pytest.mark.browser

SAMPLE = {
    "verdict": {"state": "stage_holds", "stage": "target", "sentence": "The target holds the run back: busy 95 %. Then more."}
}
HEAD = {"state": "running", "ended": False, "step": 263, "max_steps": 4000, "progress_ratio": 0.06, "newest_tick": SAMPLE}


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """An empty page of the dashboard that knows `words` and `verdict`, and asks nothing of the server after that."""
    with serving(tmp_path_factory.mktemp("runs")) as address:
        page = browser.new_page()
        page.goto(f"{address}/healthz")
        page.evaluate("""async () => {
            const names = ["words", "verdict", "drawings", "evaluations"];
            for (const name of names) globalThis[name] = await import(`/static/any/${name}.js`);
        }""")
        yield page
        page.close()


@pytest.mark.parametrize(
    ("word", "own", "values"),
    [
        ("bytes", formatting.size, [None, 0, 999, 999.6, 1500, 99_949_999, 99_950_000, 999_999_999, 4e9, 150_754_820_096, 3.1e12]),
        ("duration", formatting.duration, [None, -3, 0, 0.004, 0.0994, 0.42, 9.94, 9.96, 38, 59.4, 59.7, 430, 3569, 3571, 3720]),
        ("duration", formatting.duration, [86_369, 86_371, 273_600, 1e6]),
        ("count", formatting.count, [None, 0, 7.123, 99.96, 840, 9999, 12_345, 999_499, 999_500, 4.56e6, 134_515_008, 2.5e9]),
        ("percent", formatting.percent, [None, 0, 0.0031, 0.974, 12.5, 12345.67]),
        ("whole", formatting.steps, [None, 0, 999, 1000, 12_345, 1_234_567]),
    ],
)
def test_numbers_are_the_terminals(page, word, own, values):
    said = page.evaluate("([word, values]) => values.map((value) => words[word](value))", [word, values])
    assert [text.replace("\u00a0", " ") for text in said] == [own(value) for value in values]


def test_only_thousands_are_grouped_not_what_comes_after_the_point(page):
    assert page.evaluate("[words.percent(123.45678, 4), words.whole(-12345), words.brief(0.25)]") == [
        "12,345.6780\u00a0%",
        "−12,345",
        "250\u00a0ms",
    ]


def card(page, *, age=1.0, verdict=None, **head):
    """The verdict card's heading, its label (None where there is none), what stands beside the progress, and its figures."""
    ticked = {"newest_tick": {"verdict": verdict}} if verdict else {}
    return page.evaluate(
        """([head, age]) => {
            const root = document.createElement("section");
            verdict.drawVerdict(root, { head, age, words: { help: {} } });
            const figures = [...root.querySelectorAll("dl div")].map((row) => [...row.children].map((part) => part.textContent));
            const text = (part) => root.querySelector(part)?.textContent ?? null;
            return { heading: text("h1"), state: text(".state"), beside: text(".eta"), figures: Object.fromEntries(figures) };
        }""",
        [{**HEAD, **ticked, **head}, age],
    )


@pytest.mark.parametrize(
    ("state", "stage", "sentence", "label"),
    [
        ("all_well", None, "All devices busy, all well: the target 97 %.", None),
        ("stage_holds", "target", "The target holds the run back: busy 95 %.", None),
        ("starved", "dataset", "Starved by the data: it is slow.", None),
        ("stalled", "target", "The target is stalled: 2 min on one item.", "stalled"),
        ("stage_holds", "target", "Something else.", "target holds"),
    ],
)
def test_the_card_says_its_state_once(page, state, stage, sentence, label):
    assert card(page, verdict={"state": state, "stage": stage, "sentence": sentence})["state"] == label


@pytest.mark.parametrize("sentence", ["Finished: 263 steps in 7 min.", "Stopped: 263 steps in 7 min."])
def test_how_a_run_ended_is_the_trainers_word_alone(page, sentence):
    said = card(page, state="finished", ended=True, verdict={"state": "finished", "sentence": sentence})
    assert (said["heading"], said["state"], said["beside"]) == (sentence, None, "")


def test_silence_keeps_its_label(page):
    assert card(page, age=60.0)["state"] == "silent"


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0.0251 / 60, "1.5 device seconds"), (0.05, "3.00 device minutes"), (1.5, "1.50 device hours")],
)
def test_lost_device_time_in_a_unit_that_fits(page, hours, words):
    assert card(page, verdict={**SAMPLE["verdict"], "lost_device_hours": hours})["figures"]["lost device time"] == words


def test_the_loss_is_drawn_in_the_unit_of_its_objective(page):
    said = page.evaluate("""() => {
        const loss = { mean: [2], low: [2], high: [2] };
        const segment = { attempt: 0, start: [0], axes: { step: [1] }, overtaken_from: null, series: { loss } };
        const steps = { segments: [segment], width: 1, newest: () => 2 };
        const head = { state: "running", loss_unit: "nats per block", newest_step: { loss: 2 }, progress_ratio: 0 };
        const theme = { stages: { drafter: "#000000" } };
        const context = { steps, head, theme, settings: { axis: "step", smoothing: "none", log: false } };
        const drawn = drawings.DRAWINGS.loss(context, { axis: "loss", banded: "loss" });
        const root = document.createElement("section");
        verdict.drawVerdict(root, { head, age: 1, words: { help: {} } });
        return [drawn.rows[0].title, drawn.traces.at(-1).hovertemplate, root.querySelector(".tile .unit").textContent];
    }""")
    assert said[0] == "loss (nats per block)"
    assert "%{y:.4f} nats per block" in said[1]
    assert said[2] == "nats per block"


@pytest.mark.parametrize("draw", ["process", "devices"])
def test_charts_of_memory_say_bytes_as_the_figures_do(page, draw):
    drawing = page.evaluate(
        """(draw) => {
            const column = { mean: [4e9, 3.0e8] };
            const axes = { step: [1, 2] };
            const names = ["process.cpu_cores", "process.memory_bytes", "devices.0.memory_used_bytes"];
            const series = Object.fromEntries(names.map((name) => [name, column]));
            const segment = { attempt: 0, start: [0, 1], axes, overtaken_from: null, series };
            const telemetry = { segments: [segment], newest: (name) => (names.includes(name) ? 3.0e8 : null) };
            const device = { index: 0, name: "GPU", memory_used_bytes: 4e9, memory_total_bytes: 8e9 };
            const head = { newest_tick: { devices: [device] } };
            const theme = { gpus: ["#000000"] };
            const { rows, traces } = drawings.DRAWINGS[draw]({ telemetry, head, theme, settings: { axis: "step" } }, { axis: "" });
            return { titles: rows.map((row) => row.title), trace: traces.at(-1) };
        }""",
        draw,
    )
    assert "memory (GB)" in drawing["titles"]
    assert drawing["trace"]["y"] == [4.0, 0.3]
    assert drawing["trace"]["text"] == ["4.0\u00a0GB", "300\u00a0MB"]
    assert "%{text}" in drawing["trace"]["hovertemplate"]


@pytest.mark.parametrize(
    ("head", "sentence", "tile"),
    [
        ({"step": 3, "evaluate": {"every": 500}}, "No evaluation yet: the first comes after step 500.", "not measured yet"),
        (
            {"step": 1020, "evaluate": {"every": 500, "held_out": None}},
            "No evaluation yet: the first has been running since step 1,000, or the events say why there is none.",
            "not measured yet",
        ),
        (
            {"step": 3, "max_steps": 200, "evaluate": {"every": 500}},
            "No evaluation yet: the first comes at the end of the run.",
            "not measured yet",
        ),
        ({"step": 3, "evaluate": {"every": 0}}, "No evaluation: evaluate.every is 0.", "not measured"),
        (
            {"step": 3, "evaluate": {"every": 500, "held_out": 0, "prompts": None}},
            "No evaluation: the data has no held-out conversations, and evaluate.prompts is not set.",
            "not measured",
        ),
        (
            {"step": 3, "evaluate": {"every": 500, "held_out": 0, "prompts": "p.jsonl"}},
            "No evaluation yet: the first comes after step 500.",
            "not measured yet",
        ),
        ({"step": 3, "evaluate": {}}, "No evaluation: this run's config asks for none.", "not measured"),
        (
            {"step": 3, "ended": True, "evaluate": {"every": 500}},
            "No evaluation: the run ended before the first was done.",
            "not measured",
        ),
    ],
)
def test_why_nothing_is_measured(page, head, sentence, tile):
    said = page.evaluate("(head) => [evaluations.noEvaluation(head), evaluations.measuredWords(head)]", head)
    assert said == [sentence, tile]
