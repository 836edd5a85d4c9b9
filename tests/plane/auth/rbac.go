package auth

import (
	"context"
	"iter"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// RBAC evaluates roles and bindings from informer caches. Members of
// system:masters may do everything.
type RBAC struct {
	informers informers.SharedInformerFactory
}

// NewRBAC starts to follow roles and bindings when the factory is started.
func NewRBAC(factory informers.SharedInformerFactory) *RBAC {
	v := factory.Rbac().V1()
	v.Roles().Informer()
	v.RoleBindings().Informer()
	v.ClusterRoles().Informer()
	v.ClusterRoleBindings().Informer()
	return &RBAC{factory}
}

// Authorize implements authorizer.Authorizer.
func (r *RBAC) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	for rule := range r.rules(a.GetUser(), a.GetNamespace()) {
		if allows(rule, a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize decides without conditions.
func (r *RBAC) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

// EvaluateConditions is never called: no decision of RBAC has conditions.
func (r *RBAC) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor lists what a user may do in a namespace (kubectl auth can-i --list).
func (r *RBAC) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for rule := range r.rules(u, namespace) {
		if len(rule.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames})
		}
		if len(rule.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return resources, paths, false, nil
}

// rules yields every rule that reaches the user, cluster-wide or in the namespace.
func (r *RBAC) rules(u user.Info, namespace string) iter.Seq[*rbacv1.PolicyRule] {
	v := r.informers.Rbac().V1()
	return func(yield func(*rbacv1.PolicyRule) bool) {
		each := func(rules []rbacv1.PolicyRule) bool {
			for i := range rules {
				if !yield(&rules[i]) {
					return false
				}
			}
			return true
		}
		for _, obj := range v.ClusterRoleBindings().Informer().GetStore().List() {
			if b := obj.(*rbacv1.ClusterRoleBinding); binds(b.Subjects, "", u) && !each(r.roleRules(b.RoleRef, "")) {
				return
			}
		}
		if namespace == "" {
			return
		}
		for _, obj := range v.RoleBindings().Informer().GetStore().List() {
			b := obj.(*rbacv1.RoleBinding)
			if b.Namespace == namespace && binds(b.Subjects, namespace, u) && !each(r.roleRules(b.RoleRef, namespace)) {
				return
			}
		}
	}
}

func (r *RBAC) roleRules(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
	v := r.informers.Rbac().V1()
	if ref.Kind == "ClusterRole" {
		if role, err := v.ClusterRoles().Lister().Get(ref.Name); err == nil {
			return role.Rules
		}
		return nil
	}
	if role, err := v.Roles().Lister().Roles(namespace).Get(ref.Name); err == nil {
		return role.Rules
	}
	return nil
}

func binds(subjects []rbacv1.Subject, namespace string, u user.Info) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		switch s.Kind {
		case rbacv1.UserKind:
			return s.Name == u.GetName()
		case rbacv1.GroupKind:
			return slices.Contains(u.GetGroups(), s.Name)
		case rbacv1.ServiceAccountKind:
			in := s.Namespace
			if in == "" {
				in = namespace
			}
			return serviceaccount.MatchesUsername(in, s.Name, u.GetName())
		}
		return false
	})
}

func allows(rule *rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !has(rule.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(pattern string) bool {
			prefix, wild := strings.CutSuffix(pattern, "*")
			return pattern == a.GetPath() || wild && strings.HasPrefix(a.GetPath(), prefix)
		})
	}
	named := len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName())
	return named && has(rule.APIGroups, a.GetAPIGroup()) && coversResource(rule.Resources, a.GetResource(), a.GetSubresource())
}

func has(list []string, value string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, value)
}

func coversResource(list []string, resource, subresource string) bool {
	if subresource == "" {
		return has(list, resource)
	}
	return has(list, resource+"/"+subresource) || slices.Contains(list, "*/"+subresource)
}
