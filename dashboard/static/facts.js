// The bottom of the page: events, and facts about the run.

import { element, renew } from "./dom.js";
import { bytes, clock, count, duration, known, NONE, whole } from "./words.js";

const MOST_EVENTS = 60;

/** `events` are the latest of `seen`. */
export function drawEvents(root, events, seen) {
  root.hidden = events.length === 0;
  const failed = events.findLast((row) => row.event === "failed");
  const list = element("ol", "events");
  for (const row of events.slice(-MOST_EVENTS).reverse()) {
    const item = element("li", `event event-${row.event}`, null,
      element("time", "", known(row.time) ? clock(row.time) : ""), element("b", "", String(row.event).replaceAll("_", " ")), element("span", "", row.message ?? ""));
    const more = eventFacts(row);
    if (more) item.append(element("small", "", more));
    list.append(item);
  }
  const shown = seen > MOST_EVENTS ? `the latest ${MOST_EVENTS} of ${whole(seen)}` : "";
  renew(root, element("header", "", null, element("h2", "", "Events"), element("p", "question", shown)), ...failure(failed, events), list);
}

function failure(row, events) {
  if (!row || events.at(-1)?.attempt > row.attempt) return [];
  const box = element("div", "failure", null, element("p", "", `${row.stage ? `In stage ${row.stage}: ` : ""}${row.error ?? row.message}`));
  if (row.traceback) box.append(element("pre", "", row.traceback));
  return [box];
}

function eventFacts(row) {
  const parts = [];
  if (row.step) parts.push(`step ${whole(row.step)}`);
  if (known(row.bytes)) parts.push(bytes(row.bytes));
  if (known(row.seconds)) parts.push(duration(row.seconds));
  if (known(row.count)) parts.push(`${whole(row.count)} ×`);
  if (row.reason) parts.push(row.reason);
  return parts.join(" · ");
}

export function drawFacts(root, facts, lossUnit) {
  root.hidden = !facts.id;
  if (root.hidden) return;
  const table = element("dl", "facts-list");
  const add = (name, value) => value && table.append(element("div", "", null, element("dt", "", name), element("dd", "", value)));
  const { target = {}, drafter = {}, data = {} } = facts;
  add("Target", parts(target.name, target.architecture, known(target.parameters) && `${count(target.parameters)} parameters`,
    known(target.layers) && `${target.layers} layers`, target.precision));
  add("Features", parts(target.layer_ids?.length && `layers ${target.layer_ids.join(", ")}`, known(target.hidden_size) && `${whole(target.hidden_size)} dimensions each`));
  add("Drafter", parts(known(drafter.parameters) && `${count(drafter.parameters)} parameters`, known(drafter.layers) && `${drafter.layers} layers`,
    known(drafter.block_size) && `block of ${drafter.block_size}`));
  add("Loss in", lossUnit);
  add("Data", parts(data.path, known(data.conversations) && `${whole(data.conversations)} conversations`, data.fingerprint));
  add("Devices", (facts.devices ?? []).map((device) => device.name).join(", "));
  add("Started", facts.started_at ? new Date(facts.started_at).toLocaleString() : "");
  add("Host", parts(facts.host, facts.pid && `process ${facts.pid}`));
  add("Commit", facts.git_commit ?? NONE);
  add("Versions", Object.entries(facts.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(" · "));
  const command = element("pre", "command", (facts.command ?? []).map(quoted).join(" "));
  renew(root, element("header", "", null, element("h2", "", "The run")), command, table, config(facts.config ?? {}));
}

function parts(...values) {
  return values.filter(Boolean).join(" · ");
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`;
}

function config(tree) {
  const rows = [...flat(tree)];
  const table = element("table", "config");
  const body = element("tbody");
  for (const [name, value] of rows) body.append(element("tr", "", null, element("th", "", name), element("td", "", value)));
  table.append(body);
  return element("details", "", null, element("summary", "", `Config, ${rows.length} values`), table);
}

function* flat(tree, prefix = "") {
  for (const [name, value] of Object.entries(tree)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) yield* flat(value, `${prefix}${name}.`);
    else yield [prefix + name, typeof value === "string" ? value : JSON.stringify(value)];
  }
}
