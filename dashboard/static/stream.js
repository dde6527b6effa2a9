// Server-sent events of one run, open only while the page is seen. Ages are counted here, so a silent server cannot freeze them.

const RETRY_MS = [500, 1000, 2000, 5000];

export async function getJson(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw Object.assign(new Error(body.detail ?? `The dashboard answered ${response.status}.`), { status: response.status });
  }
  return response.json();
}

export class Stream {
  /** `address()` gives the stream's URL for where the page is now; `onTick` gets each message, `onState` "open" or "lost". */
  constructor(address, onTick, onState) {
    this.address = address;
    this.onTick = onTick;
    this.onState = onState;
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
      this.onState("open");
      this.onTick(JSON.parse(event.data), event.lastEventId);
    });
    source.onerror = () => {
      if (this.source !== source) return;
      source.close(); // its own retry would ask with an old cursor
      this.source = null;
      this.onState("lost");
      this.timer = setTimeout(() => this.follow(), RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]);
      this.failures += 1;
    };
  }
}

/** An age that goes on by itself: `seconds` old when it was received. */
export class Age {
  set(seconds) {
    this.base = seconds;
    this.received = performance.now();
  }

  get seconds() {
    return this.base === null || this.base === undefined ? null : this.base + (performance.now() - this.received) / 1000;
  }
}
