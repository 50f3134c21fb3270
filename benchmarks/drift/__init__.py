"""Drift through the appliance: scenarios by templates, agents and modes; see docs/drift.md and docs/pinned.md.

turns, sweep              what follows a reply, found by the plan, against a yardstick
templates, worker         real templates, and the process that renders with them
standin, rows             conversations with a template in an engine's place, and the rows that they make
agents, engine            what real agents were recorded to send; a real vLLM
page, plot, command       docs/drift.md, docs/drift.svg, and `bin/bench drift`
"""


def run(argv: list[str]) -> int:
    """Run `bin/bench drift`."""
    # The process that renders has none of what this imports.
    from benchmarks.drift.command import run as command

    return command(argv)
