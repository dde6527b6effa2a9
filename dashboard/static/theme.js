// Colours from the style sheet, so that page and charts switch between light and dark together.

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: of("ink"), quiet: of("quiet"), faint: of("faint"), rule: of("rule"), card: of("card"), alarm: of("alarm"), note: of("note"),
    stages: { dataset: of("dataset"), batches: of("batches"), target: of("target"), drafter: of("drafter") },
    queues: { samples: of("dataset"), batches: of("batches"), features: of("target") },
    positions: [of("position-first"), of("position-last")],
    gpus: [of("target"), of("drafter"), of("dataset"), of("batches")],
    font: style.getPropertyValue("--font").trim(),
  };
}

/** "#rrggbb" and an opacity → "rgba(…)" */
export function faded(colour, opacity) {
  const [red, green, blue] = rgb(colour);
  return `rgba(${red},${green},${blue},${opacity})`;
}

/** `count` colours from the first to the last. */
export function ramp([first, last], count) {
  const [from, to] = [rgb(first), rgb(last)];
  return Array.from({ length: count }, (_, index) => {
    const share = count > 1 ? index / (count - 1) : 0;
    return `rgb(${from.map((value, part) => Math.round(value + share * (to[part] - value))).join(",")})`;
  });
}

function rgb(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

export function baseLayout(theme, height) {
  return {
    height,
    margin: { l: 58, r: 14, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: theme.font, size: 12, color: theme.quiet },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: theme.card, bordercolor: theme.rule, font: { family: theme.font, size: 12, color: theme.ink } },
    dragmode: "zoom",
    separators: ".,",
    shapes: [],
    annotations: [],
  };
}

export function axisStyle(theme, title) {
  return {
    title: { text: title, font: { size: 11, color: theme.quiet }, standoff: 8 },
    gridcolor: theme.faint,
    linecolor: theme.rule,
    zeroline: false,
    showline: false,
    tickfont: { size: 11 },
    automargin: false,
    separatethousands: true,
  };
}

/** Plotly domains of `count` rows, from top to bottom. */
export function domains(count, gap = 0.1) {
  const height = (1 - gap * (count - 1)) / count;
  return Array.from({ length: count }, (_, index) => {
    const top = 1 - index * (height + gap);
    return [Math.max(0, top - height), top];
  });
}
