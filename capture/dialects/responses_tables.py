"""What of OpenAI's Responses has a place in a chat request, and what hasn't: the tables, each entry with its reason.

From `openai` 3.57 (`types/responses`), codex 0.171's requests and vLLM 0.32's request models. They are shown in
docs/dialects/responses.md, and a test holds it to them.
"""

from __future__ import annotations

MAPPED: dict[str, str] = {
    "model": "`model`",
    "input": "`messages`",
    "instructions": "the first message, with role `system`",
    "previous_response_id": "`messages`: what was said up to that reply comes first; its `instructions` don't",
    "tools": "`tools`",
    "tool_choice": "`tool_choice`; `allowed_tools` leaves the others out of `tools`",
    "parallel_tool_calls": "`parallel_tool_calls`, where there are tools",
    "text.format": "`response_format`",
    "reasoning.effort": "`reasoning_effort`",
    "max_output_tokens": "`max_completion_tokens`",
    "temperature": "`temperature`",
    "top_p": "`top_p`",
    "top_logprobs": "`logprobs` and `top_logprobs`; `include: [message.output_text.logprobs]` asks for them too",
    "stream": "`stream`, with `stream_options.include_usage`",
}
"""Fields that are translated."""

IGNORED: dict[str, str] = {
    "access_programs": "about OpenAI's own models",
    "background_options": "only for background replies, which are refused",
    "client_metadata": "for logs only (codex)",
    "context_management": "compaction on the server; without it the client compacts",
    "enable_response_messages": "vLLM's own view of the tokens, which the record holds",
    "image": "how images are billed",
    "include": "more detail of tools that don't run here, and encrypted reasoning: it comes in the clear",
    "max_tool_calls": "of built-in tools, and none runs",
    "metadata": "for the client's use; repeated in the reply",
    "moderation": "OpenAI's own service",
    "prompt_cache_key": "the engine finds its cache by the tokens",
    "prompt_cache_options": "the engine finds its cache by the tokens",
    "prompt_cache_retention": "the engine finds its cache by the tokens",
    "prompt_logprobs": "the reply has no place for it",
    "return_token_ids": "the reply has no place for them; the record holds them",
    "return_tokens_as_token_ids": "the reply has no place for them; the record holds them",
    "safety_identifier": "for OpenAI's own checks",
    "service_tier": "one tier is served",
    "store": "every reply is stored, with its rollout",
    "stream_options": "padding against eavesdroppers; the reply is none the worse without",
    "user": "for OpenAI's own checks",
}
"""Fields that pass over in silence: they can't change the reply."""

REFUSED: dict[str, str] = {
    "background": "A reply can't be made in the background.",
    "conversation": "Conversations are not kept; send the items, or previous_response_id.",
    "prompt": "Prompt templates are not kept; send instructions and input.",
}
"""Fields that are refused unless null (or false): the reply would not be what was asked for."""

MISPLACED: dict[str, str] = {
    "function_call": "tool_choice",
    "functions": "tools",
    "logprobs": "include: [message.output_text.logprobs]",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "n": "a request for each reply",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of the chat dialect, with the place of the same thing in this one: refused, since two might disagree."""

LEFT_OUT_TOOLS: tuple[str, ...] = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
"""Built-in tools: OpenAI's servers run them, or its models alone know how to call them. The model isn't told of them,
and the repair `tool_left_out:TYPE` says so (codex sends `web_search` with every request)."""

CALLS: dict[str, tuple[str, str]] = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Items of tools that the client runs: the name of the tool call that the model is shown, and the field that holds its
arguments."""

OUTPUTS: tuple[str, ...] = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
"""Items that become messages with role `tool`."""

LEFT_OUT_ITEMS: dict[str, str] = {
    "code_interpreter_call": "run by OpenAI's servers",
    "file_search_call": "run by OpenAI's servers",
    "image_generation_call": "run by OpenAI's servers",
    "mcp_call": "run by OpenAI's servers",
    "mcp_list_tools": "run by OpenAI's servers",
    "web_search_call": "run by OpenAI's servers",
}
"""Items of a history that was begun elsewhere, which no engine could be told; the repair is `item_left_out:TYPE`."""

FINISHES: dict[str, tuple[str, str | None]] = {
    "stop": ("completed", None),
    "tool_calls": ("completed", None),
    "function_call": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "content_filter": ("incomplete", "content_filter"),
    "abort": ("failed", "The engine aborted the reply."),
    "error": ("failed", "The engine failed."),
}
"""A chat finish reason: the reply's status, and the reason (`incomplete`) or the error's message (`failed`). Any other
finish is `completed`."""

PARAMS: dict[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields that an engine's error may name, and what the client called them."""
