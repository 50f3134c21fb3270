/* A call's tokens by the window: only what comes into view is asked for, and what was seen is held for a while. Pure but
   for the `fetch` that it is given. */

/* The route gives 2,048 at most; half of that is there twice as soon. */
export const SIZE = 1024;
/* Windows that are held: of 64,000 tokens, some megabytes. */
const MOST = 64;
/* Asked for at once. */
const AT_ONCE = 2;

/* The windows that positions [start, end) lie in. */
export function windowsOf(start, end, total, size = SIZE) {
  if (start >= Math.min(end, total)) return [];
  const first = Math.floor(Math.max(0, start) / size);
  const last = Math.floor((Math.min(end, total) - 1) / size);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

export class Windows {
  /* fetch(start, end) → a promise of {ids, pieces, logprobs}; changed() is called when a window has come. */
  constructor(total, fetch, changed = () => {}, size = SIZE) {
    this.total = total;
    this.size = size;
    this.fetch = fetch;
    this.changed = changed;
    this.held = new Map();
    this.asked = new Set();
    this.failed = new Map();
    this.wanted = [];
  }

  put(start, window) {
    this.held.set(Math.floor(start / this.size), window);
  }

  /* Says what is in view: of what was wanted before and is no more, nothing is asked. */
  want(start, end) {
    this.wanted = windowsOf(start, end, this.total, this.size).filter((k) => !this.held.has(k) && !this.asked.has(k) && !this.failed.has(k));
    this.#ask();
  }

  /* {id, piece, logprob}, or undefined where it hasn't come. */
  at(position) {
    const k = Math.floor(position / this.size);
    const window = this.held.get(k);
    if (!window) return undefined;
    const i = position - window.start;
    if (i < 0 || i >= window.ids.length) return undefined;
    return { id: window.ids[i], piece: window.pieces[i], logprob: window.logprobs[i] };
  }

  /* The error of a window that could not be had; it is asked for again when `retry` says so. */
  error(position) {
    return this.failed.get(Math.floor(position / this.size)) || null;
  }

  retry() {
    this.failed.clear();
  }

  #ask() {
    while (this.asked.size < AT_ONCE && this.wanted.length) {
      const k = this.wanted.shift();
      this.asked.add(k);
      this.fetch(k * this.size, Math.min(this.total, (k + 1) * this.size))
        .then((window) => this.#hold(k, window), (error) => { if (error.name !== "AbortError") this.failed.set(k, error); })
        .finally(() => {
          this.asked.delete(k);
          this.changed(k);
          this.#ask();
        });
    }
  }

  #hold(k, window) {
    this.held.delete(k);
    this.held.set(k, window);
    if (this.held.size > MOST) this.held.delete(this.held.keys().next().value);
  }
}

/* How many cells a row has in a width: a number that is easy to count by. */
export function columnsIn(width, cell) {
  const fits = Math.max(1, Math.floor(width / cell));
  return [32, 24, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2].find((n) => n <= fits) || 1;
}

/* The class of a logprob, 0 (near certain) to 4, and what each says. */
export const CLASSES = [[0.9, "p ≥ 0.9"], [0.5, "p ≥ 0.5"], [0.1, "p ≥ 0.1"], [0.01, "p ≥ 0.01"], [0, "less"]];
export function classOf(logprob) {
  const p = Math.exp(logprob);
  return CLASSES.findIndex(([least]) => p >= least);
}

/* A token's text as it is shown: what can't be seen is a sign. null: its bytes are no whole characters. */
export function visible(piece) {
  if (piece === null || piece === undefined) return "";
  return piece.replaceAll("\r", "␍").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·").replace(/[\u0000-\u001f\u007f]/g, "�");
}
