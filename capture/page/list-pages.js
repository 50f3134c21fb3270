/* The rows of a list as far as they were read, page by page behind a cursor. No DOM, no clock: node tests it.

   Rules:
   1. A row never moves once it is in the list. What is new in front is counted (`fresh`) and comes with `restart`; what
      no longer belongs (deleted, or the filter's no more) stays in its place and is marked `absent`.
   2. One page is read at a time, and what is asked for meanwhile is asked for after it.
   3. Reading anew (`refresh`) starts from the cursor of the page that holds the first row wanted. */

export const FIRST_PAGE = 100;
export const PAGE = 200;
export const MOST = 1000;

export class Pages {
  /* read({after, limit}) → {rollouts, next}. */
  constructor(read) {
    this.read = read;
    this.rows = [];
    this.at = new Map();
    this.marks = [{ at: 0, after: null }];
    this.next = null;
    this.ended = false;
    this.fresh = 0;
    this.freshIsMore = false;
    this.busy = null;
  }

  /* How many rows there are: as many as the server says, at least those that are here, and one more where more come. */
  count(total) {
    return this.ended ? this.rows.length : Math.max(total ?? 0, this.rows.length + 1);
  }

  index(id) {
    return this.at.get(id) ?? -1;
  }

  /* Reads until row `last - 1` is here, or all are. */
  async ensure(last) {
    while (!this.ended && this.rows.length < last) {
      if (this.busy) await this.busy;
      else await this.alone(() => this.more(last));
    }
  }

  async alone(work) {
    this.busy = work();
    try {
      await this.busy;
    } finally {
      this.busy = null;
    }
  }

  async more(last) {
    const first = this.rows.length === 0;
    const limit = first ? FIRST_PAGE : Math.min(MOST, Math.max(PAGE, last - this.rows.length));
    const page = await this.read({ after: this.next, limit });
    for (const row of page.rollouts) {
      // A page that shifted while it was read (a rollout deleted in front) must not show one twice.
      if (this.at.has(row.id)) continue;
      this.at.set(row.id, this.rows.length);
      this.rows.push(row);
    }
    this.next = page.next;
    this.ended = page.next === null;
    if (!this.ended) this.marks.push({ at: this.rows.length, after: page.next });
  }

  /* Reads rows [first, last) anew. */
  async refresh(first, last) {
    while (this.busy) await this.busy;
    if (this.rows.length === 0) return;
    await this.alone(() => this.again(first, Math.min(last, this.rows.length)));
  }

  async again(first, last) {
    const mark = this.marks.findLast((each) => each.at <= first) ?? this.marks[0];
    const limit = Math.min(MOST, Math.max(1, last - mark.at) + (mark.at === 0 ? this.fresh + PAGE / 4 : 0));
    const page = await this.read({ after: mark.after, limit });
    const found = new Set();
    let reached = -1;
    let fresh = 0;
    for (const row of page.rollouts) {
      const at = this.at.get(row.id);
      if (at === undefined) {
        if (reached < 0) fresh += 1;
        continue;
      }
      this.rows[at] = row;
      found.add(row.id);
      reached = Math.max(reached, at);
    }
    if (mark.at === 0) {
      this.fresh = fresh;
      this.freshIsMore = reached < 0 && page.next !== null;
    }
    // What the answer covers: to its last row that is known, or, where it ends the list, to the end.
    const covered = page.next === null ? this.rows.length - 1 : reached;
    for (let at = mark.at; at <= covered; at += 1) {
      const row = this.rows[at];
      if (!found.has(row.id) && !row.absent) this.rows[at] = { ...row, absent: true };
    }
  }
}
