/* Saving an answer as a file. */

import { h } from "./dom.js";

export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  /* The browser reads it after the click has returned. */
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* A name that any file system takes. */
export const fileName = (...parts) => parts.join(".").replace(/[^\w.-]+/g, "_");
