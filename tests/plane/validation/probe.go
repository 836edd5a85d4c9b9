package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const initOnly = "may not be set for init containers without restartPolicy=Always"

func noLifecycle(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"lifecycle", c.Lifecycle != nil}, {"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil}, {"startupProbe", c.StartupProbe != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(path.Child(f.name), initOnly))
		}
	}
	return errs
}

func lifecycleAndProbes(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if l := c.Lifecycle; l != nil {
		for name, h := range map[string]*corev1.LifecycleHandler{"postStart": l.PostStart, "preStop": l.PreStop} {
			if h != nil {
				errs = append(errs, handlers(path.Child("lifecycle", name), h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.Sleep != nil)...)
			}
		}
	}
	errs = append(errs, probe(c.LivenessProbe, true, path.Child("livenessProbe"))...)
	errs = append(errs, probe(c.ReadinessProbe, false, path.Child("readinessProbe"))...)
	return append(errs, probe(c.StartupProbe, true, path.Child("startupProbe"))...)
}

// handlers checks that exactly one kind of handler is set.
func handlers(path *field.Path, set ...bool) field.ErrorList {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	switch {
	case n == 0:
		return field.ErrorList{field.Required(path, "must specify a handler type")}
	case n > 1:
		return field.ErrorList{field.Forbidden(path, "may not specify more than 1 handler type")}
	}
	return nil
}

func probe(p *corev1.Probe, oneSuccess bool, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := handlers(path, p.Exec != nil, p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil)
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		if f.value < 0 {
			errs = append(errs, field.Invalid(path.Child(f.name), f.value, notNegative))
		}
	}
	if oneSuccess && p.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(path.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
	}
	return errs
}
