"""What a worker is told is what the supervisor knows, but for the admin key."""

import msgspec

from capture.engines.base import Identity
from capture.engines.vllm import Vllm
from capture.processes.hello import Hello, adopt, pack_settings, settings, told
from capture.settings import Settings
from capture.upstream import Engine

GIVEN = Settings(
    workers=3,
    max_in_flight=100,
    tunnel=("gradio",),
    engine=("vllm=http://e",),
    admin_key="not-for-workers-0",
    sampling={"seed": 10**30},
    limits={"max_calls": 3},
)


async def test_an_engine_is_taken_over_as_it_was_found(tmp_path):
    found = Engine(Vllm(), "http://e/v1", kind="vllm")
    found.identity = Identity(kind="vllm", url="http://e", version="1", models=("tiny",), max_model_len=9)
    found.tier, found.tier_reason, found.logprobs_mode, found.refused = "train", "ids", "processed", {"x"}
    sent = msgspec.msgpack.encode(
        Hello(settings="{}", nonce="n", data_url="u", engines=(told(found),), store="sqlite:///x")
    )
    (known,) = msgspec.msgpack.decode(sent, type=Hello).engines
    taken = await adopt(GIVEN, known)
    await taken.close()
    for name in ("url", "kind", "identity", "tier", "tier_reason", "logprobs_mode", "refused", "models", "name"):
        assert getattr(taken, name) == getattr(found, name)
    assert taken.healthy


async def test_the_scripted_engine_is_read_as_vllm():
    found = Engine(Vllm(), "http://e", kind="scripted")
    taken = await adopt(GIVEN, told(found))
    await taken.close()
    assert (taken.name, taken.adapter.kind) == ("scripted=http://e", "vllm")


def test_settings_pass_but_for_what_is_the_supervisors_own():
    packed = pack_settings(GIVEN)
    assert "not-for-workers" not in packed
    assert settings(packed) == msgspec.structs.replace(
        GIVEN, admin_key=None, tunnel=(), max_in_flight=34, max_queued=-(-GIVEN.max_queued // 3)
    )
