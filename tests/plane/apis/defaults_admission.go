package apis

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addAdmissionDefaults() {
	Scheme.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingAdmissionPolicy{}, func(o any) {
		p := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		def(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(p.Spec.MatchConstraints)
	})
	Scheme.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, func(o any) {
		p := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		defaultMatch(p.Spec.MatchResources)
		if p.Spec.ParamRef != nil {
			def(&p.Spec.ParamRef.ParameterNotFoundAction, admissionregistrationv1.DenyAction)
		}
	})
	Scheme.AddTypeDefaultingFunc(&admissionregistrationv1.MutatingAdmissionPolicy{}, func(o any) {
		p := o.(*admissionregistrationv1.MutatingAdmissionPolicy)
		def(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatch(p.Spec.MatchConstraints)
	})
	Scheme.AddTypeDefaultingFunc(&admissionregistrationv1.ValidatingWebhookConfiguration{}, func(o any) {
		c := o.(*admissionregistrationv1.ValidatingWebhookConfiguration)
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			def(&w.FailurePolicy, admissionregistrationv1.Fail)
			def(&w.MatchPolicy, admissionregistrationv1.Equivalent)
			def(&w.TimeoutSeconds, 10)
			def(&w.NamespaceSelector, metav1.LabelSelector{})
			def(&w.ObjectSelector, metav1.LabelSelector{})
			defaultRules(w.Rules)
		}
	})
	Scheme.AddTypeDefaultingFunc(&admissionregistrationv1.MutatingWebhookConfiguration{}, func(o any) {
		c := o.(*admissionregistrationv1.MutatingWebhookConfiguration)
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			def(&w.FailurePolicy, admissionregistrationv1.Fail)
			def(&w.MatchPolicy, admissionregistrationv1.Equivalent)
			def(&w.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
			def(&w.TimeoutSeconds, 10)
			def(&w.NamespaceSelector, metav1.LabelSelector{})
			def(&w.ObjectSelector, metav1.LabelSelector{})
			defaultRules(w.Rules)
		}
	})
}

func defaultMatch(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	def(&m.MatchPolicy, admissionregistrationv1.Equivalent)
	def(&m.NamespaceSelector, metav1.LabelSelector{})
	def(&m.ObjectSelector, metav1.LabelSelector{})
	for i := range m.ResourceRules {
		def(&m.ResourceRules[i].Scope, admissionregistrationv1.AllScopes)
	}
}

func defaultRules(rs []admissionregistrationv1.RuleWithOperations) {
	for i := range rs {
		def(&rs[i].Scope, admissionregistrationv1.AllScopes)
	}
}
