package binder

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/registry"
)

// plan is a node with the pods to evict from it.
type plan struct {
	node    string
	victims []*corev1.Pod
}

// preemption finds the cheapest node for the pod by evicting pods of lower
// priority from it: lowest top priority first, then fewest victims, as
// kube-scheduler chooses (disruption budgets aside). nil if none helps.
func (s *state) preemption(q *question, switches *Switches, podsOn func(node string) []*corev1.Pod) *plan {
	if ptr.Deref(q.pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever || s.waitsForVictims(q.pod, podsOn) {
		return nil
	}
	var best *plan
	for _, n := range s.order {
		if q.unfit(n, switches) != "" {
			continue
		}
		if p := q.victims(n, podsOn(n.node.Name)); p != nil && (best == nil || comparePlans(p, best) < 0) {
			best = p
		}
	}
	return best
}

// waitsForVictims says whether an earlier preemption for the pod is still under way.
func (s *state) waitsForVictims(pod *corev1.Pod, podsOn func(string) []*corev1.Pod) bool {
	return pod.Status.NominatedNodeName != "" && slices.ContainsFunc(podsOn(pod.Status.NominatedNodeName), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && priority(p) < priority(pod)
	})
}

// victims takes every pod of lower priority off the node and gives back, most
// important first, those for whom there is room.
func (q *question) victims(n *nodeState, pods []*corev1.Pod) *plan {
	lower := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return priority(p) >= priority(q.pod) || registry.Terminal(p)
	})
	room := n.room(q.pod)
	for _, p := range lower {
		room.add(requests(p), 1)
	}
	if len(lower) == 0 || q.short(room) != "" {
		return nil
	}
	slices.SortFunc(lower, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(priority(b), priority(a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	out := &plan{node: n.node.Name}
	for _, p := range lower {
		need := requests(p)
		room.add(need, -1)
		if q.short(room) == "" {
			continue // it may stay
		}
		room.add(need, 1)
		out.victims = append(out.victims, p)
	}
	return out
}

func comparePlans(a, b *plan) int {
	top := func(p *plan) int32 {
		if len(p.victims) == 0 {
			return 0
		}
		return priority(p.victims[0]) // they are sorted
	}
	return cmp.Or(cmp.Compare(top(a), top(b)), cmp.Compare(len(a.victims), len(b.victims)), cmp.Compare(a.node, b.node))
}
