"""How a tunnel is described in one word."""

from __future__ import annotations

import pytest

from tunnel.base import Local
from tunnel.errors import SpecError
from tunnel.spec import parse


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("direct", "direct", "direct"),
        ("direct=10.0.0.5", "direct", "direct=10.0.0.5"),
        ("direct=[fd00::5]", "direct", "direct=fd00::5"),
        ("custom=https://agents.example.org/t", "custom", "custom=https://agents.example.org/t"),
        ("gradio", "gradio", "gradio"),
        ("gradio=frp.example.org:7000", "gradio", "gradio=frp.example.org:7000"),
        ("ssh=me@login.example.org", "ssh", "ssh=me@login.example.org"),
        ("ssh=login:2222,bind=0.0.0.0,port=18400,url=http://login:18400", "ssh", "ssh=login"),
    ],
)
def test_what_is_accepted(text, kind, name):
    spec = parse(text)
    assert (spec.kind, spec.text, spec.make().name) == (kind, text, name)


@pytest.mark.parametrize(
    "text",
    [
        "", "ngrok", "direct=", "direct=host:80", "direct=a b", "custom", "custom=", "custom=example.org",
        "custom=ftp://example.org", "custom=http://u:p@example.org", "custom=http://example.org?x=1",
        "custom=http://example.org:99999", "custom=http://a\nb", "gradio=", "gradio=host", "gradio=host:x",
        "ssh", "ssh=",
        "ssh=@host", "ssh=-oProxyCommand=x", "ssh=host,port=0", "ssh=host,port=x", "ssh=host,url=host", "ssh=host,x=1",
        "ssh=host,bind=", "ssh=a b",
    ],
)  # fmt: skip
def test_what_is_refused_is_said_with_what_is_accepted(text):
    with pytest.raises(SpecError) as refused:
        parse(text)
    assert "; " in str(refused.value) or "is no port" in str(refused.value)


def test_ssh_is_told_where_to_listen():
    argv = parse("ssh=me@login:2222,bind=0.0.0.0,port=18400").make()._argv(Local(host="127.0.0.1", port=8400))
    assert argv[argv.index("-R") + 1] == "0.0.0.0:18400:127.0.0.1:8400"
    assert argv[argv.index("-p") + 1] == "2222"
    assert argv[-1] == "me@login"


def test_a_name_of_the_users_configuration_is_left_as_it_is():
    argv = parse("ssh=cluster").make()._argv(Local(host="127.0.0.1", port=8400))
    assert "-p" not in argv
    assert argv[-1] == "cluster"
