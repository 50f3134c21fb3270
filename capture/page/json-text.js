/* JSON as text: a part of it, and the whole indented, with every number as it was written. Reading it into values would
   round what is no double: a seed of 9223372036854775807, a 1.0. Pure; the text is well-formed, as a server's answer is. */

const SPACE = /\s/;

/* The text of a member of the outermost object; null where it has none of that name. */
export function member(text, name) {
  let at = past(text, text.indexOf("{") + 1);
  while (at < text.length && text[at] !== "}") {
    const key = stringEnd(text, at);
    const found = JSON.parse(text.slice(at, key));
    const start = past(text, text.indexOf(":", key) + 1);
    const end = valueEnd(text, start);
    if (found === name) return text.slice(start, end);
    at = past(text, end);
    if (text[at] === ",") at = past(text, at + 1);
  }
  return null;
}

/* The same JSON, a member or an item a line. */
export function indented(text, by = 2) {
  const out = [];
  let depth = 0;
  let at = 0;
  const line = () => `\n${" ".repeat(by * depth)}`;
  while (at < text.length) {
    const sign = text[at];
    if (sign === "\"") {
      const end = stringEnd(text, at);
      out.push(text.slice(at, end));
      at = end;
      continue;
    }
    if (sign === "{" || sign === "[") {
      const next = past(text, at + 1);
      if (text[next] === "}" || text[next] === "]") {
        out.push(sign, text[next]);
        at = next + 1;
        continue;
      }
      depth += 1;
      out.push(sign, line());
    } else if (sign === "}" || sign === "]") {
      depth -= 1;
      out.push(line(), sign);
    } else if (sign === ",") out.push(sign, line());
    else if (sign === ":") out.push(": ");
    else if (!SPACE.test(sign)) out.push(sign);
    at += 1;
  }
  return out.join("");
}

function past(text, at) {
  let next = at;
  while (next < text.length && SPACE.test(text[next])) next += 1;
  return next;
}

/* Behind the string that begins at `at`. */
function stringEnd(text, at) {
  let end = at + 1;
  for (;;) {
    end = text.indexOf("\"", end);
    if (end < 0) return text.length;
    let slashes = 0;
    while (text[end - 1 - slashes] === "\\") slashes += 1;
    end += 1;
    if (slashes % 2 === 0) return end;
  }
}

/* Behind the value that begins at `at`. */
function valueEnd(text, at) {
  if (text[at] === "\"") return stringEnd(text, at);
  let depth = 0;
  let end = at;
  while (end < text.length) {
    const sign = text[end];
    if (sign === "\"") {
      end = stringEnd(text, end);
      continue;
    }
    if (sign === "{" || sign === "[") depth += 1;
    else if (sign === "}" || sign === "]") {
      if (depth === 0) return end;
      depth -= 1;
      if (depth === 0) return end + 1;
    } else if (depth === 0 && (sign === "," || SPACE.test(sign))) return end;
    end += 1;
  }
  return end;
}
