package binder

import (
	"encoding/json"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recorded is what a pod of the name was told by kube-scheduler 1.36.2, in a
// cluster of three nodes, of which n3 is tainted.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("testdata/kube-scheduler-1.36.2.json")
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]string
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// gpuPod asks for the recorded resource and is pinned to a node.
func gpuPod(name, gpus, node string, priority int32) *corev1.Pod {
	pod := pinTo(makePod(name, "0", priority), node)
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
	return pod
}

func recordedCluster(t *testing.T) *state {
	gpus := func(n *corev1.Node) {
		n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
		n.Labels[corev1.LabelHostname] = n.Name
	}
	s := cluster(makeNode("n1", "0", gpus), makeNode("n2", "0", gpus), makeNode("n3", "0", func(n *corev1.Node) {
		gpus(n)
		n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	}))
	s.storage = shelf(t)
	return s
}

func ports(pod *corev1.Pod) {
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
}

func TestPinnedPodsAreRefusedInTheRecordedWords(t *testing.T) {
	cases := map[string]struct {
		gpus, node string
		change     func(*corev1.Pod)
	}{
		"room":     {"6", "n2", nil},
		"port":     {"0", "n2", ports},
		"anti":     {"0", "n2", func(p *corev1.Pod) { p.Spec.Affinity.PodAntiAffinity = far(term("app", "h", corev1.LabelHostname)) }},
		"claim":    {"0", "n2", func(p *corev1.Pod) { claims(p, "none") }},
		"nowhere":  {"0", "n99", nil},
		"selector": {"0", "n2", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"x": "y"} }},
		"unknown": {"0", "n2", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/foo": resource.MustParse("1")}
		}},
		"taint": {"0", "n3", nil},
	}
	want := recorded(t)
	for name, c := range cases {
		s := recordedCluster(t)
		holder := gpuPod("holder", "6", "n2", 0)
		holder.Labels = map[string]string{"app": "h"}
		ports(holder)
		s.place(holder, "n2")
		pod := gpuPod(name, c.gpus, c.node, 0)
		if c.change != nil {
			c.change(pod)
		}
		for _, switches := range []*Switches{{}, {preempt: true}} {
			if got := judge(s, pod, switches); got != want[name] {
				t.Errorf("%s, %+v:\nwant %s\ngot  %s", name, switches, want[name], got)
			}
		}
	}
}

func TestAPodThatPreemptsIsToldNoMoreThanWhatIsShort(t *testing.T) {
	s, want := recordedCluster(t), recorded(t)
	s.place(gpuPod("low", "8", "n2", 0), "n2")
	high := gpuPod("high", "8", "n2", 1)
	if got := judge(s, high, &Switches{preempt: true}); got != want["high"] {
		t.Errorf("want %s\ngot  %s", want["high"], got)
	}
}

func TestANominatedPodAndItsRivalAreToldTheRecordedWords(t *testing.T) {
	s, want := recordedCluster(t), recorded(t)
	low := gpuPod("low", "8", "n2", 0)
	low.DeletionTimestamp = &metav1.Time{}
	s.place(low, "n2")
	mine := gpuPod("mine", "8", "n2", 1)
	mine.Status.NominatedNodeName = "n2"
	s.nominate(mine, "n2")
	for _, pod := range []*corev1.Pod{mine, gpuPod("rival", "8", "n2", 1)} {
		if got := judge(s, pod, &Switches{preempt: true}); got != want[pod.Name] {
			t.Errorf("%s:\nwant %s\ngot  %s", pod.Name, want[pod.Name], got)
		}
	}
}
