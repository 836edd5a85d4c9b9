package binder

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"
)

// amounts are requests or capacities: milli-CPU, bytes, or units by resource name.
type amounts map[corev1.ResourceName]int64

func toAmounts(list corev1.ResourceList) amounts {
	out := make(amounts, len(list)+1)
	for name, q := range list {
		v := q.Value()
		if name == corev1.ResourceCPU {
			v = q.MilliValue()
		}
		if v > 0 {
			out[name] = v
		}
	}
	return out
}

func (a amounts) add(b amounts, sign int64) {
	for name, v := range b {
		a[name] += sign * v
	}
}

// requests is what a pod takes of a node.
func requests(pod *corev1.Pod) amounts {
	out := toAmounts(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
	out[corev1.ResourcePods] = 1
	return out
}

func priority(pod *corev1.Pod) int32 { return ptr.Deref(pod.Spec.Priority, 0) }

type nodeState struct {
	node        *corev1.Node
	allocatable amounts
	used        amounts
	pods        map[types.UID]*corev1.Pod
	nominated   map[types.UID]claim
}

// claim is a pod's hold on a node: by being bound, or by nomination.
type claim struct {
	node     string
	priority int32
	requests amounts
	pod      *corev1.Pod
}

// state is the binder's account of nodes and of the pods on them.
type state struct {
	nodes     map[string]*nodeState
	order     []*nodeState // by name, so that ties break the same way every time
	placed    map[types.UID]claim
	repelling map[types.UID]claim // those placed that have anti-affinity
	nominated map[types.UID]claim
	storage   storage
	// namespaceLabels are what the namespace selectors of terms look at.
	namespaceLabels func(namespace string) labels.Set
	// freed is set when something changed that may help a waiting pod, moved when
	// that may help one that looks at other pods.
	freed, moved bool
}

func newState() *state {
	return &state{
		nodes: map[string]*nodeState{}, placed: map[types.UID]claim{}, repelling: map[types.UID]claim{}, nominated: map[types.UID]claim{},
		namespaceLabels: func(string) labels.Set { return nil },
	}
}

func (s *state) setNode(node *corev1.Node) {
	n := s.nodes[node.Name]
	if n == nil {
		n = &nodeState{used: amounts{}, pods: map[types.UID]*corev1.Pod{}, nominated: map[types.UID]claim{}}
		for uid, c := range s.placed {
			if c.node == node.Name {
				n.used.add(c.requests, 1)
				n.pods[uid] = c.pod
			}
		}
		for uid, c := range s.nominated {
			if c.node == node.Name {
				n.nominated[uid] = c
			}
		}
		s.nodes[node.Name] = n
		i, _ := slices.BinarySearchFunc(s.order, node.Name, func(n *nodeState, name string) int { return cmp.Compare(n.node.Name, name) })
		s.order = slices.Insert(s.order, i, n)
	}
	n.node, n.allocatable = node, toAmounts(node.Status.Allocatable)
	s.freed = true
}

func (s *state) dropNode(name string) {
	delete(s.nodes, name)
	s.order = slices.DeleteFunc(s.order, func(n *nodeState) bool { return n.node.Name == name })
	s.freed = true
}

// place notes that a pod is on a node (bound, or about to be), or has changed
// there; node "" takes it off.
func (s *state) place(pod *corev1.Pod, node string) {
	c, known := s.placed[pod.UID]
	if known {
		if n := s.nodes[c.node]; n != nil {
			n.used.add(c.requests, -1)
			delete(n.pods, pod.UID)
		}
		delete(s.placed, pod.UID)
		delete(s.repelling, pod.UID)
		s.freed = s.freed || c.node != node
	} else {
		c = claim{"", priority(pod), requests(pod), pod}
	}
	if node == "" {
		return
	}
	c.node, c.pod = node, pod
	s.placed[pod.UID] = c
	if len(framework.GetPodAntiAffinityTerms(pod.Spec.Affinity)) > 0 {
		s.repelling[pod.UID] = c
	}
	if n := s.nodes[node]; n != nil {
		n.used.add(c.requests, 1)
		n.pods[pod.UID] = pod
	}
	s.moved = true
}

// nominate notes that a waiting pod claims capacity on a node; node "" drops the claim.
func (s *state) nominate(pod *corev1.Pod, node string) {
	old, known := s.nominated[pod.UID]
	if known && old.node == node {
		return
	}
	if known {
		if n := s.nodes[old.node]; n != nil {
			delete(n.nominated, pod.UID)
		}
		delete(s.nominated, pod.UID)
		s.freed = true
	}
	if node == "" {
		return
	}
	c := claim{node, priority(pod), requests(pod), pod}
	s.nominated[pod.UID] = c
	if n := s.nodes[node]; n != nil {
		n.nominated[pod.UID] = c
	}
}
