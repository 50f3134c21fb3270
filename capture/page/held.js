/* What was read of a rollout, held while people move between its views. A graph of an open rollout is read
   anew each time; of a closed one it may only change by a reward or a role, so a few seconds old is fine. */

const FRESH_MS = 10000;
const MOST = 4;
const graphs = new Map();

/* The graph of a rollout; `fresh` asks anew. */
export async function graphOf(api, id, { signal, fresh = false } = {}) {
  const held = graphs.get(id);
  if (held && !fresh && held.graph.rollout.state === "closed" && performance.now() - held.at < FRESH_MS) return held.graph;
  const graph = await api.get(`rollouts/${encodeURIComponent(id)}/graph`, { signal });
  graphs.delete(id);
  graphs.set(id, { graph, at: performance.now() });
  if (graphs.size > MOST) graphs.delete(graphs.keys().next().value);
  return graph;
}

/* The rows that a trainer would get of it by default, without their ids. null where there are none to show. */
export async function rowsOf(api, id, { signal, opened = false, query = {} } = {}) {
  const asked = new URLSearchParams({ ids: "0", ...(opened ? { open: "1" } : {}), ...query });
  return api.get(`rollouts/${encodeURIComponent(id)}/sequences?${asked}`, { signal });
}

/* One call whole, its arrays left out. */
export const callOf = (api, id, n, { signal } = {}) => api.get(`rollouts/${encodeURIComponent(id)}/calls/${n}?ids=0`, { signal });
