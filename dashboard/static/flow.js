// The pipeline: a card for each stage, its time split into three parts that add up to 100 %, and the fill of each queue between them.

import { element, renew } from "./dom.js";
import { isSilent } from "./verdict.js";
import { bytes, capital, duration, known, percent, whole } from "./words.js";

const PARTS = [["busy_ratio", "busy"], ["waiting_input_ratio", "waiting for input"], ["waiting_output_ratio", "waiting for output"]];
const TAGS = { stage_holds: "holds the run back", stalled: "stalled", starved: "starves the drafter", failed: "failed" }; // by verdict
const STUCK_AFTER = 10; // seconds without progress

export function drawFlow(root, head, age, words) {
  const tick = head.newest_tick;
  root.hidden = !tick?.stages?.length;
  if (root.hidden) return;
  const stages = Object.fromEntries(tick.stages.map((stage) => [stage.name, stage]));
  const queues = Object.fromEntries((tick.queues ?? []).map((queue) => [queue.name, queue]));
  const tag = TAGS[tick.verdict?.state];
  const road = words.stages.flatMap((name, index) => [
    stages[name] && stageCard(stages[name], tick.verdict?.stage === name ? tag : ""),
    queues[words.queues[index]] && tank(queues[words.queues[index]]),
  ]);
  root.classList.toggle("past", head.ended || isSilent(head, age));
  renew(root, ...road.filter(Boolean));
}

function stageCard(stage, tag) {
  const card = element("article", `stage of-${stage.name}${tag ? " holds" : ""}`);
  const heading = element("header", "", null, element("h3", "", capital(stage.name)));
  if (tag) heading.append(element("span", "tag", tag));
  const bar = element("div", "shares");
  const list = element("ul", "parts");
  for (const [field, name] of PARTS) {
    const kind = field.replace("_ratio", "").replace("waiting_", "");
    const part = element("i", kind);
    part.style.width = `${100 * (stage[field] ?? 0)}%`;
    bar.append(part);
    list.append(element("li", stage[field] >= 0.005 ? kind : `${kind} none`, null, element("i", kind), element("b", "", percent(stage[field])), ` ${name}`));
  }
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", PARTS.map(([field, name]) => `${name} ${percent(stage[field])}`).join(", "));
  const facts = `${whole(stage.threads)} ${stage.threads === 1 ? "thread" : "threads"} · ${whole(stage.items)} items`;
  card.append(heading, bar, list, element("p", "facts", facts));
  if (known(stage.seconds_since_progress) && stage.seconds_since_progress > STUCK_AFTER) {
    card.append(element("p", "stuck", `no progress for ${duration(stage.seconds_since_progress)}`));
  }
  return card;
}

function tank(queue) {
  const ratio = queue.capacity_items ? queue.items / queue.capacity_items : 0;
  const inBytes = queue.capacity_bytes ? queue.bytes / queue.capacity_bytes : 0;
  const body = element("div", "tank", null, level("items", ratio), level("bytes", inBytes));
  body.setAttribute("role", "img");
  body.setAttribute("aria-label", `${queue.name}: ${percent(ratio)} of its items, ${percent(inBytes)} of its bytes`);
  const count = element("p", "count", null, element("b", "", whole(queue.items)), ` of ${whole(queue.capacity_items)}`);
  const size = queue.capacity_bytes ? `${bytes(queue.bytes)} of ${bytes(queue.capacity_bytes)}` : bytes(queue.bytes);
  return element("div", `queue queue-${queue.name}`, null, element("h4", "", queue.name), body, count, element("p", "size", size));
}

function level(kind, ratio) {
  const made = element("span", kind, null, element("i"));
  made.firstChild.style.setProperty("--fill", `${100 * Math.min(1, Math.max(0, ratio))}%`);
  return made;
}
