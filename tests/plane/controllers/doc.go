// Package controllers holds stand-ins for the part of kube-controller-manager
// that an operator leans on: garbage collection, namespaces, disruption budgets,
// quotas, aggregated roles, node lifecycle with taint eviction, and pod garbage
// collection. Each runs until its context ends.
package controllers
