"""Finds the optimum of every instance with CP-SAT, which also proves it (needs the Python package ortools)."""
import argparse
import glob
import json
import os
import time

from ortools.sat.python import cp_model

from instance import Instance, digest, dumps, slots

ORDERS = ("strict", "least_work")


class Model:
    """One 0-1 variable per unit of the pool (evicted or not), one whole number per node and shape (pods placed there)."""

    def __init__(self, instance, pool):
        self.instance, self.pool, self.model = instance, pool, cp_model.CpModel()
        self.evicted = {u.name: self.model.new_bool_var(u.name) for u in pool}
        here = [[] for _ in instance.free]
        for unit in pool:
            for node, held in unit.use.items():
                here[node].append((held, self.evicted[unit.name]))
        placed = [[] for _ in instance.shapes]
        for node, free in enumerate(instance.free):
            self.add_node(free, here[node], placed)
        for (_, count), pods in zip(instance.shapes, placed):
            self.model.add(sum(pods) == count)
        self.lost = sum(u.lost * self.evicted[u.name] for u in pool)
        self.excess = sum(self.budgets())

    def add_node(self, free, here, placed):
        model, most = self.model, [f + sum(held[d] for held, _ in here) for d, f in enumerate(free)]
        pods = []
        for (request, count), of_shape in zip(self.instance.shapes, placed):
            top = min(count, slots(most, request))
            if top == 0:
                continue
            x = model.new_int_var(0, top, "")
            pods.append((request, x))
            of_shape.append(x)
            for held, evicted in here:  # implied by the capacity below, but tighter when relaxed
                beside = min(count, slots([m - h for m, h in zip(most, held)], request))
                if beside < top:
                    model.add(x <= beside + (top - beside) * evicted)
        for d, f in enumerate(free):
            if any(request[d] for request, _ in pods):
                model.add(sum(request[d] * x for request, x in pods) <= f + sum(held[d] * evicted for held, evicted in here if held[d]))

    def budgets(self):
        """Pods beyond each budget that can be exceeded."""
        for pdb, allowed in enumerate(self.instance.allowed):
            units = [u for u in self.pool if u.pdb == pdb]
            if (pods := sum(u.pods for u in units)) > allowed:
                beyond = self.model.new_int_var(0, pods - allowed, "")
                self.model.add(beyond >= sum(u.pods * self.evicted[u.name] for u in units) - allowed)
                yield beyond

    def minimize(self, objective, seconds):
        """The best victims found in so many seconds of one thread, whether they are proved to be the best, and what none are below."""
        self.model.minimize(objective)
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1
        status = solver.solve(self.model)
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN), solver.status_name(status)
        if status == cp_model.UNKNOWN:
            return self.pool, False, solver.best_objective_bound
        victims = [u for u in self.pool if solver.value(self.evicted[u.name])]
        self.model.clear_hints()
        for unit in self.pool:
            self.model.add_hint(self.evicted[unit.name], unit in victims)
        return victims, status == cp_model.OPTIMAL, solver.best_objective_bound


def optimum(instance, order, seconds):
    """First the least PDB excess, then with that the least work lost."""
    start = time.monotonic()
    problem = Model(instance, instance.pool(order))
    least, proved = 0, True
    if not isinstance(problem.excess, int):
        victims, proved, _ = problem.minimize(problem.excess, seconds)
        least = instance.excess(victims)
        problem.model.add(problem.excess <= least)
    victims, of_work, bound = problem.minimize(problem.lost, max(1, seconds - (time.monotonic() - start)))
    assert instance.fits(instance.free_without(victims)), "the model and the exact test differ"
    excess, lost = instance.cost(victims)
    found = {"pdb_excess": excess, "lost": lost, "proved": proved and of_work, "seconds": round(time.monotonic() - start, 1)}
    if proved and not of_work:
        found["at_least"] = int(bound)  # work lost, with that excess
    return found


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("instances")
    args.add_argument("out")
    args.add_argument("--seconds", type=float, default=60, help="for each instance and order, on one thread")
    args = args.parse_args()
    known = set()
    if os.path.exists(args.out):
        known = {json.loads(line)["name"] for line in open(args.out)}
    with open(args.out, "a") as out:
        for path in sorted(glob.glob(os.path.join(args.instances, "*.json"))):
            data = json.load(open(path))
            if data["name"] in known:
                continue
            instance = Instance(data)
            row = {"name": instance.name, "sha256": digest(data)}
            for order in ORDERS:
                row[order] = optimum(instance, order, args.seconds)
            out.write(dumps(row) + "\n")
            out.flush()
