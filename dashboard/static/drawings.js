// Turns series into {rows, traces, legend, remark} for each chart. A row is a y axis; rows share one x axis.

import { evaluationLines, keptBars, noEvaluation } from "./evaluations.js";
import { banded, line, points } from "./lines.js";
import { halfLife, smoothed } from "./series.js";
import { faded, ramp } from "./theme.js";
import { bytes, figure, known, percent, whole } from "./words.js";

const SHARES = { none: 0, light: 0.015, strong: 0.05 };
const GB = 1e9;

const yName = (index) => (index === 0 ? "y" : `y${index + 1}`);

/** Half-life in steps of the chosen smoothing; 0 for none. */
export function chosenHalf({ settings, steps }) {
  const ends = steps.segments.flatMap((segment) => (segment.axes.step.length ? [segment.axes.step[0], segment.axes.step.at(-1)] : []));
  return SHARES[settings.smoothing] && ends.length ? halfLife(Math.max(...ends) - Math.min(...ends), SHARES[settings.smoothing]) : 0;
}

function bandedDrawing(context, chart, { label, format, log, digits, unit = "", title = chart.axis, newestLabel = "latest" }) {
  const { banded: column } = chart;
  const { settings, theme, steps } = context;
  const half = chosenHalf(context);
  const colour = theme.stages.drafter;
  const { traces, odd, sunk } = banded(steps, column, { axis: settings.axis, colour, yaxis: "y", half, label, format, log, unit });
  const newest = context.head?.newest_step?.[column] ?? steps.newest(column);
  const legend = [{ label: newestLabel, value: context.head?.not_finite?.[column] ?? figure(newest, digits), colour }];
  if (steps.width > 1) legend.push({ label: "lowest to highest", colour: faded(colour, 0.3), shape: "area" });
  if (half) legend.push({ label: `smoothed, half-life ${whole(half)} ${half === 1 ? "step" : "steps"}`, colour, shape: "thick" });
  if (steps.segments.some((segment) => segment.overtaken_from !== null)) legend.push({ label: "overtaken by a resume", colour, shape: "dots" });
  if (odd.length) legend.push({ label: "NaN or infinite", colour: theme.alarm, shape: "triangle" });
  if (sunk.length) legend.push({ label: "values ≤ 0", colour: theme.quiet, shape: "triangle" });
  const what = steps.width > 1 ? (sunk.length === 1 ? "bucket holds" : "buckets hold") : sunk.length === 1 ? "step has" : "steps have";
  const remark = sunk.length ? `${whole(sunk.length)} ${what} values ≤ 0, which a logarithmic axis cannot show` : "";
  return { rows: [{ title, log }], traces, odd, sunk, legend, remark };
}

function loss(context, chart) {
  const unit = context.head?.loss_unit ?? "nats";
  return bandedDrawing(context, chart, { label: "loss", format: ".4f", log: context.settings.log, digits: 4, unit, title: `${chart.axis} (${unit})` });
}

function acceptance(context, chart) {
  const estimated = "estimated (training)";
  const drawing = bandedDrawing(context, chart, { label: estimated, format: ".3f", log: false, digits: 4, newestLabel: estimated });
  const measured = evaluationLines(context);
  const bars = keptBars(context);
  drawing.traces.push(...measured.traces, ...(bars?.traces ?? []));
  drawing.legend.splice(1, 0, ...measured.legend);
  drawing.legend.push(...(bars?.legend ?? []));
  return { ...drawing, beside: bars?.beside, remark: bars?.remark ?? noEvaluation(context.head) };
}

function gradient(context, chart) {
  const { settings, steps, theme } = context;
  const drawing = bandedDrawing(context, chart, { label: "norm", format: ".3f", log: settings.log, digits: 3 });
  const { live } = points(steps, "learning_rate", settings.axis);
  const rate = line(live.x, live.mean, theme.quiet, "y2", { hovertemplate: "learning rate %{y:.3~g}<extra></extra>" });
  drawing.rows.push({ title: "learning rate", share: 0.5, floor: 0, format: ".1~e" });
  drawing.traces.push(rate);
  const newest = context.head?.newest_step?.learning_rate;
  drawing.legend.push({ label: "learning rate", value: figure(newest), colour: theme.quiet });
  return drawing;
}

function positions(context, chart) {
  const { settings, steps, theme, head } = context;
  const names = steps.columns.filter((name) => name.startsWith("position_accuracy."));
  const colours = ramp(theme.positions, names.length);
  const half = chosenHalf(context);
  const traces = names.map((name, index) => {
    const { live } = points(steps, name, settings.axis);
    const y = half ? smoothed(live.steps, live.mean, half) : live.mean;
    return line(live.x, y, colours[index], "y", { hovertemplate: `position ${index + 1} %{y:.1%}<extra></extra>` });
  });
  const newest = head?.newest_step?.position_accuracy ?? names.map((name) => steps.newest(name));
  traces.push({
    type: "bar", x: newest.map((_, index) => index + 1), y: newest, xaxis: "x2", yaxis: "y2", marker: { color: colours },
    text: newest.map((value) => (value === null ? "–" : percent(value))), textposition: "outside", textangle: 0, cliponaxis: false,
    constraintext: "none", textfont: { size: 10 }, hovertemplate: "position %{x}: %{y:.1%}<extra>newest step</extra>",
  });
  const legend = names.length ? [
    { label: "position 1, after the anchor", colour: colours[0] },
    { label: `position ${names.length}`, colour: colours.at(-1) },
  ] : [];
  const top = Math.min(1, Math.max(0.1, 1.25 * Math.max(0, ...newest.filter(known))));
  return {
    rows: [{ title: chart.axis, format: ".0%", floor: 0 }], traces, legend,
    beside: { title: "position in the block", rowTitle: "latest step (%)", format: ".0%", range: [0, top], count: newest.length },
    remark: half ? `smoothed, half-life ${whole(half)} steps` : "",
  };
}

function tickLine(context, name, colour, yaxis, label, format, more = {}) {
  const { live } = points(context.telemetry, name, context.settings.axis);
  return line(live.x, live.mean, colour, yaxis, { ...more, hovertemplate: `${label} %{y:${format}}<extra></extra>` });
}

/** A line of bytes: GB on the axis; the hover formats bytes as the rest of the page does. */
function memoryLine(context, name, colour, yaxis, label, more = {}) {
  const { live } = points(context.telemetry, name, context.settings.axis);
  const y = live.mean.map((value) => (value === null ? null : value / GB));
  return line(live.x, y, colour, yaxis, { ...more, text: live.mean.map(bytes), hovertemplate: `${label} %{text}<extra></extra>` });
}

function throughput(context, chart) {
  const { theme, head } = context;
  const rates = head?.newest_tick?.rates ?? {};
  const [contextColour, draft] = [theme.stages.target, theme.stages.drafter];
  return {
    rows: [{ title: chart.axis, floor: 0 }, { title: "steps/s", floor: 0, share: 0.45 }],
    traces: [
      tickLine(context, "rates.context_tokens_per_second", contextColour, "y", "context tokens/s", ",.0f"),
      tickLine(context, "rates.draft_tokens_per_second", draft, "y", "draft tokens/s", ",.0f", { dash: "dash" }),
      tickLine(context, "rates.steps_per_second", theme.ink, "y2", "steps/s", ".3~g"),
    ],
    legend: [
      { label: "context tokens/s", value: whole(rates.context_tokens_per_second), colour: contextColour },
      { label: "draft tokens/s", value: whole(rates.draft_tokens_per_second), colour: draft, shape: "dash" },
      { label: "steps/s", value: figure(rates.steps_per_second), colour: theme.ink },
    ],
  };
}

function queues(context, chart) {
  const { theme, head, words } = context;
  const half = chosenHalf(context);
  const newest = Object.fromEntries((head?.newest_tick?.queues ?? []).map((queue) => [queue.name, queue]));
  return {
    rows: words.queues.map((name) => ({ title: `${name} (%)`, format: ".0%", range: [-0.03, 1.06], ticks: [0, 0.5, 1] })),
    traces: words.queues.flatMap((name, row) => queueLines(context, name, yName(row), half)),
    legend: words.queues.map((name) => ({
      label: name, value: newest[name] ? `${whole(newest[name].items)} of ${whole(newest[name].capacity_items)}` : "", colour: theme.queues[name],
    })),
    remark: `${chart.axis}${half ? `; smoothed, half-life ${whole(half)} steps` : ""}`,
  };
}

function queueLines({ telemetry, settings, theme }, name, yaxis, half) {
  const { live } = points(telemetry, `queues.${name}.fill_ratio`, settings.axis);
  const colour = theme.queues[name];
  const raw = line(live.x, live.mean, colour, yaxis, { hovertemplate: `${name} %{y:.0%}<extra></extra>`, ...(half ? { width: 1, opacity: 0.4 } : {}) });
  const mean = half ? line(live.x, smoothed(live.steps, live.mean, half), colour, yaxis, { width: 2.2, hoverinfo: "skip" }) : null;
  return mean ? [raw, mean] : [raw];
}

const STATES = [
  ["busy_ratio", "busy", "", 0.85],
  ["waiting_input_ratio", "waiting for input", "/", 0.3],
  ["waiting_output_ratio", "waiting for output", ".", 0.3],
];

function shares(context) {
  const { theme, settings, telemetry, words } = context;
  const traces = words.stages.flatMap((stage, row) => STATES.map(([field, label, pattern, opacity]) => {
    const { live } = points(telemetry, `stages.${stage}.${field}`, settings.axis);
    const colour = theme.stages[stage];
    return {
      type: "scatter", mode: "lines", x: live.x, y: live.mean, yaxis: yName(row), stackgroup: stage, line: { width: 0.5, color: colour },
      fillcolor: faded(colour, opacity), hovertemplate: `${stage} ${label} %{y:.0%}<extra></extra>`,
      ...(pattern ? { fillpattern: { shape: pattern, fgcolor: faded(colour, 0.75), bgcolor: faded(colour, 0.1), size: 6, solidity: 0.25 } } : {}),
    };
  }));
  return {
    rows: words.stages.map((stage) => ({ title: `${stage} (%)`, format: ".0%", range: [0, 1], ticks: [0, 0.5, 1] })), traces,
    legend: [
      { label: "busy", colour: theme.ink, shape: "full" },
      { label: "waiting for input", colour: theme.ink, shape: "hatch" },
      { label: "waiting for output", colour: theme.ink, shape: "grain" },
    ],
  };
}

const GPU_ROWS = [ // column, title, format (none for bytes), axis
  ["kernel_active_ratio", "", ".0%", { range: [0, 1.05], ticks: [0, 0.5, 1] }],
  ["memory_used_bytes", "memory (GB)", "", { floor: 0 }],
  ["power_watts", "power (W)", ".0f", { floor: 0 }],
  ["temperature_celsius", "temp. (°C)", ".0f", {}],
];
const DASHES = ["solid", "dash", "dot", "dashdot"];

function devices(context, chart) {
  const { theme, telemetry, head } = context;
  const gpus = head?.newest_tick?.devices ?? [];
  const rows = [];
  const traces = [];
  for (const [field, title, format, more] of GPU_ROWS) {
    const there = gpus.filter((gpu) => telemetry.newest(`devices.${gpu.index}.${field}`) !== null);
    if (!there.length) continue;
    for (const gpu of there) {
      const colour = theme.gpus[gpu.index % theme.gpus.length];
      const dash = DASHES[gpu.index % DASHES.length];
      const place = [context, `devices.${gpu.index}.${field}`, colour, yName(rows.length), `GPU ${gpu.index}`];
      traces.push(format ? tickLine(...place, format, { dash }) : memoryLine(...place, { dash }));
    }
    rows.push({ title: title || chart.axis, format: format || undefined, ...more });
  }
  const legend = gpus.map((gpu) => ({
    label: `GPU ${gpu.index}, ${gpu.name}`, colour: theme.gpus[gpu.index % theme.gpus.length], shape: gpu.index % 2 ? "dash" : "line",
    value: gpuFigures(gpu),
  }));
  const empty = rows.length ? "" : "No GPU figures: the trainer found no GPU or cannot read its figures. CPU and memory of its process are shown above.";
  return { rows, traces, legend, empty, remark: "kernels active: share of time in which at least one kernel was running, an upper bound of utilisation" };
}

function gpuFigures(gpu) {
  const memory = `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`;
  const parts = [percent(gpu.kernel_active_ratio), memory];
  if (known(gpu.power_watts)) parts.push(`${whole(gpu.power_watts)} W`);
  if (known(gpu.temperature_celsius)) parts.push(`${whole(gpu.temperature_celsius)} °C`);
  return parts.join(" · ");
}

function process(context, chart) {
  const { theme, head } = context;
  const newest = head?.newest_tick?.process ?? {};
  return {
    rows: [{ title: chart.axis, floor: 0 }, { title: "memory (GB)", floor: 0 }],
    traces: [
      tickLine(context, "process.cpu_cores", theme.ink, "y", "CPU cores", ".2f"),
      memoryLine(context, "process.memory_bytes", theme.quiet, "y2", "memory"),
    ],
    legend: [
      { label: "CPU cores in use", value: figure(newest.cpu_cores), colour: theme.ink },
      { label: "resident memory", value: bytes(newest.memory_bytes), colour: theme.quiet },
    ],
  };
}

export const DRAWINGS = { loss, acceptance, positions, throughput, shares, queues, process, gradient, devices };
