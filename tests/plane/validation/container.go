package validation

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// containers checks regular and init containers; names are unique over both.
func containers(spec *corev1.PodSpec, volumes sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	regular, inits := path.Child("containers"), path.Child("initContainers")
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(regular, ""))
	}
	names := sets.New[string]()
	for i := range spec.Containers {
		errs = append(errs, container(&spec.Containers[i], names, volumes, regular.Index(i))...)
		errs = append(errs, hostPorts(&spec.Containers[i], spec.HostNetwork, regular.Index(i))...)
		errs = append(errs, lifecycleAndProbes(&spec.Containers[i], regular.Index(i))...)
	}
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], inits.Index(i)
		errs = append(errs, container(c, names, volumes, at)...)
		if Sidecar(c) {
			errs = append(errs, lifecycleAndProbes(c, at)...)
		} else {
			errs = append(errs, noLifecycle(c, at)...)
		}
	}
	return errs
}

// Sidecar says whether an init container keeps running beside the regular ones.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func container(c *corev1.Container, names, volumes sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := path.Child("name")
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(name, ""))
	case names.Has(c.Name):
		errs = append(errs, field.Duplicate(name, c.Name))
	default:
		errs = append(errs, invalid(name, c.Name, utilvalidation.IsDNS1123Label(c.Name))...)
	}
	names.Insert(c.Name)
	switch image := path.Child("image"); {
	case c.Image == "":
		errs = append(errs, field.Required(image, ""))
	case c.Image != strings.TrimSpace(c.Image):
		errs = append(errs, field.Invalid(image, c.Image, "must not have leading or trailing whitespace"))
	}
	switch c.ImagePullPolicy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, field.NotSupported(path.Child("imagePullPolicy"), c.ImagePullPolicy, []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}))
	}
	switch c.TerminationMessagePolicy {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
	default:
		errs = append(errs, field.NotSupported(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, []corev1.TerminationMessagePolicy{corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError}))
	}
	errs = append(errs, ports(c.Ports, path.Child("ports"))...)
	errs = append(errs, environment(c.Env, path.Child("env"))...)
	errs = append(errs, volumeMounts(c.VolumeMounts, volumes, path.Child("volumeMounts"))...)
	errs = append(errs, resources(&c.Resources, path.Child("resources"))...)
	return append(errs, restartRules(c, path)...)
}

func ports(list []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range list {
		at := path.Index(i)
		if p.Name != "" {
			if messages := utilvalidation.IsValidPortName(p.Name); len(messages) > 0 {
				errs = append(errs, invalid(at.Child("name"), p.Name, messages)...)
			} else if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, invalid(at.Child("containerPort"), p.ContainerPort, utilvalidation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, invalid(at.Child("hostPort"), p.HostPort, utilvalidation.IsValidPortNum(int(p.HostPort)))...)
		}
		errs = append(errs, protocol(p.Protocol, at.Child("protocol"))...)
	}
	return errs
}

func protocol(p corev1.Protocol, path *field.Path) field.ErrorList {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, p, []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP})}
}

func hostPorts(c *corev1.Container, hostNetwork bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range c.Ports {
		if hostNetwork && p.HostPort != p.ContainerPort {
			errs = append(errs, field.Invalid(path.Child("ports").Index(i).Child("hostPort"), p.HostPort, "must match `containerPort` when `hostNetwork` is true"))
		}
	}
	return errs
}

func environment(vars []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range vars {
		v, at := &vars[i], path.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, invalid(at.Child("name"), v.Name, utilvalidation.IsRelaxedEnvVarName(v.Name))...)
		}
		if v.ValueFrom != nil {
			errs = append(errs, envSource(v, at.Child("valueFrom"))...)
		}
	}
	return errs
}

func envSource(v *corev1.EnvVar, path *field.Path) field.ErrorList {
	sources, from := 0, reflect.ValueOf(v.ValueFrom).Elem()
	for i := range from.NumField() {
		if !from.Field(i).IsNil() {
			sources++
		}
	}
	switch {
	case sources == 0:
		return field.ErrorList{field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")}
	case v.Value != "":
		return field.ErrorList{field.Invalid(path, "", "may not be specified when `value` is not empty")}
	case sources > 1:
		return field.ErrorList{field.Invalid(path, "", "may not have more than one field specified at a time")}
	}
	return nil
}

func volumeMounts(mounts []corev1.VolumeMount, volumes sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	points := sets.New[string]()
	for i, m := range mounts {
		at := path.Index(i)
		switch {
		case m.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case !volumes.Has(m.Name):
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		switch {
		case m.MountPath == "":
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		case points.Has(m.MountPath):
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		points.Insert(m.MountPath)
		if m.SubPath != "" && m.SubPathExpr != "" {
			errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
	}
	return errs
}
