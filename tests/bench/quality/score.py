"""Checks answers and prints how far they are above the optimum. Exits with 1 if an answer is wrong."""
import argparse
import json
import math
import os
import statistics

from instance import Instance, digest


def mistakes(instance, order, answer, known):
    """What is wrong with an answer, and what it costs. `known` is what the solver found."""
    names = answer["victims"]
    if strange := [n for n in names if n not in instance.by_name]:
        return ["no such unit: %s" % strange[0]], None
    if len(set(names)) < len(names):
        return ["a unit is named twice"], None
    victims = [instance.by_name[n] for n in names]
    cost, wrong = instance.cost(victims), []
    allowed = {u.name for u in instance.pool(order)}
    for unit in victims:
        if unit.priority >= instance.priority:
            wrong.append("%s is not of lower priority" % unit.name)
        elif unit.name not in allowed:
            wrong.append("%s is above the lowest priority that makes room" % unit.name)
    if not instance.fits(instance.free_without(victims)):
        wrong.append("the gang does not fit")
    if not instance.holds(victims, answer["placement"]):
        wrong.append("the placement is not the gang, or does not fit")
    for unit in victims:
        if instance.fits(instance.free_without(u for u in victims if u is not unit)):
            wrong.append("%s could have stayed" % unit.name)
    return wrong + claims(answer, cost, known), cost


def claims(answer, cost, known):
    """What is wrong with what an answer says of itself, and with the optimum that it is compared with."""
    bound, best = (answer["bound_pdb_excess"], answer["bound_gpu_s"]), (known["pdb_excess"], known["lost"])
    wrong = []
    if known["proved"] and cost < best:
        wrong.append("it is better than the optimum, which is wrong then")
    if answer["proven"] and cost > best:
        wrong.append("it says that nothing is better, but %s is" % (best,))
    if bound > min(cost, best):
        wrong.append("its bound is above what is possible")
    return wrong


def geometric_mean(ratios):
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else math.nan


def row(family, rows):
    """One line of the table: only proved optima count for the ratios, the others are compared apart."""
    proved = [(a, cost, k) for a, cost, k in rows if k["proved"]]
    wide = sum(cost[0] > k["pdb_excess"] for _, cost, k in proved)
    ratios = [cost[1] / k["lost"] for _, cost, k in proved if cost[0] == k["pdb_excess"]]
    other = [(cost > best) - (cost < best) for _, cost, k in rows if not k["proved"] for best in [(k["pdb_excess"], k["lost"])]]
    # Half-way to no bound at all where the bound of the work lost is zero.
    known = [k["lost"] / max(1, a["bound_gpu_s"]) for a, _, k in proved]
    return "| %s | %d of %d | %d | %.4f | %.3f | %d | %d | %.2f | %s |" % (
        family, len(proved), len(rows), wide, geometric_mean(ratios), max(ratios, default=math.nan), sum(r == 1 for r in ratios),
        sum(a["proven"] for a, _, _ in rows), statistics.median(known) if known else math.nan,
        ", ".join("%d %s" % (other.count(c), word) for c, word in ((-1, "better"), (0, "equal"), (1, "worse")) if other.count(c)) or "-")


def read(path):
    return {line["name"]: line for line in map(json.loads, open(path))}


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("instances")
    args.add_argument("optima")
    args.add_argument("order", choices=["strict", "least-work"])
    args.add_argument("answers")
    args = args.parse_args()
    order = args.order.replace("-", "_")
    optima, answers, families, wrong = read(args.optima), read(args.answers), {}, 0
    for name, known in optima.items():
        data = json.load(open(os.path.join(args.instances, name + ".json")))
        if digest(data) != known["sha256"]:
            raise SystemExit("%s is not the instance whose optimum is known" % name)
        found = ["no answer"]
        if name in answers:
            found, cost = mistakes(Instance(data), order, answers[name], known[order])
        if found:
            wrong += 1
            print("%s: %s" % (name, "; ".join(found)))
        else:
            families.setdefault(name.split("-")[0], []).append((answers[name], cost, known[order]))
    print("| %s | proved by CP-SAT | more PDB excess | geometric mean | worst | optimal | proven by the answer | optimum / bound, median | others |"
          % args.order)
    print("|---|---|---|---|---|---|---|---|---|")
    for family, rows in families.items():
        print(row(family, rows))
    print(row("all", [r for rows in families.values() for r in rows]))
    print("%d of %d answers are wrong" % (wrong, len(optima)))
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
