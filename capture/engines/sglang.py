"""SGLang's own OpenAI server: what to inject, and where ids and logprobs are found (0.5.23, `srt/entrypoints/openai`).

Rules
1. Whole replies: `return_prompt_token_ids` and `return_meta_info`. Ids and logprobs of a choice are the pairs of its
   `meta_info.output_token_logprobs`, so they can't get out of step; `logprobs` must be true for them to be there.
2. Streams: `return_input_ids_in_sglext` and `return_output_ids_in_sglext`; with the other two, or with vLLM's
   `return_token_ids`, SGLang answers 400. The ids come in one chunk of their own, behind the finish and before usage,
   for all choices at once; a stream that broke off has none. Logprobs come as the text does, without ids. They are
   paired by position, and only where there are as many of one as of the other; else every id has NaN, and it is said.
3. A client that asks for `return_routed_experts` finds them in `sglext`, but in `meta_info` where that is asked for as
   well. So its whole replies are asked as streams are.
4. What the client did not ask for is left out, as SGLang leaves it out: `meta_info`, `prompt_token_ids`, `sglext` and
   its chunk; `logprobs` becomes null, and a chunk that held them alone goes. `metadata` stays: SGLang sends it unasked.
5. `metadata.weight_version` and `meta_info.weight_version(s)` come in whole replies alone.

Streams lose logprobs: a step whose text is withheld (the end token's, half a character) has a chunk for them only
where the server runs with a tool-call or reasoning parser (`serving_chat.py`, `_generate_stream_content`). So a server
without either reaches tier `eval`, and the probe, which lets a reply come to its end, finds it out.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from capture import rawjson
from capture.dialects.base import Request
from capture.engines import vllm_completions
from capture.engines.base import TO_THE_END, Reader
from capture.engines.chat_reader import FLAGS, ChatReader, Track
from capture.engines.id_text import MAX_ID
from capture.engines.openai import Uncountable
from capture.engines.sampled import NULL
from capture.engines.wire import with_usage
from graph.records import Weights, WeightSpan

_PLAIN = ("return_prompt_token_ids", "return_meta_info")
_EXT = {"input_ids": "return_input_ids_in_sglext", "output_ids": "return_output_ids_in_sglext"}
"""What capture takes from `sglext`, and the fields that ask for it."""


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


_pairs = msgspec.json.Decoder(list[tuple[float | None, int, msgspec.Raw]])
_spans = msgspec.json.Decoder(list[_Span])


class Sglang(Uncountable):
    """The adapter `sglang`. It can't count: SGLang's `/tokenize` takes text, and renders no messages."""

    kind = "sglang"
    require_tier: Literal["train", "eval"] = "train"
    # A reply must come to its end: the end token is where streams lose logprobs.
    no_ids: str | None = None
    probe_tokens = TO_THE_END

    def inject(self, request: Request) -> dict[str, bytes | None]:
        """Return the fields to set so that ids, logprobs and usage come back.

        A value that the engine would refuse (`"logprobs": 5`) stays as it is, so that its own error reaches the client.
        """
        if request.path == vllm_completions.PATH:
            # The one route on which SGLang speaks as vLLM does, in both modes.
            return vllm_completions.inject(request)
        fields = request.fields
        asked_as_streams = request.streamed or _is_on(request, "return_routed_experts")
        names = ("logprobs", *(_EXT.values() if asked_as_streams else _PLAIN))
        changes: dict[str, bytes | None] = {name: b"true" for name in names if fields.get(name) in FLAGS}
        if request.streamed:
            changes |= with_usage(fields.get("stream_options", NULL))
        return changes

    def reader(self, request: Request, *, model: str | None = None) -> Reader:
        """Return a reader for the reply; with `model` the reply's model name is replaced by it."""
        if request.path == vllm_completions.PATH:
            return vllm_completions.VllmCompletionsReader(request, model=model)
        return SglangReader(request, model=model)


class SglangReader(ChatReader):
    """Reads one reply of SGLang's chat completions."""

    _beside_finish: ClassVar[dict[str, bytes]] = {"matched_stop": NULL}
    # The rarer chunks say it always.
    _null_usage_is_ours = False

    def __init__(self, request: Request, *, model: str | None = None) -> None:
        super().__init__(request, model=model)
        # `return_token_ids` brings the prompt's ids too.
        self._shows_prompt = _is_on(request, "return_prompt_token_ids") or _is_on(request, "return_token_ids")
        self._shows_meta = _is_on(request, "return_meta_info")
        self._hidden = [name for name, asks in _EXT.items() if not _is_on(request, asks)]
        # What the client may see of a stream's `sglext`, raw.
        self._shown_ext: dict[str, bytes] = {}

    def _take(self, track: Track, fields: dict[str, bytes]) -> bool:
        """Read a choice's logprobs and, in a whole reply, its ids."""
        super()._take(track, fields)
        prompt = fields.get("prompt_token_ids", NULL)
        if prompt != NULL and self.prompt_ids is None:
            self._keep_prompt(prompt, "prompt_token_ids")
        meta = fields.get("meta_info", NULL)
        if meta != NULL and self._take_meta(track, meta):
            return True
        logprobs = fields.get("logprobs", NULL)
        scores = None if logprobs == NULL else self._doubts.logprobs(logprobs)
        track.scores += scores or ()
        return bool(scores)

    def _take_meta(self, track: Track, raw: bytes) -> bool:
        """Read `meta_info`: pairs of id and logprob, and versions of the weights; say if there were pairs."""
        try:
            meta = rawjson.split(raw)
        except ValueError as error:
            self._doubts.add(f"meta_info can't be read: {error}")
            return False
        track.weights = self._weights(meta)
        pairs = meta.get("output_token_logprobs", NULL)
        found = None if pairs == NULL else self._pairs(pairs)
        if found is None:
            return False
        track.sampled.take([id_ for _, id_ in found], [np.nan if score is None else score for score, _ in found])
        return True

    def _pairs(self, raw: bytes) -> list[tuple[float | None, int]] | None:
        name = "meta_info.output_token_logprobs"
        try:
            found = _pairs.decode(raw)
        except (ValueError, RecursionError):
            try:
                found = msgspec.convert(self._doubts.value(raw, name), list[tuple[float | None, int, Any]])
            except msgspec.ValidationError as error:
                self._doubts.add(f"{name} can't be read: {error}")
                return None
        if any(not 0 <= id_ <= MAX_ID for _, id_, _ in found):
            self._doubts.add(f"{name} can't be read: an id is out of range")
            return None
        return [(score, id_) for score, id_, _ in found]

    def _cut(self, fields: dict[str, bytes]) -> bool:
        """Take out of a choice what the client did not ask for, and say if anything was."""
        shown = {"prompt_token_ids": self._shows_prompt, "meta_info": self._shows_meta}
        gone = [name for name, keep in shown.items() if not keep and name in fields]
        for name in gone:
            del fields[name]
        if not self._asked.logprobs and fields.get("logprobs", NULL) != NULL:
            fields["logprobs"] = NULL
            return True
        return bool(gone)

    def _beside(self, top: dict[str, bytes]) -> bool:
        """Read and cut `sglext`; read the weights' versions of `metadata`."""
        if top.get("metadata", NULL) != NULL:
            self._take_metadata(top["metadata"])
        raw = top.get("sglext", NULL)
        if raw == NULL:
            return False
        try:
            ext = rawjson.split(raw)
        except ValueError as error:
            self._doubts.add(f"sglext can't be read: {error}")
            return False
        if ext.get("input_ids", NULL) != NULL and self.prompt_ids is None:
            self._keep_prompt(ext["input_ids"], "sglext.input_ids")
        if ext.get("output_ids", NULL) != NULL:
            self._take_output(ext["output_ids"])
        gone = [name for name in self._hidden if name in ext]
        for name in gone:
            del ext[name]
        self._shown_ext |= ext
        if ext:
            top["sglext"] = rawjson.join(ext)
        else:
            del top["sglext"]
        return bool(gone)

    def _take_output(self, raw: bytes) -> None:
        """Pair each choice's ids with the logprobs that came before them."""
        try:
            lists = rawjson.elements(raw)
        except ValueError as error:
            self._doubts.add(f"sglext.output_ids can't be read: {error}")
            return
        if len(lists) != len(self._tracks):
            self._doubts.add(f"sglext.output_ids has the ids of {len(lists)} choices, and {len(self._tracks)} came")
        for index, ids_raw in enumerate(lists):
            track = self._tracks.get(index)
            # Those of `meta_info` came with their logprobs.
            if track is None or track.sampled.ids is not None:
                continue
            ids = self._doubts.ids(ids_raw, "sglext.output_ids")
            if ids is None or not track.scores:
                track.sampled.add(ids_raw, NULL)
            elif len(ids) == len(track.scores):
                track.sampled.take(ids, track.scores)
            else:
                counts = f"{len(ids)} ids and {len(track.scores)} logprobs came in a stream"
                self._doubts.add(f"{counts}: which are missing can't be told")
                track.sampled.take(ids, [np.nan] * len(ids))

    def _keep_prompt(self, raw: bytes, name: str) -> None:
        ids = self._doubts.id_array(raw, name)
        # No prompt is empty, so an empty list says that it is not known.
        self.prompt_ids = ids if ids is not None and ids.size else None

    def _take_metadata(self, raw: bytes) -> None:
        try:
            metadata = rawjson.split(raw)
        except ValueError as error:
            self._doubts.add(f"metadata can't be read: {error}")
            return
        tracks = self._sorted()
        # It says of the first choice what its `meta_info` does.
        if tracks:
            tracks[0].weights = self._weights(metadata)

    def _weights(self, fields: dict[str, bytes]) -> Weights | None:
        """Read versions of the weights: the last one, and, where they changed or the server counts, where each began.

        Without spans the version at the start is not known: SGLang says the one that it has at the end.
        """
        version = self._doubts.value(fields.get("weight_version", NULL), "weight_version")
        end = version if isinstance(version, str) else None
        raw = fields.get("weight_versions", NULL)
        if raw == NULL:
            return None if end is None else Weights(end=end)
        try:
            spans = _spans.decode(raw)
        except (ValueError, RecursionError) as error:
            self._doubts.add(f"weight_versions can't be read: {error}")
            return Weights(end=end)
        return Weights(
            start=spans[0].version if spans else None,
            end=end or (spans[-1].version if spans else None),
            spans=tuple(WeightSpan(version=span.version, start=span.start, end=span.end) for span in spans),
        )

    def _tells(self, top: dict[str, bytes]) -> bool:
        return super()._tells(top) or "sglext" in top

    def _assembled_beside(self) -> dict[str, bytes]:
        return {"sglext": rawjson.join(self._shown_ext)} if self._shown_ext else {}


def _is_on(request: Request, name: str) -> bool:
    return request.fields.get(name) == b"true"
