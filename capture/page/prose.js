/* Our own sentences, in which `code` stands between backticks, as elements. */

import { h } from "./dom.js";

export const prose = (text) => String(text ?? "").split("`").map((part, i, all) => (i % 2 && i < all.length - 1 ? h("code", part) : i % 2 ? `\`${part}` : part));
