"""The exact test of fit against search, the solver against enumeration, and mistakes that the scorer has to find."""
import copy
import itertools

from generate import Dice, generate
from instance import Instance, less, slots
from score import mistakes

try:
    from solve import ORDERS, optimum
except ImportError:
    ORDERS, optimum = ("strict", "least_work"), None

LARGEST = 13  # candidates that are enumerated: 8,192 sets


def placements(instance, free):
    """Every way in which the gang fits, tried pod by pod."""
    pods = [request for request, count in instance.shapes for _ in range(count)]

    def rest(at, free, placed):
        if at == len(pods):
            yield placed
            return
        # Pods alike go to nodes in order: the same placement is tried once.
        first = placed[-1]["node"] if at and pods[at] == pods[at - 1] else 0
        for node in range(first, len(free)):
            if slots(free[node], pods[at]):
                left = free[:node] + [less(free[node], pods[at], 1)] + free[node + 1:]
                yield from rest(at + 1, left, placed + [{"node": node, "request": pods[at], "count": 1}])

    return rest(0, free, [])


def enumerated(instance, order):
    """The cheapest victims of all sets."""
    pool = instance.pool(order)
    sets = itertools.chain.from_iterable(itertools.combinations(pool, k) for k in range(1, len(pool) + 1))
    return min((s for s in sets if instance.fits(instance.free_without(s))), key=instance.cost)


def with_mistakes(instance, order, answer, best):
    """Answers that are wrong, and a part of what has to be said of them."""
    def changed(**fields):
        return {**copy.deepcopy(answer), **fields}

    names, used = answer["victims"], set(answer["victims"])
    pool = instance.pool(order)
    yield changed(victims=names[1:]), "does not fit"
    yield changed(victims=names + names[:1]), "twice"
    yield changed(victims=names + ["g999"]), "no such unit"
    for gang in (u for u in pool if u.pods > 1):
        yield changed(victims=names + [gang.name + "/0"]), "no such unit"
    for unit in instance.units:
        if unit.priority >= instance.priority:
            yield changed(victims=names + [unit.name]), "not of lower priority"
        elif unit not in pool:
            yield changed(victims=names + [unit.name]), "above the lowest priority"
        elif unit.name not in used:
            yield changed(victims=names + [unit.name]), "%s could have stayed" % unit.name
    yield changed(placement=answer["placement"][1:]), "placement"
    yield changed(placement=answer["placement"] * 2), "placement"
    free = instance.free_without(instance.by_name[n] for n in names)
    for node in (n for n, f in enumerate(free) if slots(f, answer["placement"][0]["request"]) == 0):
        moved = copy.deepcopy(answer["placement"])
        moved[0]["node"] = node
        yield changed(placement=moved), "placement"
    smaller = copy.deepcopy(answer["placement"])
    smaller[0]["request"][0] -= 1
    yield changed(placement=smaller), "placement"
    yield changed(bound_gpu_s=best[1] + 1), "bound"
    yield changed(bound_pdb_excess=best[0] + 1, bound_gpu_s=0), "bound"


def check_scorer(instance, order):
    """How many wrong answers were found out."""
    victims = enumerated(instance, order)
    best, placement = instance.cost(victims), next(placements(instance, instance.free_without(victims)))
    known = {"pdb_excess": best[0], "lost": best[1], "proved": True}
    answer = {"victims": [u.name for u in victims], "placement": placement, "proven": True, "bound_pdb_excess": best[0], "bound_gpu_s": best[1]}
    assert mistakes(instance, order, answer, known) == ([], best), (instance.name, order)
    found = 0
    for bad, word in with_mistakes(instance, order, answer, best):
        said, _ = mistakes(instance, order, bad, known)
        assert any(word in s for s in said), (instance.name, order, word, said)
        found += 1
    for wrong, word in [((best[0], best[1] - 1), "nothing is better"), ((best[0], best[1] + 1), "better than the optimum")]:
        said, _ = mistakes(instance, order, answer, {"pdb_excess": wrong[0], "lost": wrong[1], "proved": True})
        assert any(word in s for s in said), (instance.name, order, word, said)
        found += 1
    return found


def main():
    fits, found, optima, dice = 0, 0, 0, Dice("selftest")
    for family, gang, nodes, seed in itertools.product("nw", "dh", (3, 4, 5), range(40)):
        instance = Instance(generate(family, nodes, gang, seed))
        for _ in range(5):
            free = instance.free_without(u for u in instance.candidates if dice.chance(0.5))
            assert instance.fits(free) == any(True for _ in placements(instance, free)), instance.name
            fits += 1
        if len(instance.candidates) > LARGEST:
            continue
        for order in ORDERS:
            found += check_scorer(instance, order)
            if optimum:
                best = optimum(instance, order, 60)
                assert best["proved"], instance.name
                assert (best["pdb_excess"], best["lost"]) == instance.cost(enumerated(instance, order)), (instance.name, order)
                optima += 1
    assert found > 1000 and (optima > 100 or not optimum), (found, optima)
    print("%d tests of fit, %d mistakes found, %s" % (fits, found, "%d optima" % optima if optimum else "no solver installed"))


if __name__ == "__main__":
    main()
