"""Whether the dashboards are what Grafana's own types say: each is read into the types of package grafana-foundation-sdk and written again.
Those keep only what they know, so a field that does not exist is gone afterwards. Such fields are shown to it first, so that silence
means something.

usage: dashboards.py DASHBOARD.json ...
"""

import copy
import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def again(dashboard):
    return json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))


def lost(before, after, path=""):
    """Places of what is not the same afterwards; what the types add by themselves does not count."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{path}/{at}")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


def mistakes(dashboard):
    """The same with a field that does not exist, at each level; and how it is found."""
    row = next(at for at, panel in enumerate(dashboard["panels"]) if panel["type"] == "row")
    for part in [
        [],
        ["panels", 0],
        ["panels", 0, "fieldConfig", "defaults"],
        ["panels", 0, "fieldConfig", "defaults", "thresholds"],
        ["panels", 0, "options"],
        ["panels", 0, "targets", 0],
        ["panels", row],
        ["links", 0],
        ["templating", "list", 0],
    ]:
        wrong = copy.deepcopy(dashboard)
        place = wrong
        for step in part:
            place = place[step]
        place["mistake"] = 1
        yield wrong, "/" + "/".join(map(str, [*part, "mistake"]))


def main(files):
    register_default_plugins()
    failed = False
    for file in files:
        with open(file, encoding="utf-8") as text:
            dashboard = json.load(text)
        for wrong, place in mistakes(dashboard):
            if place not in list(lost(wrong, again(wrong))):
                print(f"{file}: {place} was taken", file=sys.stderr)
                failed = True
        for place in lost(dashboard, again(dashboard)):
            print(f"{file}: {place}", file=sys.stderr)
            failed = True
        print(f"{file}: {len(dashboard['panels'])} panels")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
