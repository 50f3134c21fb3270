"""What an engine would have to fetch from a URL is refused, however it is written."""

import json

import pytest

from capture import media
from capture.errors import ClientError
from capture.media import fetched, refuse_in, refuse_in_messages

URL = "http://169.254.169.254/x.png"
PART = {"type": "image_url", "image_url": {"url": URL}}
NAMING = json.dumps([{"role": "user", "content": [PART]}])[1:-1]
SPELLED = NAMING.replace('"image_url": {', '"image\\u005furl": {')


def test_where_a_medium_is_fetched() -> None:
    assert fetched({"content": [{"type": "text"}, {"image_url": {"url": " http://x"}}]}) == "content[1].image_url"
    assert fetched({"content": [{"audio_url": "file:///x"}]}) == "content[0].audio_url"
    assert fetched({"content": [{"image_url": {"url": " DATA:image/png;base64,AA"}}, 5]}) is None
    assert [fetched(other) for other in (5, None, {"content": "image_url"}, {})] == [None] * 4


def where(refuse, raw: bytes) -> str | None:
    """Return where a refusal says that it is, None where there is none."""
    error: ClientError | None = None
    try:
        refuse(raw)
    except ClientError as raised:
        error = raised
    if error is None:
        return None
    assert (error.code, error.status) == ("media_url_refused", 400)
    return error.param or "somewhere"


@pytest.mark.parametrize("naming", [NAMING, SPELLED])
@pytest.mark.parametrize(
    "beside", ["", ', {"role": "user", "content": "\\ud800"}', ', {"a": NaN}', ', {"a": -Infinity}', ", 1e999"]
)
def test_what_only_some_readers_take_for_json_is_looked_at(naming: str, beside: str) -> None:
    messages = f"[{naming}{beside}]"
    assert where(refuse_in_messages, messages.encode()) == "messages[0].content[0].image_url"
    body = f'{{"model": "m", "messages": {messages}}}'
    assert where(refuse_in, body.encode()) == "messages[0].content[0].image_url"


def test_data_passes() -> None:
    for raw in (NAMING.replace(URL, "data:image/png;base64,AA"), '{"content": "image_url \\u0061"}', "5"):
        assert where(refuse_in_messages, f"[{raw}]".encode()) is None
        assert where(refuse_in, f'{{"messages": [{raw}]}}'.encode()) is None
    assert where(refuse_in_messages, b"{}") is None


def test_what_can_not_be_decoded_is_refused_where_it_may_name_one() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert where(refuse_in_messages, f"[{NAMING}, {deep}]".encode()) == "messages"
    assert where(refuse_in_messages, f'["\\u0061", {deep}]'.encode()) == "messages"
    assert where(refuse_in_messages, f"[{deep}]".encode()) is None
    assert where(refuse_in_messages, b'["image_url", "\xff"]') == "messages"
    assert where(refuse_in, f'{{"messages": [{NAMING}, {deep}]}}'.encode()) == "somewhere"


def test_a_body_of_another_shape_is_searched_everywhere() -> None:
    body = {"input": [{"content": [{"text": "a"}, {"video_url": URL}]}], "documents": {"a": PART}}
    assert where(refuse_in, json.dumps(body).encode()) == "documents.a.image_url"
    assert where(refuse_in, json.dumps([body["input"]]).encode()) == "[0][0].content[1].video_url"
    for coding in ("utf-16", "utf-16-le", "utf-32-be"):
        assert where(refuse_in, json.dumps({"messages": [PART]}).encode(coding)) == "messages[0].image_url"
    for other in (b"", b"\x89PNG image_url", b"[" * 100_000, b"image_url=http://x"):
        assert where(refuse_in, other) is None


def test_the_word_for_it() -> None:
    assert media.ALLOWED == "media_urls"
