package admission

import (
	"context"
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apiserver/pkg/warning"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

const podSecurityPlugin = "PodSecurity"

// podSecurity hands requests to the Pod Security library: namespaces opt in by label.
type podSecurity struct {
	*admission.Handler
	delegate *podsecurity.Admission
}

func registerPodSecurity(plugins *admission.Plugins, inf informers.SharedInformerFactory, client kubernetes.Interface) error {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	config, err := load.LoadFromData(nil) // the defaults: everything privileged
	if err != nil {
		return err
	}
	delegate := &podsecurity.Admission{
		Configuration:    config,
		Evaluator:        checks,
		Metrics:          metrics.NewPrometheusRecorder(podsecurityapi.GetAPIVersion()),
		PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
		NamespaceGetter:  podsecurity.NamespaceGetterFromListerAndClient(inf.Core().V1().Namespaces().Lister(), client),
		PodLister:        podsecurity.PodListerFromInformer(inf.Core().V1().Pods().Lister()),
	}
	if err := errors.Join(delegate.CompleteConfiguration(), delegate.ValidateConfiguration()); err != nil {
		return err
	}
	plugins.Register(podSecurityPlugin, func(io.Reader) (admission.Interface, error) {
		return &podSecurity{admission.NewHandler(admission.Create, admission.Update), delegate}, nil
	})
	return nil
}

func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch gr := a.GetResource().GroupResource(); gr.Resource {
	case "namespaces", "pods", "jobs", "deployments", "daemonsets", "statefulsets":
	default:
		return nil
	}
	username := ""
	if u := a.GetUserInfo(); u != nil {
		username = u.GetName()
	}
	response := p.delegate.Validate(ctx, &podsecurityapi.AttributesRecord{
		Name: a.GetName(), Namespace: a.GetNamespace(), Kind: a.GetKind(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
		Operation: admissionv1.Operation(a.GetOperation()), Object: a.GetObject(), OldObject: a.GetOldObject(), Username: username,
	})
	for _, w := range response.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	if response.Allowed {
		return nil
	}
	if r := response.Result; r != nil && r.Code != 0 && r.Code != 403 {
		return &apierrors.StatusError{ErrStatus: *r}
	}
	msg := "pod security policy violated"
	if response.Result != nil {
		msg = response.Result.Message
	}
	return admission.NewForbidden(a, errors.New(msg))
}
