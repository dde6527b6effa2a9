// Numbers in, words out. Every figure on the page passes through here, so that units and precision are the same everywhere.

const THIN = "\u202f"; // narrow no-break space
const MINUS = "\u2212";
export const NONE = "–";

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** 12345 → "12 345" */
export function whole(value) {
  if (!known(value)) return NONE;
  const digits = Math.abs(Math.round(value)).toString().replace(/\B(?=(\d{3})+$)/g, THIN);
  return value < 0 ? MINUS + digits : digits;
}

/** Three significant digits, without an exponent where one is not needed. */
export function figure(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1000) return whole(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("-", MINUS);
  return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size || 1)))).replace("-", MINUS);
}

/** 12.3e6 → "12.3 M" */
export function short(value) {
  if (!known(value)) return NONE;
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${figure(value / (letter === "k" ? 1e3 : size))}${THIN}${letter}`;
  }
  return whole(value);
}

export function percent(ratio, digits = 0) {
  return known(ratio) ? `${(100 * ratio).toFixed(digits)}${THIN}%` : NONE;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index < steps.length - 1) { value /= 1024; index += 1; }
  return `${index === 0 ? whole(value) : figure(value)}${THIN}${steps[index]}`;
}

/** 754 → "12 min 34 s"; the two largest units only. */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  let rest = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || (unit === "s" && !parts.length)) parts.push([count, unit]);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.map(([count, unit]) => `${count}${THIN}${unit}`).join(" ");
}

/** A step's own time: 0.25 → "250 ms" */
export function brief(seconds) {
  if (!known(seconds)) return NONE;
  return seconds < 1 ? `${figure(1000 * seconds)}${THIN}ms` : seconds < 120 ? `${figure(seconds)}${THIN}s` : duration(seconds);
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
