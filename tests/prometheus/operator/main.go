// Command operator reads objects for Prometheus' operator into the types of that operator, strictly: a field that they do
// not have, or of another type, is an error. Arguments are files; each holds one object.
package main

import (
	"fmt"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	failed := len(os.Args) == 1
	for _, path := range os.Args[1:] {
		if err := read(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var of struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(text, &of); err != nil {
		return err
	}
	if want := monitoring.SchemeGroupVersion.String(); of.APIVersion != want {
		return fmt.Errorf("apiVersion %q is not %s", of.APIVersion, want)
	}
	object, known := map[string]any{
		monitoring.PodMonitorsKind:     &monitoring.PodMonitor{},
		monitoring.PrometheusRuleKind:  &monitoring.PrometheusRule{},
		monitoring.ServiceMonitorsKind: &monitoring.ServiceMonitor{},
	}[of.Kind]
	if !known {
		return fmt.Errorf("unknown kind %q", of.Kind)
	}
	return yaml.UnmarshalStrict(text, object)
}
