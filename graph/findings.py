"""The one table of findings: every code, its level, what it means, and what to do about it.

Rules:
- A finding is a statement about one rollout; its message is the row's text, filled from the finding's data.
- Levels: `error`, the rollout can't be used as it is; `warn`, look before you train on it; `info`, good to know.
  In tier `eval`, where no tokens are expected, a row's `eval_level` counts.

`graph.finders` has one file a family; each is a pure function of the forest with its roles. What only capture can know
comes as a notice and becomes the finding of the same code. docs/findings.md is printed from this table.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from graph.records import Level


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One code of the table."""

    code: str
    level: Level
    # What it says of a rollout, in a sentence; names in braces are keys of the finding's data, {count} its calls, and
    # {why} what its finder says in words, or, right behind a word, what it may add. In brackets, words for one and for
    # more: [call|calls] of the count, [rows: row|rows] of that number in the data.
    text: str
    means: str
    do: str
    # Keys of the finding's data and what they hold.
    data: tuple[tuple[str, str], ...] = ()
    # Who says it: the graph reads it from the calls; capture sends it as a notice; an export says it of itself.
    source: Literal["graph", "notice", "export"] = "graph"
    eval_level: Level | None = None


_ROWS = (
    # -- capture: was everything recorded? ---------------------------------------------------------------------------
    Row(
        code="no_calls",
        level="error",
        text="The agent made no model call: nothing came with this rollout's key before it was closed.",
        means="A reward of it says nothing of the policy: the agent never reached the model, or was never started.",
        do="Look at the agent's environment: base URL and key must be those that registration returned, and from "
        "inside a sandbox 127.0.0.1 is the sandbox itself (docs/tunnels.md). `near`, `tunnel` and `engine` say what "
        "else was amiss; with `unknown_secret_calls` the agent did call, under another key.",
        data=(
            ("near", "codes of this rollout's notices that may explain it"),
            ("tunnel", "`up`, or why it was down, when the rollout closed; absent where it had none"),
            ("engine", "`reachable`, or why it was not, when the rollout closed"),
        ),
    ),
    Row(
        code="capture_incomplete",
        level="error",
        text="Something of this rollout could not be recorded.",
        means="The store failed while a call ran, or a reply could not be read; the agent got its answer all the same.",
        do="Don't train on the rollout. See the store's health, and `--on-store-failure`.",
        data=(("reason", "what is missing, where that is known"),),
    ),
    Row(
        code="parent_lost",
        level="warn",
        text="{count} [call continues|calls continue] a call that was not recorded.",
        means="Their prompts hold an assistant message that no recorded call produced, and the record is incomplete.",
        do="They are roots, trained from their own sampled tokens on; the lost call's tokens are context.",
    ),
    Row(
        code="unreadable_body",
        level="warn",
        text="{count} [call|calls] had a body that could not be decoded for the record.",
        means="The body reached the other side as it came; the record lacks what is named.",
        do="Find what writes such JSON (a bare NaN, a lone surrogate).",
        data=(("missing", "what the record lacks"),),
        source="notice",
    ),
    Row(
        code="expired",
        level="warn",
        text="The rollout was closed because no call came within its time to live.",
        means="`ttl_s` counts from the last call.",
        do="Close rollouts when their agent ends, or register them with a longer `ttl_s`.",
        source="notice",
    ),
    Row(
        code="graded_without_calls",
        level="error",
        text="A reward was given to a rollout without a sampled call.",
        means="The grade is of something that the policy did not do, and shifts the mean of its group.",
        do="Leave the rollout ungraded (a reward of null) and find out why no call came.",
        data=(("reward", "the reward given"),),
    ),
    Row(
        code="unknown_secret_calls",
        level="warn",
        text="Calls with a key that nobody has came while this rollout waited for its first.",
        means="An agent may have been started with another rollout's key, or an old one; it was answered 401.",
        do="Compare the key in the agent's environment with the one that registration returned.",
        data=(("calls", "how many"),),
        source="notice",
    ),
    Row(
        code="tunnel_lost",
        level="error",
        text="The tunnel that this rollout's agent used was lost.",
        means="What streamed at that moment was cut. Calls after it arrived only if it came back at the same address.",
        do="Run the rollout again, unless its calls went on; new ones get the new address (docs/tunnels.md).",
        data=(
            ("url", "the address that was lost"),
            ("tunnel", "the tunnel"),
            ("reason", "what was seen of the loss"),
        ),
        source="notice",
    ),
    Row(
        code="secret_in_content",
        level="warn",
        text="{count} [call carries|calls carry] one of the rollout's secrets in message content.",
        means="An agent printed its own key; content is stored as it came.",
        do="Don't publish the rollout; the secret is void once it is closed.",
        source="notice",
    ),
    # -- tokens: can they be trained on? -----------------------------------------------------------------------------
    Row(
        code="nothing_trainable",
        level="error",
        text="No token of this rollout can be trained on: {why}.",
        means="No sampled token of a main conversation passes every condition; the export would be empty.",
        do="See the reasons (docs/findings.md#reasons): each says why its calls are left out.",
        data=(("reasons", "reason → number of calls"),),
        eval_level="info",
    ),
    Row(
        code="no_token_ids",
        level="error",
        text="{count} [call|calls] came without token ids.",
        means="The engine's reply had no prompt ids or no sampled ids: nothing to train on, or to link by.",
        do="Use an engine of tier train; a router in between may have dropped the fields.",
        eval_level="info",
    ),
    Row(
        code="no_logprobs",
        level="error",
        text="{count} [call|calls] came without logprobs.",
        means="The ids are there, the probabilities of the sampled tokens are not.",
        do="See that the engine allows logprobs (vLLM: `--max-logprobs`), and that no router drops them.",
        eval_level="info",
    ),
    Row(
        code="count_mismatch",
        level="error",
        text="{count} [call has|calls have] counts that disagree.",
        means="Ids, logprobs and the engine's usage don't have the same length; something was lost on the way.",
        do="They are left out. A stream cut in a chunk, or an engine that drops ids while parsing, does this.",
        data=(("counts", "call → ids, logprobs and usage as counted"),),
    ),
    Row(
        code="invalid_logprobs",
        level="error",
        text="{count} [call has|calls have] logprobs that are no probabilities.",
        means="A logprob is missing, not a number, infinite, or clamped (vLLM writes -9999.0 for minus infinity).",
        do="They are left out. A clamped one means that the token was cut from the distribution it was scored under.",
        data=(("tokens", "how many such logprobs"),),
    ),
    Row(
        code="positive_logprob",
        level="warn",
        text="{count} [call has|calls have] a logprob above zero (largest: {largest}).",
        means="A probability above one: numerical noise when tiny, another quantity when not.",
        do="Compare with the engine's own scoring of the same ids.",
        data=(("largest", "the largest logprob"), ("tokens", "how many")),
    ),
    Row(
        code="token_out_of_vocabulary",
        level="error",
        text="{count} [call holds|calls hold] a token id outside the model's vocabulary.",
        means="The ids are of another model or were damaged. Negative ones are held to be missing.",
        do="See that the engine serves the model that the rollout names.",
    ),
    # -- links: how do the calls hang together? ----------------------------------------------------------------------
    Row(
        code="drift",
        level="info",
        text="{count} [call doesn't begin|calls don't begin] with the tokens that the call before [it|them] read and "
        "sampled (at most {tokens_max} are lost): {why}.",
        means="A prompt re-tokenises or drops something of what came before; a training row ends there. What was "
        "sampled is trained all the same, in the row before.",
        do="A few tokens at a turn's border are a property of the template. For more see the cause "
        "(docs/findings.md#causes): mostly a setting of the agent; `treering drift` advises, and pinned prefixes end "
        "it (docs/pinned.md).",
        data=(
            ("tokens_mean", "over the calls that drift"),
            ("tokens_max", "the largest"),
            ("causes", "cause → number of calls"),
        ),
    ),
    Row(
        code="drift_over_threshold",
        level="warn",
        text="{count} [call loses|calls lose] more than {threshold} tokens of what the call before "
        "[it|them] read and sampled: {why}.",
        means="A large part of a prompt was written anew. The rollout falls apart into more rows, and no prefix is "
        "cached there.",
        do="The cause says who does it: an agent that rewrites what it was sent, or the chat template. `treering "
        "drift` advises on each; pinned prefixes end it (docs/pinned.md).",
        data=(("threshold", "in tokens"), ("causes", "cause → number of calls")),
    ),
    Row(
        code="realign_masked",
        level="info",
        text="Crossing drifts masks {tokens} [tokens: token|tokens], trained in {rows} [rows: row|rows] apart.",
        means="Behind a break, what was sampled was scored under another prefix than the row's (`drift=realign`).",
        do="Nothing: no token is lost. Where such rows are many, `drift=split` may give fewer.",
        data=(("tokens", "sampled tokens that lie behind a break"), ("rows", "rows of their own, one for each reply")),
        source="export",
    ),
    Row(
        code="volatile_prefix",
        level="warn",
        text="Every continuation breaks at token {at}: the prompt's beginning changes from call to call.",
        means="A header or a countdown, mostly in the system prompt: no prefix is cached, and each call is a row.",
        do="Set `setting` where the agent and its setting are known; else take what changes out of its prompt.",
        data=(
            ("at", "token position of the break, the first of them"),
            ("tokens", "tokens lost, over all calls"),
            ("tokens_mean", "tokens lost a call"),
            ("part", "the role of the message that changes; `tools`, or `template` where no message does"),
            ("line", "the first line that is new in the last call"),
            ("agent", "the agent that is known to write such a line"),
            ("setting", "what ends it there"),
        ),
    ),
    Row(
        code="per_turn_roots",
        level="warn",
        text="{count} calls of the main task are roots of their own.",
        means="Each turn starts anew: no earlier reply stands in the next prompt.",
        do="Normal for agents without a history. For others, see what the agent does to its messages.",
    ),
    Row(
        code="multiple_roots",
        level="info",
        text="The main task has {count} roots{why}.",
        means="Several conversations begin with the same opening, or were ruled to be main: all of them are trained.",
        do="Look at them when one was expected: an agent that starts over, a lost parent, a verdict on the control "
        "plane.",
        data=(("ruled", "roots that are main because somebody ruled so; absent where none is"),),
    ),
    Row(
        code="compaction",
        level="info",
        text="{count} [call continues|calls continue] a conversation from a summary of it.",
        means="The agent replaced its history by a summary; a new row begins there.",
        do="Nothing. The summary's own tokens are trained when it was asked for inside the conversation.",
        data=(("carries", "the calls whose text was carried over"),),
    ),
    Row(
        code="pin_fallback",
        level="warn",
        text="{count} [call was|calls were] not pinned: {reason}.",
        means="The rollout asked for pinned prefixes, and the engine rendered the prompt itself: it may drift.",
        do="docs/pinned.md says what each reason means and what ends it.",
        data=(("reason", "its name"), ("engine", "the engine's, where it is at fault")),
        source="notice",
    ),
    Row(
        code="forks",
        level="info",
        text="{forks} [forks: fork|forks]: {resample} resampled, {branch} branched.",
        means="A prompt has several delivered replies, or a reply several continuations.",
        do="Nothing. A shared prefix is trained once.",
        data=(("forks", "how many"), ("resample", "of kind resample"), ("branch", "of kind branch")),
    ),
    Row(
        code="retries",
        level="info",
        text="{count} [call is a try of a request that was|calls are tries of requests that were] sent again.",
        means="The first try failed or was never delivered, and the same prompt was sent again. One try is trained at "
        "most.",
        do="Nothing; many of them point at a time limit of the agent (`time_limit`) or an engine under load.",
    ),
    Row(
        code="discarded_calls",
        level="info",
        text="{count} [call was|calls were] discarded: nobody went on with [it|them].",
        means="Another branch from the same place went on.",
        do="Nothing; their tokens are left out.",
        data=(("tokens", "sampled tokens in them"),),
    ),
    # -- roles: what was each conversation for? ----------------------------------------------------------------------
    Row(
        code="auxiliary_calls",
        level="info",
        text="{count} [call|calls] served the agent itself, not the task ({why}), and [is|are] not trained.",
        means="Titles, summaries with a root of their own, probes; not trained by default.",
        do="Nothing. `roles=` takes them in.",
        data=(("kinds", "kind → number of conversations"),),
    ),
    Row(
        code="subagents",
        level="info",
        text="{conversations} [conversations: conversation was|conversations were] started by a tool call{why}.",
        means="The task's agent handed work to others; not trained by default.",
        do="Nothing. `roles=main,subagent` takes them in.",
        data=(("conversations", "how many"), ("parents", "the calls that started them")),
    ),
    Row(
        code="ambiguous_main",
        level="warn",
        text="Which conversation is the main one was a tie, broken by {by}{why}.",
        means="Several conversations could be the task's; the data flow does not tell them apart.",
        do="Register rollouts with their task's text, or overrule the verdict: `PUT /rollouts/{id}/roles` with "
        '`{"conversation": 1, "role": "main"}`.',
        data=(("by", "task, headers or size"), ("roots", "root calls of all candidates"), ("kept", "roots of main")),
    ),
    Row(
        code="role_hint_disagrees",
        level="warn",
        text="{count} [call claims|calls claim] a role that the data flow contradicts.",
        means="A header said one thing, what was read and where the reply went another; the header did not decide.",
        do="See the conversation's evidence; overrule it if the header was right: `PUT /rollouts/{id}/roles` with "
        '`{"conversation": N, "role": "subagent"}`, N and the role as under `conversation` and `hinted`.',
        data=(("hinted", "role claimed"), ("judged", "role given"), ("conversation", "its number")),
    ),
    Row(
        code="role_overruled",
        level="warn",
        text="Conversation {conversation} ({why}) is taken for {role} because somebody ruled so.",
        means="By what it read and where its reply went it is something else. A verdict on the control plane overrules "
        "that: what is ruled main is trained and gets the task's advantage, a title too; what is ruled anything else "
        "is not.",
        do="Nothing, if that was meant. Else rule again: `PUT /rollouts/{id}/roles` with "
        '`{"conversation": N, "role": "title"}`, N and the role as under `conversation` and `judged`; the rows '
        "follow at once.",
        data=(
            ("conversation", "its number"),
            ("role", "role ruled"),
            ("judged", "role, or kind of auxiliary, as the flow of data has it"),
            ("tokens", "sampled tokens in it"),
        ),
    ),
    # -- sampling: are the logprobs those of the policy? -------------------------------------------------------------
    Row(
        code="sampling_unpinned",
        level="info",
        text="The rollout pins no temperature: the agent's value counts, or the engine's default where it sent none.",
        means="A call that went out without one was drawn with a value that is not in the record.",
        do="Pin `sampling` at registration.",
        data=(("unseen", "main calls without a temperature"), ("asked", "values that the agent asked for")),
    ),
    Row(
        code="sampling_truncates",
        level="warn",
        text="{count} [call was|calls were] drawn from a truncated distribution.",
        means="top_p, top_k or min_p cut tokens away; importance ratios are off unless the trainer repeats the cut.",
        do="Pin top_p=1, top_k=-1, min_p=0.",
        data=(("values", "parameter → values that cut"),),
    ),
    Row(
        code="sampling_changed",
        level="warn",
        text="Sampling values changed between calls of the main conversation.",
        means="The rollout's tokens come from different distributions.",
        do="Pin `sampling` at registration.",
        data=(("values", "parameter → values sent; null where unseen"),),
    ),
    Row(
        code="constrained_sampling",
        level="warn",
        text="{count} [call was|calls were] sampled under a constraint.",
        means="A grammar, a forced tool, a bias or a token list changed the logits; a trainer can't rebuild that.",
        do="They are context unless `constrained=train` says otherwise.",
        data=(("fields", "the request's fields that constrain"),),
    ),
    Row(
        code="logprob_mode_unknown",
        level="warn",
        text="Whether the engine's logprobs are raw or processed is not known.",
        means="Raw ones are before temperature and cuts, processed ones after.",
        do="Say it with `--logprobs-mode`, or use an engine that the probe can settle.",
    ),
    Row(
        code="logprobs_not_of_sampler",
        level="warn",
        text="{count} [call has|calls have] raw logprobs but [was|were] drawn from another distribution.",
        means="The logprobs are before temperature, cuts and penalties; the tokens were drawn after them.",
        do="Pin temperature=1 without cuts or penalties, or run the engine with processed logprobs.",
        data=(("because", "parameter → values"),),
    ),
    # -- ends: how did calls and the rollout end? --------------------------------------------------------------------
    Row(
        code="truncated_reply",
        level="warn",
        text="{count} [call was|calls were] cut by length.",
        means="The engine stopped at the limit of output tokens; trained as far as they go, and flagged.",
        do="Raise `max_output_tokens` or the engine's context length if this was not meant.",
    ),
    Row(
        code="time_limit",
        level="warn",
        text="{count} tries of requests were each given up after about {after_s} s, as by a time limit of the agent.",
        means="The agent, its HTTP library or a proxy on the way waits no longer than that and asks again, while the "
        "engine is still at work on the reply. None of it is trained, and the engine does the work twice.",
        do="Raise the time limit of the agent (its SDK, a proxy) above the longest reply; or have shorter ones "
        "(`max_output_tokens`), or fewer at once.",
        data=(("after_s", "seconds from request to end, the longest"), ("tokens", "sampled tokens that were lost")),
    ),
    Row(
        code="aborted_calls",
        level="warn",
        text="{count} [call|calls] broke off before [its|their] end.",
        means="The agent hung up, or the engine stopped; what was sampled is kept and not trained.",
        do="See the calls' errors and times: a time limit of the agent, an agent that was ended, a paused engine.",
        data=(("used", "those whose partial reply was proved used by a later prompt"),),
    ),
    Row(
        code="undelivered_calls",
        level="warn",
        text="The finished [reply|replies] of {count} [call|calls] never reached the agent.",
        means="The client had closed before the end; not trained.",
        do="Time limits of the agent or of what stands between.",
    ),
    Row(
        code="delivery_unknown",
        level="warn",
        text="The finished [reply|replies] of {count} [call|calls] may not have reached the agent.",
        means="The process died between the record and the mark of delivery, and no later call shows their use.",
        do="They are left out.",
    ),
    Row(
        code="engine_errors",
        level="warn",
        text="{count} [call|calls] ended in an error.",
        means="The engine refused or failed; nothing of them is trained.",
        do="See the calls' errors.",
    ),
    Row(
        code="limit_stop",
        level="warn",
        text="The rollout was stopped by its limit {limit} at call {at_call}{why}; its agent had not finished.",
        means="From there on the agent got a last reply that ends its loop: it is no turn of the policy and is not "
        "trained. A reward that grades the end grades work that was cut.",
        do="Raise the limit if the task needs more (`limits` at registration, `--limits` for all), or take such "
        "rollouts out of the mean.",
        data=(
            ("limit", "the limit's name"),
            ("value", "what it allows: calls, tokens or seconds; absent where that is not known"),
            ("at_call", "the first call that it stopped"),
            ("stops", "replies given"),
        ),
    ),
    Row(
        code="weights_changed",
        level="warn",
        text="The weights changed while {count} [call was|calls were] being sampled ({versions}).",
        means="Their tokens were drawn from two versions of the policy; without spans by token nobody knows which from "
        "which, and a ratio against either is wrong for some.",
        do="Pause, update, say the version, resume (`POST /engine/pause`, `/engine/weights`, `/engine/resume`): then "
        "no call straddles a change. Leave these calls out, or correct for the older version: in the rows their spans "
        "have `weights` null, unless the engine said of each token which drew it.",
        data=(("versions", "the versions, in the order of the calls"),),
    ),
    Row(
        code="weights_mixed",
        level="info",
        text="The rollout's calls were drawn from several versions of the weights ({versions}).",
        means="The trainer updated between its calls; each call, and each span of a row, says its version.",
        do="Nothing in asynchronous training. Else update between rollouts, or leave such a rollout out.",
        data=(("versions", "the versions, in the order of the calls"),),
    ),
    Row(
        code="engine_changed",
        level="warn",
        text="{count} [call|calls] met another engine than the call before: {why}.",
        means="It serves the same model with the same context length; its caches, precision or version may differ.",
        do="Nothing, if that was meant; else see why the engine went away.",
        data=(("engine", "the engine that answered"), ("before", "the one before"), ("why", "in words")),
        source="notice",
    ),
    # -- requests: what was done to them? ----------------------------------------------------------------------------
    Row(
        code="request_refused",
        level="warn",
        text="A request was refused: {reason}.",
        means="It asked for something that this rollout may not do or that cannot be passed on.",
        do="See the field; allow it at registration if it is meant.",
        data=(("reason", "in words"), ("param", "the field, where it is one")),
        source="notice",
    ),
    Row(
        code="reply_id_reused",
        level="warn",
        text="{count} [call bears|calls bear] a reply id that another call of the rollout bears too.",
        means="One that gives the same twice leaves `per_call` rewards and references to replies in doubt.",
        do="Name such calls by their number. See whether a request id is forced on the engine.",
        data=(("ids", "the ids"),),
    ),
    Row(
        code="request_repaired",
        level="info",
        text="{count} [request was|requests were] repaired: {repairs}.",
        means="A change that the engine or its template needs was made and recorded with the call.",
        do="Nothing.",
        data=(("repairs", "names of the repairs"),),
    ),
    Row(
        code="steering_removed",
        level="info",
        text="Fields that steer the engine were taken out: {fields}.",
        means="They say where and when a reply is made, not what it may be, and the rollout does not allow them.",
        do="Name them in `allow` at registration if they are meant.",
        data=(("fields", "names of the fields"),),
        source="notice",
    ),
    Row(
        code="injection_refused",
        level="warn",
        text="The engine refused fields that capture asks with: {fields}. The call was repeated without them.",
        means="What those fields bring (token ids, logprobs, usage) is missing from this call and the later ones.",
        do="Serve a newer engine, or start Treering with `--require-tier eval` if text alone is enough.",
        data=(("engine", "the engine"), ("fields", "names of the fields")),
        source="notice",
    ),
)

TABLE: dict[str, Row] = {row.code: row for row in _ROWS}
