// The page: loads a run once, follows its stream, and passes news to the parts that draw it.

import { Chooser } from "./chooser.js";
import { Controls } from "./controls.js";
import { drawEvents, drawFacts } from "./facts.js";
import { drawFlow } from "./flow.js";
import { say } from "./dom.js";
import { Panel } from "./plot.js";
import { Series } from "./series.js";
import { Age, getJson, Stream } from "./stream.js";
import { colours } from "./theme.js";
import { drawVerdict, emptyWords, liveness } from "./verdict.js";
import { clock, whole } from "./words.js";

const byId = (id) => document.getElementById(id);
const runId = decodeURIComponent(location.pathname.match(/^\/runs\/([^/]+)$/)?.[1] ?? "");
const api = `/api/runs/${encodeURIComponent(runId)}`;
const SOURCES = ["steps", "telemetry"];
const RETRY_MS = 2000;

const state = { head: null, facts: {}, events: [], evaluations: [], eventsSeen: 0, eventsKept: 0, lost: "", zoom: null, words: null, theme: colours() };
const full = { steps: new Series(), telemetry: new Series() }; // from the first row to the newest
const zoomed = { steps: new Series(), telemetry: new Series() }; // the range that is zoomed into, finer
const cursors = { steps: 0, telemetry: 0 };
const drawn = {}; // by part of the page that seldom changes: the key of its last drawing
const age = new Age();
let panels = [];
let scheduled = false;
let reloading = null;

const controls = new Controls((name) => { if (name === "axis") setZoom(null); schedule(); });
const chooser = new Chooser(byId("chooser"), byId("runs"), byId("runs-list"));
const stream = new Stream(streamAddress, onTick, (words) => { state.lost = words; drawLive(); });

function streamAddress() {
  const cursor = `${cursors.steps}:${cursors.telemetry}:${state.eventsSeen}`;
  return `${api}/events?cursor=${cursor}&width=${full.steps.width}&telemetry_width=${full.telemetry.width}`;
}

function loadAll(range = "") {
  return Promise.all(SOURCES.map((source) => getJson(`${api}/series?metric=${source}${range}`)));
}

async function load() {
  const [found, series] = await Promise.all([getJson(api), loadAll()]);
  SOURCES.forEach((source, index) => {
    full[source].load(series[index]);
    cursors[source] = series[index].cursor;
  });
  Object.assign(state, {
    facts: found.facts, events: found.events, evaluations: found.evaluations, eventsSeen: found.events_seen, eventsKept: found.events_kept,
  });
  takeHead(found.head);
}

/** Reloads everything, retrying until it succeeds; concurrent calls share one reload. */
function reload() {
  reloading ??= loadUntilDone().finally(() => { reloading = null; });
}

async function loadUntilDone() {
  stream.stop();
  try {
    await load();
    if (state.zoom) await loadZoom(state.zoom);
    say(byId("problem"), "");
    stream.start();
    schedule();
  } catch (error) {
    say(byId("problem"), `${error.message} Trying again.`);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    await loadUntilDone();
  }
}

function takeHead(head) {
  state.head = head;
  age.set(head.last_tick_age_seconds ?? head.last_line_age_seconds);
}

function onTick(message, cursor) {
  takeHead(message.head);
  state.events = [...state.events, ...message.events].slice(-state.eventsKept);
  state.evaluations.push(...message.evaluations);
  const reached = cursor.split(":").map(Number);
  state.eventsSeen = reached[2];
  for (const [index, source] of SOURCES.entries()) {
    const part = message[source];
    if (part && (part.resync || !full[source].take(part))) return reload();
    cursors[source] = reached[index];
    if (part) full[source].rows = reached[index];
  }
  const another = (message.head.started_at ?? undefined) !== (state.facts.started_at ?? undefined); // run.json has appeared, or another run has taken its place
  const nowWhole = SOURCES.some((source) => full[source].loading) && !message.head.loading;
  if (another || nowWhole) return reload();
  followZoom();
  return schedule();
}

// -- zoom ---------------------------------------------------------------------------------------------------------------------------

let zoomAgain = 0;
let zoomWanted = null;

/** Loads a range and shows it; false if another range was requested meanwhile. */
async function loadZoom(range) {
  const found = await loadAll(`&x=${controls.settings.axis}&from=${range[0]}&to=${range[1]}`);
  if (zoomWanted !== range) return false;
  SOURCES.forEach((source, index) => zoomed[source].load(found[index]));
  state.zoom = range;
  return true;
}

async function setZoom(range) {
  zoomWanted = range;
  if (!range) state.zoom = null;
  try {
    if (range && (await loadZoom(range))) say(byId("problem"), "");
  } catch (error) {
    zoomWanted = state.zoom;
    say(byId("problem"), `This range could not be read: ${error.message}`);
  }
  schedule();
}

function drawZoom() {
  byId("zoom").hidden = !state.zoom;
  if (!state.zoom) return;
  const { axis } = controls.settings;
  const ends = state.zoom.map((value) => (axis === "time" ? clock(value) : whole(value)));
  say(byId("zoom-words"), `Zoomed to ${axis === "time" ? "" : `${axis === "step" ? "steps" : "context tokens"} `}${ends.join(" – ")}.`);
}

/** Reloads the zoomed range at most every two seconds while it grows; if that fails, the stream reports why. */
function followZoom() {
  if (!state.zoom || performance.now() < zoomAgain) return;
  const newest = full.steps.segments.at(-1)?.axes[controls.settings.axis]?.at(-1);
  if (newest === undefined || newest > state.zoom[1]) return;
  zoomAgain = performance.now() + 2000;
  loadZoom(state.zoom).then(schedule, () => {});
}

// -- drawing ------------------------------------------------------------------------------------------------------------------------

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

/** Calls `work` if `key` differs from that of the last drawing. */
function whenChanged(part, key, work) {
  if (drawn[part] === key) return;
  drawn[part] = key;
  work();
}

function draw() {
  if (!state.head || !state.words) return;
  const series = state.zoom ? zoomed : full;
  const context = {
    ...state, ...series, allSteps: full.steps, age: age.seconds, settings: controls.settings,
    emptyWords: (source) => emptyWords(state.head, age.seconds, source),
  };
  drawVerdict(byId("verdict"), context);
  drawFlow(byId("flow"), state.head, age.seconds, state.words);
  drawLive();
  drawZoom();
  for (const panel of panels) panel.update(context);
  const run = `${state.facts.id} ${state.facts.started_at}`;
  whenChanged("events", `${run} ${state.eventsSeen}`, () => drawEvents(byId("events"), state.events, state.eventsSeen));
  whenChanged("facts", `${run} ${state.head.loss_unit}`, () => {
    drawFacts(byId("facts"), state.facts, state.head.loss_unit);
    byId("run-name").textContent = state.facts.name ?? runId;
    document.title = `${state.facts.name ?? runId} · Draftscope`;
  });
  say(byId("notice"), state.head.trouble || (state.head.unreadable_lines ? unreadable(state.head.unreadable_lines) : ""));
}

function unreadable(count) {
  return `${whole(count)} ${count === 1 ? "line of this record could" : "lines of this record could"} not be read and ${count === 1 ? "is" : "are"} left out.`;
}

/** The text changes every second; screen readers are told only when its kind changes. */
function drawLive() {
  if (!state.head) return;
  const [kind, words] = liveness(state.head, age.seconds, state.lost);
  byId("live").className = `live is-${kind}`;
  byId("live").textContent = words;
  whenChanged("live", kind, () => { byId("announced").textContent = words; });
}

/** Once a second, independent of the server: ages advance, and a silent run is shown as such. */
function beat() {
  if (document.hidden || !state.head) return;
  drawLive();
  if (!state.head.ended) drawVerdict(byId("verdict"), { ...state, age: age.seconds });
  if (!full.steps.buckets) schedule();
}

// -- start --------------------------------------------------------------------------------------------------------------------------

/** Waits for a run: on "/" for any, on the page of a run whose folder does not exist yet for that one. */
async function waitForRun() {
  const { root, root_exists: exists, runs } = await getJson("/api/runs").catch(() => ({ root: "", runs: [], root_exists: true }));
  if (runs.length && (!runId || runs.some((run) => run.id === runId))) return location.reload();
  const other = runId ? `There is no run “${runId}” in ${root}; this page waits for it.` : `No runs yet in ${root}: start one with “make demo”.`;
  say(byId("notice"), exists ? other : `${other} The folder does not exist yet.`);
  byId("run-name").textContent = runId || "no run yet";
  return setTimeout(waitForRun, 1000);
}

async function start() {
  if (!runId) return waitForRun();
  chooser.current = runId;
  try {
    [state.words] = await Promise.all([getJson("/api/charts"), load()]);
  } catch (error) {
    if (error.status === 404) return waitForRun();
    say(byId("problem"), `${error.message} Trying again.`);
    return setTimeout(start, RETRY_MS);
  }
  say(byId("problem"), "");
  panels = state.words.charts.map((chart) => new Panel(chart, setZoom));
  byId("charts").replaceChildren(...panels.map((panel) => panel.root));
  draw();
  stream.start();
  setInterval(beat, 1000);
  return undefined;
}

controls.listen({ r: () => chooser.open(), Escape: () => setZoom(null) });
byId("zoom-reset").addEventListener("click", () => setZoom(null));
for (const dialog of document.querySelectorAll("dialog")) { // a click beside it
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
addEventListener("beforeprint", () => panels.forEach((panel) => panel.draw()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { state.theme = colours(); schedule(); });
start();
