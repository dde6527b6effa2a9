// Points and bars of the acceptance chart from evaluations, and the text shown before the first one.

import { line, shownTime } from "./lines.js";
import { faded } from "./theme.js";
import { figure, known, whole } from "./words.js";

const STEPS_MEANT = 20; // as in the trainer's comparison: one step's accuracy covers one batch only
const MANY = 60; // points; beyond, markers are small

/** Measured and held-out estimated lengths at the step of the measured drafter; evaluations overtaken by a resume are faint. */
export function evaluationLines(context) {
  const { theme, head } = context;
  const kinds = [
    ["measured_length", "measured", theme.stages.target, { symbol: "circle", dash: "solid", shape: "line" }],
    ["held_out_estimated_length", "estimated (held out)", theme.stages.drafter, { symbol: "diamond-open", dash: "dash", shape: "dash" }],
  ];
  const placed = context.evaluations.map((row) => ({ ...row, x: place(row, context) })).filter((row) => row.x !== null);
  const found = kinds.map(([field, label, colour, look]) => ({ rows: placed.filter((row) => known(row[field])), field, label, colour, look }));
  const shown = found.filter(({ rows }) => rows.length);
  return {
    traces: shown.flatMap(({ rows, field, label, colour, look }) => [
      points(rows.filter((row) => row.overtaken), field, colour, { ...look, dash: "dot" }, { opacity: 0.45, hoverinfo: "skip" }),
      points(rows.filter((row) => !row.overtaken), field, colour, look, { hovertemplate: `${label} %{y:.3f}<extra></extra>`, meta: field }),
    ]),
    legend: shown.map(({ field, label, colour, look }) => ({ label, value: figure(head?.newest_evaluation?.[field], 4), colour, shape: look.shape })),
  };
}

function points(rows, field, colour, { symbol, dash }, more) {
  const sorted = [...rows].sort((a, b) => a.attempt - b.attempt || a.step - b.step);
  const marker = { symbol, size: rows.length > MANY ? 4 : 8, color: colour };
  return { ...line(sorted.map((row) => row.x), sorted.map((row) => row[field]), colour, "y", { width: 2, dash, ...more }), mode: "lines+markers", marker };
}

/** Position of a point on the chosen x axis; null if its step has none there. */
function place({ step, attempt }, { settings, allSteps }) {
  if (settings.axis === "step") return step;
  const x = allSteps.at(step, settings.axis, attempt);
  return x !== null && settings.axis === "time" ? shownTime(x) : x;
}

/** For each position of the block: share of rounds that kept the draft token (latest evaluation), and its accuracy in training. */
export function keptBars({ head, theme, allSteps }) {
  const newest = head?.newest_evaluation;
  const kept = newest?.acceptance_by_position ?? [];
  if (!kept.length) return null;
  const right = kept.map((_, index) => allSteps.meanBefore(`position_accuracy.${index + 1}`, newest.step, STEPS_MEANT));
  const [measured, estimated] = [theme.stages.target, faded(theme.stages.drafter, 0.45)];
  const bars = (values, colour, words) => ({
    type: "bar", x: values.map((_, index) => index + 1), y: values, xaxis: "x2", yaxis: "y2", marker: { color: colour },
    hovertemplate: `${words} %{y:.1%}<extra></extra>`,
  });
  const top = Math.min(1, Math.max(0.1, 1.15 * Math.max(0, ...[...kept, ...right].filter(known))));
  return {
    traces: [{ ...bars(kept, measured, "kept, measured"), meta: "kept" }, bars(right, estimated, "correct in training")],
    legend: [
      { label: "bars: kept, measured", colour: measured, shape: "full" },
      { label: "correct in training", colour: estimated, shape: "full" },
    ],
    beside: { title: "kept at position k of the block", rowTitle: `step ${whole(newest.step)} (%)`, format: ".0%", range: [0, top], count: kept.length },
    remark: `measured at step ${whole(newest.step)}: ${whole(newest.prompts)} prompts, ${whole(newest.rounds)} rounds; a token is kept only if all before it are`,
  };
}

/** Why no evaluation will come; "" if one is expected. */
function never({ evaluate, newest_evaluation: newest }) {
  if (newest) return "";
  if (!known(evaluate?.every)) return "No evaluation: this run's config asks for none.";
  if (evaluate.every === 0) return "No evaluation: evaluate.every is 0.";
  if (evaluate.held_out === 0 && !evaluate.prompts) return "No evaluation: the data has no held-out conversations, and evaluate.prompts is not set.";
  return "";
}

/** Why nothing is measured yet, and when it will be. */
export function noEvaluation(head) {
  const { evaluate, step, ended, max_steps: last } = head;
  const reason = never(head);
  if (reason) return reason;
  if (ended) return "No evaluation: the run ended before the first was done.";
  const next = evaluate.every * Math.max(1, Math.floor(step / evaluate.every));
  if (known(last) && last < next) return "No evaluation yet: the first comes at the end of the run.";
  return step < next ? `No evaluation yet: the first comes after step ${whole(next)}.`
    : `No evaluation yet: the first has been running since step ${whole(next)}, or the events say why there is none.`;
}

/** The text below the measured number at the top of the page. */
export function measuredWords(head) {
  const newest = head.newest_evaluation;
  if (newest) return `measured at step ${whole(newest.step)}`;
  return `not measured${never(head) || head.ended ? "" : " yet"}`;
}
