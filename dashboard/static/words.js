// Formats every number on the page by the rules of trainer/formatting.py, so that page and terminal agree.

const SPACE = "\u00a0"; // a number and its unit stay on one line
const MINUS = "\u2212";
export const NONE = "–";

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** 12345 → "12,345" */
export function whole(value) {
  return known(value) ? grouped(Math.round(value).toString()) : NONE;
}

function grouped(digits) {
  return digits.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",").replace("-", MINUS);
}

/** Three significant digits, with an exponent only if needed. */
export function figure(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1000) return whole(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("-", MINUS);
  return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size || 1)))).replace("-", MINUS);
}

/** 840 → "840", 12.3e6 → "12.3M" */
export function count(value) {
  if (!known(value)) return NONE;
  for (const [limit, size, letter] of [[999.5e6, 1e9, "G"], [999.5e3, 1e6, "M"], [9999.5, 1e3, "k"]]) {
    if (value >= limit) return `${threeDigits(value / size)}${letter}`;
  }
  return Number.isInteger(value) ? value.toString() : threeDigits(value);
}

function threeDigits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

export function percent(ratio, digits = 0) {
  return known(ratio) ? `${grouped((100 * ratio).toFixed(digits))}${SPACE}%` : NONE;
}

/** 4e9 → "4.0 GB" */
export function bytes(value) {
  if (!known(value)) return NONE;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= 0.9995 * size) return `${(value / size).toFixed(value < 99.95 * size ? 1 : 0)}${SPACE}${unit}`;
  }
  return `${value.toFixed(0)}${SPACE}B`;
}

/** "40 ms", "0.4 s", "38 s", "12 min", "1 h 02 min", "3 d 4 h" */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds > 0 && seconds < 0.0995) return `${(1000 * seconds).toFixed(0)}${SPACE}ms`;
  if (seconds < 59.5) return `${Math.max(0, seconds).toFixed(seconds < 9.95 ? 1 : 0)}${SPACE}s`;
  const minutes = Math.round(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours < 1) return `${minutes}${SPACE}min`;
  if (hours < 24) return `${hours}${SPACE}h ${String(minutes % 60).padStart(2, "0")}${SPACE}min`;
  return `${Math.floor(hours / 24)}${SPACE}d ${hours % 24}${SPACE}h`;
}

/** The duration of a step to three digits, which `duration` would round off: 0.25 → "250 ms" */
export function brief(seconds) {
  if (!known(seconds) || seconds >= 59.5) return duration(seconds);
  return seconds < 1 ? `${figure(1000 * seconds)}${SPACE}ms` : `${figure(seconds)}${SPACE}s`;
}

export function clock(unixSeconds) {
  const time = new Date(1000 * unixSeconds);
  const today = new Date().toDateString() === time.toDateString();
  const hours = time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  return today ? hours : `${time.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })}, ${hours}`;
}

export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}
