import { fill, h } from "./dom.js";

export async function show(root, params, ctx) {
  ctx.title("list");
  fill(root, h("p.notice", "To be written."));
}
