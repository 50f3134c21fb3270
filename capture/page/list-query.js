/* What a list is asked for: the address's words, the server's words, and how they are said. No DOM here. */

/* The filter that an address holds: {state, group, labels: [], finding, graded, trouble, q}. */
export function filterOf(query) {
  const pick = (name, allowed) => (allowed.includes(query.get(name)) ? query.get(name) : null);
  return {
    state: pick("state", ["open", "closed"]),
    group: query.get("group") || null,
    labels: query.getAll("label").filter((each) => each.includes(":")),
    finding: query.get("finding") || null,
    graded: pick("graded", ["0", "1"]),
    trouble: query.get("trouble") === "1",
    q: query.get("q")?.trim() || null,
  };
}

function pairs(filter, leaveOut = []) {
  const all = [["state", filter.state], ["group", filter.group], ...filter.labels.map((each) => ["label", each]),
    ["finding", filter.finding], ["graded", filter.graded], ["trouble", filter.trouble ? "1" : null], ["q", filter.q]];
  return all.filter(([name, value]) => value !== null && !leaveOut.includes(name));
}

const text = (given) => new URLSearchParams(given).toString();

/* The address of a filter: "#/?state=open". */
export function address(filter) {
  const said = text(pairs(filter));
  return said ? `#/?${said}` : "#/";
}

export const isEmpty = (filter) => pairs(filter).length === 0;

/* "rollouts?order=-created&limit=100…" */
export const listPath = (filter, { after = null, limit = 100 } = {}) =>
  `rollouts?${text([...pairs(filter), ["order", "-created"], ["limit", String(limit)], ...(after ? [["after", after]] : [])])}`;

/* The strip tells of all that is in sight but for what its own buttons choose: a button must not make the others vanish. */
export function overviewPath(filter) {
  const given = text(pairs(filter, ["finding", "trouble", "graded"]));
  return given ? `overview?${given}` : "overview";
}

/* What the strip's numbers are narrowed by, in words; "" where they are of all. */
export const narrowed = (filter) => said({ ...filter, finding: null, graded: null, trouble: false });

/* Why a list is empty, for a reader who wants it not to be: {text, clears}: what was looked for and where, and what each
   part of the filter is, to be taken back by itself ([what it says, patch]). */
export function emptiness(filter) {
  const parts = [
    [filter.q, `the search for “${filter.q}”`, { q: null }],
    [filter.state, `state ${filter.state}`, { state: null }],
    [filter.group, `group ${filter.group}`, { group: null }],
    [filter.labels.length, `label ${filter.labels.join(", ")}`, { labels: [] }],
    [filter.finding, `finding ${filter.finding}`, { finding: null }],
    [filter.graded, filter.graded === "0" ? "ungraded" : "graded", { graded: null }],
    [filter.trouble, "need a look", { trouble: false }],
  ].filter(([there]) => there).map(([, what, patch]) => [what, patch]);
  const rest = said({ ...filter, q: null });
  const text = filter.q ? `“${filter.q}” stands in no id, group, label's value, model or task${rest ? ` (narrowed to: ${rest})` : ""}.` : `No rollout fits: ${rest}.`;
  return { text, clears: parts };
}

/* How many rollouts the list has, as far as an overview tells; null where it doesn't (two of its buttons at once). */
export function totalOf(filter, overview) {
  if (!overview) return null;
  const chosen = [filter.finding, filter.graded, filter.trouble || null].filter((each) => each !== null);
  if (chosen.length === 0) return overview.rollouts;
  if (chosen.length > 1) return null;
  if (filter.trouble) return overview.trouble ?? null;
  if (filter.graded === "1") return overview.graded;
  if (filter.graded === "0") return overview.ungraded ?? null;
  return overview.findings.find((each) => each.code === filter.finding)?.rollouts ?? 0;
}

/* What a download of the whole list would ask GET /sequences; null where that route has no such filter. */
export function sequencesQuery(filter) {
  if (filter.finding || filter.graded || filter.trouble || filter.q) return null;
  return { state: filter.state, group: filter.group, label: filter.labels };
}

/* "closed, in group g7, with drift": for a heading and for what an empty list says. */
export function said(filter) {
  const words = [];
  if (filter.state) words.push(filter.state);
  if (filter.group) words.push(`in group ${filter.group}`);
  for (const label of filter.labels) words.push(`labelled ${label}`);
  if (filter.finding) words.push(`with ${filter.finding}`);
  if (filter.graded === "0") words.push("ungraded");
  if (filter.graded === "1") words.push("graded");
  if (filter.trouble) words.push("that need a look");
  if (filter.q) words.push(`matching “${filter.q}”`);
  return words.join(", ");
}

