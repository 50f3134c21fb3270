/* The command that sends a call's request again, as its agent did. The address and the key are those of the environment
   that registration returned; the body is as it came. Pure. */

/* request: the body's JSON text. */
export function resend(call, request) {
  const [where, ...headers] = target(call);
  return [
    `curl -sN "${where}" \\`,
    ...headers.map((header) => `  -H "${header}" \\`),
    `  -H "Content-Type: application/json" \\`,
    `  --data-binary @- <<'${mark(request)}'`,
    request,
    mark(request),
  ].join("\n");
}

function target(call) {
  const bearer = "Authorization: Bearer $OPENAI_API_KEY";
  switch (call.dialect) {
    case "completions": return ["$OPENAI_BASE_URL/completions", bearer];
    case "responses": return ["$OPENAI_BASE_URL/responses", bearer];
    case "messages": return ["$ANTHROPIC_BASE_URL/v1/messages", "x-api-key: $ANTHROPIC_API_KEY", "anthropic-version: 2023-06-01"];
    case "gemini": {
      /* A shell reads "!" between double quotes, too. */
      const model = encodeURIComponent(call.model_asked || "model").replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`);
      return [`$GOOGLE_GEMINI_BASE_URL/v1beta/models/${model}:${call.streamed ? "streamGenerateContent?alt=sse" : "generateContent"}`, "x-goog-api-key: $GEMINI_API_KEY"];
    }
    default: return ["$OPENAI_BASE_URL/chat/completions", bearer];
  }
}

/* The word that ends the body, which no line of it is. */
function mark(request) {
  let word = "BODY";
  while (request.split("\n").includes(word)) word += "_";
  return word;
}
