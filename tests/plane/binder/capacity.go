package binder

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// hasCapacity compares requests with what is left (plugin NodeResourcesFit). More
// than the whole node has is a final refusal.
func hasCapacity(q *question, n *nodeState) *refusal {
	out := &refusal{}
	for name, v := range q.requests {
		switch {
		case v <= q.left(n, name):
			continue
		case name == corev1.ResourcePods:
			out.reasons = append(out.reasons, "Too many pods")
		default:
			out.reasons = append(out.reasons, "Insufficient "+string(name))
			out.final = out.final || v > n.allocatable[name]
		}
	}
	if out.reasons == nil {
		return nil
	}
	slices.Sort(out.reasons)
	return out
}

// left is how much of a resource the node has for the pod.
func (q *question) left(n *nodeState, name corev1.ResourceName) int64 {
	left := n.allocatable[name] - n.used[name]
	for _, c := range q.without {
		if c.node == n.node.Name {
			left += c.requests[name]
		}
	}
	for _, c := range q.guests {
		if c.node == n.node.Name {
			left -= c.requests[name]
		}
	}
	return left
}

// load is how full the node would be, over the resources that the pod asks for.
func (q *question) load(n *nodeState) float64 {
	load := 0.0
	for name, v := range q.requests {
		load += 1 - float64(q.left(n, name)-v)/float64(n.allocatable[name])
	}
	return load
}
