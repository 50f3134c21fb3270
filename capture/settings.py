"""One table of settings; flags, variables, the file and the docs come from it.

Rules:
- A setting is a row of `TABLE`. Nothing else declares its flag, its `TREERING_…` variable, its key in treering.toml, or
  its line in the docs; a test compares the table with `Settings`, another the docs with the table.
- Precedence: flag, then variable, then file, then default. A value that was given replaces the lower one whole; lists
  and pairs are not merged, so that what is in force can be read in one place.
- What isn't in the table is an error that names its nearest neighbour. A misspelt limit that is passed over in silence
  costs a training run.
- A secret has a variable, or a file that another row names, and never a flag: a command line is visible to everyone
  on the machine.

This module imports nothing that opens anything, so that `treering --help` answers at once.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from capture import allowlist
from capture.errors import UsageError
from capture.keys import without_password
from capture.values import PREFIX, Setting, nearest, read, split

FILE = "treering.toml"
URL_VARIABLE = "TREERING_URL"
# Variables that we read and that are no settings: the file's place; where the control plane is, for its clients;
# gradio's program; and what the tests and installers go by.
OTHER_VARIABLES = (
    "TREERING_CONFIG",
    URL_VARIABLE,
    "TREERING_FRPC",
    "TREERING_REQUIRE_REAL",
    "TREERING_TORCH_LINKS",
)


POSTGRES = ("postgresql://", "postgres://")
"""How the URL of a PostgreSQL store begins."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")

KINDS = ("vllm", "sglang", "llamacpp", "openai", "scripted")
"""Kinds of engine."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force. See `TABLE` for each field's meaning."""

    engine: tuple[str, ...] = ()
    engine_key_file: tuple[str, ...] = ()
    engine_wait: float = 0.0
    model: str | None = None
    require_tier: Literal["train", "eval"] | None = None
    logprobs_mode: Literal["raw", "processed", "unknown"] | None = None
    listen: str = "127.0.0.1:8400"
    admin_listen: str = "127.0.0.1:8401"
    admin_name: tuple[str, ...] = ()
    admin_key_file: str | None = None
    admin_key: str | None = None
    no_admin_key: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    store: str = "sqlite:///treering.db"
    durability: Literal["process", "power", "none"] = "process"
    workers: int = 1
    otel: bool = False
    on_store_failure: Literal["relay", "refuse"] = "relay"
    relay_abort: bool = False
    max_body_mib: int = 256
    allow_path: tuple[str, ...] = ()
    allow_engine: tuple[str, ...] = ()
    sampling: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    tokens: Literal["engine", "pinned"] = "engine"
    tokenizer: str | None = None
    tunnel: tuple[str, ...] = ()
    tunnel_multiplex: int = 32
    proxy_from_env: bool = False
    engine_silence: float = 3600.0
    max_in_flight: int = 1024
    max_queued: int = 4096
    keep_days: float | None = None
    keep_gib: float | None = None
    archive: str | None = None
    sleep_after: float = 60.0
    shutdown_timeout: float = 30.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown(self).items())})"


TABLE: tuple[Setting, ...] = (
    Setting(
        name="engine",
        default=(),
        metavar="KIND=URL",
        repeatable=True,
        help="An engine: KIND=URL (vllm, sglang, llamacpp, openai), or scripted (needs nothing else), or "
        "scripted=RULES.toml. Given several times, rollouts are spread over those that serve their model.",
    ),
    Setting(
        name="engine_key_file",
        default=(),
        metavar="NAME=FILE",
        repeatable=True,
        help="A file with the engine's own API key. NAME is the engine's kind. The key goes to that engine alone.",
    ),
    Setting(
        name="engine_wait",
        kind="number",
        default=0.0,
        metavar="SECONDS",
        least=0,
        help="How long to wait at start for an engine that isn't up yet.",
    ),
    Setting(
        name="model",
        metavar="NAME",
        help="The model that rollouts are served with, and that the engine must have. Default: its first.",
    ),
    Setting(
        name="require_tier",
        choices=("train", "eval"),
        help="The tier that the engine must reach at start. Default: train for vllm, which then fails with the reason.",
    ),
    Setting(
        name="logprobs_mode",
        choices=("raw", "processed", "unknown"),
        help="What the engine's logprobs are of, where the probe can't tell: before temperature and cuts, or after.",
    ),
    Setting(name="listen", default="127.0.0.1:8400", metavar="HOST:PORT", help="Where agents connect. Port 0: any."),
    Setting(
        name="admin_listen",
        default="127.0.0.1:8401",
        metavar="HOST:PORT",
        help="Where trainers and people connect, with the admin key. Port 0: any.",
    ),
    Setting(
        name="admin_name",
        default=(),
        metavar="NAME",
        repeatable=True,
        help="A name by which the control plane is asked beside its own, such as a balancer's or a Service's. Others "
        "are refused, so that no page of another site gets in by a name of its own.",
    ),
    Setting(
        name="admin_key_file",
        metavar="FILE",
        help="A file with the admin key. Default: one is made, mode 0600, beside the store.",
    ),
    Setting(name="admin_key", secret=True, help="The admin key itself. A key file comes first where both are given."),
    Setting(
        name="no_admin_key",
        kind="yes",
        default=False,
        help="Ask for no admin key. For demos, on loopback only.",
    ),
    Setting(
        name="tls_cert",
        metavar="FILE",
        help="Speak TLS on both addresses, with the certificate in this PEM file and those that vouch for it.",
    ),
    Setting(
        name="tls_key",
        metavar="FILE",
        help="The certificate's private key, PEM, unencrypted. Default: it is in the certificate's file.",
    ),
    Setting(
        name="store",
        default="sqlite:///treering.db",
        metavar="URL",
        help="Where rollouts are kept. sqlite:///PATH is relative, sqlite:////PATH absolute; "
        "postgresql://USER@HOST/DATABASE for several machines.",
    ),
    Setting(
        name="durability",
        default="process",
        choices=("process", "power", "none"),
        help="What an ended call survives: the process killed, the power cut (a disk flush a group), or neither.",
    ),
    Setting(
        name="otel",
        kind="yes",
        default=False,
        help="Send a span for each call by OpenTelemetry (the extra otel). Where to is said by the environment: "
        "OTEL_EXPORTER_OTLP_ENDPOINT and its like.",
    ),
    Setting(
        name="workers",
        kind="whole",
        default=1,
        metavar="N",
        least=1,
        help="Processes that serve agents on one port. Above 1, a further process has the control plane and, with "
        "SQLite, writes for all.",
    ),
    Setting(
        name="on_store_failure",
        default="relay",
        choices=("relay", "refuse"),
        help="When the store fails under a running call: give the agent its answer all the same, or an error.",
    ),
    Setting(
        name="relay_abort",
        kind="yes",
        default=False,
        help="Pass the engine's finish reason abort on to the agent, instead of cutting the reply.",
    ),
    Setting(
        name="max_body_mib",
        kind="whole",
        default=256,
        metavar="MIB",
        least=1,
        help="The largest request body, in MiB, before and after decompression. Larger: 413.",
    ),
    Setting(
        name="allow_path",
        default=(),
        metavar="PATH",
        repeatable=True,
        help="A further path of the engine to relay without recording it. What is sampled there is not captured.",
    ),
    Setting(
        name="allow_engine",
        default=(),
        metavar="PREFIX",
        repeatable=True,
        help="A prefix of URLs that rollouts may name as their own engine. Default: none may.",
    ),
    Setting(
        name="tokens",
        default="engine",
        choices=("engine", "pinned"),
        help="For rollouts that don't say: prompts as the engine renders them, or pinned to what was sampled "
        "(docs/pinned.md). With pinned the start fails at an engine that can't.",
    ),
    Setting(
        name="tokenizer",
        metavar="FOLDER",
        help="A folder with the model's tokeniser, for the page: the text of tokens, where no engine is at hand that "
        "says it (the extra tokenizer). Nothing that is captured comes from it.",
    ),
    Setting(
        name="tunnel",
        default=(),
        metavar="KIND[=WHERE]",
        repeatable=True,
        help="How consumers on other machines get here: direct[=HOST], custom=URL, gradio[=HOST:PORT], ssh=USER@HOST "
        "(docs/tunnels.md). Several: each rollout gets the least loaded. Opened when the first rollout needs one.",
    ),
    Setting(
        name="tunnel_multiplex",
        kind="whole",
        default=32,
        metavar="N",
        least=1,
        help="Rollouts that share one tunnel of gradio's or ssh's; for more of them another is opened.",
    ),
    Setting(
        name="proxy_from_env",
        kind="yes",
        default=False,
        help="Reach engines and tunnels through the proxy that HTTP_PROXY and the like name.",
    ),
    Setting(
        name="sampling",
        kind="pairs",
        default={},
        metavar="KEY=VALUE",
        repeatable=True,
        help="Sampling values pinned for rollouts that pin none themselves, such as temperature=1.0.",
    ),
    Setting(
        name="limits",
        kind="pairs",
        default={},
        metavar="KEY=VALUE",
        repeatable=True,
        help="Limits for rollouts that give none themselves: max_calls, max_output_tokens, max_total_tokens, "
        "max_prompt_tokens, deadline_s.",
    ),
    Setting(
        name="engine_silence",
        kind="number",
        default=3600.0,
        metavar="SECONDS",
        least=1,
        help="Without a byte of an engine's answer, after which a call is given up: 504. No limit on a healthy stream.",
    ),
    Setting(
        name="max_in_flight",
        kind="whole",
        default=1024,
        metavar="N",
        least=1,
        help="Calls at one engine at once. The others wait, in turn by rollout, 20 s at most.",
    ),
    Setting(
        name="max_queued",
        kind="whole",
        default=4096,
        metavar="N",
        least=0,
        help="Calls that may wait for one engine; who finds no room gets 503 with a time to come again.",
    ),
    Setting(
        name="keep_days",
        kind="number",
        metavar="DAYS",
        least=0,
        help="Drop a closed rollout so many days after its close. Default: everything is kept.",
    ),
    Setting(
        name="keep_gib",
        kind="number",
        metavar="GIB",
        least=0,
        help="Drop closed rollouts, the first closed first, while the store takes more than this. SQLite only.",
    ),
    Setting(
        name="archive",
        metavar="FOLDER",
        help="Where what is dropped goes first, whole: a store of its own for each month of closing.",
    ),
    Setting(
        name="sleep_after",
        kind="number",
        default=60.0,
        metavar="SECONDS",
        least=0,
        help="How long an open rollout without a call stays in memory; its next call reads it from the store again.",
    ),
    Setting(
        name="shutdown_timeout",
        kind="number",
        default=30.0,
        metavar="SECONDS",
        least=0,
        help="How long running calls may go on after a signal to stop.",
    ),
    Setting(name="log_format", default="text", choices=("text", "json"), help="The form of the log, on stderr."),
    Setting(
        name="log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="The least level that is logged. One line a call is info.",
    ),
)

BY_NAME = {setting.name: setting for setting in TABLE}


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    folder: Path | None = None,
) -> Settings:
    """Return the settings in force.

    `flags` holds what was given on the command line, by setting's name: text, a list of texts for a repeatable one, or
    None where it wasn't given. The file is `TREERING_CONFIG`, or treering.toml in `folder` (default: the working
    folder) if there is one. Raises `UsageError` for an unknown name or an ill value, saying where it stood.
    """
    values: dict[str, Any] = {}
    values |= _from_file(environ.get("TREERING_CONFIG"), folder or Path())
    values |= _from_environ(environ)
    for name, given in flags.items():
        if given is not None:
            values[name] = read(BY_NAME[name], given, BY_NAME[name].flag)
    settings = Settings(**values)
    _check(settings)
    return settings


def sources(flags: Mapping[str, Any], environ: Mapping[str, str], *, folder: Path | None = None) -> dict[str, str]:
    """Return by setting's name where what is in force came from; the arguments are those of `load`, and fit."""
    named = environ.get("TREERING_CONFIG")
    found = dict.fromkeys(BY_NAME, "default")
    found |= dict.fromkeys(_from_file(named, folder or Path()), named or FILE)
    found |= {name: BY_NAME[name].variable for name in _from_environ(environ)}
    return found | {name: BY_NAME[name].flag for name, given in flags.items() if given is not None}


def shown(settings: Settings) -> dict[str, Any]:
    """Return the settings without the secret ones, and without passwords in their URLs: safe to print."""
    found = {row.name: getattr(settings, row.name) for row in TABLE if not row.secret}
    return {name: _shown(value) for name, value in found.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(one) for one in value)
    return without_password(value) if isinstance(value, str) and "://" in value else value


def parse_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `[IPv6]:PORT` or `:PORT` (every interface). Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"{text!r} is no address", hint="write HOST:PORT, such as 127.0.0.1:8400")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{text!r} is no address", hint=f"write an IPv6 address in brackets: [{host}]:{port}")
    return host or "0.0.0.0", int(port)  # noqa: S104 -- asked for by the empty host


def parse_engine(text: str) -> tuple[str, str | None]:
    """Read one `--engine`: the kind, and its URL (without `/v1` and slashes at the end) or rules file, if any.

    Raises `UsageError` for an unknown kind, or for a URL that is none.
    """
    kind, _, target = text.partition("=")
    if kind not in KINDS:
        hint = f"write vllm=http://HOST:PORT, scripted, or scripted=RULES.toml; the kinds are {', '.join(KINDS)}"
        raise UsageError(f"{text!r} names no kind of engine{nearest(kind, KINDS)}", hint=hint)
    if kind == "scripted":
        return kind, target or None
    return kind, _engine_url(text, target)


def _engine_url(text: str, target: str) -> str:
    if "@" in target.partition("//")[2].partition("/")[0]:
        # It would stand in every call's record, in the log and in the first lines.
        raise UsageError("the engine's URL holds a name or a password", hint="put a key into a file: --engine-key-file")
    try:
        url = urlsplit(target)
        fine = url.scheme in ("http", "https") and bool(url.hostname) and not url.query and not url.fragment
        _ = url.port
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(f"{text!r} has no usable URL", hint="write vllm=http://HOST:PORT")
    return target.rstrip("/").removesuffix("/v1").rstrip("/")


def store_path(store: str) -> Path | None:
    """Return the file of an `sqlite:///PATH` store; None for a store that is no file."""
    if not store.startswith("sqlite:///"):
        return None
    return Path(store.removeprefix("sqlite:///"))


def key_path(store: str) -> Path:
    """Return where the admin key lies that is made when none is given: beside the store, with `.key` at the end."""
    path = store_path(store) or Path("treering.db")
    return path.with_name(path.name + ".key")


def is_key(text: str) -> bool:
    """Say whether a text can be sent as a bearer key."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def is_name(text: str) -> bool:
    """Say whether a text is a machine's name, as a `Host` header has it, without the port."""
    return _NAME.fullmatch(text) is not None


def is_wildcard(host: str) -> bool:
    """Say whether a listener on `host` is on every interface, and so at no address that has a name."""
    return host in ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound


def is_loopback(host: str) -> bool:
    """Say whether a listener on `host` can be reached from this machine alone."""
    # Not by how it begins: 127.0.0.1.example is a name like any other.
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {row.variable: row for row in TABLE}
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if (row := known.get(variable)) is None:
            close = nearest(variable, (*known, *OTHER_VARIABLES))
            raise UsageError(f"unknown variable {variable}{close}", hint=f"unset it; every {PREFIX}… is checked")
        values[row.name] = read(row, split(row, text), variable)
    return values


def _from_file(named: str | None, folder: Path) -> dict[str, Any]:
    path = Path(named) if named else folder / FILE
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        if named:
            raise UsageError(f"there is no file {path}", hint="TREERING_CONFIG names it") from None
        return {}
    except OSError as error:
        hint = "settings are read from it: give yourself access, or name another with TREERING_CONFIG"
        raise UsageError(f"can't read {path}: {error.strerror}", hint=hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = 'write a line a setting, such as engine = ["vllm=http://127.0.0.1:8000"]'
        raise UsageError(f"{path} is no TOML: {error}", hint=hint) from None
    values = {}
    for name, value in table.items():
        row = BY_NAME.get(name)
        if row is None:
            hint = "docs/cli.md has the settings, `treering config` those in force"
            raise UsageError(f"{path}: unknown key {name}{nearest(name, BY_NAME)}", hint=hint)
        if row.secret:
            raise UsageError(f"{path}: {name} is a secret", hint=f"set {row.variable}, or name a file with it")
        values[name] = read(row, value, f"{path}: {name}")
    return values


def _check(settings: Settings) -> None:
    """Check what a single value can't say. Raises `UsageError`."""
    parse_address(settings.listen)
    host, _ = parse_address(settings.admin_listen)
    for engine in settings.engine:
        parse_engine(engine)
    kinds = [parse_engine(engine)[0] for engine in settings.engine]
    for item in settings.engine_key_file:
        name, equals, file = item.partition("=")
        if not equals or not file:
            raise UsageError(
                f"--engine-key-file: {item!r} is no NAME=FILE", hint="write it like vllm=/etc/treering/vllm.key"
            )
        if kinds and name not in kinds:
            hint = f"NAME is the kind of one given with --engine: {', '.join(dict.fromkeys(kinds))}"
            raise UsageError(f"--engine-key-file: there is no engine {name}{nearest(name, kinds)}", hint=hint)
    if not settings.store.startswith(POSTGRES) and store_path(settings.store) in (None, Path()):
        # What is before a colon alone: the rest may hold a password.
        given = settings.store.partition(":")[0][:20]
        hint = "write sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        raise UsageError(f"--store: a URL that begins with {given!r} is no store", hint=hint)
    if settings.keep_gib is not None and store_path(settings.store) is None:
        hint = "PostgreSQL frees room only with a VACUUM; keep by age (--keep-days)"
        raise UsageError("--keep-gib works with an SQLite store only", hint=hint)
    if settings.archive is not None and settings.keep_days is None and settings.keep_gib is None:
        raise UsageError("--archive alone drops nothing", hint="say what is to be kept: --keep-days or --keep-gib")
    if settings.no_admin_key and not is_loopback(host):
        hint = "leave --no-admin-key out, or listen on 127.0.0.1"
        raise UsageError(f"--no-admin-key works on loopback only, and {host} is not", hint=hint)
    if settings.admin_key is not None and not is_key(settings.admin_key):
        raise UsageError("TREERING_ADMIN_KEY is no key", hint="it must be printable ASCII, without spaces")
    if settings.tls_key is not None and settings.tls_cert is None:
        raise UsageError("--tls-key goes with --tls-cert", hint="give both, or neither")
    for i, prefix in enumerate(settings.allow_engine, 1):
        try:
            allowlist.read(prefix)
        except ValueError as error:
            # Not the URL itself: it may hold a password.
            hint = "write http://HOST:PORT, or http://HOST:PORT/PATH"
            raise UsageError(f"--allow-engine: URL {i} is no prefix of any engine's: {error}", hint=hint) from None
    for name in settings.admin_name:
        if not is_name(name):
            hint = "write it without scheme and port, such as treering.lan"
            raise UsageError(f"--admin-name: {name!r} is no name", hint=hint)
    for path in settings.allow_path:
        if not path.startswith("/") or "?" in path or "#" in path:
            raise UsageError(f"--allow-path: {path!r} is no path", hint="write it from the root, such as /v1/rerank")
