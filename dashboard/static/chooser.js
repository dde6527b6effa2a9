// The list of runs: state, progress, and the age of the last line of each.

import { element, renew } from "./dom.js";
import { getJson } from "./stream.js";
import { SILENT_AFTER } from "./verdict.js";
import { duration, figure, known, percent, whole } from "./words.js";

export class Chooser {
  constructor(button, dialog, list) {
    Object.assign(this, { dialog, list });
    button.addEventListener("click", () => this.open());
  }

  async open() {
    if (!this.dialog.open) this.dialog.showModal();
    await this.refresh();
    clearInterval(this.timer);
    this.timer = setInterval(() => (this.dialog.open ? this.refresh() : clearInterval(this.timer)), 2000);
  }

  async refresh() {
    try {
      const { root, runs, outside, misnamed } = await getJson("/api/runs");
      const rows = runs.map((run) => row(run, run.id === this.current));
      if (!rows.length) rows.push(element("p", "", `No runs in ${root} yet.`));
      const hidden = [
        ...outside.map((name) => `${name} is a link out of the folder and is not shown.`),
        ...misnamed.map((name) => `${name} is not shown: rename it, with letters, digits, ".", "_" and "-" only, 64 at most.`),
      ];
      this.show(...rows, ...hidden.map((sentence) => element("p", "outside", sentence)));
    } catch (error) {
      this.show(element("p", "", error.message));
    }
  }

  /** Rows may change places; the focus stays with its run. */
  show(...rows) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    renew(this.list, ...rows);
    if (focused) [...this.list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }
}

function row(run, current) {
  const silent = !run.ended && run.last_line_age_seconds > SILENT_AFTER;
  const link = element("a", `run is-${silent ? "silent" : run.state}${current ? " current" : ""}`);
  link.href = `/runs/${encodeURIComponent(run.id)}`;
  const share = known(run.progress_ratio) ? ` · ${percent(run.progress_ratio)}` : "";
  const progress = run.max_steps ? `${whole(run.step)} of ${whole(run.max_steps)}${share}` : `${whole(run.step)}${share}`;
  const measured = known(run.measured_length) ? ` · acceptance length ${figure(run.measured_length)} measured` : "";
  const ahead = known(run.clock_ahead_seconds);
  link.append(
    element("b", "", run.name), element("span", "state", silent ? "silent" : run.state),
    element("span", "", `step ${progress}`), element("span", "", `loss ${run.loss_not_finite ?? figure(run.loss, 4)}${measured}`),
    element("span", "", ahead ? `the trainer's clock is ${duration(run.clock_ahead_seconds)} ahead` : `last line ${duration(run.last_line_age_seconds)} ago`),
  );
  return link;
}
