"""The table of settings: every way in, in order of precedence, and every mistake named."""

import re
from pathlib import Path

import msgspec
import pytest

from capture.errors import UsageError
from capture.settings import (
    BY_NAME,
    OTHER_VARIABLES,
    TABLE,
    Settings,
    is_loopback,
    key_path,
    load,
    parse_address,
    parse_engine,
    shown,
    store_path,
)

ROOT = Path(__file__).parents[2]


def test_the_table_and_the_struct_say_the_same():
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    assert set(fields) == set(BY_NAME)
    defaults = Settings()
    for row in TABLE:
        assert getattr(defaults, row.name) == row.default, row.name


def test_every_setting_has_a_sentence_of_help():
    for row in TABLE:
        assert row.help.endswith("."), row.name
        assert row.metavar or row.choices or row.kind == "yes" or row.secret, row.name


def test_flag_before_variable_before_file_before_default(tmp_path):
    (tmp_path / "treering.toml").write_text('listen = "127.0.0.1:1"\nmodel = "file"\nmax_body_mib = 3\n')
    environ = {"TREERING_LISTEN": "127.0.0.1:2", "TREERING_MODEL": "variable"}
    settings = load({"listen": "127.0.0.1:3", "model": None}, environ, folder=tmp_path)
    assert (settings.listen, settings.model, settings.max_body_mib) == ("127.0.0.1:3", "variable", 3)
    assert settings.admin_listen == "127.0.0.1:8401"


def test_a_list_that_was_given_replaces_the_lower_one_whole(tmp_path):
    (tmp_path / "treering.toml").write_text('allow_path = ["/a", "/b"]\n')
    assert load({}, {}, folder=tmp_path).allow_path == ("/a", "/b")
    assert load({}, {"TREERING_ALLOW_PATH": "/c"}, folder=tmp_path).allow_path == ("/c",)
    assert load({"allow_path": ["/d", "/e"]}, {"TREERING_ALLOW_PATH": "/c"}, folder=tmp_path).allow_path == ("/d", "/e")


@pytest.mark.parametrize(
    "given",
    [
        {"flags": {"sampling": ["temperature=1.0", "seed=7"]}},
        {"environ": {"TREERING_SAMPLING": "temperature=1.0, seed=7"}},
        {"environ": {"TREERING_SAMPLING": '{"temperature": 1.0, "seed": 7}'}},
        {"file": "[sampling]\ntemperature = 1.0\nseed = 7\n"},
        {"file": 'sampling = ["temperature=1.0", "seed=7"]\n'},
    ],
)
def test_pairs_come_in_every_way(given, tmp_path):
    (tmp_path / "treering.toml").write_text(given.get("file", ""))
    settings = load(given.get("flags", {}), given.get("environ", {}), folder=tmp_path)
    assert settings.sampling == {"temperature": 1.0, "seed": 7}
    assert isinstance(settings.sampling["seed"], int)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("YES", True), ("false", False), ("0", False), ("no", False)]
)
def test_a_switch_in_a_variable(text, value, tmp_path):
    assert load({}, {"TREERING_RELAY_ABORT": text}, folder=tmp_path).relay_abort is value


def test_a_flag_switches_off_what_a_variable_switched_on(tmp_path):
    assert load({"relay_abort": "false"}, {"TREERING_RELAY_ABORT": "1"}, folder=tmp_path).relay_abort is False


@pytest.mark.parametrize(
    ("flags", "environ", "file", "said"),
    [
        ({}, {"TREERING_FOO": "1"}, "", "unknown variable TREERING_FOO"),
        ({}, {"TREERING_ENGIN": "scripted"}, "", "did you mean TREERING_ENGINE?"),
        ({}, {"TREERING_REQUIRE_REEL": "1"}, "", "did you mean TREERING_REQUIRE_REAL?"),
        ({}, {}, "admin-listen = '127.0.0.1:1'", "unknown key admin-listen; did you mean admin_listen?"),
        ({}, {}, "admin_key = 'hunter2'", "admin_key is a secret"),
        ({}, {}, "listen = 8400", "treering.toml: listen: expected text, got 8400"),
        ({}, {}, "listen = ", "is no TOML"),
        ({}, {}, "max_body_mib = 1.5", "expected a whole number, got 1.5"),
        ({}, {}, "max_body_mib = true", "expected a whole number, got True"),
        ({}, {}, "relay_abort = 'maybe'", "neither true nor false"),
        ({"max_body_mib": "lots"}, {}, "", "--max-body-mib: expected a whole number, got 'lots'"),
        ({"max_body_mib": "0"}, {}, "", "--max-body-mib: 0 is less than 1"),
        ({}, {"TREERING_ENGINE_WAIT": "nan"}, "", "TREERING_ENGINE_WAIT: expected a number, got 'nan'"),
        ({}, {"TREERING_ENGINE_WAIT": "inf"}, "", "expected a number"),
        ({"durability": "power2"}, {}, "", "'power2' is none of process, power, none; did you mean power?"),
        ({"sampling": ["temperature"]}, {}, "", "--sampling: 'temperature' is no KEY=VALUE"),
        ({}, {"TREERING_LIMITS": "{"}, "", "TREERING_LIMITS: "),
        ({}, {"TREERING_LISTEN": ""}, "", "TREERING_LISTEN is empty"),
        ({"listen": "8400"}, {}, "", "'8400' is no address"),
        ({"listen": "h:65536"}, {}, "", "'h:65536' is no address"),
        ({"engine": ["vlm=http://h"]}, {}, "", "did you mean vllm?"),
        ({"engine": ["vllm=h:8000"]}, {}, "", "has no usable URL"),
        ({"engine": ["vllm=http://h:port"]}, {}, "", "has no usable URL"),
        ({"engine": ["vllm=http://user:hunter2@h:1"]}, {}, "", "holds a name or a password"),
        ({}, {"TREERING_ADMIN_KEY": "hunter2 and more"}, "", "TREERING_ADMIN_KEY is no key"),
        ({"engine_key_file": ["key.txt"]}, {}, "", "is no NAME=FILE"),
        ({"engine": ["scripted"], "engine_key_file": ["vllm=k"]}, {}, "", "there is no engine vllm"),
        ({"store": "treering.db"}, {}, "", "is no store"),
        ({"no_admin_key": "true", "admin_listen": "0.0.0.0:1"}, {}, "", "works on loopback only"),
        ({"allow_path": ["v1/rerank"]}, {}, "", "is no path"),
        ({"admin_name": ["http://treering.lan"]}, {}, "", "--admin-name: 'http://treering.lan' is no name"),
    ],
)
def test_a_mistake_is_named_where_it_stands(flags, environ, file, said, tmp_path):
    (tmp_path / "treering.toml").write_text(file)
    with pytest.raises(UsageError) as caught:
        load(flags, environ, folder=tmp_path)
    assert said in caught.value.message
    assert "hunter2" not in caught.value.message


def test_other_variables_are_known(tmp_path):
    assert load({}, {**dict.fromkeys(OTHER_VARIABLES[1:], "x"), "PATH": "/bin"}, folder=tmp_path) == Settings()


def test_every_variable_that_is_read_or_written_of_is_known():
    """One that is not ends every command with 2: what the docs tell to set must not."""
    known = {row.variable for row in TABLE} | set(OTHER_VARIABLES)
    places = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *ROOT.glob("client/**/*.md")]
    for room in ("capture", "graph", "tunnel", "client", "bin"):
        places += (ROOT / room).rglob("*.py")
    # Of compose.yaml alone; what stands for all of them; and what tests alone go by (docs/trainers).
    known |= {"TREERING_PUBLIC_URL", "TREERING_AGENTS_ADDRESS", "TREERING_LIKE_THIS"}
    known |= {f"TREERING_{name}" for name in ("AREAL", "MILES", "PRIME_RL", "SKYRL", "SLIME", "VERL", "WRITE_PROOF")}
    for place in places:
        assert set(re.findall(r"\bTREERING_[A-Z_]*[A-Z]\b(?!_?…)", place.read_text())) <= known, place


def test_the_file_may_lie_elsewhere(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('model = "m"\n')
    assert load({}, {"TREERING_CONFIG": str(other)}, folder=tmp_path).model == "m"
    with pytest.raises(UsageError, match="there is no file"):
        load({}, {"TREERING_CONFIG": str(tmp_path / "none.toml")}, folder=tmp_path)


def test_the_admin_key_is_read_and_never_shown(tmp_path):
    settings = load({}, {"TREERING_ADMIN_KEY": "hunter2"}, folder=tmp_path)
    assert settings.admin_key == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    assert "admin_key" not in shown(settings)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8400", ("::1", 8400)),
        (":8400", ("0.0.0.0", 8400)),
        ("host.example:65535", ("host.example", 65535)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


def test_an_address_of_ipv6_wants_brackets():
    with pytest.raises(UsageError) as caught:
        parse_address("::1:8400")
    assert "[::1]:8400" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("scripted", ("scripted", None)),
        ("scripted=rules.toml", ("scripted", "rules.toml")),
        ("vllm=http://h:8000", ("vllm", "http://h:8000")),
        ("vllm=http://h:8000/v1/", ("vllm", "http://h:8000")),
        ("vllm=https://gate/a/v1", ("vllm", "https://gate/a")),
    ],
)
def test_engines(text, engine):
    assert parse_engine(text) == engine


def test_the_key_lies_beside_the_store():
    assert str(store_path("sqlite:///a/b.db")) == "a/b.db"
    assert str(store_path("sqlite:////a/b.db")) == "/a/b.db"
    assert str(key_path("sqlite:////a/b.db")) == "/a/b.db.key"


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("127.0.0.1.example", False),
    ],
)
def test_loopback(host, here):
    assert is_loopback(host) is here


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_gib": "5", "store": "postgresql://u:p@h/d"}, "works with an SQLite store only"),
        ({"archive": "old"}, "drops nothing"),
        ({"keep_days": "-1"}, "less than 0"),
    ],
)
def test_what_is_to_be_kept(given, said):
    with pytest.raises(UsageError, match=said):
        load(given, {})
    assert load({"keep_days": "0.5", "archive": "old"}, {}).keep_days == 0.5
