/* Asking the control plane. The key travels in a header, so events are read with fetch: EventSource sends no headers. */

const KEY = "treering-key";
/* After an event stream has ended, before it is asked for again: doubled up to the second. */
const AGAIN_MS = [500, 15000];

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `The server answered ${status}.`);
    this.status = status;
    this.code = error.code || "unknown";
    this.hint = error.hint || null;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  drop: () => sessionStorage.removeItem(KEY),
};

function headers(extra = {}) {
  const held = key.get();
  return held ? { Authorization: `Bearer ${held}`, ...extra } : extra;
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "unreachable", message: "The appliance can't be reached.", hint: "Is `treering serve` still running? The page tries again." });
  }
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error || {};
  } catch {
    /* Not our JSON: something in between answered. */
  }
  throw new ApiError(response.status, told);
}

/* Paths are relative to the page, which may lie behind a proxy's prefix: "rollouts/r1/graph". */
export async function get(path, { signal } = {}) {
  return (await ask(path, { headers: headers(), signal })).json();
}

export async function send(method, path, body, { signal } = {}) {
  const options = { method, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
  const response = await ask(path, options);
  return response.status === 204 ? null : response.json();
}

/* The answer as a file. */
export async function blob(path, { signal } = {}) {
  return (await ask(path, { headers: headers(), signal })).blob();
}

/* Events of a path until `signal` aborts, taken up again behind the last one: onEvent({id, event, data}).
   onState(true or false) says whether the line is up. Resolves when it is over; rejects with an ApiError that trying
   again won't mend (a wrong key, events that are gone). */
export async function stream(path, { signal, onEvent, onState = () => {} }) {
  let last = null;
  let wait = AGAIN_MS[0];
  while (!signal.aborted) {
    try {
      const response = await ask(path, { headers: headers({ Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) }), signal });
      onState(true);
      wait = AGAIN_MS[0];
      for await (const event of events(response.body)) {
        if (event.id) last = event.id;
        if (event.data) onEvent({ ...event, data: JSON.parse(event.data) });
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
        onState(false);
        throw error;
      }
    }
    onState(false);
    await pause(wait, signal);
    wait = Math.min(wait * 2, AGAIN_MS[1]);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const event = { id: null, event: "message", data: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue;
        const name = line.slice(0, colon);
        const text = line.slice(colon + 1).replace(/^ /, "");
        if (name === "data") event.data += (event.data ? "\n" : "") + text;
        else if (name === "id" || name === "event") event[name] = text;
      }
      rest = rest.slice(end + 2);
      yield event;
    }
  }
}

export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/* A command that sends a body, with the key left for the reader to put in. */
export function request(method, path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  return `curl -s -X ${method} ${quoted(new URL(path, document.baseURI.split("#")[0]).href.replaceAll("'", "%27"))} -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d ${quoted(body)}`;
}

/* A command that gives the same in a shell, with the key left for the reader to put in. */
export function curl(path) {
  const url = new URL(path, document.baseURI.split("#")[0]);
  return `curl -s '${url.href.replaceAll("'", "%27")}' -H "Authorization: Bearer $KEY"`;
}
