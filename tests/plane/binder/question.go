package binder

import (
	"fmt"
	"iter"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

var (
	nodeFeatures = nodedeclaredfeatures.DefaultFramework
	// featuresUpTo is the release whose pods are asked for the features they need.
	featuresUpTo = version.MajorMinor(1, 37)
)

// question is a pod to be placed, with what is derived from it once for all
// nodes, against the pods that are there.
type question struct {
	state    *state
	switches *Switches
	pod      *corev1.Pod
	requests amounts
	affinity nodeaffinity.RequiredNodeAffinity
	pins     sets.Set[string] // the only nodes that may match; nil for any
	features nodedeclaredfeatures.FeatureSet
	volumes  podVolumes
	terms    podAffinityTerms
	// hopeless is why no node can take the pod whatever its state; "" if one might.
	hopeless string

	without map[types.UID]claim // pods taken off their nodes: victims
	guests  []claim             // pods put on the node that they are nominated to
	// What follows from the pods that are there.
	neighbours func() *neighbours
	spread     func() []*spreadRule
	claimInUse func() bool
}

func (s *state) ask(pod *corev1.Pod, switches *Switches) *question {
	q := &question{
		state: s, switches: switches, pod: pod, requests: requests(pod),
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod), pins: pins(pod),
	}
	var err error
	if q.features, err = nodeFeatures.InferForPodScheduling(&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec}, featuresUpTo); err != nil {
		q.hopeless = err.Error()
	}
	if q.terms, err = podAffinity(pod); err != nil {
		q.hopeless = fmt.Sprintf("parsing pod: %+v", err)
	}
	if q.volumes, err = s.storage.volumes(pod); err != nil {
		q.hopeless = err.Error()
	}
	return q.look()
}

// look lets what follows from the pods that are there be counted anew.
func (q *question) look() *question {
	q.neighbours = sync.OnceValue(func() *neighbours { return findNeighbours(q) })
	q.spread = sync.OnceValue(func() []*spreadRule { return countSpread(q) })
	q.claimInUse = sync.OnceValue(func() bool { return findClaimInUse(q) })
	return q
}

// withoutPods is the question with these pods gone.
func (q *question) withoutPods(gone map[types.UID]claim) *question {
	out := *q
	out.without = gone
	return out.look()
}

// withGuests is the question with these pods running where they are nominated to.
func (q *question) withGuests(guests []claim) *question {
	out := *q
	out.guests = guests
	return out.look()
}

// nominatedTo are the pods of equal or higher priority that the node is held for
// (KEP-5278).
func (q *question) nominatedTo(n *nodeState) []claim {
	var out []claim
	for uid, c := range n.nominated {
		if _, placed := q.state.placed[uid]; !placed && uid != q.pod.UID && c.priority >= priority(q.pod) {
			out = append(out, c)
		}
	}
	return out
}

// podsOn are the pods on a node, as the question sees it.
func (q *question) podsOn(n *nodeState) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		for uid, pod := range n.pods {
			if _, gone := q.without[uid]; !gone && !yield(pod) {
				return
			}
		}
		for _, c := range q.guests {
			if c.node == n.node.Name && !yield(c.pod) {
				return
			}
		}
	}
}

// candidates are the nodes that the pod may be pinned to.
func (q *question) candidates() []*nodeState {
	if q.pins == nil {
		return q.state.order
	}
	var out []*nodeState
	for _, name := range sets.List(q.pins) {
		if n := q.state.nodes[name]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

// needsNeighbours says whether another pod that starts somewhere may help this one.
func (q *question) needsNeighbours() bool {
	return len(q.terms.affinity) > 0 || slices.ContainsFunc(q.pod.Spec.TopologySpreadConstraints, mustHold)
}

// pins are the names that every required term asks for by metadata.name.
func pins(pod *corev1.Pod) sets.Set[string] {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	names := sets.New[string]()
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn
		})
		if i < 0 {
			return nil
		}
		names.Insert(term.MatchFields[i].Values...)
	}
	return names
}
