/* The list of rollouts: a strip that says what is wrong, filters, and the rows, live.

   The first screen asks twice, at once: for an overview and for the first page. */

import { ApiError } from "./api.js";
import { copy, copyCurl } from "./copy.js";
import { CODES } from "./codes.js";
import { fill, h, number, plural } from "./dom.js";
import { downloads } from "./downloads.js";
import { strip } from "./list-health.js";
import { filters } from "./list-filters.js";
import { Pages } from "./list-pages.js";
import { address, emptiness, filterOf, isEmpty, listPath, overviewPath, said, sequencesQuery, totalOf } from "./list-query.js";
import { grid } from "./list-rows.js";
import { follow, paced } from "./live.js";
import { prose } from "./prose.js";
import { to } from "./router.js";

const AGE_MS = 30000;
const STALE_MS = 3000;
/* What was shown when the view was left: coming back finds the same rows at the same place. */
let kept = null;
/* Rollouts that the reader has picked, whatever is filtered meanwhile. */
const chosen = new Set();

export async function show(root, params, ctx) {
  ctx.title("Rollouts", ["Rollouts", null]);
  let filter = filterOf(ctx.query);
  let loading = null;
  let pages = null;
  let overview = null;
  // What the overview is of: while another is on its way, it tells no total.
  let overviewOf = null;
  let sinceNews = false;
  let rereading = null;

  const health = strip((patch) => apply(patch));
  const form = filters((patch, { typing }) => apply(patch, { replace: typing }), () => list.walk("j"));
  const count = h("p.list-count", { role: "status" });
  const compare = h("button", { type: "button", onclick: openCompare }, "Compare");
  const unpick = h("button", { type: "button", onclick: () => { chosen.clear(); picked(); } }, "Unpick");
  const bar = h("div.list-bar", count,
    h("div.row", compare, unpick, downloads(wantedForDownload, ctx), copyCurl(() => [overviewPath(filter), listPath(filter)], ctx)));
  const fresh = h("button.list-fresh", { type: "button", hidden: true, onclick: restart }, "");
  const note = h("div.list-note");
  const meaning = h("div.list-meaning", { hidden: true });
  const total = () => (overviewOf === overviewPath(filter) ? totalOf(filter, overview) : null);
  const rows = { at: (index) => pages?.rows[index], count: () => pages?.count(total()) ?? 0, chosen };
  const list = grid(rows, { need, open: (row) => { location.hash = to("rollouts", row.id); }, pick }, ctx.signal);
  fill(root, h("h1.unseen", "Rollouts"), health.root, h("section.list", { "aria-label": "Rollouts" }, form.root, meaning, bar, h("div.list-frame", list.root, fresh, note)));

  /* A patch of the filter, in the address too; typing makes no history. */
  function apply(patch, { replace = false } = {}) {
    filter = { ...filter, ...patch };
    root.setAttribute("aria-busy", "true");
    history[replace ? "replaceState" : "pushState"](null, "", address(filter));
    load().catch(failed);
  }

  async function load() {
    loading?.abort();
    loading = new AbortController();
    const signal = AbortSignal.any([loading.signal, ctx.signal]);
    const asked = filter;
    const mine = new Pages(({ after, limit }) => ctx.api.get(listPath(asked, { after, limit }), { signal }));
    form.update(filter, overview);
    const known = CODES[filter.finding];
    meaning.hidden = !known;
    if (known) fill(meaning, h("p", h("strong", filter.finding), ": ", prose(known.means), " ", h("a", { href: to("docs", "findings", { at: filter.finding }) }, "More")), h("p", h("strong", "What to do"), ": ", prose(known.todo)));
    const [, seen] = await Promise.all([
      mine.ensure(1).then(() => {
        if (signal.aborted) return;
        pages = mine;
        list.activate(-1);
        list.scrollTo(0);
        told();
      }),
      ctx.api.get(overviewPath(asked), { signal }),
    ]);
    if (signal.aborted) return;
    [overview, overviewOf] = [seen, overviewPath(asked)];
    told();
    looked();
    root.setAttribute("aria-busy", "false");
  }

  /* More rows are in sight than were read. */
  function need(last) {
    const mine = pages;
    if (mine.ended || mine.rows.length >= last || mine.failed) return;
    mine.ensure(last + 40).then(() => { if (mine === pages) told(); }, (error) => {
      if (ctx.signal.aborted || mine !== pages || error.name === "AbortError") return;
      mine.failed = true;
      failed(error);
    });
  }

  /* Numbers of the overview have changed; while rollouts are still being read for it, they will again. */
  function looked() {
    clearTimeout(rereading);
    if (overview.stale > 0) rereading = setTimeout(() => pace.ask(), STALE_MS);
    health.update(overview, filter);
    form.update(filter, overview);
  }

  /* Rows have changed. */
  function told() {
    list.paint();
    const n = pages.ended ? pages.rows.filter((row) => !row.absent).length + pages.fresh : total();
    const words = said(filter);
    count.textContent = n === null ? `More than ${number(pages.rows.length)} rollouts${words ? `, ${words}` : ""}` : `${plural(n, "rollout")}${words ? `, ${words}` : ""}`;
    fresh.hidden = pages.fresh === 0;
    fresh.textContent = `${number(pages.fresh)}${pages.freshIsMore ? " or more" : ""} new: show`;
    if (pages.ended && pages.rows.length === 0) fill(note, isEmpty(filter) ? welcome(ctx) : nothing());
    else fill(note);
    picked();
  }

  function nothing() {
    const { text, clears } = emptiness(filter);
    return h("div.notice", h("p", text),
      h("p.row", clears.length > 1 ? clears.map(([what, patch]) => h("button", { type: "button", onclick: () => apply(patch) }, `Without ${what}`)) : null,
        h("button", { type: "button", onclick: () => apply({ state: null, group: null, labels: [], finding: null, graded: null, trouble: false, q: null }) }, "Show all")));
  }

  function failed(error) {
    if (ctx.signal.aborted || error.name === "AbortError") return;
    if (error.status === 401 || error.status === 429) {
      ctx.fault(error);
      return;
    }
    root.setAttribute("aria-busy", "false");
    fill(note, h("div.notice.bad", { role: "alert" }, h("p", prose(error.message)), error.hint ? h("p", prose(error.hint)) : null,
      h("p", h("button", { type: "button", onclick: () => { fill(note); if (pages) pages.failed = false; load().catch(failed); } }, "Try again"))));
  }

  function restart() {
    load().then(() => list.table.focus({ preventScroll: true }), failed);
  }

  function pick(row) {
    if (!chosen.delete(row.id)) chosen.add(row.id);
    picked();
    list.paint();
  }

  function picked() {
    compare.disabled = chosen.size !== 2;
    compare.title = chosen.size === 2 ? "" : "Pick two rollouts (x)";
    unpick.disabled = chosen.size === 0;
    unpick.textContent = chosen.size ? `Unpick ${chosen.size}` : "Unpick";
    list.paint();
  }

  function openCompare() {
    if (chosen.size !== 2) {
      ctx.say("Pick two rollouts to compare, with x.");
      return;
    }
    location.hash = to("compare", ...chosen);
  }

  function wantedForDownload(mostAtOnce) {
    if (chosen.size > 0) return { ids: [...chosen] };
    const query = sequencesQuery(filter);
    if (query) return { query, count: total() ?? pages?.rows.length ?? 0 };
    // The route of many has no such filter: what is here is named one by one.
    return { ids: (pages?.rows ?? []).slice(0, mostAtOnce + 1).map((row) => row.id) };
  }

  /* Looks again: at the numbers, at the rows in sight, and whether something is new in front. */
  async function again() {
    const mine = pages;
    const seen = list.window();
    const news = sinceNews;
    sinceNews = false;
    const path = overviewPath(filter);
    const reads = [ctx.api.get(path, { signal: ctx.signal }).then((found) => {
      // Another filter was chosen meanwhile.
      if (path !== overviewPath(filter)) return;
      [overview, overviewOf] = [found, path];
      looked();
    })];
    if (mine.rows.length === 0) reads.push(load());
    else {
      reads.push(mine.refresh(seen.first, seen.last));
      if (news && seen.first >= 100) reads.push(mine.refresh(0, 1));
    }
    await Promise.all(reads);
    if (mine === pages) told();
  }

  const named = (title, work) => Object.assign(work, { title });
  ctx.keys({
    j: named("next row", () => list.walk("j")),
    k: named("row before", () => list.walk("k")),
    Home: () => list.walk("Home"),
    End: () => list.walk("End"),
    x: named("pick a row, or let it go", () => { const row = rows.at(list.active()); if (row) pick(row); }),
    c: named("compare the two that are picked", openCompare),
    n: named("show what is new", () => { if (!fresh.hidden) restart(); }),
    t: named("only those that need a look, or all", () => apply({ trouble: !filter.trouble })),
    "/": named("search", () => { form.search.focus(); form.search.select(); }),
  });
  const pace = paced(again, { failed: (error) => { if (!(error instanceof ApiError) || error.status !== 0) failed(error); } });
  const timer = setInterval(list.age, AGE_MS);
  ctx.signal.addEventListener("abort", () => {
    clearInterval(timer);
    clearTimeout(rereading);
    kept = pages && overview ? { address: address(filter), pages, overview, top: list.top(), active: list.active() } : null;
  }, { once: true });

  const back = kept?.address === address(filter) ? kept : null;
  kept = null;
  if (back) {
    ({ pages, overview } = back);
    overviewOf = overviewPath(filter);
    // Its reads were the last view's, and ended with it.
    pages.read = ({ after, limit }) => ctx.api.get(listPath(filter, { after, limit }), { signal: ctx.signal });
    pages.failed = false;
    looked();
    told();
    list.scrollTo(back.top);
    list.activate(back.active, { scroll: false });
    list.table.focus({ preventScroll: true });
    await again();
  } else {
    await load();
  }
  follow("events", ctx, pace, (event) => {
    if (event.event === "rollout.registered") sinceNews = true;
    return true;
  });
}

/* No rollout yet: how there comes to be one. */
function welcome(ctx) {
  const origin = new URL(".", document.baseURI.split("#")[0]).href;
  const command = `curl -s -X POST '${origin}rollouts' -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d '{"group": "first", "task": {"text": "Say hello."}}'`;
  return h("div.notice.list-welcome",
    h("h2", "No rollouts yet"),
    h("p", "Register one; the answer holds the address and the key that its agent uses, ready for its environment (", h("code", "env"), "):"),
    h("pre", { tabindex: "0" }, command),
    h("p", h("button", { type: "button", onclick: () => copy(command, ctx, "The command is in the clipboard; it reads the key from $KEY.") }, "Copy")),
    h("p", "It shows here by itself. To see a page full of life first: ", h("code", "bin/demo --serve"), "."));
}
