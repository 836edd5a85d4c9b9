package validation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// valid is a pod that passes, as the defaults leave it.
func valid() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes:       []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers:    []corev1.Container{validContainer("main")},
		},
	}
}

func validContainer(name string) corev1.Container {
	return corev1.Container{Name: name, Image: "i:1", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePolicy: corev1.TerminationMessageReadFile}
}

func quantities(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func rules(n int) []corev1.ContainerRestartRule {
	return slices.Repeat([]corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
	}}, n)
}

func pin(r corev1.NodeSelectorRequirement) *corev1.Affinity {
	return required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{r}})
}

func required(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

// podCase breaks a valid pod; errors are the messages wanted, none for a pod that still passes.
type podCase struct {
	name   string
	change func(*corev1.Pod)
	errors []string
}

// inContainer changes the pod's only container.
func inContainer(f func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { f(&p.Spec.Containers[0]) }
}

func check(t *testing.T, got field.ErrorList, want []string) {
	t.Helper()
	var messages []string
	for _, e := range got {
		messages = append(messages, e.Error())
	}
	if len(messages) != len(want) {
		t.Fatalf("want %d errors %q, got %q", len(want), want, messages)
	}
	for i := range want {
		if !strings.HasPrefix(messages[i], want[i]) {
			t.Errorf("want %q, got %q", want[i], messages[i])
		}
	}
}

func run(t *testing.T, cases []podCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := valid()
			c.change(pod)
			check(t, Pod(pod), c.errors)
		})
	}
}

func TestPodSpecIsRefusedInUpstreamsWords(t *testing.T) {
	run(t, []podCase{
		{"nothing wrong", func(*corev1.Pod) {}, nil},
		{"upper case name", func(p *corev1.Pod) { p.Name = "P" }, []string{`metadata.name: Invalid value: "P": a lowercase RFC 1123 subdomain must consist of`}},
		{"no containers", func(p *corev1.Pod) { p.Spec.Containers = nil }, []string{`spec.containers: Required value`}},
		{"hostname with a dot", func(p *corev1.Pod) { p.Spec.Hostname = "a.b" }, []string{`spec.hostname: Invalid value: "a.b": must not contain dots`}},
		{"hostname of 64 characters", func(p *corev1.Pod) { p.Spec.Hostname = strings.Repeat("a", 64) }, []string{`spec.hostname: Invalid value: "` + strings.Repeat("a", 64) + `": must be no more than 63 `}},
		{"subdomain with a dot", func(p *corev1.Pod) { p.Spec.Subdomain = "a.b" }, []string{`spec.subdomain: Invalid value: "a.b": must not contain dots`}},
		{"no restart policy", func(p *corev1.Pod) { p.Spec.RestartPolicy = "" }, []string{`spec.restartPolicy: Required value`}},
		{"unknown restart policy", func(p *corev1.Pod) { p.Spec.RestartPolicy = "Maybe" }, []string{`spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"`}},
		{"deadline of zero", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](0) }, []string{`spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive`}},
		{"negative grace", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1) }, nil},
		{"gate without a name", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{}} }, []string{`spec.schedulingGates[0]: Invalid value: "": name part must be non-empty`, `spec.schedulingGates[0]: Invalid value: "": name part must consist of`}},
		{"gate twice", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "a"}} }, []string{`spec.schedulingGates[1]: Duplicate value: "a"`}},
		{"gated and bound", func(p *corev1.Pod) {
			p.Spec.NodeName, p.Spec.SchedulingGates = "n", []corev1.PodSchedulingGate{{Name: "a"}}
		}, []string{`spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared`}},
		{"preemption policy", func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptionPolicy("Always")) }, []string{`spec.preemptionPolicy: Unsupported value: "Always"`}},
		{"volume twice", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0]) }, []string{`spec.volumes[1].name: Duplicate value: "data"`}},
		{"volume of no type", func(p *corev1.Pod) { p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{} }, []string{`spec.volumes[0]: Required value: must specify a volume type`}},
		{"volume of two types", func(p *corev1.Pod) { p.Spec.Volumes[0].HostPath = &corev1.HostPathVolumeSource{Path: "/"} }, []string{`spec.volumes[0]: Forbidden: may not specify more than 1 volume type`}},
		{"priority class name", func(p *corev1.Pod) { p.Spec.PriorityClassName = "A" }, []string{`spec.priorityClassName: Invalid value: "A"`}},
	})
}

func TestANegativeGraceIsRemarkedOn(t *testing.T) {
	pod := valid()
	if w := PodWarnings(pod); len(w) != 0 {
		t.Errorf("nothing to remark on: %q", w)
	}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1)
	if w := PodWarnings(pod); len(w) != 1 || !strings.Contains(w[0], "will be treated as 1") {
		t.Errorf("%q", w)
	}
}

func TestContainersAreRefusedInUpstreamsWords(t *testing.T) {
	run(t, []podCase{
		{"name twice", func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }, []string{`spec.containers[1].name: Duplicate value: "main"`}},
		{"name of an init container", func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.Containers }, []string{`spec.initContainers[0].name: Duplicate value: "main"`}},
		{"no name", inContainer(func(c *corev1.Container) { c.Name = "" }), []string{`spec.containers[0].name: Required value`}},
		{"name not a label", inContainer(func(c *corev1.Container) { c.Name = "a_b" }), []string{`spec.containers[0].name: Invalid value: "a_b": a lowercase RFC 1123 label`}},
		{"no image", inContainer(func(c *corev1.Container) { c.Image = "" }), []string{`spec.containers[0].image: Required value`}},
		{"image with a space", inContainer(func(c *corev1.Container) { c.Image = " i" }), []string{`spec.containers[0].image: Invalid value: " i": must not have leading or trailing whitespace`}},
		{"port of zero", inContainer(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{Protocol: "TCP"}} }), []string{`spec.containers[0].ports[0].containerPort: Required value`}},
		{"port too high", inContainer(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 70000, Protocol: "TCP"}}
		}), []string{`spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive`}},
		{"port name twice", inContainer(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{Name: "a", ContainerPort: 1, Protocol: "TCP"}, {Name: "a", ContainerPort: 2, Protocol: "TCP"}}
		}), []string{`spec.containers[0].ports[1].name: Duplicate value: "a"`}},
		{"protocol", inContainer(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "IP"}}
		}), []string{`spec.containers[0].ports[0].protocol: Unsupported value: "IP": supported values: "SCTP", "TCP", "UDP"`}},
		{"env without a name", inContainer(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Value: "x"}} }), []string{`spec.containers[0].env[0].name: Required value`}},
		{"env name with an equals sign", inContainer(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "A=B"}} }), []string{`spec.containers[0].env[0].name: Invalid value: "A=B"`}},
		{"env with value and source", inContainer(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", Value: "x", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		}), []string{"spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"}},
		{"mount of no volume", inContainer(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: "/x"}} }), []string{`spec.containers[0].volumeMounts[0].name: Not found: "x"`}},
		{"mount without a path", inContainer(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "data"}} }), []string{`spec.containers[0].volumeMounts[0].mountPath: Required value`}},
		{"mount point twice", inContainer(func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/x"}, {Name: "data", MountPath: "/x"}}
		}), []string{`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique`}},
		{"liveness needs one success", inContainer(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}, SuccessThreshold: 2}
		}), []string{`spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1`}},
		{"probe of no kind", inContainer(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{SuccessThreshold: 1} }), []string{`spec.containers[0].readinessProbe: Required value: must specify a handler type`}},
		{"init container with a probe", func(p *corev1.Pod) {
			c := validContainer("init")
			c.ReadinessProbe = &corev1.Probe{}
			p.Spec.InitContainers = []corev1.Container{c}
		}, []string{`spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always`}},
		{"sidecar with a probe", func(p *corev1.Pod) {
			c := validContainer("side")
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}, SuccessThreshold: 1}
			p.Spec.InitContainers = []corev1.Container{c}
		}, nil},
	})
}

func TestResourcesAreRefusedInUpstreamsWords(t *testing.T) {
	const at = "spec.containers[0].resources."
	limits := func(l, r corev1.ResourceList) func(*corev1.Pod) {
		return inContainer(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{Limits: l, Requests: r} })
	}
	run(t, []podCase{
		{"requests within limits", limits(quantities("cpu", "2", "nvidia.com/gpu", "1"), quantities("cpu", "1", "nvidia.com/gpu", "1")), nil},
		{"request above limit", limits(quantities("cpu", "1"), quantities("cpu", "2")), []string{at + `requests: Invalid value: "2": must be less than or equal to cpu limit of 1`}},
		{"negative", limits(nil, quantities("cpu", "-1")), []string{at + `requests[cpu]: Invalid value: "-1": must be greater than or equal to 0`}},
		{"extended above limit", limits(quantities("nvidia.com/gpu", "1"), quantities("nvidia.com/gpu", "2")), []string{at + `requests: Invalid value: "2": must be equal to nvidia.com/gpu limit of 1`}},
		{"extended below limit", limits(quantities("nvidia.com/gpu", "2"), quantities("nvidia.com/gpu", "1")), []string{at + `requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2`}},
		{"extended without limit", limits(nil, quantities("nvidia.com/gpu", "1")), []string{at + `limits: Required value: Limit must be set for non overcommitable resources`}},
		{"half an extended", limits(quantities("nvidia.com/gpu", "500m"), quantities("nvidia.com/gpu", "500m")), []string{
			at + `limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer`, at + `requests[nvidia.com/gpu]: Invalid value: "500m": must be an integer`}},
		{"no such resource", limits(quantities("gpu", "1"), nil), []string{
			at + `limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified`, at + `limits[gpu]: Invalid value: "gpu": must be a standard resource for containers`}},
	})
}

func TestRestartRulesAreRefusedBeyondTheLimitsOfKEP5307(t *testing.T) {
	const at = "spec.containers[0]."
	rule := func(r corev1.ContainerRestartRule) func(*corev1.Pod) {
		return inContainer(func(c *corev1.Container) {
			c.RestartPolicy, c.RestartPolicyRules = ptr.To(corev1.ContainerRestartPolicyNever), []corev1.ContainerRestartRule{r}
		})
	}
	codes := func(n int) *corev1.ContainerRestartRuleOnExitCodes {
		return &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpNotIn, Values: make([]int32, n)}
	}
	run(t, []podCase{
		{"twenty rules", inContainer(func(c *corev1.Container) {
			c.RestartPolicy, c.RestartPolicyRules = ptr.To(corev1.ContainerRestartPolicyNever), rules(20)
		}), nil},
		{"twenty-one rules", inContainer(func(c *corev1.Container) {
			c.RestartPolicy, c.RestartPolicyRules = ptr.To(corev1.ContainerRestartPolicyNever), rules(21)
		}), []string{at + `restartPolicyRules: Too many: 21: must have at most 20 items`}},
		{"rules without a policy", inContainer(func(c *corev1.Container) { c.RestartPolicyRules = rules(1) }), []string{at + `restartPolicy: Required value: must specify restartPolicy when restart rules are used`}},
		{"unknown policy", inContainer(func(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicy("Maybe")) }), []string{at + `restartPolicy: Unsupported value: "Maybe": supported values: "Always", "Never", "OnFailure"`}},
		{"unknown action", rule(corev1.ContainerRestartRule{Action: "Terminate", ExitCodes: codes(1)}), []string{at + `restartPolicyRules[0].action: Unsupported value: "Terminate": supported values: "Restart", "RestartAllContainers"`}},
		{"no codes", rule(corev1.ContainerRestartRule{Action: "Restart"}), []string{at + `restartPolicyRules[0].exitCodes: Required value: must be specified`}},
		{"unknown operator", rule(corev1.ContainerRestartRule{Action: "Restart", ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "Equals"}}), []string{at + `restartPolicyRules[0].exitCodes.operator: Unsupported value: "Equals": supported values: "In", "NotIn"`}},
		{"255 codes", rule(corev1.ContainerRestartRule{Action: "RestartAllContainers", ExitCodes: codes(255)}), nil},
		{"256 codes", rule(corev1.ContainerRestartRule{Action: "Restart", ExitCodes: codes(256)}), []string{at + `restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items`}},
	})
}

func TestAffinityAndTolerationsAreRefusedInUpstreamsWords(t *testing.T) {
	const terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	const at = terms + "[0].matchFields[0]."
	affine := func(a *corev1.Affinity) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Affinity = a } }
	tolerate := func(x corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{x} }
	}
	run(t, []podCase{
		{"pin", affine(pin(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n"}})), nil},
		{"pin to two", affine(pin(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"a", "b"}})), []string{at + "values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector"}},
		{"pin by another field", affine(pin(corev1.NodeSelectorRequirement{Key: "metadata.uid", Operator: "In", Values: []string{"n"}})), []string{at + `key: Invalid value: "metadata.uid": not a valid field selector key`}},
		{"pin by existence", affine(pin(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "Exists"})), []string{at + `operator: Invalid value: "Exists": not a valid selector operator`}},
		{"no terms", affine(required()), []string{terms + `: Required value: must have at least one node selector term`}},
		{"In without values", affine(required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "In"}}})), []string{terms + "[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"}},
		{"seconds without NoExecute", tolerate(corev1.Toleration{Key: "a", Operator: "Exists", TolerationSeconds: ptr.To[int64](1)}), []string{"spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set"}},
		{"Equal without a key", tolerate(corev1.Toleration{Operator: "Equal"}), []string{"spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty"}},
		{"unknown effect", tolerate(corev1.Toleration{Operator: "Exists", Effect: "Maybe"}), []string{`spec.tolerations[0].effect: Unsupported value: "Maybe"`}},
	})
}

func TestPodUpdatesAreRefusedInUpstreamsWords(t *testing.T) {
	gated := func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}} }
	expression := corev1.NodeSelectorRequirement{Key: "zone", Operator: "In", Values: []string{"z"}}
	for _, c := range []struct {
		name        string
		old, change func(*corev1.Pod)
		errors      []string
	}{
		{"image", nil, inContainer(func(c *corev1.Container) { c.Image = "j" }), nil},
		{"command", nil, inContainer(func(c *corev1.Container) { c.Command = []string{"x"} }), []string{"spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"}},
		{"restart rules", nil, inContainer(func(c *corev1.Container) {
			c.RestartPolicy, c.RestartPolicyRules = ptr.To(corev1.ContainerRestartPolicyNever), rules(1)
		}), []string{"spec: Forbidden: pod updates may not change fields"}},
		{"one container more", nil, func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, validContainer("x")) }, []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"gate removed", gated, func(p *corev1.Pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] }, nil},
		{"gate added", gated, func(p *corev1.Pod) { p.Spec.SchedulingGates[1].Name = "c" }, []string{"spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'c'"}},
		{"gated, pinned", gated, func(p *corev1.Pod) {
			p.Spec.Affinity = required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expression}})
		}, nil},
		{"ungated, pinned", nil, func(p *corev1.Pod) {
			p.Spec.Affinity = required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expression}})
		}, []string{"spec: Forbidden: pod updates may not change fields"}},
		{"gated, selector added", gated, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }, nil},
		{"gated, selector changed", func(p *corev1.Pod) { gated(p); p.Spec.NodeSelector = map[string]string{"a": "b"} }, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "c"} }, []string{`spec.nodeSelector: Invalid value: {"a":"c"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)`}},
		{"gated, affinity loosened", func(p *corev1.Pod) {
			gated(p)
			p.Spec.Affinity = required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expression}})
		}, func(p *corev1.Pod) {
			p.Spec.Affinity = required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Exists"}}})
		}, []string{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: Invalid value: "}},
		{"deadline set", nil, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](9) }, nil},
		{"deadline raised", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](9) }, []string{"spec.activeDeadlineSeconds: Invalid value: 9: must be less than or equal to previous value"}},
		{"toleration added", nil, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }, nil},
		{"toleration removed", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }, func(p *corev1.Pod) { p.Spec.Tolerations = nil }, []string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := valid()
			if c.old != nil {
				c.old(old)
			}
			pod := old.DeepCopy()
			c.change(pod)
			check(t, PodUpdate(pod, old), c.errors)
		})
	}
}

func TestAContainerThatEndedForGoodStaysSo(t *testing.T) {
	for _, c := range []struct {
		policy corev1.RestartPolicy
		rules  int
		code   int32
		stays  bool
	}{
		{corev1.RestartPolicyNever, 0, 1, true},
		{corev1.RestartPolicyNever, 1, 1, false},
		{corev1.RestartPolicyOnFailure, 0, 1, false},
		{corev1.RestartPolicyOnFailure, 0, 0, true},
		{corev1.RestartPolicyAlways, 0, 0, false},
	} {
		t.Run(fmt.Sprintf("%s with %d rules after %d", c.policy, c.rules, c.code), func(t *testing.T) {
			old := valid()
			old.Spec.RestartPolicy, old.Spec.Containers[0].RestartPolicyRules = c.policy, rules(c.rules)
			old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: c.code}}}}
			pod := old.DeepCopy()
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
			var want []string
			if c.stays {
				want = []string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}
			}
			check(t, PodStatusUpdate(pod, old), want)
		})
	}
}
