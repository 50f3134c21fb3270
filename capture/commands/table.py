"""All verbs in one table; the parser and docs/cli.md are made from it.

A verb names the function that does it by module and name, and is imported only when it is run. Verbs take flags of
their own (`arguments`) and some of the settings (`settings`, rows of `capture.settings.TABLE`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from capture.formats import FORMATS
from capture.settings import TABLE

ArgumentKind = Literal["text", "whole", "number", "yes"]


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """A flag (`--like-this`) or a position (`like-this`) of one verb."""

    name: str
    kind: ArgumentKind = "text"
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: str | float | None = None
    repeatable: bool = False
    # Of a position: it may be left out. Of a flag: its value may, and is "" then.
    optional: bool = False


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """One verb."""

    # One word, or two: family and verb.
    name: str
    help: str
    # `module:function`, called with `Given` (see `capture.cli`); it returns the exit code.
    run: str
    arguments: tuple[Argument, ...] = ()
    # Names of settings that it takes as flags.
    settings: tuple[str, ...] = ()


_JSON = Argument(name="--json", kind="yes", help="Print JSON, as the control plane gives it.")
_URL = Argument(name="--url", metavar="URL", help="The control plane. Default: TREERING_URL, else --admin-listen.")
_ID = Argument(name="id", help="The rollout's id.")
_CONTROL = ("admin_key_file", "admin_listen", "store", "tls_cert")
_ROLLOUTS = "capture.commands.rollout"

_SEQUENCES = (
    Argument(name="--format", choices=tuple(FORMATS), help="Default: native; of --drift tree, tree."),
    Argument(name="--roles", metavar="ROLE,…", help="Conversations to train. Default: main."),
    Argument(name="--drift", choices=("split", "realign", "tree"), help="What to do at a drift. Default: split."),
    Argument(
        name="--threshold",
        kind="whole",
        metavar="N",
        help="Of --drift realign: the largest drift that a row crosses, in tokens. Default: 1024.",
    ),
    Argument(name="--constrained", choices=("train",), help="Train replies sampled under a constraint too."),
    Argument(name="--aborted", choices=("train",), help="Train aborted replies too."),
)

_AGENT = (
    Argument(
        name="--rollout",
        metavar="ID",
        help="Take model and context window from a rollout, and see that it is open.",
    ),
    Argument(name="--base-url", metavar="URL", help="The base URL, with /v1. Default: that of --listen."),
    Argument(name="--model", metavar="NAME", help="The model's name. Default: the rollout's, or treering."),
    Argument(
        name="--context",
        kind="whole",
        metavar="TOKENS",
        help="The context window. Default: the engine's with --rollout, else 131072.",
    ),
    Argument(
        name="--output",
        kind="whole",
        metavar="TOKENS",
        help="The longest reply. Default: 8192, or half of a smaller window.",
    ),
    Argument(name="--json", kind="yes", help='Print {"files", "env", "command"}.'),
    _URL,
)
AGENTS = ("opencode", "codex", "claude-code", "gemini-cli", "pi", "qwen-code", "mini-swe-agent", "harbor")
"""The agents whose recipe we have; of each, `capture.commands.agents` has a function, `-` as `_`."""

VERBS: tuple[Verb, ...] = (
    Verb(
        name="serve",
        help="Run the appliance. The default verb.",
        run="capture.commands.serve:serve",
        settings=tuple(row.name for row in TABLE if not row.secret),
    ),
    Verb(
        name="scripted",
        help="Run the scripted engine alone: deterministic, on vLLM's wire, needing nothing else.",
        run="capture.commands.serve:scripted",
        arguments=(
            Argument(name="--listen", metavar="HOST:PORT", default="127.0.0.1:8000", help="Where it listens."),
            Argument(name="--rules", metavar="FILE", help="A file of rules. Default: built-in rules answer anything."),
            Argument(name="--pace", kind="number", metavar="SECONDS", default=0.0, help="Seconds that a token takes."),
        ),
    ),
    Verb(
        name="rollout new",
        help="Register a rollout and print its secrets, which are shown this once.",
        run=f"{_ROLLOUTS}:new",
        arguments=(
            Argument(name="--id", metavar="ID", help="Its id. Default: one is made."),
            Argument(name="--n", kind="whole", metavar="N", help="Register so many as one group, ids ID-0 and on."),
            Argument(name="--group", metavar="NAME", help="The group that it belongs to."),
            Argument(name="--label", metavar="KEY=VALUE", repeatable=True, help="A label."),
            Argument(name="--task", metavar="TEXT", help="The task's text; it helps to tell the main conversation."),
            Argument(name="--model", metavar="NAME", help="The model that serves it."),
            Argument(name="--sampling", metavar="KEY=VALUE", repeatable=True, help="A pinned sampling value."),
            Argument(name="--limit", metavar="KEY=VALUE", repeatable=True, help="A limit, such as max_calls=17."),
            Argument(
                name="--reach",
                metavar="WHO=WHERE",
                repeatable=True,
                help="Where its agent or tools run: agent=local, tools=remote (docs/tunnels.md).",
            ),
            Argument(name="--require-tier", choices=("train", "eval"), help="Refuse if the engine is below it."),
            Argument(name="--ttl-s", kind="number", metavar="SECONDS", help="From its last call to its expiry."),
            Argument(name="--body", metavar="FILE", help="The whole registration as JSON; - reads standard input."),
            Argument(name="--env", kind="yes", help='Print export lines for a shell: eval "$(… --env)".'),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout list",
        help="List rollouts.",
        run=f"{_ROLLOUTS}:list_",
        arguments=(
            Argument(name="--state", choices=("open", "closed"), help="Only those in this state."),
            Argument(name="--group", metavar="NAME", help="Only those of a group."),
            Argument(name="--label", metavar="KEY:VALUE", repeatable=True, help="Only those with a label."),
            Argument(name="--finding", metavar="CODE", help="Only those with a finding."),
            Argument(
                name="--q", metavar="TEXT", help="Only those with this in their id, group, model or a label's value."
            ),
            Argument(name="--trouble", kind="yes", help="Only those that somebody should look at."),
            Argument(name="--order", choices=("created", "closed", "newest"), help="Default: created."),
            Argument(name="--after", metavar="CURSOR", help="Go on from where the last page ended."),
            Argument(name="--limit", kind="whole", metavar="N", help="At most so many."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout show",
        help="Show a rollout's summary.",
        run=f"{_ROLLOUTS}:show",
        arguments=(
            _ID,
            Argument(name="--wait", choices=("closed", "idle"), help="Wait for that first; exit 1 if it didn't come."),
            Argument(name="--idle-s", kind="number", metavar="SECONDS", help="How long without a call is idle."),
            Argument(name="--timeout-s", kind="number", metavar="SECONDS", help="How long to wait. Default: 60."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout graph",
        help="Draw a rollout's forest, one line a call.",
        run=f"{_ROLLOUTS}:graph",
        arguments=(
            _ID,
            Argument(name="--evidence", kind="yes", help="Below it, why each conversation has its role."),
            Argument(
                name="--why",
                kind="yes",
                help="Below it, forks and breaks in words, with what the agent changed; --json: these alone.",
            ),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout findings",
        help="List a rollout's findings.",
        run=f"{_ROLLOUTS}:findings",
        arguments=(
            _ID,
            Argument(name="--fail-on", choices=("info", "warn", "error"), help="Exit 1 at this level or above."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout sequences",
        help="Show a rollout's training sequences; with --json, print them.",
        run=f"{_ROLLOUTS}:sequences",
        arguments=(
            _ID,
            *_SEQUENCES,
            Argument(name="--open", kind="yes", help="Of an open rollout as it stands."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout close",
        help="Seal a rollout: no more calls.",
        run=f"{_ROLLOUTS}:close",
        arguments=(
            _ID,
            Argument(name="--wait-s", kind="number", metavar="SECONDS", help="Wait for running calls. Default: 30."),
            Argument(name="--reward", metavar="NUMBER", help="Attach a reward, or null for ungraded."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout reward",
        help="Attach a reward to a rollout.",
        run=f"{_ROLLOUTS}:reward",
        arguments=(
            _ID,
            Argument(name="reward", optional=True, help="A number, or null for ungraded."),
            Argument(
                name="--per-call", metavar="ID=NUMBER", repeatable=True, help="The reward of one reply, by its id."
            ),
            Argument(name="--detail", metavar="KEY=VALUE", repeatable=True, help="A detail to keep with it."),
            Argument(name="--force", kind="yes", help="Take a number although the rollout made no calls."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="rollout delete",
        help="Remove a rollout and what only it used.",
        run=f"{_ROLLOUTS}:delete",
        arguments=(_ID, _URL),
        settings=_CONTROL,
    ),
    Verb(
        name="export",
        help="Write the training sequences of many rollouts. One that is interrupted goes on where it stopped: run the"
        " same command again.",
        run="capture.commands.export:export",
        arguments=(
            Argument(
                name="--out",
                metavar="OUT",
                default="-",
                help="A file; - is standard output, the default; or, with the extra cloud, any URL that fsspec can"
                " write. Until all is there it is OUT.part, beside OUT.part.json, which says how far it is: an export"
                " that goes on cuts OUT.part behind the last whole page of rollouts, so no line is torn and none is"
                " there twice.",
            ),
            *_SEQUENCES,
            Argument(name="--group", metavar="NAME", help="Only rollouts of a group."),
            Argument(name="--label", metavar="KEY:VALUE", repeatable=True, help="Only rollouts with a label."),
            Argument(name="--state", choices=("open", "closed"), help="Only rollouts in this state."),
            Argument(name="--open", kind="yes", help="Take open rollouts as they stand; else each is refused."),
            Argument(
                name="--plain",
                kind="yes",
                help="Leave out the lines that say which rollouts are refused and why, and the last one, which counts.",
            ),
            Argument(name="--strict", kind="yes", help="Exit 1 if any rollout is refused, and not only if all are."),
            Argument(name="--overwrite", kind="yes", help="Put the export in the place of an OUT that exists."),
            Argument(name="--restart", kind="yes", help="Begin anew instead of going on."),
            Argument(name="--after", metavar="CURSOR", help="Of --out -: go on from where an export was cut."),
            Argument(name="--offline", kind="yes", help="Read --store itself, while no appliance holds it."),
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="replay",
        help="List a rollout's resume points; print the seed at one; or draw one from saved rollouts.",
        run="capture.commands.replay:replay",
        arguments=(
            Argument(name="id", optional=True, help="The rollout's id. Left out with --from."),
            Argument(name="--at", metavar="K", help="Print the seed at point K, or at the end: whole."),
            Argument(name="--instruction", metavar="TEXT", help="A user message behind the seed."),
            Argument(name="--out", metavar="FILE", help="Write the seed there instead of to stdout."),
            Argument(name="--save", metavar="FILE", help="Add the rollout to a file of saved ones, as a line."),
            Argument(name="--from", metavar="FOLDER", help="Draw from the saved rollouts there (*.jsonl, step_N/)."),
            Argument(name="--group", metavar="NAME", help="The group that the seed is for: each draws one."),
            Argument(name="--rollout", metavar="ID", repeatable=True, help="Only from this one, a replay or not."),
            Argument(name="--kind", metavar="KIND", repeatable=True, help="Only points of this kind."),
            Argument(name="--label", metavar="KEY=VALUE", repeatable=True, help="Only rollouts with this label."),
            Argument(name="--least-reward", kind="number", metavar="NUMBER", help="Only rollouts with this or more."),
            Argument(name="--most-reward", kind="number", metavar="NUMBER", help="Only rollouts with this or less."),
            _JSON,
            _URL,
        ),
        settings=_CONTROL,
    ),
    *(
        Verb(
            name=f"agents {name}",
            help=f"Print the ready configuration, environment and command line for {name}.",
            run=f"capture.commands.agents:{name.replace('-', '_')}",
            arguments=_AGENT,
            settings=(*_CONTROL, "listen"),
        )
        for name in AGENTS
    ),
    Verb(
        name="drift",
        help="Measure how much of a conversation is rendered anew to other ids, say why, and what would end it: of "
        "rollouts, or (--engine) of an engine by itself.",
        run="capture.commands.drift:drift",
        arguments=(
            Argument(name="id", help="A rollout's id; several may be given.", repeatable=True, optional=True),
            Argument(name="--group", metavar="NAME", help="All rollouts of a group."),
            Argument(
                name="--tokenizer",
                metavar="DIR",
                help="A folder with the model's tokeniser and chat template: say besides for how many turns rendering "
                "the messages here would have given the engine's ids. Needs treering[tokenizer].",
            ),
            Argument(
                name="--threshold",
                kind="whole",
                metavar="N",
                help="Above so many tokens a drift counts as a fork. Default: 1024.",
            ),
            _JSON,
            _URL,
        ),
        settings=("engine", "engine_key_file", "engine_wait", "model", "logprobs_mode", *_CONTROL),
    ),
    Verb(
        name="verify",
        help="Hand captured sequences back to the engine, and compare its scores with the captured logprobs, token by "
        "token. Exit 1 if they differ.",
        run="capture.commands.verify:verify",
        arguments=(
            Argument(name="id", help="A rollout's id; several may be given.", repeatable=True),
            Argument(name="--roles", metavar="ROLE,…", help="Conversations to verify. Default: main."),
            Argument(name="--open", kind="yes", help="Of open rollouts as they stand."),
            Argument(
                name="--mean",
                kind="number",
                metavar="NATS",
                default=0.02,
                help="The largest mean |difference| that passes. In float32 expect 0.0001.",
            ),
            Argument(
                name="--largest",
                kind="number",
                metavar="NATS",
                default=0.5,
                help="The largest |difference| of one token that passes.",
            ),
            _JSON,
            _URL,
        ),
        settings=("engine", "engine_key_file", "model", *_CONTROL),
    ),
    Verb(
        name="doctor",
        help="Check settings, engine, store, tunnels, limits; say what to do. Exit 1 if a check fails. Safe to paste.",
        run="capture.commands.doctor:doctor",
        arguments=(
            Argument(
                name="--store",
                metavar="URL",
                optional=True,
                help="Look at the store alone, and at all of it: is everything there, and does it agree with itself? "
                "It may be in use. Exit 4 if the file itself is damaged. Default: the store that is set.",
            ),
            Argument(name="--json", kind="yes", help='Print {"checks": [{"name", "level", "message", "todo"}]}.'),
        ),
        settings=tuple(row.name for row in TABLE if not row.secret and row.name != "store"),
    ),
    Verb(
        name="backup",
        help="Copy the store to a file, whole and of one moment, while Treering runs or not.",
        run="capture.commands.store:backup",
        arguments=(
            Argument(name="--out", metavar="FILE", help="The copy; a file that isn't there yet."),
            Argument(name="--json", kind="yes", help='Print {"store", "out", "bytes"}.'),
        ),
        settings=("store",),
    ),
    Verb(
        name="migrate",
        help="Bring the store to this version's format, with a backup first. At its start Treering does so by itself, "
        "without one.",
        run="capture.commands.store:migrate",
        arguments=(
            Argument(name="--dry-run", kind="yes", help="Try it on a copy, look at that, and change nothing."),
            Argument(name="--backup", metavar="FILE", help="Where to keep the store as it was. Default: STORE.vN."),
            Argument(name="--json", kind="yes", help='Print {"store", "from", "to", "backup"}.'),
        ),
        settings=("store",),
    ),
    Verb(
        name="tail",
        help="Print what happens, a line each, as it happens.",
        run="capture.commands.tail:tail",
        arguments=(
            Argument(
                name="id", optional=True, help="Of this rollout alone, from what is kept of it on. Default: of all."
            ),
            Argument(name="--after", metavar="EVENT", help="Go on behind this event; 0 begins with the oldest kept."),
            Argument(name="--json", kind="yes", help="Print each as a line of JSON."),
            _URL,
        ),
        settings=_CONTROL,
    ),
    Verb(
        name="config",
        help="Print the settings in force, and where each came from. Secrets are masked: safe to paste.",
        run="capture.commands.config:config",
        arguments=(
            Argument(name="--changed", kind="yes", help="Only those that are not at their default."),
            Argument(name="--json", kind="yes", help='Print {"settings": [{"name", "value", "from", "default"}]}.'),
        ),
        settings=tuple(row.name for row in TABLE if not row.secret),
    ),
    Verb(
        name="completion",
        help="Print a file that teaches a shell these verbs and flags.",
        run="capture.commands.completion:completion",
        arguments=(Argument(name="shell", choices=("bash", "zsh", "fish"), help="The shell: bash, zsh or fish."),),
    ),
    Verb(
        name="version",
        help="Print the version.",
        run="capture.cli:version",
        arguments=(Argument(name="--json", kind="yes", help='Print {"treering", "python"}.'),),
    ),
)

FAMILIES = {
    "rollout": "Register, read, grade and close rollouts, through the control plane.",
    "agents": "Print the ready configuration of an agent.",
}
"""First words of two-word verbs."""

EXIT_CODES = (
    (0, "done"),
    (1, "a check failed, a finding at or above --fail-on, or the control plane refused the request"),
    (2, "usage or configuration"),
    (3, "engine unreachable, not the one expected, or below the tier required"),
    (4, "store unusable"),
    (130, "interrupted"),
)
