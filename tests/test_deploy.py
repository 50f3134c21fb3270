"""The dashboard and the alert rules: every expression is about metrics that there are, by labels that they have."""

import json
import re
from pathlib import Path

import pytest

from capture.metrics import TABLE

DEPLOY = Path(__file__).parents[1] / "deploy"
ALERTS = (DEPLOY / "alerts.yaml").read_text()
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())

SAMPLES = {
    name: row
    for row in TABLE
    for name in ([row.name] if row.kind != "histogram" else [f"{row.name}_{end}" for end in ("bucket", "sum", "count")])
}
"""What Prometheus calls each series, and the row that it is of."""


def alerts():
    """Name → its lines, of the one shape of YAML that the file has."""
    found = {}
    for text in ALERTS.split("- alert: ")[1:]:
        name, _, rest = text.partition("\n")
        found[name] = rest
    return found


def expression(rule):
    folded = re.search(r"expr: >-\n((?: {10}.*\n)+)", rule)
    return " ".join(folded[1].split()) if folded else re.search(r"expr: (.+)", rule)[1]


def expressions():
    for name, rule in alerts().items():
        yield name, expression(rule)
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expr"), list(expressions()))
def test_an_expression_is_about_what_there_is(where, expr):
    names = re.findall(r"\btreering_\w+", expr)
    assert names or expr.startswith("up{"), where
    for name in names:
        assert name in SAMPLES, f"{where}: there is no {name}"
    # Prometheus' own, and those that it gives to a histogram.
    known = {"job", "instance", "le"}.union(*(SAMPLES[name].labels for name in names))
    matched = [label for inside in re.findall(r"{([^}]*)}", expr) for label in re.findall(r"(\w+)\s*[=!]", inside)]
    grouped = [label.strip() for inside in re.findall(r"by \(([^)]*)\)", expr) for label in inside.split(",")]
    assert set(matched + grouped) <= known, where
    assert all(expr.count(left) == expr.count(right) for left, right in ("()", "[]", "{}")), where


def test_a_counter_is_asked_for_its_growth():
    for where, expr in expressions():
        for name in re.findall(r"\btreering_\w+", expr):
            if SAMPLES[name].kind != "gauge":
                assert re.search(rf"(rate|increase)\({name}", expr), f"{where}: {name} only ever grows"


def test_every_alert_says_what_is_wrong_and_what_to_do():
    assert len(alerts()) > 10
    for name, rule in alerts().items():
        for wanted in ("expr: ", "severity: ", "summary: ", "todo: "):
            assert wanted in rule, f"{name} lacks {wanted}"


def test_every_metric_is_somewhere_on_the_dashboard():
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    assert [row.name for row in TABLE if row.name not in shown] == []


def test_panels_do_not_lie_on_each_other():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
