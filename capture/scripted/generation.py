"""One choice of a reply, from the script's text to timed steps: pure, and the same whether it is streamed or not.

Theory of operation. `compose` writes the text that the model is to sample, markers and all. `generate` samples its
ids, ends them at an end token, a stop id, a stop string or the limit, scores each, and detokenises them one by one
as a server does. The result is a `Choice`: ids, scores, and for each id the text that becomes visible with it. Text
is withheld while bytes are half a character, and, with stop strings, as many characters as a stop string could
still reach back (vLLM's v1/engine/detokenizer.py). An end token has no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from capture.scripted.request import ChatRequest
from capture.scripted.rules import Reply
from capture.scripted.sampler import LogprobsMode, Scored, Scorer, sample, sample_allowed
from capture.scripted.template import call_text
from capture.scripted.tokeniser import ENDOFTEXT, IM_END, THINK, THINK_END, TOOL_CALL, Tokeniser

_UNKNOWN = "\ufffd"

# As far as vLLM looks back for the rest of a character, in tokens (v1/engine/logprobs.py).
_CONTEXT = 4


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled sequence. `ids`, `scores`, `labels` and `texts` have one entry a token."""

    index: int
    ids: tuple[int, ...]
    scores: tuple[Scored, ...]
    # What a logprob entry shows for the token: its own text, "" for half a character.
    labels: tuple[str, ...]
    # The text that a stream may show when the token is there.
    texts: tuple[str, ...]
    finish: str
    # The script has said the finish reason; tool calls do not change it.
    finish_forced: bool
    stop_reason: str | int | None
    reasoning_tokens: int

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


def compose(reply: Reply, *, thinking: bool) -> str:
    """Write the text that the model samples, without the end token.

    With thinking on it begins with a think block, an empty one where the reply has no thinking, as Qwen3's models do.
    """
    if reply.raw is not None:
        return reply.raw
    text = reply.text
    for n, call in enumerate(reply.call):
        arguments = call.arguments
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        text += ("\n" if n or text else "") + call_text(call.tool, written)
    if not thinking:
        return text
    thought = f"\n{reply.thinking}\n" if reply.thinking else "\n\n"
    return f"{THINK}{thought}{THINK_END}\n\n{text}"


def generate(
    tokeniser: Tokeniser,
    prompt: Sequence[int],
    reply: Reply,
    request: ChatRequest,
    *,
    index: int,
    key: int,
    limit: int,
    noncanonical: float,
    mode: LogprobsMode,
) -> Choice:
    """Sample a reply behind a prompt; `key` is the draw, `limit` the most tokens."""
    ends = frozenset((tokeniser.special(IM_END), tokeniser.special(ENDOFTEXT)))
    stops = ends | frozenset(request.stop_token_ids or ())
    scorer = Scorer(tokeniser, prompt, mode=mode, temperature=request.temperature)
    others = max((request.top_logprobs or 0) - 1, 0)
    if request.allowed_token_ids:
        drawn = sample_allowed(
            scorer.prefix,
            request.allowed_token_ids,
            bias=request.logit_bias or {},
            temperature=request.temperature,
            mode=mode,
            ends=stops,
            least=request.min_tokens,
            limit=min(limit, request.output_limit) if request.output_limit else None,
            key=key,
        )
        ids = [token for token, _ in drawn]
        scores = [Scored(token, logprob, []) for token, logprob in drawn]
    else:
        text = compose(reply, thinking=request.thinking)
        ids = sample(tokeniser, text, key, noncanonical)
        if reply.finish not in ("length", "abort"):
            ids.append(tokeniser.special(reply.end))
        scores = []
    ids = _until(ids, stops)[:limit]
    reason: str | int | None = None
    finish = "stop" if ids and ids[-1] in stops else "length"
    if finish == "stop" and ids[-1] != tokeniser.special(IM_END):
        reason = ids[-1]
    texts, labels = _detokenise(tokeniser, ids, silent=finish == "stop")
    if request.stops:
        texts, stopped = _stop(texts, request.stops, included=request.include_stop_str_in_output)
        if stopped is not None:
            finish, reason = "stop", stopped
        ids = ids[: len(texts)]
    failure = reply.failure
    forced = False
    if failure is not None and failure.abort_after_tokens is not None:
        ids = ids[: failure.abort_after_tokens]
        finish, reason, forced = "abort", None, True
    elif (reply.finish is not None and finish != "length") or reply.finish in ("length", "abort"):
        finish, forced = reply.finish, True
    if not scores:
        scores = [scorer.score(token, others) for token in ids]
    return Choice(
        index=index,
        ids=tuple(ids),
        scores=tuple(scores[: len(ids)]),
        labels=tuple(labels[: len(ids)]),
        texts=tuple(texts[: len(ids)]),
        finish=finish,
        finish_forced=forced,
        stop_reason=reason,
        reasoning_tokens=reasoning_tokens(tokeniser, ids) if request.thinking else 0,
    )


def _until(ids: list[int], stops: frozenset[int]) -> list[int]:
    for n, token in enumerate(ids):
        if token in stops:
            return ids[: n + 1]
    return ids


def _detokenise(tokeniser: Tokeniser, ids: Sequence[int], *, silent: bool) -> tuple[list[str], list[str]]:
    """Give each token's visible text and its label; `silent`: the last one ends the reply and shows no text."""
    texts: list[str] = []
    labels: list[str] = []
    held = b""
    for n, token in enumerate(ids):
        held += tokeniser.token_bytes(token)
        text = held.decode("utf-8", "replace")
        if text.endswith(_UNKNOWN):
            text = ""
        else:
            held = b""
        texts.append("" if silent and n + 1 == len(ids) else text)
        labels.append(label(tokeniser, ids, n))
    return texts, labels


def label(tokeniser: Tokeniser, ids: Sequence[int], n: int) -> str:
    """Give what a logprob entry shows for the n-th token: its text; a split character, at its last token."""
    alone = tokeniser.decode(ids[n : n + 1])
    if not alone.endswith(_UNKNOWN):
        return alone
    for back in range(1, min(n, _CONTEXT) + 1):
        together = tokeniser.decode(ids[n - back : n + 1])
        if together.endswith(_UNKNOWN):
            continue
        clean = n
        while clean > n - back and tokeniser.decode(ids[clean - 1 : clean]).endswith(_UNKNOWN):
            clean -= 1
        return together.removeprefix(tokeniser.decode(ids[n - back : clean]))
    return ""


def _stop(texts: list[str], stops: Sequence[str], *, included: bool) -> tuple[list[str], str | None]:
    """End texts at the first stop string, and withhold what one could still reach back to."""
    back = 0 if included else max(map(len, stops)) - 1
    shown: list[str] = []
    whole = ""
    sent = 0
    for n, text in enumerate(texts):
        begin = len(whole)
        whole += text
        for stop in stops:
            at = whole.find(stop, max(0, begin - len(stop) + 1))
            if at >= 0:
                end = at + len(stop) if included else at
                shown.append(whole[sent:end])
                return shown, stop
        end = len(whole) if n + 1 == len(texts) else max(sent, len(whole) - back)
        shown.append(whole[sent:end])
        sent = end
    return shown, None


def reasoning_tokens(tokeniser: Tokeniser, ids: Sequence[int]) -> int:
    """Count as vLLM does: what lies before the end of thinking, without the marks."""
    marks = (tokeniser.special(THINK_END), tokeniser.special(TOOL_CALL))
    end = next((n for n, token in enumerate(ids) if token in marks), len(ids))
    return sum(not tokeniser.is_special(token) for token in ids[:end])
