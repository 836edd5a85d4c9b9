package validation

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
)

func TestServicesAreRefusedInUpstreamsWords(t *testing.T) {
	port := func(name string, n int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: n, Protocol: corev1.ProtocolTCP}
	}
	for _, c := range []struct {
		name   string
		spec   corev1.ServiceSpec
		errors []string
	}{
		{"headless without ports", corev1.ServiceSpec{ClusterIP: "None"}, nil},
		{"no ports", corev1.ServiceSpec{}, []string{"spec.ports: Required value"}},
		{"two ports without names", corev1.ServiceSpec{Ports: []corev1.ServicePort{port("", 1), port("b", 2)}}, []string{"spec.ports[0].name: Required value"}},
		{"port name twice", corev1.ServiceSpec{Ports: []corev1.ServicePort{port("b", 1), port("b", 2)}}, []string{`spec.ports[1].name: Duplicate value: "b"`}},
		{"port too high", corev1.ServiceSpec{Ports: []corev1.ServicePort{port("", 65536)}}, []string{"spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive"}},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, Service(&corev1.Service{Spec: c.spec}), c.errors) })
	}
}

func TestAServiceKeepsItsAddress(t *testing.T) {
	old := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None"}}
	svc := old.DeepCopy()
	svc.Spec.ClusterIP = "10.96.0.9"
	svc.Spec.Ports = []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}}
	check(t, ServiceUpdate(svc, old), []string{`spec.clusterIPs[0]: Invalid value: ["10.96.0.9"]: may not change once set`})
}

func TestAPriorityClassKeepsItsValue(t *testing.T) {
	class := func(v int32) *schedulingv1.PriorityClass { return &schedulingv1.PriorityClass{Value: v} }
	check(t, PriorityClassUpdate(class(2), class(1)), []string{"value: Forbidden: may not be changed in an update."})
	check(t, PriorityClass(class(1_000_000_001)), []string{"value: Forbidden: maximum allowed value of a user defined priority is 1000000000"})
}

func TestAGangsMinimumIsAllThatChangesInAPodGroup(t *testing.T) {
	group := func(min int32, class string) *schedulingv1beta1.PodGroup {
		return &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{PriorityClassName: class,
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: min}}}}
	}
	check(t, PodGroupUpdate(group(3, "a"), group(2, "a")), nil)
	check(t, PodGroupUpdate(group(2, "b"), group(2, "a")), []string{`spec: Invalid value: "": field is immutable`})
	check(t, PodGroupUpdate(group(0, "a"), group(2, "a")), []string{"spec.schedulingPolicy.gang.minCount: Invalid value: 0: must be greater than or equal to 1"})
}

func TestTemplatesAreCheckedWithTheirOwner(t *testing.T) {
	spec := valid().Spec
	job := &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: *spec.DeepCopy()}}}
	check(t, Job(job), nil)
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	job.Spec.Template.Spec.Containers[0].Image = ""
	check(t, Job(job), []string{
		"spec.template.spec.containers[0].image: Required value",
		`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`,
	})
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "c"}}, Spec: *spec.DeepCopy()},
	}}
	check(t, Deployment(d), []string{
		`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
		"spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`",
	})
}
