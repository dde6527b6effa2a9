// One panel: heading, legend, caption and Plotly chart. Draws once, and then only while it is on screen.

import { DRAWINGS } from "./drawings.js";
import { eventMarks, marksAt, realTime, shownTime } from "./lines.js";
import { element, say } from "./dom.js";
import { axisStyle, baseLayout, domains } from "./theme.js";
import { percent, whole } from "./words.js";

const ROW_HEIGHT = { 1: 300, 2: 300, 3: 400, 4: 400, 5: 460, 6: 520 };
const X_TITLES = { step: "step", tokens: "context tokens", time: "time (local)" };
const NARROW_BELOW = 500; // pixels of a panel
const MARKS = "y9"; // an invisible y axis from 0 to 1, for marks with an x only

export class Panel {
  constructor(chart, onZoom) {
    this.chart = chart;
    this.onZoom = onZoom;
    this.seen = false;
    this.context = null;
    this.title = element("h2", "", chart.title);
    this.title.title = chart.help;
    this.legend = element("div", "legend");
    this.figure = element("div", "figure");
    this.figure.setAttribute("role", "img");
    this.figure.setAttribute("aria-label", `${chart.title}: ${chart.question}`);
    this.empty = element("p", "empty");
    this.caption = element("p", "caption");
    const heading = element("header", "", null, this.title, element("p", "question", chart.question));
    this.root = element("article", "card panel", null, heading, this.legend, this.figure, this.empty, this.caption);
    this.root.classList.toggle("wide", chart.wide);
    this.root.id = `chart-${chart.id}`;
    new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen) this.draw();
    }, { rootMargin: "200px" }).observe(this.root);
    new ResizeObserver(() => this.fit()).observe(this.root);
  }

  fit() {
    const narrow = this.root.clientWidth < NARROW_BELOW;
    if (narrow === this.narrow) return;
    this.narrow = narrow;
    this.dirty = true;
    if (this.seen) this.draw();
  }

  update(context) {
    if (!this.context) whenIdle(() => this.draw()); // so that a print or screenshot of the whole page has no blank panel
    this.context = context;
    this.dirty = true;
    if (this.seen) this.draw();
  }

  draw() {
    if (!this.dirty || !this.context) return;
    this.dirty = false;
    const series = this.context[this.chart.source];
    const drawing = series.buckets ? DRAWINGS[this.chart.draw](this.context, this.chart) : null;
    const empty = drawing ? drawing.empty : this.context.emptyWords(this.chart.source);
    say(this.empty, empty ?? "");
    this.figure.hidden = this.legend.hidden = this.caption.hidden = Boolean(empty);
    if (empty) return;
    this.legend.replaceChildren(...drawing.legend.map(legendItem));
    this.caption.replaceChildren(...this.captionLines(series, drawing).map((words) => element("span", "", words)));
    this.plot(drawing);
  }

  captionLines(series, drawing) {
    const { source, banded } = this.chart;
    const unit = source === "steps" ? "points" : "ticks";
    const lines = [series.width > 1
      ? `${whole(series.rows)} ${unit}, ${banded ? "min/max" : "means"} of ${whole(series.buckets)} buckets`
      : `${whole(series.rows)} ${unit}, every one drawn`];
    if (series.loading) lines[0] = `A preview of ${whole(series.rows)} ${source === "steps" ? "steps" : "telemetry ticks"}; ${percent(series.loading.ratio)} of the record is loaded`;
    return [...lines, this.chart.note, drawing.remark].filter(Boolean);
  }

  plot(drawing) {
    const { theme, settings } = this.context;
    this.narrow ??= this.root.clientWidth < NARROW_BELOW;
    const rows = rowDomains(drawing.rows, drawing.beside && this.narrow ? 0.52 : 0);
    const layout = this.layout(drawing, rows);
    const traces = [...drawing.traces];
    if (this.chart.source === "steps") {
      const marks = eventMarks(this.context.events, (row) => this.eventPlace(row), rows.at(-1)[0], theme, MARKS);
      layout.shapes = marks.shapes;
      traces.push(marks.trace);
      if (drawing.odd?.length) traces.push(marksAt(0.97, drawing.odd, theme.alarm, MARKS));
      if (drawing.sunk?.length) traces.push(marksAt(0.04, drawing.sunk, theme.quiet, MARKS));
    }
    layout.xaxis.type = settings.axis === "time" ? "date" : "linear";
    const config = { displayModeBar: false, responsive: true, showTips: false };
    window.Plotly.react(this.figure, traces, layout, config).then(() => {
      if (this.listening) return;
      this.listening = true;
      this.figure.on("plotly_relayout", (change) => this.relayout(change));
    });
  }

  layout(drawing, rows) {
    const { theme, settings, zoom } = this.context;
    const { narrow } = this;
    const height = (ROW_HEIGHT[drawing.rows.length] ?? 520) + (narrow && drawing.beside ? 200 : 0);
    const layout = baseLayout(theme, height);
    const beside = drawing.beside;
    drawing.rows.forEach((row, index) => {
      layout[index === 0 ? "yaxis" : `yaxis${index + 1}`] = yAxis(theme, row, rows[index], drawing.rows.length);
    });
    const last = drawing.rows.length === 1 ? "y" : `y${drawing.rows.length}`;
    layout.xaxis = { ...axisStyle(theme, X_TITLES[settings.axis]), anchor: last, domain: [0, beside && !narrow ? 0.6 : 1], showgrid: false };
    layout.xaxis.tickformat = settings.axis === "tokens" ? "~s" : undefined;
    if (settings.axis !== "time") layout.xaxis.unifiedhovertitle = { text: `${X_TITLES[settings.axis]} %{x:,d}` };
    if (zoom) layout.xaxis.range = settings.axis === "time" ? zoom.map(shownTime) : zoom;
    else layout.xaxis.autorange = true;
    if (beside) {
      layout.yaxis2 = { ...axisStyle(theme, beside.rowTitle), anchor: "x2", range: beside.range, tickformat: beside.format, fixedrange: true };
      if (narrow) layout.yaxis2.domain = [0, 0.34];
      layout.xaxis2 = {
        ...axisStyle(theme, beside.title), anchor: "y2", domain: narrow ? [0, 1] : [0.7, 1], dtick: beside.count > 10 ? 2 : 1,
        fixedrange: true, showgrid: false,
      };
      layout.bargap = 0.25;
    }
    layout.yaxis9 = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
    return layout;
  }

  eventPlace(row) {
    const { settings, steps } = this.context;
    if (settings.axis === "time") return shownTime(row.time);
    return settings.axis === "step" ? row.step || null : steps.at(row.step, "tokens");
  }

  relayout(change) {
    if (change["xaxis.autorange"]) this.onZoom(null);
    else if (change["xaxis.range[0]"] !== undefined) {
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      this.onZoom(this.context.settings.axis === "time" ? range.map(realTime) : range);
    }
  }
}

function whenIdle(work) {
  if (window.requestIdleCallback) requestIdleCallback(work, { timeout: 3000 });
  else setTimeout(work, 300);
}

function yAxis(theme, row, domain, count) {
  const axis = { ...axisStyle(theme, row.title), domain, fixedrange: true, tickformat: row.format, nticks: count > 2 ? 4 : 6 };
  if (row.log) Object.assign(axis, { type: "log", tickformat: ".3~g" });
  else if (row.range) axis.range = row.range;
  else if (row.floor !== undefined) axis.rangemode = "tozero";
  if (row.ticks) axis.tickvals = row.ticks;
  return axis;
}

/** Domains of the rows from top to bottom, by their `share` (1 by default), above `floor`. */
function rowDomains(rows, floor) {
  if (rows.every((row) => !row.share)) {
    return domains(rows.length, rows.length > 3 ? 0.06 : 0.1).map((domain) => domain.map((edge) => floor + edge * (1 - floor)));
  }
  const gap = 0.12;
  const total = rows.reduce((sum, row) => sum + (row.share ?? 1), 0);
  let top = 1;
  return rows.map((row) => {
    const height = ((row.share ?? 1) / total) * (1 - gap * (rows.length - 1));
    const domain = [Math.max(0, top - height), top];
    top -= height + gap;
    return domain;
  });
}

function legendItem({ label, value, colour, shape = "line" }) {
  const swatch = element("span", `swatch ${shape}`);
  swatch.style.setProperty("--swatch", colour);
  const item = element("span", "item", null, swatch, element("span", "", label));
  if (value !== undefined && value !== "") item.append(element("b", "", value));
  return item;
}
