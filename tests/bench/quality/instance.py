"""Instances of the format preempt-quality/2 (README.md). Nothing here knows the engine or a solver."""
import hashlib
import json
from collections import Counter


def dumps(value):
    """Canonical JSON: one text, and so one digest, per value."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def digest(data):
    return hashlib.sha256(dumps(data).encode()).hexdigest()


def slots(free, request):
    """Pods of one request that fit into free capacity."""
    return min((f // r for f, r in zip(free, request) if r > 0), default=0)


def less(free, request, count):
    return [f - count * r for f, r in zip(free, request)]


class Unit:
    """What is evicted whole or not at all: a gang, or one pod of a group of mode "single"."""

    def __init__(self, name, group, pods):
        self.name, self.priority, self.pdb = name, group["priority"], group["pdb"]
        self.pods, self.lost = len(pods), group["lost"]
        self.use = {}
        for pod in pods:
            self.use[pod["node"]] = less(self.use.get(pod["node"], [0] * len(pod["request"])), pod["request"], -1)


class Instance:
    def __init__(self, data):
        assert data["format"] == "preempt-quality/2", "another format"
        self.name, self.priority = data["name"], data["preemptor"]["priority"]
        self.shapes = [(s["request"], s["count"]) for s in data["preemptor"]["shapes"]]
        assert len(self.shapes) == 2, "gangs of two shapes"
        self.allowed = [p["disruptions_allowed"] for p in data["pdbs"]]
        self.free = [list(n["allocatable"]) for n in data["nodes"]]
        self.units = []
        for group in data["groups"]:
            if group["mode"] == "all":
                self.units.append(Unit(group["id"], group, group["pods"]))
            else:
                self.units += [Unit("%s/%d" % (group["id"], i), group, [p]) for i, p in enumerate(group["pods"])]
        for unit in self.units:
            for node, held in unit.use.items():
                self.free[node] = less(self.free[node], held, 1)
        assert min(min(f) for f in self.free) >= 0, "overcommitted node"
        self.by_name = {u.name: u for u in self.units}
        self.candidates = [u for u in self.units if u.priority < self.priority]

    def free_without(self, victims):
        free = list(self.free)
        for unit in victims:
            for node, held in unit.use.items():
                free[node] = less(free[node], held, -1)
        return free

    def fits(self, free):
        """Whether the gang fits, exactly: how many pods of the second shape fit at most beside each number of the first."""
        first, second = sorted(self.shapes, key=lambda s: s[1])
        nodes = []
        for f in free:
            here = slots(f, first[0])
            beside = [min(second[1], slots(less(f, first[0], k), second[0])) for k in range(min(here, first[1]) + 1)]
            if len(beside) > 1 or beside[0]:
                nodes.append(beside)
        if sum(len(b) - 1 for b in nodes) < first[1] or sum(b[0] for b in nodes) < second[1]:
            return False
        most = [0] + [None] * first[1]
        for beside in nodes:
            then = [None] * len(most)
            for k, more in enumerate(beside):
                for placed in range(len(most) - k):
                    if most[placed] is not None:
                        then[placed + k] = max(then[placed + k] or 0, most[placed] + more)
            most = then
        return most[first[1]] is not None and most[first[1]] >= second[1]

    def pool(self, order):
        """The units that may be evicted. Under "strict" those up to the lowest priority with which the gang fits."""
        if order == "strict":
            for bound in sorted({u.priority for u in self.candidates}):
                pool = [u for u in self.candidates if u.priority <= bound]
                if self.fits(self.free_without(pool)):
                    return pool
        return self.candidates

    def excess(self, victims):
        """Pods evicted beyond what their budgets allow."""
        hit = Counter()
        for unit in victims:
            if unit.pdb is not None:
                hit[unit.pdb] += unit.pods
        return sum(max(0, pods - self.allowed[pdb]) for pdb, pods in hit.items())

    def cost(self, victims):
        """Compared from left to right: PDB excess in pods, then accelerator-seconds of work lost."""
        return self.excess(victims), sum(u.lost for u in victims)

    def holds(self, victims, placement):
        """Whether a placement is the whole gang and stays within what is free then, on every node and of every resource."""
        free, placed = self.free_without(victims), Counter()
        for part in placement:
            if part["count"] < 1 or not 0 <= part["node"] < len(free):
                return False
            free[part["node"]] = less(free[part["node"]], part["request"], part["count"])
            placed[tuple(part["request"])] += part["count"]
        wanted = Counter()
        for request, count in self.shapes:
            wanted[tuple(request)] += count
        return placed == wanted and min(min(f) for f in free) >= 0
