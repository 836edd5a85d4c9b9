package binder

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"
)

// podAffinityTerms are a pod's required terms.
type podAffinityTerms struct{ affinity, anti []framework.AffinityTerm }

func podAffinity(pod *corev1.Pod) (out podAffinityTerms, err error) {
	if out.affinity, err = framework.GetAffinityTerms(pod, framework.GetPodAffinityTerms(pod.Spec.Affinity)); err != nil {
		return out, err
	}
	out.anti, err = framework.GetAffinityTerms(pod, framework.GetPodAntiAffinityTerms(pod.Spec.Affinity))
	return out, err
}

// domain is a set of nodes: those with this label.
type domain struct{ key, value string }

// neighbours are the domains that have pods to be near to or far from.
type neighbours struct {
	wanted   sets.Set[domain] // with a pod that matches all affinity terms
	unwanted sets.Set[domain] // with a pod that matches an anti-affinity term
	closed   sets.Set[domain] // with a pod whose own anti-affinity matches this one
}

func findNeighbours(q *question) *neighbours {
	out := &neighbours{sets.New[domain](), sets.New[domain](), sets.New[domain]()}
	if len(q.terms.affinity) > 0 || len(q.terms.anti) > 0 {
		for _, n := range q.state.order {
			for pod := range q.podsOn(n) {
				if q.matchesAll(pod) {
					insert(out.wanted, n, q.terms.affinity)
				}
				insert(out.unwanted, n, q.state.matching(q.terms.anti, pod))
			}
		}
	}
	keepOff := func(c claim) {
		if n := q.state.nodes[c.node]; n != nil {
			terms, _ := podAffinity(c.pod) // an error would have kept it off its node
			insert(out.closed, n, q.state.matching(terms.anti, q.pod))
		}
	}
	for uid, c := range q.state.repelling {
		if _, gone := q.without[uid]; !gone {
			keepOff(c)
		}
	}
	for _, c := range q.guests {
		keepOff(c)
	}
	return out
}

func insert(into sets.Set[domain], n *nodeState, terms []framework.AffinityTerm) {
	for _, t := range terms {
		if value, ok := n.node.Labels[t.TopologyKey]; ok {
			into.Insert(domain{t.TopologyKey, value})
		}
	}
}

// matching are the terms that a pod matches.
func (s *state) matching(terms []framework.AffinityTerm, pod *corev1.Pod) []framework.AffinityTerm {
	var out []framework.AffinityTerm
	for _, t := range terms {
		if t.Matches(pod, s.namespaceLabels(pod.Namespace)) {
			out = append(out, t)
		}
	}
	return out
}

func (q *question) matchesAll(pod *corev1.Pod) bool {
	terms := q.terms.affinity
	return len(terms) > 0 && len(q.state.matching(terms, pod)) == len(terms)
}

// matchesPodAffinity holds the required terms of the pod and of those that run
// (plugin InterPodAffinity).
func matchesPodAffinity(q *question, n *nodeState) *refusal {
	near := q.neighbours()
	here := labels.Set(n.node.Labels)
	in := func(domains sets.Set[domain]) func(framework.AffinityTerm) bool {
		return func(t framework.AffinityTerm) bool {
			return here.Has(t.TopologyKey) && domains.Has(domain{t.TopologyKey, here[t.TopologyKey]})
		}
	}
	// The first pod of a series that wants to be near each other may go to any domain.
	first := near.wanted.Len() == 0 && q.matchesAll(q.pod)
	apart := func(t framework.AffinityTerm) bool { return !here.Has(t.TopologyKey) || !first && !in(near.wanted)(t) }
	if slices.ContainsFunc(q.terms.affinity, apart) {
		return never("node(s) didn't match pod affinity rules")
	}
	if slices.ContainsFunc(q.terms.anti, in(near.unwanted)) {
		return no("node(s) didn't match pod anti-affinity rules")
	}
	for d := range near.closed {
		if here.Has(d.key) && here[d.key] == d.value {
			return no("node(s) didn't satisfy existing pods anti-affinity rules")
		}
	}
	return nil
}
