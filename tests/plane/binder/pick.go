package binder

import (
	"fmt"
	"slices"
	"strings"
)

// pick chooses a node: the nominated one if it fits, else the one that is
// emptiest afterwards. Without one it says why, as kube-scheduler words it.
func (s *state) pick(q *question, switches *Switches) (node, why string) {
	if n := s.nodes[q.pod.Status.NominatedNodeName]; n != nil && q.unfit(n, switches) == "" && q.short(n.room(q.pod)) == "" {
		return n.node.Name, ""
	}
	var best *nodeState
	var bestLoad float64
	reasons := map[string]int{}
	for _, n := range s.order {
		if r := q.unfit(n, switches); r != "" {
			reasons[r]++
			continue
		}
		room := n.room(q.pod)
		if r := q.short(room); r != "" {
			for _, one := range strings.Split(r, ", ") {
				reasons[one]++
			}
			continue
		}
		if load := q.load(n, room); best == nil || load < bestLoad {
			best, bestLoad = n, load
		}
	}
	if best != nil {
		return best.node.Name, ""
	}
	return "", s.explain(reasons)
}

// load is how full the node would be, over the resources that the pod asks for.
func (q *question) load(n *nodeState, room amounts) float64 {
	load := 0.0
	for name, v := range q.requests {
		load += 1 - float64(room[name]-v)/float64(n.allocatable[name])
	}
	return load
}

func (s *state) explain(reasons map[string]int) string {
	if len(s.order) == 0 {
		return "no nodes available to schedule pods"
	}
	parts := make([]string, 0, len(reasons))
	for r, n := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", len(s.order), strings.Join(parts, ", "))
}
