package admission

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	defaultsPlugin = "PlanePodDefaults"
	defaultAccount = "default"
)

// notReadySeconds is how long a pod stays on a silent node unless it says otherwise.
const notReadySeconds = 300

// podDefaults stands in for the Priority, ServiceAccount and DefaultTolerationSeconds plugins.
type podDefaults struct {
	*admission.Handler
	classes cache.SharedIndexInformer
	client  kubernetes.Interface
}

func registerDefaults(plugins *admission.Plugins, inf informers.SharedInformerFactory, client kubernetes.Interface) {
	classes := inf.Scheduling().V1().PriorityClasses().Informer()
	plugins.Register(defaultsPlugin, func(io.Reader) (admission.Interface, error) {
		return &podDefaults{admission.NewHandler(admission.Create, admission.Update), classes, client}, nil
	})
}

func (p *podDefaults) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *schedulingv1beta1.PodGroup:
		if a.GetOperation() == admission.Create {
			return p.podGroup(ctx, a, obj)
		}
	case *corev1.Pod:
		if a.GetOperation() == admission.Create {
			return p.pod(ctx, a, obj)
		}
		if old, ok := a.GetOldObject().(*corev1.Pod); ok && obj.Spec.Priority == nil {
			obj.Spec.Priority, obj.Spec.PreemptionPolicy = old.Spec.Priority, old.Spec.PreemptionPolicy
		}
	}
	return nil
}

func (p *podDefaults) pod(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
	value, policy, err := p.resolve(ctx, a, &pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return admission.NewForbidden(a, fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value))
	}
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != policy {
		return admission.NewForbidden(a, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	if err := p.serviceAccount(ctx, a, pod); err != nil {
		return err
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !tolerates(pod.Spec.Tolerations, key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](notReadySeconds),
			})
		}
	}
	return nil
}

// serviceAccount fills in the default account and refuses one that does not
// exist. The default one is taken on trust: it appears shortly after its namespace.
func (p *podDefaults) serviceAccount(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = defaultAccount, defaultAccount
	}
	name := pod.Spec.ServiceAccountName
	if name == defaultAccount {
		return nil
	}
	if _, err := p.client.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), name, err))
	}
	return nil
}

func tolerates(list []corev1.Toleration, key string) bool {
	for _, t := range list {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}

func (p *podDefaults) podGroup(ctx context.Context, a admission.Attributes, group *schedulingv1beta1.PodGroup) error {
	value, policy, err := p.resolve(ctx, a, &group.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if group.Spec.Priority != nil && *group.Spec.Priority != value {
		return admission.NewForbidden(a, fmt.Errorf("the integer value of priority (%d) must not be provided in podgroup spec; priority admission controller computed %d from the given PriorityClass name", *group.Spec.Priority, value))
	}
	group.Spec.Priority = &value
	group.Spec.PreemptionPolicy = ptr.To(schedulingv1beta1.PreemptionPolicy(policy))
	return nil
}

// resolve finds the class by name, or the global default, whose name it fills in.
func (p *podDefaults) resolve(ctx context.Context, a admission.Attributes, name *string) (int32, corev1.PreemptionPolicy, error) {
	if *name == "" {
		class := p.globalDefault()
		if class == nil {
			return 0, corev1.PreemptLowerPriority, nil
		}
		*name = class.Name
		return class.Value, ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority), nil
	}
	class, err := p.class(ctx, *name)
	if apierrors.IsNotFound(err) {
		return 0, "", admission.NewForbidden(a, fmt.Errorf("no PriorityClass with name %v was found", *name))
	} else if err != nil {
		return 0, "", err
	}
	return class.Value, ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority), nil
}

// class asks the server itself for a class that the cache has not seen yet.
func (p *podDefaults) class(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if obj, ok, _ := p.classes.GetStore().GetByKey(name); ok {
		return obj.(*schedulingv1.PriorityClass), nil
	}
	return p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
}

func (p *podDefaults) globalDefault() *schedulingv1.PriorityClass {
	var lowest *schedulingv1.PriorityClass
	for _, obj := range p.classes.GetStore().List() {
		if c := obj.(*schedulingv1.PriorityClass); c.GlobalDefault && (lowest == nil || c.Value < lowest.Value) {
			lowest = c
		}
	}
	return lowest
}
