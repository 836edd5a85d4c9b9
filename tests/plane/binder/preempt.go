package binder

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// plan is a node with the pods to evict from it.
type plan struct {
	node    string
	victims []*corev1.Pod
}

// preempt finds the cheapest node for the pod by evicting pods of lower priority
// from it: lowest top priority first, then fewest victims, as kube-scheduler
// chooses (disruption budgets aside). Without one it says why, as kube-scheduler
// adds it to the verdict.
func (s *state) preempt(q *question, v *verdict) (best *plan, why string) {
	if v.nodes == 0 {
		return nil, ""
	}
	if v.hopeless != "" {
		return nil, " not found" // what the plugin that is asked first says of a pod it has not seen
	}
	const asked = " no new claims to deallocate, preemption: "
	if ptr.Deref(q.pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever {
		return nil, asked + "not eligible due to preemptionPolicy=Never."
	}
	if s.waitsForVictims(q.pod) {
		return nil, asked + "not eligible due to a terminating pod on the nominated node."
	}
	report := &verdict{nodes: v.nodes, refused: map[string]*refusal{}, rest: "Preemption is not helpful for scheduling"}
	for name, r := range v.refused {
		if r.final {
			continue
		}
		p, r := q.victims(s.nodes[name])
		if r != nil {
			report.refused[name] = r
		} else if best == nil || comparePlans(p, best) < 0 {
			best = p
		}
	}
	if best != nil {
		return best, ""
	}
	return nil, asked + report.String()
}

// waitsForVictims says whether an earlier preemption for the pod is still under way.
func (s *state) waitsForVictims(pod *corev1.Pod) bool {
	n := s.nodes[pod.Status.NominatedNodeName]
	if n == nil {
		return false
	}
	for _, p := range n.pods {
		if p.DeletionTimestamp != nil && priority(p) < priority(pod) && slices.ContainsFunc(p.Status.Conditions, preempted) {
			return true
		}
	}
	return false
}

func preempted(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
}

// victims takes every pod of lower priority off the node and gives back, most
// important first, those beside which the pod passes all filters.
func (q *question) victims(n *nodeState) (*plan, *refusal) {
	gone := map[types.UID]claim{}
	if q.switches.preempt {
		for uid := range n.pods {
			if c := q.state.placed[uid]; c.priority < priority(q.pod) {
				gone[uid] = c
			}
		}
	}
	if len(gone) == 0 {
		return nil, never("No preemption victims found for incoming pod")
	}
	if r := q.withoutPods(gone).check(n); r != nil {
		return nil, r
	}
	lower := slices.SortedFunc(maps.Values(gone), func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	out := &plan{node: n.node.Name}
	for _, c := range lower {
		delete(gone, c.pod.UID)
		if q.withoutPods(gone).check(n) != nil {
			gone[c.pod.UID] = c
			out.victims = append(out.victims, c.pod)
		}
	}
	return out, nil
}

func comparePlans(a, b *plan) int {
	top := func(p *plan) int32 { return priority(p.victims[0]) } // they are sorted
	return cmp.Or(cmp.Compare(top(a), top(b)), cmp.Compare(len(a.victims), len(b.victims)), cmp.Compare(a.node, b.node))
}
