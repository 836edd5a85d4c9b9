package apis

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func defaultPodSpec(s *corev1.PodSpec) {
	defs(&s.RestartPolicy, corev1.RestartPolicyAlways)
	defs(&s.DNSPolicy, corev1.DNSClusterFirst)
	defs(&s.SchedulerName, corev1.DefaultSchedulerName)
	def(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	def(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
		if s.HostNetwork {
			hostPorts(s.Containers[i].Ports)
		}
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Volumes {
		v := &s.Volumes[i].VolumeSource
		if *v == (corev1.VolumeSource{}) {
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		switch {
		case v.Secret != nil:
			def(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
		case v.ConfigMap != nil:
			def(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
		case v.DownwardAPI != nil:
			def(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
			for j := range v.DownwardAPI.Items {
				if f := v.DownwardAPI.Items[j].FieldRef; f != nil {
					defs(&f.APIVersion, "v1")
				}
			}
		case v.Projected != nil:
			def(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		case v.HostPath != nil:
			def(&v.HostPath.Type, corev1.HostPathUnset)
		}
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		last := c.Image[strings.LastIndex(c.Image, "/")+1:]
		tag := ""
		if i := strings.LastIndex(last, ":"); i >= 0 {
			tag = last[i+1:]
		}
		if (tag == "" || tag == "latest") && !strings.Contains(last, "@") {
			c.ImagePullPolicy = corev1.PullAlways
		} else {
			c.ImagePullPolicy = corev1.PullIfNotPresent
		}
	}
	defs(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	defs(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		defs(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil && f.FieldRef != nil {
			defs(&f.FieldRef.APIVersion, "v1")
		}
	}
	for k, v := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[k]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[k] = v.DeepCopy()
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		for f, v := range map[*int32]int32{&p.TimeoutSeconds: 1, &p.PeriodSeconds: 10, &p.SuccessThreshold: 1, &p.FailureThreshold: 3} {
			if *f == 0 {
				*f = v
			}
		}
		if p.HTTPGet != nil {
			defs(&p.HTTPGet.Path, "/")
			defs(&p.HTTPGet.Scheme, corev1.URISchemeHTTP)
		}
	}
}

// hostPorts are the container's own in the host's network.
func hostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		if ports[i].HostPort == 0 {
			ports[i].HostPort = ports[i].ContainerPort
		}
	}
}
