package binder

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	listersv1 "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// judge is the whole message that a pod gets; "" if it finds a node.
func judge(s *state, pod *corev1.Pod, switches *Switches) string {
	q := s.ask(pod, switches)
	node, v := s.pick(q)
	if node != "" {
		return ""
	}
	_, why := s.preempt(q, v)
	return v.String() + why
}

// shelf is storage with these claims, volumes and classes.
func shelf(t *testing.T, objects ...runtime.Object) storage {
	t.Helper()
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	pvcs, pvs, classes := index(), index(), index()
	for _, o := range objects {
		into := pvcs
		switch o.(type) {
		case *corev1.PersistentVolume:
			into = pvs
		case *storagev1.StorageClass:
			into = classes
		}
		if err := into.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return storage{listersv1.NewPersistentVolumeClaimLister(pvcs), listersv1.NewPersistentVolumeLister(pvs), storagelisters.NewStorageClassLister(classes)}
}

func claims(pod *corev1.Pod, name string) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
}

func term(key, value, topology string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
}

func far(t corev1.PodAffinityTerm) *corev1.PodAntiAffinity {
	return &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{t}}
}

func near(t corev1.PodAffinityTerm) *corev1.Affinity {
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{t}}}
}

// says checks what the first sentence of a refusal says of nodes; "" for a pod that finds one.
func says(t *testing.T, what string, s *state, pod *corev1.Pod, want string) {
	t.Helper()
	_, reasons, _ := strings.Cut(judge(s, pod, &Switches{}), " nodes are available: ")
	reasons, _, _ = strings.Cut(reasons, ". ")
	if reasons = strings.TrimSuffix(reasons, "."); reasons != want {
		t.Errorf("%s: want %q, got %q", what, want, reasons)
	}
}

// zones are two nodes, each in a zone of its own.
func zones() *state { return cluster(makeNode("a", "8", nil), makeNode("b", "8", nil)) }

func labelled(name, app string) *corev1.Pod {
	pod := makePod(name, "1", 0)
	pod.Labels = map[string]string{"app": app}
	return pod
}

func TestHostPortsConflictByAddressAndProtocol(t *testing.T) {
	const taken = "1 node(s) didn't have free ports for the requested pod ports"
	for _, c := range []struct {
		what string
		port corev1.ContainerPort
		want string
	}{
		{"the same", corev1.ContainerPort{HostPort: 80, Protocol: corev1.ProtocolTCP}, taken},
		{"one address of all", corev1.ContainerPort{HostPort: 80, Protocol: corev1.ProtocolTCP, HostIP: "10.0.0.1"}, taken},
		{"another protocol", corev1.ContainerPort{HostPort: 80, Protocol: corev1.ProtocolUDP}, ""},
		{"another port", corev1.ContainerPort{HostPort: 81, Protocol: corev1.ProtocolTCP}, ""},
		{"no host port", corev1.ContainerPort{ContainerPort: 80, Protocol: corev1.ProtocolTCP}, ""},
	} {
		s := cluster(makeNode("a", "8", nil))
		daemon := makePod("daemon", "1", 0)
		daemon.Spec.InitContainers = []corev1.Container{{RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
			Ports: []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}}}}
		s.place(daemon, "a")
		pod := makePod("p", "1", 0)
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{c.port}
		says(t, c.what, s, pod, c.want)
	}
}

func TestNodesAreRefusedForWhatTheyAre(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*corev1.Node)
		want   string
	}{
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, "1 node(s) were unschedulable"},
		{"tainted", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}} }, "1 node(s) had untolerated taint(s)"},
		{"silent", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, "1 node(s) had untolerated taint(s)"},
		{"discouraged", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, ""},
		{"crowded", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0") }, "1 Too many pods"},
		{"small and crowded", func(n *corev1.Node) { n.Status.Allocatable = nil }, "1 Insufficient gpu.dev/gpu, 1 Too many pods"},
	} {
		says(t, c.what, cluster(makeNode("a", "8", c.change)), makePod("p", "1", 0), c.want)
	}
	restarts := makePod("r", "1", 0)
	restarts.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	says(t, "undeclared", zones(), restarts, "2 node(s) didn't match Pod's required features")
}

func TestRequiredPodAffinityHolds(t *testing.T) {
	beside := func(app string) *corev1.Pod {
		p := labelled("p", "p")
		p.Spec.Affinity = near(term("app", app, "zone"))
		return p
	}
	apart := func(t corev1.PodAffinityTerm) *corev1.Pod {
		p := labelled("p", "p")
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: far(t)}
		return p
	}
	only := func(pod *corev1.Pod, node string) *corev1.Pod {
		pod.Spec.NodeSelector = map[string]string{"zone": node}
		return pod
	}
	elsewhere := term("app", "x", "zone")
	elsewhere.Namespaces = []string{"other"}
	labelledNamespace := term("app", "x", "zone")
	labelledNamespace.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"beside nobody there", beside("nobody"), "2 node(s) didn't match pod affinity rules"},
		{"beside its own kind, of which it is the first", beside("p"), ""},
		{"beside x", only(beside("x"), "a"), ""},
		{"beside x, in the zone without it", only(beside("x"), "b"), "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod affinity rules"},
		{"apart from x", apart(term("app", "x", "zone")), ""},
		{"apart from x, in its zone", only(apart(term("app", "x", "zone")), "a"), "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod anti-affinity rules"},
		{"apart from x of another namespace", only(apart(elsewhere), "a"), ""},
		{"apart from x of such a namespace", only(apart(labelledNamespace), "a"), "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) didn't match pod anti-affinity rules"},
		{"beside a label that no node has", func() *corev1.Pod {
			p := labelled("p", "p")
			p.Spec.Affinity = near(term("app", "p", "rack"))
			return p
		}(), "2 node(s) didn't match pod affinity rules"},
	} {
		s := zones()
		s.namespaceLabels = func(string) labels.Set { return labels.Set{"team": "red"} }
		s.place(labelled("x", "x"), "a")
		says(t, c.what, s, c.pod, c.want)
	}
}

func TestAPodThatRunsKeepsOthersOff(t *testing.T) {
	s := cluster(makeNode("a", "8", nil))
	loner := labelled("loner", "loner")
	loner.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: far(term("app", "p", "zone"))}
	const kept = "1 node(s) didn't satisfy existing pods anti-affinity rules"
	s.nominate(loner, "a")
	says(t, "nominated", s, labelled("p", "p"), kept)
	s.nominate(loner, "")
	s.place(loner, "a")
	says(t, "running", s, labelled("p", "p"), kept)
	says(t, "of another kind", s, labelled("q", "q"), "")
	s.place(loner, "")
	says(t, "gone", s, labelled("p", "p"), "")
}

func TestSpreadThatMustHoldHolds(t *testing.T) {
	rule := func(change func(*corev1.TopologySpreadConstraint)) *corev1.Pod {
		p := labelled("p", "p")
		c := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "p"}}}
		if change != nil {
			change(&c)
		}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c}
		return p
	}
	const broken = "node(s) didn't match pod topology spread constraints"
	only := func(pod *corev1.Pod, node string) *corev1.Pod {
		pod.Spec.NodeSelector = map[string]string{"zone": node}
		return pod
	}
	ignoring := func(c *corev1.TopologySpreadConstraint) {
		c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
	}
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"the other zone", rule(nil), ""},
		{"zone a counts alone for a pod of zone a", only(rule(nil), "a"), ""},
		{"zone a, and b counts", only(rule(ignoring), "a"), "1 node(s) didn't match Pod's node affinity/selector, 1 " + broken},
		{"a label that no node has", rule(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = "rack" }), "2 " + broken + " (missing required label)"},
		{"a wish", only(rule(func(c *corev1.TopologySpreadConstraint) { ignoring(c); c.WhenUnsatisfiable = corev1.ScheduleAnyway }), "a"), ""},
		{"more zones than there are", only(rule(func(c *corev1.TopologySpreadConstraint) { c.MinDomains = ptr.To[int32](3) }), "a"), "1 node(s) didn't match Pod's node affinity/selector, 1 " + broken},
		{"of the same generation only", only(rule(func(c *corev1.TopologySpreadConstraint) { ignoring(c); c.MatchLabelKeys = []string{"generation"} }), "a"), "1 node(s) didn't match Pod's node affinity/selector, 1 " + broken},
	} {
		s := zones()
		s.place(labelled("p0", "p"), "a")
		says(t, c.what, s, c.pod, c.want)
	}
	s := zones()
	ending := labelled("p0", "p")
	ending.DeletionTimestamp = &metav1.Time{}
	s.place(ending, "a")
	says(t, "a pod that ends does not count", s, only(rule(ignoring), "a"), "")
}

func TestClaimsHaveToBeThereAndBoundToAVolumeOfTheNode(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{volume.AnnBindCompleted: "yes"}},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv", StorageClassName: ptr.To("late")}}
		change(c)
		return c
	}
	zonal := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"c"}}}}}}}}}
	late := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	local := late.DeepCopy()
	local.Provisioner = "kubernetes.io/no-provisioner"
	elsewhere := late.DeepCopy()
	elsewhere.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"c"}}}}}
	free := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "free"}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "late"}}
	taken := free.DeepCopy()
	taken.Spec.ClaimRef = &corev1.ObjectReference{Name: "other"}
	anywhere := zonal.DeepCopy()
	anywhere.Spec.NodeAffinity = nil
	asIs := func(*corev1.PersistentVolumeClaim) {}
	unbound := func(class string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Annotations, c.Spec.StorageClassName = "", nil, &class
		}
	}
	for _, c := range []struct {
		what    string
		storage []runtime.Object
		want    string
	}{
		{"missing", nil, `persistentvolumeclaim "data" not found`},
		{"lost", []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })}, `persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"`},
		{"going", []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} })}, `persistentvolumeclaim "data" is being deleted`},
		{"unbound", []runtime.Object{claim(unbound("now"))}, "pod has unbound immediate PersistentVolumeClaims"},
		{"unbound, and to be bound for a pod", []runtime.Object{claim(unbound("late")), late}, ""},
		{"of a class that makes no volumes", []runtime.Object{claim(unbound("late")), local}, "2 node(s) didn't find available persistent volumes to bind"},
		{"of such a class whose volume is another's", []runtime.Object{claim(unbound("late")), local, taken}, "2 node(s) didn't find available persistent volumes to bind"},
		{"of such a class that has a free volume", []runtime.Object{claim(unbound("late")), local, free}, ""},
		{"of a class that makes volumes elsewhere", []runtime.Object{claim(unbound("late")), elsewhere}, "2 node(s) didn't find available persistent volumes to bind"},
		{"half bound", []runtime.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }), late}, "pod has unbound immediate PersistentVolumeClaims"},
		{"bound to nothing", []runtime.Object{claim(asIs)}, `persistentvolume "pv" not found`},
		{"bound to a volume elsewhere", []runtime.Object{claim(asIs), zonal}, "2 node(s) didn't match PersistentVolume's node affinity"},
		{"bound", []runtime.Object{claim(asIs), anywhere}, ""},
	} {
		s := zones()
		s.storage = shelf(t, c.storage...)
		pod := makePod("p", "1", 0)
		claims(pod, "data")
		says(t, c.what, s, pod, c.want)
	}
}

func TestAClaimOfOnePodKeepsOthersOff(t *testing.T) {
	s := zones()
	s.storage = shelf(t,
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{volume.AnnBindCompleted: "yes"}},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}}})
	pod, other := makePod("p", "1", 0), makePod("other", "1", 0)
	claims(pod, "data")
	claims(other, "data")
	says(t, "nobody mounts it", s, pod, "")
	s.place(other, "a")
	says(t, "another pod mounts it", s, pod, "2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
}
