"""Writes seeded instances. Only Random.random() is used: a seed means the same instances on any Python 3."""
import argparse
import math
import os
import random

from instance import Instance, dumps, less, slots

GIB = 1024  # in MiB
KINDS = {"large": [128_000, 1024 * GIB, 8], "lean": [96_000, 512 * GIB, 8], "small": [48_000, 384 * GIB, 4], "cpu": [64_000, 256 * GIB, 0]}
MIXES = {"n": [("large", 45), ("lean", 25), ("small", 15), ("cpu", 15)], "w": [("large", 85), ("cpu", 15)]}
GANGS = {"d": "driver", "h": "halves"}
PRIORITIES = [(0, 15), (10, 30), (50, 30), (100, 15), (1000, 10)]
CHECKPOINTS = [(600, 25), (1800, 35), (3600, 25), (14400, 10), (None, 5)]  # every so many seconds; None: never


class Dice:
    def __init__(self, seed):
        self.random = random.Random(seed).random

    def between(self, low, high):
        return low + int(self.random() * (high - low + 1))

    def log(self, low, high):
        return math.exp(math.log(low) + self.random() * math.log(high / low))

    def pick(self, weighted):
        at = self.random() * sum(w for _, w in weighted)
        for value, weight in weighted:
            at -= weight
            if at < 0:
                return value
        return weighted[-1][0]

    def chance(self, share):
        return self.random() < share

    def shuffle(self, items):
        for k in range(len(items) - 1, 0, -1):
            j = self.between(0, k)
            items[k], items[j] = items[j], items[k]


def pod(gpus, cores, gib):
    return [cores * 1000, gib * GIB, gpus]


def per_gpu(dice, gpus, cores, gib):
    return pod(gpus, gpus * dice.between(*cores), gpus * dice.between(*gib))


def lost(requests, seconds):
    """Accelerator-seconds; a pod without GPUs weighs a hundredth of one per core."""
    weight = sum(100 * r[2] if r[2] else r[0] // 1000 for r in requests)
    return max(1, weight * seconds // 100)


def workload(dice, family, largest):
    """A group without places: requests of its pods, in the order in which they are placed, and the rest of its fields."""
    kinds = [("whole", 1)] if family == "w" else [("big", 35), ("small", 30), ("job", 20), ("service", 15)]
    kind = dice.pick(kinds)
    running = int(dice.log(300, 7 * 86400))
    every = dice.pick(CHECKPOINTS)
    seconds = dice.between(90, 600) + min(running, dice.between(0, every) if every else 86400)
    group = {"priority": dice.pick(PRIORITIES), "mode": "all", "running_s": running, "pdb": None}
    style = dice.pick([("block", 60), ("scatter", 40)])
    if kind == "whole":
        requests = [per_gpu(dice, 8, (12, 15), (85, 120))] * max(2, int(dice.log(2, largest)))
    elif kind == "big":
        gpus = dice.pick([(8, 60), (4, 40)])
        requests = [per_gpu(dice, gpus, (6, 12), (30, 110))] * max(2, int(dice.log(2, largest)))
        if dice.chance(0.3):
            requests = [pod(0, dice.between(4, 24), dice.between(16, 96))] + requests
    elif kind == "small":
        gpus = dice.pick([(1, 30), (2, 30), (4, 40)])
        requests = [per_gpu(dice, gpus, (3, 12), (10, 120))] * dice.between(2, 12)
        style = "pack"
    else:
        group["mode"], style = "single", "scatter"
        gpus = dice.pick([(1, 40), (2, 30), (4, 30)]) if kind == "job" else 1
        requests = [per_gpu(dice, gpus, (3, 14), (10, 120))] * (1 if kind == "job" else dice.between(2, 12))
        seconds = seconds if kind == "job" else dice.between(30, 120)
    if family != "w":
        if kind == "service" and dice.chance(0.7):
            group["pdb"] = dice.between(0, max(1, len(requests) // 3))
        elif kind in ("big", "small") and dice.chance(0.12):
            group["pdb"] = dice.between(0, 1)  # a gang under a budget: evicting it always exceeds that
    return group, requests, seconds, style


def processor_work(dice, family):
    """Work without GPUs."""
    service = family != "w" and dice.chance(0.4)
    requests = [pod(0, dice.between(2, 16), dice.between(4, 64))] * (dice.between(2, 8) if service else 1)
    group = {"priority": dice.pick(PRIORITIES), "mode": "single", "running_s": int(dice.log(300, 7 * 86400)), "pdb": None}
    if service and dice.chance(0.7):
        group["pdb"] = dice.between(0, max(1, len(requests) // 3))
    return group, requests, dice.between(30, 3600), "scatter"


def place(dice, free, requests, style):
    """A node for each pod, or None. block: neighbouring nodes; pack: fullest nodes first; scatter: at most two pods on a node."""
    order = list(range(len(free)))
    if style == "block":
        start = dice.between(0, len(free) - 1)
        order = order[start:] + order[:start]
    else:
        dice.shuffle(order)
        if style == "pack":
            order.sort(key=lambda node: free[node][2])
    left, nodes, taken = list(free), [], {}
    for request in requests:
        fitting = (n for n in order if slots(left[n], request) and (style != "scatter" or taken.get(n, 0) < 2))
        node = next(fitting, None)
        if node is None:
            return None
        left[node] = less(left[node], request, 1)
        taken[node] = taken.get(node, 0) + 1
        nodes.append(node)
    return nodes


def fill(dice, family, cluster, free, running, share, largest):
    """Adds work until that share of the GPUs is in use, and of the processors of nodes without GPUs."""
    without = [n for n, a in enumerate(cluster) if a[2] == 0]
    for used, make in [
        (lambda: 1 - sum(f[2] for f in free) / max(1, sum(a[2] for a in cluster)), lambda: workload(dice, family, largest)),
        (lambda: 1 - sum(free[n][0] for n in without) / max(1, sum(cluster[n][0] for n in without)), lambda: processor_work(dice, family)),
    ]:
        misses = 0
        while misses < 30 and used() < share:
            group, requests, seconds, style = make()
            nodes = place(dice, free, requests, style)
            if nodes is None:
                misses += 1
                continue
            for node, request in zip(nodes, requests):
                free[node] = less(free[node], request, 1)
            running.append((group, requests, seconds, nodes))


def shapes(dice, family, gang, gpus):
    """The gang that has to be placed, on a share of so many GPUs."""
    share = gpus * dice.pick([(0.05, 1), (0.10, 1), (0.20, 1), (0.35, 1)])
    if gang == "driver":
        each = 8 if family == "w" else dice.pick([(8, 60), (4, 25), (2, 15)])
        driver = pod(0, dice.pick([(8, 1), (16, 1), (32, 1), (48, 1)]), dice.pick([(32, 1), (64, 1), (128, 1), (192, 1)]))
        return [(driver, 1), (per_gpu(dice, each, (4, 12), (16, 64)), max(2, int(share / each)))]
    count = max(1, int(share / 6))
    return [(per_gpu(dice, 4, (4, 10), (8, 40)), count), (per_gpu(dice, 2, (4, 10), (100, 220)), count)]


def attempt(dice, family, count, gang):
    cluster = [KINDS[dice.pick(MIXES[family])] for _ in range(count)]
    free, running, share = [list(a) for a in cluster], [], 0.92 + 0.08 * dice.random()
    largest = max(4.0, dice.pick([(count / 5, 1), (count / 20, 1), (16.0, 1)]))
    fill(dice, family, cluster, free, running, share, largest)
    for _ in range(2):  # some work ends, other work takes the holes
        ended = [w for w in running if dice.chance(0.2)]
        running = [w for w in running if not any(w is e for e in ended)]
        for _, requests, _, nodes in ended:
            for node, request in zip(nodes, requests):
                free[node] = less(free[node], request, -1)
        fill(dice, family, cluster, free, running, share, largest)
    groups, pdbs = [], []
    for group, requests, seconds, nodes in running:
        if group["pdb"] is not None:
            pdbs.append({"disruptions_allowed": group["pdb"]})
            group["pdb"] = len(pdbs) - 1
        group["id"] = "g%d" % len(groups)
        group["lost"] = lost(requests if group["mode"] == "all" else requests[:1], seconds)
        group["pods"] = [{"node": n, "request": r} for n, r in zip(nodes, requests)]
        groups.append(group)
    wanted = shapes(dice, family, gang, sum(a[2] for a in cluster))
    return {"format": "preempt-quality/2", "resources": ["cpu (milli)", "memory (MiB)", "nvidia.com/gpu"],
            "nodes": [{"allocatable": a} for a in cluster], "groups": groups, "pdbs": pdbs,
            "preemptor": {"priority": 100, "shapes": [{"request": r, "count": c} for r, c in wanted]}}


def generate(family, count, gang, seed):
    """The first attempt whose gang does not fit as it is, and does with all candidates evicted."""
    name = "%s%d%s-s%03d" % (family, count, gang, seed)
    for number in range(500):
        data = attempt(Dice("%s-%d" % (name, number)), family, count, GANGS[gang])
        data["name"] = name
        instance = Instance(data)
        if not instance.fits(instance.free) and instance.fits(instance.free_without(instance.candidates)):
            return data
    raise SystemExit("no instance for " + name)


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("out")
    args.add_argument("--nodes", type=int, nargs="+", default=[20, 50, 200])
    args.add_argument("--count", type=int, default=25, help="instances of each family")
    args = args.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for family in MIXES:
        for nodes in args.nodes:
            for gang in GANGS:
                for seed in range(args.count):
                    data = generate(family, nodes, gang, seed)
                    with open(os.path.join(args.out, data["name"] + ".json"), "w") as file:
                        file.write(dumps(data))
