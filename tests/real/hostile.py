"""A rollout whose agent and model write what a careless page would run; and how a test sees that none of it did.

Every text carries the mark `ran`, which it would set on the window; what reads right to left, what is no character and
what is no text at all go with it.
"""

from typing import Any

from tests.house import House

# Without quotes: as a tool's name it stands in the model's JSON.
IMAGE = "<img src=x onerror=window.ran=1>"
SCRIPT = "</pre></script><script>window.ran=1</script>"
LINK = "javascript:window.ran=1"
SVG = "<svg/onload=window.ran=1>"
BREAKER = "\"'><iframe srcdoc='<script>parent.ran=1</script>'></iframe>"
# A right-to-left override, its end, and a zero-width joiner: names turned round are read as others.
TURNED = "\u202egnp.exe\u202c\u200d"
LONE = "\ud800 alone"

TEXTS = (IMAGE, SCRIPT, LINK, SVG, BREAKER, TURNED)
ALL = " ".join(TEXTS)

# What the model says: text, a thought, a tool call whose name and arguments are as bad.
RULES = f"""
noncanonical = 0.5

[[rule]]
match = {{ role = "user" }}

[rule.reply]
thinking = '''{ALL}'''
text = '''{ALL}'''

[[rule.reply.call]]
tool = '''{IMAGE}'''
arguments = {{ path = '''{SCRIPT}''' }}

[[rule]]
match = {{ role = "tool" }}
reply = {{ thinking = "So.", text = '''{SVG}''' }}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": IMAGE,
            "description": SCRIPT,
            "parameters": {"type": "object", "properties": {SVG: {"type": "string", "description": LINK}}},
        },
    }
]


async def play(home: House, *, name: str = "hostile") -> dict[str, Any]:
    """Let an agent with bad words make a few calls: one goes on from another, with changed words, and one forks."""
    rollout = await home.rollout(
        id=name, group=f"{IMAGE}{TURNED}", labels={"label": SCRIPT, "link": LINK},
        task={"text": ALL, "data": {SVG: LINK}},
    )  # fmt: skip
    system = {"role": "system", "content": f"{SCRIPT} {TURNED}"}
    user = {"role": "user", "content": [{"type": "text", "text": ALL}, {"type": "text", "text": LONE}], "name": "x"}
    hints = {"x-treering-label": IMAGE, "x-treering-role": "subagent"}
    asked = {"Authorization": f"Bearer {rollout['secret']}", **hints}

    async def ask(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        body = {"model": SVG, "messages": messages, "tools": TOOLS, **more}
        url = rollout["base_url"] + "/chat/completions"
        async with home.session.post(url, json=body, headers=asked) as answer:
            told = await answer.json()
            assert answer.status == 200, told
        return dict(told["choices"][0]["message"])

    reply = await ask([system, user])
    calls = reply["tool_calls"]
    for call in calls:
        call["function"]["arguments"] = call["function"]["arguments"].replace(": ", ":   ")
    said = [{"role": "assistant", "content": reply["content"], "tool_calls": calls}]
    said += [{"role": "tool", "tool_call_id": call["id"], "content": BREAKER} for call in calls]
    await ask([system, user, *said])
    # A fork: the same beginning, other words behind it.
    await ask([system, user, *said[:-1], {**said[-1], "content": f"{SCRIPT} changed {TURNED}"}], temperature=0.5)
    await home.idle(rollout)
    await home.control("PUT", f"/rollouts/{name}/reward", json={"reward": 1.0, "details": {IMAGE: SCRIPT}})
    return rollout
