// The page: loads a run once, follows its stream, and hands what is new to whoever draws it.

import { Chooser } from "./chooser.js";
import { Controls } from "./controls.js";
import { drawEvents, drawFacts } from "./facts.js";
import { drawFlow } from "./flow.js";
import { Panel } from "./plot.js";
import { Series } from "./series.js";
import { Age, getJson, Stream } from "./stream.js";
import { colours } from "./theme.js";
import { drawVerdict, emptyWords, ENDED, liveness } from "./verdict.js";
import { clock, whole } from "./words.js";

const byId = (id) => document.getElementById(id);
const runId = decodeURIComponent(location.pathname.match(/^\/runs\/([^/]+)$/)?.[1] ?? "");
const api = `/api/runs/${encodeURIComponent(runId)}`;
const SOURCES = ["steps", "samples"];
const MOST_EVENTS = 5000;

const state = { head: null, facts: {}, events: [], eventsSeen: 0, connection: "open", zoom: null, words: null, theme: colours() };
const full = { steps: new Series(), samples: new Series() }; // from the first row to the newest
const zoomed = { steps: new Series(), samples: new Series() }; // the range that is zoomed into, finer
const cursors = { steps: 0, samples: 0 };
const age = new Age();
let panels = [];
let scheduled = false;

const controls = new Controls((name) => { if (name === "axis") setZoom(null); schedule(); });
const chooser = new Chooser(byId("chooser"), byId("runs"), byId("runs-list"));
const stream = new Stream(streamAddress, onTick, (connection) => { state.connection = connection; drawLive(); });

function streamAddress() {
  const cursor = `${cursors.steps}:${cursors.samples}:${state.eventsSeen}`;
  return `${api}/events?cursor=${cursor}&width=${full.steps.width}&sample_width=${full.samples.width}`;
}

async function loadSeries() {
  const found = await Promise.all(SOURCES.map((source) => getJson(`${api}/series?metric=${source}`)));
  SOURCES.forEach((source, index) => {
    full[source].load(found[index]);
    cursors[source] = found[index].cursor;
  });
}

async function reload() {
  stream.stop();
  try {
    await loadSeries();
    if (state.zoom) await loadZoom();
  } finally {
    stream.start();
  }
  schedule();
}

function takeHead(head) {
  if (state.head?.loading && !head.loading) queueMicrotask(reload);
  state.head = head;
  age.set(head.last_sample_age_seconds ?? head.last_line_age_seconds);
}

function onTick(message, cursor) {
  takeHead(message.head);
  state.events = [...state.events, ...message.events].slice(-MOST_EVENTS);
  const reached = cursor.split(":").map(Number);
  state.eventsSeen = reached[2];
  for (const [index, source] of SOURCES.entries()) {
    const part = message[source];
    if (part && (part.resync || !full[source].take(part))) return reload();
    cursors[source] = reached[index];
    if (part) full[source].rows = reached[index];
  }
  if (!state.facts.id) loadFacts();
  followZoom();
  schedule();
  return undefined;
}

async function loadFacts() {
  const found = await getJson(api);
  state.facts = found.facts;
  return found;
}

// -- zoom ---------------------------------------------------------------------------------------------------------------------------

let zoomAgain = 0;

async function loadZoom() {
  const [low, high] = state.zoom;
  const range = `x=${controls.settings.axis}&from=${low}&to=${high}`;
  const found = await Promise.all(SOURCES.map((source) => getJson(`${api}/series?metric=${source}&${range}`)));
  if (state.zoom?.[0] === low && state.zoom?.[1] === high) SOURCES.forEach((source, index) => zoomed[source].load(found[index]));
}

function setZoom(range) {
  state.zoom = range;
  byId("zoom").hidden = !range;
  if (!range) return schedule();
  const axis = controls.settings.axis;
  const ends = range.map((value) => (axis === "time" ? clock(value) : whole(value)));
  byId("zoom-words").textContent = `Zoomed to ${axis === "time" ? "" : `${axis === "step" ? "steps" : "context tokens"} `}${ends.join(" – ")}.`;
  return loadZoom().then(schedule);
}

/** New rows inside the zoomed range are read at most every two seconds. */
function followZoom() {
  if (!state.zoom || performance.now() < zoomAgain) return;
  const newest = full.steps.segments.at(-1)?.axes[controls.settings.axis]?.at(-1);
  if (newest === undefined || newest > state.zoom[1]) return;
  zoomAgain = performance.now() + 2000;
  loadZoom().then(schedule, () => {});
}

// -- drawing ------------------------------------------------------------------------------------------------------------------------

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

function draw() {
  if (!state.head || !state.words) return;
  const series = state.zoom ? zoomed : full;
  const context = {
    ...state, ...series, age: age.seconds, settings: controls.settings,
    emptyWords: (source) => emptyWords(state.head, age.seconds, source),
  };
  drawVerdict(byId("verdict"), context);
  drawFlow(byId("flow"), state.head, age.seconds, state.words);
  drawLive();
  for (const panel of panels) panel.update(context);
  drawEvents(byId("events"), state.events);
  if (byId("facts").dataset.id !== state.facts.id) {
    byId("facts").dataset.id = state.facts.id ?? "";
    drawFacts(byId("facts"), state.facts);
    byId("run-name").textContent = state.facts.name ?? runId;
    document.title = `${state.facts.name ?? runId} · Draftscope`;
  }
  notice(state.head.trouble || (state.head.unreadable_lines ? unreadable(state.head.unreadable_lines) : ""));
}

function unreadable(count) {
  return `${whole(count)} ${count === 1 ? "line of this record could" : "lines of this record could"} not be read and ${count === 1 ? "is" : "are"} left out.`;
}

function drawLive() {
  if (!state.head) return;
  const [kind, words] = liveness(state.head, age.seconds, state.connection);
  byId("live").className = `live is-${kind}`;
  byId("live").textContent = words;
}

/** Once a second, whatever the server does: ages go on, and a run that fell silent says so. */
function beat() {
  if (document.hidden || !state.head) return;
  drawLive();
  if (!ENDED.includes(state.head.state)) drawVerdict(byId("verdict"), { ...state, age: age.seconds });
  if (!full.steps.buckets) schedule();
}

function notice(words) {
  byId("notice").textContent = words;
  byId("notice").hidden = !words;
}

// -- start --------------------------------------------------------------------------------------------------------------------------

/** "/" with no run yet, or the page of a run whose folder is not there yet: waits for it. */
async function waitForRun() {
  const { root, root_exists: exists, runs } = await getJson("/api/runs").catch(() => ({ root: "", runs: [], root_exists: true }));
  if (runs.length && (!runId || runs.some((run) => run.id === runId))) return location.reload();
  const other = runId ? `There is no run “${runId}” in ${root}; this page waits for it.` : `No runs yet in ${root}: start one with “make demo”.`;
  notice(exists ? other : `${other} The folder does not exist yet; this page waits for it.`);
  byId("run-name").textContent = runId || "no run yet";
  return setTimeout(waitForRun, 2000);
}

async function start() {
  if (!runId) return waitForRun();
  chooser.current = runId;
  try {
    const [words, found] = await Promise.all([getJson("/api/charts"), loadFacts(), loadSeries()]);
    state.words = words;
    state.events = found.events;
    state.eventsSeen = found.events_seen;
    takeHead(found.head);
  } catch (error) {
    if (error.status === 404) return waitForRun();
    notice(`${error.message} Trying again.`);
    return setTimeout(start, 2000);
  }
  panels = state.words.charts.map((chart) => new Panel(chart, setZoom));
  byId("charts").replaceChildren(...panels.map((panel) => panel.root));
  draw();
  stream.start();
  setInterval(beat, 1000);
  return undefined;
}

controls.listen({ r: () => chooser.open(), Escape: () => setZoom(null) });
byId("zoom-reset").addEventListener("click", () => setZoom(null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { state.theme = colours(); schedule(); });
start();
