package binder

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// verdict is why no node takes a pod.
type verdict struct {
	nodes    int
	hopeless string              // of the pod itself, before any node was looked at
	refused  map[string]*refusal // by node
	rest     string              // of the nodes that were not looked at
}

// pick chooses a node: the nominated one if it fits, else the one that is
// emptiest afterwards. Without one it says why.
func (s *state) pick(q *question) (string, *verdict) {
	v := &verdict{nodes: len(s.order), hopeless: q.hopeless, refused: map[string]*refusal{}}
	if q.hopeless != "" {
		return "", v
	}
	ruledOutBy := sets.New("NodeAffinity")
	if n := s.nodes[q.pod.Status.NominatedNodeName]; n != nil {
		r := q.check(n)
		if r == nil {
			return n.node.Name, nil
		}
		v.refused[n.node.Name] = r
		ruledOutBy.Insert(r.plugin) // upstream counts it so
	}
	v.rest = fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(ruledOutBy))
	var best *nodeState
	var bestLoad float64
	for _, n := range q.candidates() {
		if r := q.check(n); r != nil {
			v.refused[n.node.Name] = r
		} else if load := q.load(n); best == nil || load < bestLoad {
			best, bestLoad = n, load
		}
	}
	if best != nil {
		return best.node.Name, nil
	}
	return "", v
}

// String words the verdict as kube-scheduler's FitError does
// (pkg/scheduler/framework/types.go), without what preemption adds.
func (v *verdict) String() string {
	if v.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	if v.hopeless != "" {
		return fmt.Sprintf("0/%d nodes are available: %s.", v.nodes, v.hopeless)
	}
	counts := map[string]int{}
	for _, r := range v.refused {
		for _, reason := range r.reasons {
			counts[reason]++
		}
	}
	if others := v.nodes - len(v.refused); others > 0 {
		counts[v.rest] += others
	}
	parts := make([]string, 0, len(counts))
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", v.nodes, strings.Join(parts, ", "))
}
