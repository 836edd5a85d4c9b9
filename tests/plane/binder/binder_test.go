package binder

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func makeNode(name, gpus string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"gpu.dev/gpu": resource.MustParse(gpus), corev1.ResourcePods: resource.MustParse("10")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(n)
	}
	return n
}

func makePod(name, gpus string, priority int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Priority: &priority, Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"gpu.dev/gpu": resource.MustParse(gpus)}}}}},
	}
}

func cluster(nodes ...*corev1.Node) *state {
	s := newState()
	for _, n := range nodes {
		s.setNode(n)
	}
	return s
}

func pinTo(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}
	return pod
}

func TestThePodGoesToTheEmptiestNodeThatTakesIt(t *testing.T) {
	taint := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} }
	silent := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	s := cluster(makeNode("a", "8", nil), makeNode("b", "8", nil), makeNode("c", "8", taint), makeNode("d", "8", silent))
	s.place(makePod("x", "4", 0), "a")
	if node, why := s.pick(s.ask(makePod("p", "2", 0), &Switches{})); node != "b" {
		t.Errorf("want b, got %q %s", node, why)
	}
	says(t, "more than any node has", s, makePod("p", "9", 0), "2 Insufficient gpu.dev/gpu, 2 node(s) had untolerated taint(s)")
}

func TestAPinIsObeyedAndARefusalHitsPinnedPodsOnly(t *testing.T) {
	s, refuse := cluster(makeNode("a", "8", nil), makeNode("b", "8", nil)), &Switches{refuse: []string{"b"}}
	s.place(makePod("x", "4", 0), "b")
	if node, _ := s.pick(s.ask(pinTo(makePod("p", "1", 0), "b"), &Switches{})); node != "b" {
		t.Errorf("pinned to b, got %q", node)
	}
	if why := judge(s, pinTo(makePod("p", "1", 0), "b"), refuse); !strings.Contains(why, "1 node(s) didn't match PersistentVolume's node affinity, ") {
		t.Errorf("refused: %q", why)
	}
	s.place(makePod("y", "8", 0), "a")
	if node, _ := s.pick(s.ask(makePod("p", "1", 0), refuse)); node != "b" {
		t.Errorf("not pinned, so not refused: %q", node)
	}
}

func TestNominatedRoomIsHeldAgainstEqualAndLowerPriority(t *testing.T) {
	s := cluster(makeNode("a", "8", nil))
	holder := makePod("holder", "8", 5)
	s.nominate(holder, "a")
	for priority, want := range map[int32]string{4: "", 5: "", 6: "a"} {
		if node, _ := s.pick(s.ask(makePod("p", "1", priority), &Switches{})); node != want {
			t.Errorf("priority %d: want %q, got %q", priority, want, node)
		}
	}
	if node, _ := s.pick(s.ask(holder, &Switches{})); node != "a" {
		t.Errorf("the holder itself: %q", node)
	}
	s.nominate(holder, "")
	if node, _ := s.pick(s.ask(makePod("p", "1", 0), &Switches{})); node != "a" {
		t.Errorf("after the nomination is gone: %q", node)
	}
}

func TestANominatedNodeIsTriedFirst(t *testing.T) {
	s := cluster(makeNode("a", "8", nil), makeNode("b", "8", nil))
	s.place(makePod("x", "4", 0), "b")
	p := makePod("p", "1", 0)
	p.Status.NominatedNodeName = "b"
	if node, _ := s.pick(s.ask(p, &Switches{})); node != "b" {
		t.Errorf("want b, got %q", node)
	}
}

func TestRoomComesBackWithTheNode(t *testing.T) {
	s := cluster(makeNode("a", "8", nil))
	s.place(makePod("x", "8", 0), "a")
	s.dropNode("a")
	s.setNode(makeNode("a", "8", nil))
	if node, _ := s.pick(s.ask(makePod("p", "1", 0), &Switches{})); node != "" {
		t.Errorf("x still holds the node, yet p goes to %q", node)
	}
	s.place(makePod("x", "8", 0), "")
	if node, _ := s.pick(s.ask(makePod("p", "1", 0), &Switches{})); node != "a" {
		t.Errorf("x is gone, yet p goes to %q", node)
	}
}

// plans is the preemption for a pod that found no node.
func plans(t *testing.T, s *state, pod *corev1.Pod) (*plan, string) {
	t.Helper()
	q := s.ask(pod, &Switches{preempt: true})
	node, refused := s.pick(q)
	if node != "" {
		t.Fatalf("%s fits %s", pod.Name, node)
	}
	return s.preempt(q, refused)
}

func TestPreemptionTakesTheFewestOfTheLowest(t *testing.T) {
	s := cluster(makeNode("a", "8", nil), makeNode("b", "8", nil))
	s.place(makePod("a1", "4", 3), "a")
	s.place(makePod("a2", "4", 1), "a")
	s.place(makePod("b1", "8", 2), "b")
	plan, _ := plans(t, s, makePod("p", "4", 9))
	if plan == nil || plan.node != "a" || len(plan.victims) != 1 || plan.victims[0].Name != "a2" {
		t.Errorf("4 of 8: want a2 on a, got %+v", plan)
	}
	plan, _ = plans(t, s, makePod("p", "8", 9))
	if plan == nil || plan.node != "b" || len(plan.victims) != 1 {
		t.Errorf("8 of 8: want b1 on b, got %+v", plan)
	}
	if plan, _ := plans(t, s, makePod("p", "8", 1)); plan != nil {
		t.Errorf("equal priority is no victim: %+v", plan)
	}
	modest := makePod("p", "8", 9)
	modest.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	if plan, why := plans(t, s, modest); plan != nil || why != " no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never." {
		t.Errorf("preemptionPolicy Never: %+v %q", plan, why)
	}
}

func TestNobodyIsEvictedForAPodThatDoesNotRunThen(t *testing.T) {
	s := zones()
	s.storage = shelf(t)
	s.place(labelled("low", "low"), "a")
	s.place(labelled("low-b", "low"), "b")
	daemon := labelled("daemon", "daemon")
	daemon.Spec.Priority = ptr.To[int32](99)
	ports(daemon)
	s.place(daemon, "a")
	for what, change := range map[string]func(*corev1.Pod){
		"a port that the daemon has": ports,
		"far from the daemon":        func(p *corev1.Pod) { p.Spec.Affinity.PodAntiAffinity = far(term("app", "daemon", "zone")) },
		"near a pod that is not there": func(p *corev1.Pod) {
			p.Spec.Affinity.PodAffinity = near(term("app", "nobody", "zone")).PodAffinity
		},
		"a claim that is not there": func(p *corev1.Pod) { claims(p, "none") },
		"an unknown resource": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/foo"] = resource.MustParse("1")
		},
	} {
		pod := pinTo(makePod("p", "8", 9), "a")
		change(pod)
		if plan, _ := plans(t, s, pod); plan != nil {
			t.Errorf("%s: %+v", what, plan)
		}
	}
}

func TestAVictimIsWhoHoldsThePortOrIsTooNear(t *testing.T) {
	s := zones()
	low := labelled("low", "low")
	ports(low)
	s.place(low, "a")
	s.place(labelled("other", "other"), "a")
	port, apart := pinTo(makePod("p", "1", 9), "a"), pinTo(makePod("p", "1", 9), "a")
	ports(port)
	apart.Spec.Affinity.PodAntiAffinity = far(term("app", "low", "zone"))
	for _, pod := range []*corev1.Pod{port, apart} {
		plan, _ := plans(t, s, pod)
		if plan == nil || len(plan.victims) != 1 || plan.victims[0].Name != "low" {
			t.Errorf("want low, got %+v", plan)
		}
	}
}

func TestAPodWaitsForTheVictimsThatItHasEvicted(t *testing.T) {
	s := cluster(makeNode("a", "8", nil))
	victim := makePod("low", "8", 1)
	victim.DeletionTimestamp = &metav1.Time{}
	victim.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	s.place(victim, "a")
	pod := makePod("p", "8", 9)
	pod.Status.NominatedNodeName = "a"
	if plan, why := plans(t, s, pod); plan != nil || !strings.HasSuffix(why, "preemption: not eligible due to a terminating pod on the nominated node.") {
		t.Errorf("%+v %q", plan, why)
	}
}

func TestSwitchesAreReadFromTheConfigMap(t *testing.T) {
	s := readSwitches(map[string]string{"refuse": "a, b", "refuse-namespace": "n", "preempt": "true"})
	if !s.refuses("n", "a") || !s.refuses("n", "b") || s.refuses("m", "a") || s.refuses("n", "c") || !s.preempt {
		t.Errorf("%+v", s)
	}
}

func TestTheQueueIsByPriorityThenArrival(t *testing.T) {
	q := newQueue()
	q.push("first", 1)
	q.push("second", 1)
	q.push("high", 2)
	q.push("first", 1)
	var got []string
	for len(q.items) > 0 {
		got = append(got, q.pop().key)
	}
	if want := "high first second"; strings.Join(got, " ") != want {
		t.Errorf("want %s, got %s", want, got)
	}
}
