package auth

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	aggregateTo     = "rbac.authorization.k8s.io/aggregate-to-"
	bootstrapLabel  = "kubernetes.io/bootstrapping"
	bootstrapValue  = "rbac-defaults"
	allAuthed       = "system:authenticated"
	allUnauthed     = "system:unauthenticated"
	nodeClusterRole = "system:node"
	collectorRole   = "system:controller:" + GarbageCollector
)

// GarbageCollector is the collector's service account in kube-system, and the
// end of its role's name.
const GarbageCollector = "generic-garbage-collector"

var (
	read  = []string{"get", "list", "watch"}
	write = []string{"create", "delete", "deletecollection", "patch", "update"}
)

func rule(verbs []string, group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
}

func paths(urls ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: urls}
}

// DefaultRoles are the cluster roles that every cluster has, as far as an
// operator's tests meet them.
func DefaultRoles() []*rbacv1.ClusterRole {
	everything := rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}
	anyPath := rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}
	return []*rbacv1.ClusterRole{
		role("cluster-admin", everything, anyPath),
		aggregated("admin", "admin"),
		aggregated("edit", "edit"),
		aggregated("view", "view"),
		feeding("system:aggregate-to-admin", "admin",
			rule([]string{"create"}, "authorization.k8s.io", "localsubjectaccessreviews"),
			rule(append(write, read...), "rbac.authorization.k8s.io", "roles", "rolebindings")),
		feeding("system:aggregate-to-edit", "edit", editRules()...),
		feeding("system:aggregate-to-view", "view", viewRules()...),
		role("system:basic-user",
			rule([]string{"create"}, "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
			rule([]string{"create"}, "authentication.k8s.io", "selfsubjectreviews")),
		role("system:discovery", paths("/healthz", "/livez", "/readyz", "/version", "/version/", "/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")),
		role("system:public-info-viewer", paths("/healthz", "/livez", "/readyz", "/version", "/version/")),
		role(nodeClusterRole, nodeRules()...),
		role(collectorRole, rule([]string{"get", "list", "watch", "patch", "update", "delete"}, "*", "*")),
	}
}

func editRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(write, "", "pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "configmaps", "secrets",
			"services", "serviceaccounts", "persistentvolumeclaims", "events"),
		rule(read, "", "secrets"),
		rule([]string{"create"}, "", "pods/eviction", "serviceaccounts/token"),
		rule([]string{"impersonate"}, "", "serviceaccounts"),
		rule(write, "apps", "deployments", "daemonsets", "statefulsets"),
		rule(write, "batch", "jobs"),
		rule(write, "policy", "poddisruptionbudgets"),
		rule(append(write, read...), "coordination.k8s.io", "leases"),
	}
}

func viewRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(read, "", "pods", "pods/log", "pods/status", "configmaps", "services", "serviceaccounts",
			"persistentvolumeclaims", "events", "namespaces", "resourcequotas", "resourcequotas/status"),
		rule(read, "apps", "deployments", "daemonsets", "statefulsets"),
		rule(read, "batch", "jobs", "jobs/status"),
		rule(read, "policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
		rule(read, "discovery.k8s.io", "endpointslices"),
	}
}

// nodeRules stand in for the node authorizer: what a kubelet does, without the
// restriction to its own node.
func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule([]string{"create", "get", "list", "watch", "update", "patch"}, "", "nodes"),
		rule([]string{"update", "patch"}, "", "nodes/status", "pods/status"),
		rule([]string{"get", "list", "watch", "create", "delete"}, "", "pods"),
		rule([]string{"create"}, "", "pods/eviction", "serviceaccounts/token"),
		rule(read, "", "configmaps", "secrets", "services", "persistentvolumeclaims"),
		rule([]string{"create", "update", "patch"}, "", "events"),
		rule([]string{"create", "update", "patch"}, "events.k8s.io", "events"),
		rule([]string{"create", "get", "update", "patch", "delete"}, "coordination.k8s.io", "leases"),
	}
}

func role(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{bootstrapLabel: bootstrapValue}}, Rules: rules}
}

// aggregated is a role whose rules are collected from those labelled for it.
// The roles nest: what viewers may do, editors and admins may, too.
func aggregated(name, label string) *rbacv1.ClusterRole {
	r := role(name)
	r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{aggregateTo + label: "true"}}}}
	switch name {
	case "edit":
		r.Labels[aggregateTo+"admin"] = "true"
	case "view":
		r.Labels[aggregateTo+"edit"] = "true"
	}
	return r
}

func feeding(name, target string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := role(name, rules...)
	r.Labels[aggregateTo+target] = "true"
	return r
}

// DefaultBindings bind the default roles.
func DefaultBindings() []*rbacv1.ClusterRoleBinding {
	collector := binding(collectorRole)
	collector.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: GarbageCollector}}
	return []*rbacv1.ClusterRoleBinding{
		binding("cluster-admin", "system:masters"),
		binding("system:basic-user", allAuthed),
		binding("system:discovery", allAuthed),
		binding("system:public-info-viewer", allAuthed, allUnauthed),
		binding(nodeClusterRole, "system:nodes"),
		collector,
	}
}

func binding(roleName string, groups ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: roleName, Labels: map[string]string{bootstrapLabel: bootstrapValue}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName},
	}
	for _, g := range groups {
		b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: g})
	}
	return b
}
