/* What a download asks for, and what its file is called. No DOM here: node tests it.

   `of` says of what: {rollout: "r1"}, {ids: ["r1", "r2"]}, or {query: {state, group, label}, count} for all that a list
   shows. `wanted` says how: {format, roles, drift, open}. */

import { FORMATS } from "./formats.js";

/* More than these are not for a browser to hold: the command line streams them. */
export const MOST_AT_ONCE = 500;

function options({ format, roles, drift, open }) {
  const given = [["format", format]];
  if (roles && roles !== "main") given.push(["roles", roles]);
  if (drift && drift !== FORMATS[format].drifts[0]) given.push(["drift", drift]);
  if (open) given.push(["open", "1"]);
  return given;
}

const asked = (pairs) => new URLSearchParams(pairs).toString();

/* The paths to ask, one after the other. */
export function paths(of, wanted) {
  const given = asked(options(wanted));
  if (of.query) {
    const where = Object.entries(of.query).flatMap(([name, value]) => [value].flat().filter((each) => each || each === "").map((each) => [name, each]));
    return [`sequences?${asked([...where.filter(([name, value]) => value || name === "group"), ...options(wanted)])}`];
  }
  return (of.ids ?? [of.rollout]).map((id) => `rollouts/${encodeURIComponent(id)}/sequences?${given}`);
}

/* "r1.trl.json", "g7.native.jsonl", "rollouts.parquet". */
export function fileName(of, wanted) {
  const { extension } = FORMATS[wanted.format];
  const name = of.rollout ?? (of.ids?.length === 1 ? of.ids[0] : null);
  const single = name !== null && name !== undefined;
  const stem = String(single ? name : of.query?.group || "rollouts").replace(/[^\w.-]+/g, "_").slice(0, 80);
  const end = single && extension === "jsonl" ? "json" : extension;
  return end === "parquet" ? `${stem}.parquet` : `${stem}.${wanted.format}.${end}`;
}

/* Why this can't be downloaded as it stands, in a sentence; null where it can. */
export function obstacle(of, wanted) {
  if (of.ids && of.ids.length > 1 && wanted.format === "parquet") return "Parquet is one file of a whole list or group, or of one rollout: choose one of these, or another format.";
  const count = of.ids?.length ?? of.count ?? 1;
  if (count > MOST_AT_ONCE) return `These are ${count} rollouts, more than a browser tab should hold: copy the command, or use \`treering export\`.`;
  return null;
}

/* The commands that do the same, one a line. */
export function commands(of, wanted, curl) {
  return paths(of, wanted).map((path) => `${curl(path)} -o '${fileName(of.ids ? { rollout: decodeURIComponent(path.split("/")[1]) } : of, wanted)}'`).join("\n");
}
