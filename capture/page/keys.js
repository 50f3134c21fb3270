/* A view's own key: what it does, and the words that the list of keys (`?`) has for it. */

export const key = (title, run) => Object.assign(run, { title });
