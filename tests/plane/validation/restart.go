package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Limits of KEP-5307.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// restartRules checks a container's own restartPolicy and its restartPolicyRules (KEP-5307, KEP-5532).
func restartRules(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	policies := []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure}
	if p := c.RestartPolicy; p != nil && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), *p, policies))
	}
	rules := path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		errs = append(errs, field.TooMany(rules, n, maxRestartRules))
	}
	for i := range c.RestartPolicyRules {
		errs = append(errs, restartRule(&c.RestartPolicyRules[i], rules.Index(i))...)
	}
	return errs
}

func restartRule(rule *corev1.ContainerRestartRule, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	actions := []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers}
	if !slices.Contains(actions, rule.Action) {
		errs = append(errs, field.NotSupported(path.Child("action"), rule.Action, actions))
	}
	codes := path.Child("exitCodes")
	if rule.ExitCodes == nil {
		return append(errs, field.Required(codes, "must be specified"))
	}
	operators := []corev1.ContainerRestartRuleOnExitCodesOperator{corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn}
	if !slices.Contains(operators, rule.ExitCodes.Operator) {
		errs = append(errs, field.NotSupported(codes.Child("operator"), rule.ExitCodes.Operator, operators))
	}
	if n := len(rule.ExitCodes.Values); n > maxExitCodes {
		errs = append(errs, field.TooMany(codes.Child("values"), n, maxExitCodes))
	}
	return errs
}

// PodStatusUpdate checks an update of a pod's status: a container that ended for
// good must not come back to life.
func PodStatusUpdate(pod, old *corev1.Pod) field.ErrorList {
	status := field.NewPath("status")
	errs := transitions(pod.Status.ContainerStatuses, old.Status.ContainerStatuses, old.Spec.Containers, old, status.Child("containerStatuses"))
	return append(errs, transitions(pod.Status.InitContainerStatuses, old.Status.InitContainerStatuses, old.Spec.InitContainers, old, status.Child("initContainerStatuses"))...)
}

func transitions(now, before []corev1.ContainerStatus, specs []corev1.Container, pod *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, b := range before {
		if b.State.Terminated == nil || mayRestart(b.Name, b.State.Terminated.ExitCode, specs, pod) {
			continue
		}
		for i, n := range now {
			if n.Name == b.Name && n.State.Terminated == nil {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

// mayRestart says whether a container that ended with the code may run again.
// Rules are not evaluated: with any of them in play the kubelet is trusted.
func mayRestart(name string, code int32, specs []corev1.Container, pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if slices.ContainsFunc(containers[i].RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
				return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
			}) {
				return true
			}
		}
	}
	policy := corev1.ContainerRestartPolicy(pod.Spec.RestartPolicy)
	for i := range specs {
		if c := &specs[i]; c.Name == name {
			if len(c.RestartPolicyRules) > 0 {
				return true
			}
			policy = ptr.Deref(c.RestartPolicy, policy)
		}
	}
	return policy == corev1.ContainerRestartPolicyAlways || policy == corev1.ContainerRestartPolicyOnFailure && code != 0
}
