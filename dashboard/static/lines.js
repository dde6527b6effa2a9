// Plotly traces from series: the building blocks that the drawings share.

import { overtakenAt, smoothed } from "./series.js";
import { faded } from "./theme.js";
import { figure, whole } from "./words.js";

/** Plotly shows dates as UTC; shifted by the zone's offset they read as local time. */
export function shownTime(unixSeconds) {
  return 1000 * unixSeconds - 60000 * new Date(1000 * unixSeconds).getTimezoneOffset();
}

/** The inverse, from Plotly's date strings, which omit trailing zeros: "2026-11-30 11:40" */
export function realTime(shown) {
  const moved = typeof shown === "number" ? shown : Date.parse(`${(shown + "0000-01-01 00:00:00".slice(shown.length)).replace(" ", "T")}Z`);
  return (moved + 60000 * new Date(moved).getTimezoneOffset()) / 1000;
}

function xOf(segment, axis) {
  return axis === "time" ? segment.axes.time.map(shownTime) : segment.axes[axis];
}

/** One column on one axis: `live` in one list with a null between attempts, `faint` overtaken by a resume, `odd` NaN and infinities. */
export function points(series, name, axis) {
  const live = { x: [], steps: [], mean: [], low: [], high: [] };
  const faint = [];
  const odd = [];
  for (const segment of series.segments) {
    const column = segment.series[name];
    if (!column) continue;
    const x = xOf(segment, axis);
    const cut = overtakenAt(segment);
    if (live.x.length) for (const part of Object.values(live)) part.push(null);
    push(live.x, x, cut);
    push(live.steps, segment.axes.step, cut);
    for (const part of ["mean", "low", "high"]) push(live[part], column[part] ?? column.mean, cut);
    if (cut < x.length) faint.push(tail(x, column, Math.max(0, cut - 1)));
    odd.push(...oddities(column, x, segment.axes.step));
  }
  return { live, faint, odd };
}

function tail(x, column, begin) {
  const { mean, low = mean, high = mean } = column;
  return { x: x.slice(begin), mean: mean.slice(begin), low: low.slice(begin), high: high.slice(begin) };
}

function push(list, values, end) {
  for (let index = 0; index < end; index += 1) list.push(values[index]);
}

function oddities(column, x, steps) {
  const places = new Set([...Object.keys(column.nan ?? {}), ...Object.keys(column.infinite ?? {})]);
  return [...places].map((place) => {
    const words = [["nan", "NaN"], ["infinite", "infinite"]]
      .filter(([kind]) => column[kind]?.[place])
      .map(([kind, word]) => `${whole(column[kind][place])} × ${word}`);
    return { x: x[place], words: `${words.join(", ")} up to step ${whole(steps[place])}` };
  });
}

/** Lowest to highest value of each bucket, as filled shapes split at null values. */
export function band({ x, low, high }, colour, yaxis, opacity = 0.2) {
  const outline = { x: [], y: [] };
  let begin = 0;
  for (let index = 0; index <= x.length; index += 1) {
    if (index < x.length && low[index] !== null && low[index] !== undefined) continue;
    if (index > begin) {
      for (let at = begin; at < index; at += 1) { outline.x.push(x[at]); outline.y.push(high[at]); }
      for (let at = index - 1; at >= begin; at -= 1) { outline.x.push(x[at]); outline.y.push(low[at]); }
      outline.x.push(null);
      outline.y.push(null);
    }
    begin = index + 1;
  }
  return {
    type: "scatter", mode: "lines", x: outline.x, y: outline.y, yaxis, fill: "toself", fillcolor: faded(colour, opacity),
    line: { width: 1, color: faded(colour, 2.5 * opacity) }, hoverinfo: "skip",
  };
}

export function line(x, y, colour, yaxis, more = {}) {
  const { width = 1.6, dash = "solid", ...rest } = more;
  return { type: "scatter", mode: "lines", x, y, yaxis, line: { color: colour, width, dash }, ...rest };
}

/** The part of a band that a logarithmic axis can show, cut off at the smallest positive value. */
function aboveZero(part, floor) {
  return { ...part, low: part.low.map((low, index) => (low === null || part.high[index] <= 0 ? null : Math.max(low, floor))) };
}

/** Buckets with values that a logarithmic axis cannot show. */
function sunken({ x, low, high }) {
  return x.flatMap((place, index) => (low[index] === null || low[index] > 0 ? [] : [{ x: place, words: `${figure(low[index])} to ${figure(high[index])}` }]));
}

/** A metric with a band. From back to front: steps overtaken by a resume, lowest to highest, the raw line, the smoothed line. */
export function banded(series, name, { axis, colour, yaxis, half, label, format, log, unit = "" }) {
  const { live, faint, odd } = points(series, name, axis);
  const raw = half ? { width: 1, opacity: 0.4 } : {};
  const spread = live.low.map((low, index) => [low, live.high[index]]);
  const hover = series.width > 1 ? `<br>lowest %{customdata[0]:${format}}, highest %{customdata[1]:${format}}` : "";
  const floor = Math.min(...[...live.low, ...live.mean].filter((value) => value > 0));
  const shown = (part) => (log ? aboveZero(part, floor) : part);
  const traces = [
    ...faint.map((tail) => line(tail.x, tail.mean, colour, yaxis, { width: 1, dash: "dot", opacity: 0.45, hoverinfo: "skip" })),
    ...(series.width > 1 ? [...faint.map((tail) => band(shown(tail), colour, yaxis, 0.12)), band(shown(live), colour, yaxis)] : []),
    line(live.x, live.mean, colour, yaxis, {
      ...raw, customdata: spread, hovertemplate: `${label} %{y:${format}}${unit && ` ${unit}`}${hover}<extra></extra>`, meta: "raw",
    }),
  ];
  if (half) {
    const mean = smoothed(live.steps, live.mean, half);
    traces.push(line(live.x, mean, colour, yaxis, { width: 2.2, hovertemplate: `smoothed %{y:${format}}<extra></extra>` }));
  }
  return { traces, odd, sunk: log ? sunken(live) : [] };
}

/** Marks at a height (0 to 1) of a chart for values that it cannot show; a gap alone would hide them. */
export function marksAt(height, marks, colour, yaxis) {
  return {
    type: "scatter", mode: "markers", x: marks.map((mark) => mark.x), y: marks.map(() => height), yaxis, text: marks.map((mark) => mark.words),
    marker: { symbol: "triangle-down", size: 11, color: colour, line: { width: 1, color: colour } },
    hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
  };
}

const SYMBOLS = { checkpoint: "diamond-open", resumed: "triangle-right", failed: "x", finished: "square", stalled: "hourglass" };
const QUIET = ["checkpoint", "started"];
const UNMARKED = ["started", "dropped", "evaluated"]; // evaluations have their own chart
const MOST_LINES = 60;

/**
 * Events on a chart: a vertical line down to `foot` (0 to 1, of the whole figure), and a symbol for the kind of event.
 * `where` gives an event's x or null.
 */
export function eventMarks(events, where, foot, theme, yaxis) {
  const placed = events.filter((row) => !UNMARKED.includes(row.event))
    .map((row) => ({ row, x: where(row) })).filter((mark) => mark.x !== null && mark.x !== undefined);
  const colour = (row) => QUIET.includes(row.event) ? theme.quiet : row.event === "resumed" || row.event === "finished" ? theme.note : theme.alarm;
  const shapes = placed.slice(-MOST_LINES).map(({ row, x }) => ({
    type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: foot, y1: 1, layer: "below",
    line: { color: colour(row), width: 1, dash: row.event === "checkpoint" ? "dot" : "dash" }, opacity: row.event === "checkpoint" ? 0.35 : 0.9,
  }));
  const trace = {
    type: "scatter", mode: "markers", x: placed.map((mark) => mark.x), y: placed.map(() => 0.02), yaxis,
    marker: { symbol: placed.map(({ row }) => SYMBOLS[row.event] ?? "circle"), size: 8, color: placed.map(({ row }) => colour(row)) },
    text: placed.map(({ row }) => escaped(row.message || row.event)), hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
  };
  return { shapes, trace };
}

/** Plotly interprets some tags in hover text; a run's text is shown literally. */
function escaped(text) {
  return String(text).slice(0, 160).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
