// The numbers of one record file: loaded whole, then updated from the stream.

export class Series {
  constructor() {
    this.width = 1;
    this.segments = [];
    this.rows = 0;
    this.loading = null;
  }

  load(data) {
    this.width = data.width;
    this.segments = data.segments;
    this.rows = data.rows;
    this.loading = data.loading ?? null;
  }

  get buckets() {
    return this.segments.reduce((sum, segment) => sum + segment.start.length, 0);
  }

  get columns() {
    return [...new Set(this.segments.flatMap((segment) => Object.keys(segment.series)))];
  }

  /** Replaces buckets from the first new start on. False if only a reload helps. */
  take(part) {
    for (const fresh of part.segments) {
      const own = this.segments.at(-1);
      const names = Object.keys(fresh.series);
      if (!own || own.attempt !== fresh.attempt || names.some((name) => !(name in own.series))) return false;
      let cut = own.start.length;
      while (cut > 0 && own.start[cut - 1] >= fresh.start[0]) cut -= 1;
      replaceTail(own.start, fresh.start, cut);
      for (const name of Object.keys(own.axes)) replaceTail(own.axes[name], fresh.axes[name], cut);
      for (const name of names) takeColumn(own.series[name], fresh.series[name], cut);
    }
    return true;
  }

  /** The latest known value of a column, null if there is none. */
  newest(name) {
    for (const segment of [...this.segments].reverse()) {
      const mean = segment.series[name]?.mean ?? [];
      for (let index = mean.length - 1; index >= 0; index -= 1) if (mean[index] !== null) return mean[index];
    }
    return null;
  }

  /** Mean of a column over the `span` steps up to `step`; null if none is known. */
  meanBefore(name, step, span) {
    const values = this.segments.flatMap(({ axes, series }) => (series[name]?.mean ?? [])
      .filter((value, index) => value !== null && axes.step[index] <= step && axes.step[index] > step - Math.max(span, this.width)));
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  }

  /** Position of a step on another axis, in the latest attempt that contains it or in `attempt`; null if there is none. */
  at(step, axis, attempt = null) {
    for (const segment of [...this.segments].reverse()) {
      const steps = segment.axes.step;
      if (attempt !== null && segment.attempt !== attempt) continue;
      if (!steps.length || step < steps[0] || step > steps.at(-1)) continue;
      let low = 0;
      let high = steps.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (steps[middle] < step) low = middle + 1; else high = middle;
      }
      return segment.axes[axis][low];
    }
    return null;
  }
}

function replaceTail(own, fresh, cut) {
  own.length = cut;
  for (const value of fresh) own.push(value);
}

function takeColumn(own, fresh, cut) {
  for (const name of ["mean", "low", "high"]) if (fresh[name]) replaceTail(own[name], fresh[name], cut);
  for (const name of ["nan", "infinite"]) {
    const kept = Object.entries(own[name] ?? {}).filter(([index]) => Number(index) < cut);
    const added = Object.entries(fresh[name] ?? {}).map(([index, count]) => [Number(index) + cut, count]);
    if (kept.length + added.length) own[name] = Object.fromEntries([...kept, ...added]);
    else delete own[name];
  }
}

/** The first bucket of a segment that a resume overtook, to be drawn faint. */
export function overtakenAt(segment) {
  if (segment.overtaken_from === null || segment.overtaken_from === undefined) return segment.start.length;
  const at = segment.axes.step.findIndex((step) => step >= segment.overtaken_from);
  return at < 0 ? segment.start.length : at;
}

/**
 * Exponential mean over x in both directions, so that it does not lag: at a distance of `half`, in units of x, a value has half the
 * weight. null values stay null and are skipped.
 */
export function smoothed(x, values, half) {
  const before = weighed(x, values, half);
  const after = weighed([...x].reverse(), [...values].reverse(), half).reverse();
  return values.map((value, index) => {
    if (value === null) return null;
    const [left, right] = [before[index], after[index]];
    return (left.sum + right.sum - value) / (left.weight + right.weight - 1); // the value itself is in both
  });
}

function weighed(x, values, half) {
  let [sum, weight, at] = [0, 0, null];
  return values.map((value, index) => {
    if (value === null) return null;
    const kept = at === null ? 0 : 2 ** (-Math.abs(x[index] - at) / half);
    sum = sum * kept + value;
    weight = weight * kept + 1;
    at = x[index];
    return { sum, weight };
  });
}

/** A half-life of about `share` of a range, rounded to 1, 2 or 5 times a power of ten, so that it seldom changes as a run grows. */
export function halfLife(range, share) {
  const wish = Math.max(1, range * share);
  const ten = 10 ** Math.floor(Math.log10(wish));
  return ten * (wish >= 5 * ten ? 5 : wish >= 2 * ten ? 2 : 1);
}
