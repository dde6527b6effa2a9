// The controls at the top and their keys; settings are kept in localStorage.

import { element } from "./dom.js";

const CHOICES = {
  axis: [["step", "step"], ["tokens", "tokens"], ["time", "time"]],
  smoothing: [["none", "raw"], ["light", "smooth"], ["strong", "smoother"]],
};
const KEYS = [
  ["x", "x axis: step, context tokens, time"], ["s", "smoothing: raw, smooth, smoother; the band is never smoothed"],
  ["l", "logarithmic y axis for loss and gradient"], ["r", "choose a run"], ["drag", "zoom all charts to a range, reloaded at a finer resolution"],
  ["Esc", "reset zoom"], ["?", "this help"],
];
const TERMS = [
  ["context tokens", "tokens read by the target"], ["draft tokens", "tokens drafted: anchors × block size"],
  ["acceptance length", "tokens kept per draft-and-verify round, bonus token included; either estimated from accuracy or measured by speculative decoding, two different numbers"],
  ["headroom", "upper bound of the speed-up if the limiting stage were removed"],
  ["band", "lowest to highest value in each bucket of steps, so that a spike of a single step stays visible"],
];

export class Controls {
  constructor(onChange) {
    this.onChange = onChange;
    this.settings = { axis: "step", smoothing: "light", log: true, ...remembered() };
    for (const name of Object.keys(CHOICES)) this.buildSegments(name);
    document.getElementById("log").addEventListener("click", () => this.set("log", !this.settings.log));
    this.help = buildHelp();
    document.getElementById("help-button").addEventListener("click", () => this.help.showModal());
    this.show();
  }

  buildSegments(name) {
    const root = document.getElementById(name);
    root.append(element("span", "segment-name", name === "axis" ? "x" : ""));
    for (const [value, label] of CHOICES[name]) {
      const button = element("button", "", label);
      button.dataset.value = value;
      button.addEventListener("click", () => this.set(name, value));
      root.append(button);
    }
  }

  cycle(name) {
    const values = CHOICES[name].map(([value]) => value);
    this.set(name, values[(values.indexOf(this.settings[name]) + 1) % values.length]);
  }

  set(name, value) {
    this.settings[name] = value;
    try { localStorage.setItem("draftscope", JSON.stringify(this.settings)); } catch { /* storage is disabled */ }
    this.show();
    this.onChange(name);
  }

  show() {
    for (const name of Object.keys(CHOICES)) {
      for (const button of document.getElementById(name).querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.dataset.value === this.settings[name]));
      }
    }
    document.getElementById("log").setAttribute("aria-pressed", String(this.settings.log));
  }

  /** Handles keys; `more` adds actions: {r, Escape}. */
  listen(more) {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const actions = { x: () => this.cycle("axis"), s: () => this.cycle("smoothing"), l: () => this.set("log", !this.settings.log),
        "?": () => this.help.showModal(), ...more };
      const action = actions[event.key];
      if (action) { event.preventDefault(); action(); }
    });
  }
}

function remembered() {
  try {
    const kept = JSON.parse(localStorage.getItem("draftscope") ?? "{}");
    for (const [name, choices] of Object.entries(CHOICES)) if (!choices.some(([value]) => value === kept[name])) delete kept[name];
    if (typeof kept.log !== "boolean") delete kept.log;
    return kept;
  } catch {
    return {};
  }
}

function buildHelp() {
  const dialog = document.getElementById("help");
  const list = (rows, tag) => element("dl", "help-list", null, ...rows.map(([name, words]) =>
    element("div", "", null, element("dt", "", null, element(tag, "", name)), element("dd", "", words))));
  document.getElementById("help-words").append(list(KEYS, "kbd"), element("h2", "", "Terms"), list(TERMS, "b"));
  return dialog;
}
