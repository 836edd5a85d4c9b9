package controllers

import (
	"context"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// startAggregation fills cluster roles that have an aggregation rule.
func startAggregation(ctx context.Context, d Deps) {
	const all = "all"
	queue := newQueue[string](20*time.Millisecond, time.Second)
	roles := d.Informers.Rbac().V1().ClusterRoles()
	onAny(roles.Informer(), func(any) { queue.Add(all) })
	work(ctx, 1, queue, func(string) error {
		list, err := roles.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		slices.SortFunc(list, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
		for _, role := range list {
			if role.AggregationRule == nil {
				continue
			}
			next := role.DeepCopy()
			next.Rules = aggregate(role, list)
			if apiequality.Semantic.DeepEqual(next.Rules, role.Rules) {
				continue
			}
			if _, err := d.Client.RbacV1().ClusterRoles().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

func aggregate(role *rbacv1.ClusterRole, list []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation upstream refuses it
		}
		for _, source := range list {
			if source.Name == role.Name || !selector.Matches(labels.Set(source.Labels)) {
				continue
			}
			for _, rule := range source.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}
