package apis

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// def sets *p to v where it is unset.
func def[T any](p **T, v T) {
	if *p == nil {
		*p = ptr.To(v)
	}
}

// defs sets *p to v where it is empty.
func defs[T ~string](p *T, v T) {
	if *p == "" {
		*p = v
	}
}

func addDefaults() {
	Scheme.AddTypeDefaultingFunc(&corev1.Pod{}, func(o any) { p := o.(*corev1.Pod); defaultPodSpec(&p.Spec) })
	Scheme.AddTypeDefaultingFunc(&corev1.PodList{}, func(o any) {
		l := o.(*corev1.PodList)
		for i := range l.Items {
			defaultPodSpec(&l.Items[i].Spec)
		}
	})
	Scheme.AddTypeDefaultingFunc(&appsv1.Deployment{}, func(o any) {
		d := o.(*appsv1.Deployment)
		def(&d.Spec.Replicas, 1)
		def(&d.Spec.RevisionHistoryLimit, 10)
		def(&d.Spec.ProgressDeadlineSeconds, 600)
		defs(&d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
		if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
			def(&d.Spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
			def(&d.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
			def(&d.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		}
		defaultPodSpec(&d.Spec.Template.Spec)
	})
	Scheme.AddTypeDefaultingFunc(&appsv1.StatefulSet{}, func(o any) {
		d := o.(*appsv1.StatefulSet)
		def(&d.Spec.Replicas, 1)
		def(&d.Spec.RevisionHistoryLimit, 10)
		defs(&d.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
		defs(&d.Spec.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
		defaultPodSpec(&d.Spec.Template.Spec)
	})
	Scheme.AddTypeDefaultingFunc(&appsv1.DaemonSet{}, func(o any) {
		d := o.(*appsv1.DaemonSet)
		def(&d.Spec.RevisionHistoryLimit, 10)
		defs(&d.Spec.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
		defaultPodSpec(&d.Spec.Template.Spec)
	})
	Scheme.AddTypeDefaultingFunc(&batchv1.Job{}, func(o any) {
		j := o.(*batchv1.Job)
		if j.Spec.Completions == nil && j.Spec.Parallelism == nil {
			j.Spec.Completions = ptr.To[int32](1)
		}
		def(&j.Spec.Parallelism, 1)
		def(&j.Spec.BackoffLimit, 6)
		def(&j.Spec.CompletionMode, batchv1.NonIndexedCompletion)
		def(&j.Spec.Suspend, false)
		def(&j.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
		def(&j.Spec.ManualSelector, false)
		defaultPodSpec(&j.Spec.Template.Spec)
	})
	Scheme.AddTypeDefaultingFunc(&corev1.Service{}, func(o any) {
		s := o.(*corev1.Service)
		defs(&s.Spec.Type, corev1.ServiceTypeClusterIP)
		defs(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
		def(&s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
		def(&s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			defs(&p.Protocol, corev1.ProtocolTCP)
			if p.TargetPort == (intstr.IntOrString{}) {
				p.TargetPort = intstr.FromInt32(p.Port)
			}
		}
	})
	Scheme.AddTypeDefaultingFunc(&corev1.Secret{}, func(o any) { defs(&o.(*corev1.Secret).Type, corev1.SecretTypeOpaque) })
	Scheme.AddTypeDefaultingFunc(&corev1.Namespace{}, func(o any) {
		n := o.(*corev1.Namespace)
		if n.Name != "" {
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels["kubernetes.io/metadata.name"] = n.Name
		}
	})
	Scheme.AddTypeDefaultingFunc(&corev1.Node{}, func(o any) {
		n := o.(*corev1.Node)
		if n.Status.Allocatable == nil && n.Status.Capacity != nil {
			n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		}
	})
	Scheme.AddTypeDefaultingFunc(&schedulingv1.PriorityClass{}, func(o any) {
		def(&o.(*schedulingv1.PriorityClass).PreemptionPolicy, corev1.PreemptLowerPriority)
	})
	Scheme.AddTypeDefaultingFunc(&schedulingv1beta1.PodGroup{}, func(o any) {
		g := o.(*schedulingv1beta1.PodGroup)
		if g.Spec.DisruptionMode == nil {
			g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
		}
	})
	addAdmissionDefaults()
	addFlowControlDefaults()
}
