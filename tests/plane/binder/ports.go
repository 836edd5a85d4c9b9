package binder

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"
)

// hasFreePorts keeps host ports apart (plugin NodePorts).
func hasFreePorts(q *question, n *nodeState) *refusal {
	wanted := hostPorts(q.pod)
	if len(wanted) == 0 {
		return nil
	}
	used := framework.HostPortInfo{}
	for pod := range q.podsOn(n) {
		for _, p := range hostPorts(pod) {
			used.Add(p.HostIP, string(p.Protocol), p.HostPort)
		}
	}
	if slices.ContainsFunc(wanted, func(p corev1.ContainerPort) bool { return used.CheckConflict(p.HostIP, string(p.Protocol), p.HostPort) }) {
		return no("node(s) didn't have free ports for the requested pod ports")
	}
	return nil
}

// hostPorts are those of containers and sidecars.
func hostPorts(pod *corev1.Pod) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	take := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, p)
			}
		}
	}
	for i := range pod.Spec.Containers {
		take(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	return out
}
