/* A sentence of ours where there are no elements, in a title: without the marks around `code`. */

export const flat = (text) => String(text ?? "").replaceAll("`", "");
