// Server-sent events of one run, open only while the page is visible. Ages are counted here, so that a silent server cannot freeze them.

const RETRY_MS = [500, 1000, 2000, 5000];

export async function getJson(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) {
    throw Object.assign(new Error(await refusal(response)), { status: response.status });
  }
  return response.json();
}

async function refusal(response) {
  const { detail } = await response.json().catch(() => ({}));
  return typeof detail === "string" ? detail : `The dashboard answered ${response.status}.`;
}

/** Why a URL fails, which EventSource does not report; "" if it works. */
async function reason(address) {
  const asked = new AbortController();
  try {
    const response = await fetch(address, { cache: "no-store", signal: asked.signal });
    return response.ok ? "" : await refusal(response);
  } catch {
    return "the dashboard does not answer; trying again";
  } finally {
    asked.abort(); // a stream would stay open
  }
}

export class Stream {
  /** `address()` returns the stream's URL for the current cursor; `onTick` receives each message, `onLost` why there is none, or "". */
  constructor(address, onTick, onLost) {
    this.address = address;
    this.onTick = onTick;
    this.onLost = onLost;
    this.source = null;
    this.failures = 0;
    this.timer = null;
    this.wanted = false;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  start() {
    this.wanted = true;
    this.follow();
  }

  stop() {
    this.wanted = false;
    this.follow();
  }

  follow() {
    const open = this.wanted && !document.hidden;
    clearTimeout(this.timer);
    if (!open && this.source) {
      this.source.close();
      this.source = null;
    } else if (open && !this.source) this.connect();
  }

  connect() {
    const source = new EventSource(this.address());
    this.source = source;
    source.addEventListener("tick", (event) => {
      if (this.source !== source) return;
      this.failures = 0;
      this.onLost("");
      this.onTick(JSON.parse(event.data), event.lastEventId);
    });
    source.onerror = () => {
      if (this.source === source) this.retry(source);
    };
  }

  async retry(source) {
    source.close(); // its own retry would use an old cursor
    this.source = null;
    this.timer = setTimeout(() => this.follow(), RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]);
    this.failures += 1;
    const words = await reason(this.address());
    if (words && this.failures) this.onLost(words);
  }
}

/** An age that advances by itself; `seconds` is the age on arrival. */
export class Age {
  set(seconds) {
    this.base = seconds;
    this.received = performance.now();
  }

  get seconds() {
    return this.base === null || this.base === undefined ? null : this.base + (performance.now() - this.received) / 1000;
  }
}
