/* A table that may be wider than the screen: it scrolls in a place of its own, which a keyboard reaches. */

import { h } from "./dom.js";

export const wide = (label, ...held) => h("div.wide", { tabindex: "0", role: "region", "aria-label": label }, held);
