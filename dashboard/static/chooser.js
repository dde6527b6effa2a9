// The list of runs: which there are, how they are, and how long ago each one wrote its last line.

import { getJson } from "./stream.js";
import { duration, element, figure, percent, whole } from "./words.js";
import { ENDED, SILENT_AFTER } from "./verdict.js";

export class Chooser {
  constructor(button, dialog, list) {
    Object.assign(this, { dialog, list });
    button.addEventListener("click", () => this.open());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }

  async open() {
    if (!this.dialog.open) this.dialog.showModal();
    await this.refresh();
    clearInterval(this.timer);
    this.timer = setInterval(() => (this.dialog.open ? this.refresh() : clearInterval(this.timer)), 2000);
  }

  async refresh() {
    try {
      const { root, runs } = await getJson("/api/runs");
      const rows = runs.map((run) => row(run, run.id === this.current));
      if (rows.length) this.list.replaceChildren(...rows);
      else this.list.replaceChildren(element("p", "", `No runs in ${root} yet.`));
    } catch (error) {
      this.list.replaceChildren(element("p", "", error.message));
    }
  }
}

function row(run, current) {
  const silent = !ENDED.includes(run.state) && run.last_line_age_seconds > SILENT_AFTER;
  const link = element("a", `run is-${silent ? "silent" : run.state}${current ? " current" : ""}`);
  link.href = `/runs/${encodeURIComponent(run.id)}`;
  const progress = run.max_steps ? `${whole(run.step)} of ${whole(run.max_steps)} · ${percent(run.step / run.max_steps)}` : whole(run.step);
  link.append(
    element("b", "", run.name), element("span", "state", silent ? "silent" : run.state),
    element("span", "", `step ${progress}`), element("span", "", `loss ${run.loss_not_finite ?? figure(run.loss, 4)}`),
    element("span", "", `last line ${duration(run.last_line_age_seconds)} ago`),
  );
  return link;
}
