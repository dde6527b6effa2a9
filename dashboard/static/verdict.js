// The top of the page: the trainer's verdict, progress, and the main figures.

import { measuredWords } from "./evaluations.js";
import { element, renew } from "./dom.js";
import { brief, capital, duration, figure, known, NONE, percent, whole } from "./words.js";

export const SILENT_AFTER = 10; // seconds without a telemetry tick: the trainer writes one every second

/** State of the run: a word for the style sheet and a text. `lost` says why the stream failed, "" while it works. */
export function liveness(head, age, lost) {
  if (lost) return ["lost", lost];
  if (head.loading) return ["loading", `loading a long record, ${percent(head.loading.ratio)}`];
  if (head.ended) return [head.state, head.state];
  if (age === null) return ["waiting", "nothing written yet"];
  if (isSilent(head, age)) return ["silent", head.newest_tick ? `no telemetry for ${duration(age)}` : `starting, nothing new for ${duration(age)}`];
  if (known(head.clock_ahead_seconds)) return ["ahead", `the trainer's clock is ${duration(head.clock_ahead_seconds)} ahead`];
  return ["live", `live · last line ${duration(age)} ago`];
}

export function drawVerdict(root, { head, age, words }) {
  const verdict = head.newest_tick?.verdict ?? {};
  const kind = isSilent(head, age) ? "silent" : head.ended ? head.state : verdict.state ?? "waiting";
  root.hidden = false;
  root.className = `verdict is-${kind}${kind === "stage_holds" || kind === "starved" ? ` of-${verdict.stage}` : ""}`;
  const [first, ...rest] = sentence(head, verdict, age).split(/(?<=[.!?])\s+/);
  const state = kind === "silent" ? kind : stateWords(head, verdict);
  const said = element("div", "said", null, ...(saysSo(first, state) ? [] : [element("p", "state", state)]), element("h1", "", first));
  if (rest.length) said.append(element("p", "more", rest.join(" ")));
  said.append(figures(head, verdict, words, age));
  renew(root, said, progress(head, age), tiles(head));
}

/** The verdict's sentence from the last telemetry tick, unless the run ended after it. */
function sentence(head, verdict, age) {
  if (isSilent(head, age)) return silence(head, verdict, age);
  if (verdict.sentence && (!head.ended || verdict.state === head.state)) return verdict.sentence;
  if (head.ended) return head.ending || `${capital(head.state)}.`;
  return age === null ? "Nothing written yet." : "No telemetry yet: the trainer is starting.";
}

function silence(head, verdict, age) {
  if (!head.newest_tick) return `Nothing written for ${duration(age)}. The trainer is still loading its target, or has died.`;
  return `No telemetry for ${duration(age)}. The trainer has died or hangs, or its machine is asleep. Its last verdict: ${verdict.sentence ?? head.state}`;
}

function stateWords(head, verdict) {
  const words = { stage_holds: `${verdict.stage ?? "a stage"} holds`, all_well: "all devices busy, all well", starved: "starved by the data" };
  if (head.ended) return head.state === "finished" ? "" : head.state; // a stopped run is finished too; only the sentence tells them apart
  return words[verdict.state] ?? (verdict.state ?? head.state).replaceAll("_", " ");
}

/** Whether the sentence already says the state: "The target holds the run back" contains "target holds". */
function saysSo(sentence, state) {
  return sentence.toLowerCase().replace(/^the /, "").startsWith(state);
}

export function isSilent(head, age) {
  return !head.ended && age !== null && age > SILENT_AFTER;
}

function figures(head, verdict, words, age) {
  const list = element("dl", "figures");
  const add = (name, value, help) => {
    if (value === null) return;
    const term = element("dt", "", name);
    if (help) term.title = help;
    list.append(element("div", "", null, term, element("dd", "", value)));
  };
  if (!head.ended) {
    const room = known(verdict.headroom_ratio) && verdict.headroom_ratio > 0;
    add("headroom", room ? `up to +${percent(verdict.headroom_ratio)}` : null, words.help.headroom);
    add("next limit", room && verdict.next_stage ? verdict.next_stage : null);
    const until = head.newest_tick?.time + (isSilent(head, age) ? 0 : age);
    add("for", known(verdict.since) && known(until) ? duration(until - verdict.since) : null);
  }
  add("lost device time", known(verdict.lost_device_hours) ? lost(verdict.lost_device_hours) : null, words.help.lost);
  return list;
}

function lost(hours) {
  if (3600 * hours < 60) return `${figure(3600 * hours, 2)} device seconds`;
  return hours < 0.1 ? `${figure(60 * hours)} device minutes` : `${figure(hours)} device hours`;
}

function progress(head, age) {
  const bar = element("div", "bar");
  bar.append(element("i"));
  bar.firstChild.style.width = `${100 * (head.progress_ratio ?? 0)}%`;
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuenow", String(Math.round(100 * (head.progress_ratio ?? 0))));
  const steps = element("p", "steps", null, element("b", "", whole(head.step)));
  if (head.max_steps) steps.append(` of ${whole(head.max_steps)} steps`, element("span", "share", percent(head.progress_ratio)));
  else steps.append(" steps");
  const eta = known(head.eta_seconds) && !isSilent(head, age) ? `${duration(head.eta_seconds)} left at this speed` : "";
  return element("div", "progress", null, steps, bar, element("p", "eta", eta));
}

function tiles(head) {
  const step = head.newest_step ?? {};
  const rates = head.newest_tick?.rates ?? {};
  const tile = (name, value, unit) => element("div", "tile", null, element("span", "name", name), element("b", "", value), element("span", "unit", unit));
  return element("div", "tiles", null,
    tile("loss", head.not_finite?.loss ?? figure(step.loss, 4), head.loss_unit),
    tile("acceptance length", figure(step.estimated_acceptance_length), "tokens per round, estimated"),
    tile("acceptance length", figure(head.newest_evaluation?.measured_length), measuredWords(head)),
    tile("context tokens", whole(rates.context_tokens_per_second), "read by the target per second"),
    tile("draft tokens", whole(rates.draft_tokens_per_second), "drafted per second"),
    tile("step time", step.step_seconds ? brief(step.step_seconds) : NONE, known(rates.steps_per_second) ? `${figure(rates.steps_per_second)} steps/s` : ""),
  );
}

/** Why a chart is empty. */
export function emptyWords(head, age, source) {
  if (head.loading) return `Loading the record: ${percent(head.loading.ratio)}.`;
  if (head.ended) return `The run ${head.state} before it wrote a ${source === "steps" ? "step" : "telemetry tick"}.`;
  if (source === "telemetry") return "No telemetry yet: the trainer writes it every second once its stages run.";
  if (age !== null && age > SILENT_AFTER) return `No step yet, and nothing written for ${duration(age)}.`;
  if (!head.newest_tick) return "The first step follows once the target is loaded and a batch has passed through the drafter.";
  const busy = [...(head.newest_tick.stages ?? [])].sort((a, b) => (b.busy_ratio ?? 0) - (a.busy_ratio ?? 0))[0];
  return `The first step follows once a batch reaches the drafter${busy ? `; busy now: ${busy.name}` : ""}.`;
}
