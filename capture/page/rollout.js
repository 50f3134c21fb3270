import { fill, h } from "./dom.js";

export async function show(root, params, ctx) {
  ctx.title("rollout");
  fill(root, h("p.notice", "To be written."));
}
