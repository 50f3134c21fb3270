/* Which view a place is: the part of the address behind "#". */

const VIEWS = [
  [/^\/$/, "list", []],
  [/^\/groups\/([^/]+)$/, "group", ["group"]],
  [/^\/compare\/([^/]+)\/([^/]+)$/, "compare", ["a", "b"]],
  [/^\/rollouts\/([^/]+)$/, "rollout", ["id"]],
  [/^\/rollouts\/([^/]+)\/calls\/(\d+)$/, "call", ["id", "n"]],
  [/^\/docs\/([a-z-]+)$/, "manual", ["name"]],
  [/^\/rollouts\/([^/]+)\/tokens\/(\d+)$/, "tokens", ["id", "n"]],
];

/* "#/rollouts/r1/calls/3?at=5" → {view: "call", params: {id: "r1", n: "3"}, query: URLSearchParams}; null: no such place. */
export function place(hash) {
  const [path, query = ""] = (hash.replace(/^#/, "") || "/").split("?");
  for (const [pattern, view, names] of VIEWS) {
    const found = pattern.exec(path);
    if (!found) continue;
    try {
      const values = found.slice(1).map(decodeURIComponent);
      return { view, params: Object.fromEntries(names.map((name, at) => [name, values[at]])), query: new URLSearchParams(query) };
    } catch {
      return null;
    }
  }
  return null;
}

/* to("rollouts", "r1", "calls", 3) → "#/rollouts/r1/calls/3"; a last argument that is an object is the query. */
export function to(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}
