package registry

import (
	"context"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// reviewREST serves a kind that is only ever posted and never stored.
type reviewREST struct {
	empty      func() runtime.Object
	singular   string
	namespaced bool
	review     func(ctx context.Context, obj runtime.Object) (runtime.Object, error)
}

func (r *reviewREST) New() runtime.Object     { return r.empty() }
func (r *reviewREST) Destroy()                {}
func (r *reviewREST) NamespaceScoped() bool   { return r.namespaced }
func (r *reviewREST) GetSingularName() string { return r.singular }
func (r *reviewREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return r.review(ctx, obj)
}

// Decider answers access reviews.
type Decider interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// reviews are the kinds by which a client asks who it is and what it may do.
func reviews(d Decider, tokens authenticator.Request) map[schema.GroupVersionResource]rest.Storage {
	authz, authn := authorizationv1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion
	return map[schema.GroupVersionResource]rest.Storage{
		authz.WithResource("subjectaccessreviews"): &reviewREST{
			empty: func() runtime.Object { return &authorizationv1.SubjectAccessReview{} }, singular: "subjectaccessreview",
			review: func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
				sar := obj.(*authorizationv1.SubjectAccessReview)
				return sar, decide(ctx, d, subject(&sar.Spec), sar.Spec.ResourceAttributes, sar.Spec.NonResourceAttributes, &sar.Status)
			}},
		authz.WithResource("localsubjectaccessreviews"): &reviewREST{
			empty: func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} }, singular: "localsubjectaccessreview", namespaced: true,
			review: func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
				sar := obj.(*authorizationv1.LocalSubjectAccessReview)
				if a := sar.Spec.ResourceAttributes; a == nil || a.Namespace != genericapirequest.NamespaceValue(ctx) {
					return nil, apierrors.NewBadRequest("spec.resourceAttributes.namespace must match the namespace of the request")
				}
				return sar, decide(ctx, d, subject(&sar.Spec), sar.Spec.ResourceAttributes, nil, &sar.Status)
			}},
		authz.WithResource("selfsubjectaccessreviews"): &reviewREST{
			empty: func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} }, singular: "selfsubjectaccessreview",
			review: func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
				sar := obj.(*authorizationv1.SelfSubjectAccessReview)
				u, err := self(ctx)
				if err != nil {
					return nil, err
				}
				return sar, decide(ctx, d, u, sar.Spec.ResourceAttributes, sar.Spec.NonResourceAttributes, &sar.Status)
			}},
		authz.WithResource("selfsubjectrulesreviews"): &reviewREST{
			empty: func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} }, singular: "selfsubjectrulesreview",
			review: func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
				return listRules(ctx, d, obj.(*authorizationv1.SelfSubjectRulesReview))
			}},
		authn.WithResource("selfsubjectreviews"): &reviewREST{
			empty: func() runtime.Object { return &authenticationv1.SelfSubjectReview{} }, singular: "selfsubjectreview",
			review: func(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
				review := obj.(*authenticationv1.SelfSubjectReview)
				u, err := self(ctx)
				if err != nil {
					return nil, err
				}
				review.Status.UserInfo = userInfo(u)
				return review, nil
			}},
		authn.WithResource("tokenreviews"): &reviewREST{
			empty: func() runtime.Object { return &authenticationv1.TokenReview{} }, singular: "tokenreview",
			review: func(_ context.Context, obj runtime.Object) (runtime.Object, error) {
				return reviewToken(tokens, obj.(*authenticationv1.TokenReview))
			}},
	}
}

func self(ctx context.Context) (user.Info, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return u, nil
}

// reviewToken says whose a token is. Tokens here are good for every audience.
func reviewToken(tokens authenticator.Request, review *authenticationv1.TokenReview) (runtime.Object, error) {
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	request := &http.Request{Header: http.Header{"Authorization": {"Bearer " + review.Spec.Token}}}
	answer, ok, err := tokens.AuthenticateRequest(request)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		review.Status.Error = err.Error()
	}
	if ok {
		review.Status.User, review.Status.Audiences = userInfo(answer.User), review.Spec.Audiences
	}
	return review, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra(u)}
}

func extra(u user.Info) map[string]authenticationv1.ExtraValue {
	out := map[string]authenticationv1.ExtraValue{}
	for k, v := range u.GetExtra() {
		out[k] = v
	}
	return out
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: map[string][]string{}}
	for k, v := range spec.Extra {
		u.Extra[k] = v
	}
	return u
}

func decide(ctx context.Context, d Decider, u user.Info, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes, status *authorizationv1.SubjectAccessReviewStatus) error {
	attrs := authorizer.AttributesRecord{User: u}
	switch {
	case resource != nil:
		attrs.ResourceRequest = true
		attrs.Verb, attrs.Namespace, attrs.Name = resource.Verb, resource.Namespace, resource.Name
		attrs.APIGroup, attrs.APIVersion = resource.Group, resource.Version
		attrs.Resource, attrs.Subresource = resource.Resource, resource.Subresource
	case path != nil:
		attrs.Verb, attrs.Path = path.Verb, path.Path
	default:
		return apierrors.NewBadRequest("exactly one of nonResourceAttributes or resourceAttributes must be specified")
	}
	decision, reason, err := d.Authorize(ctx, attrs)
	*status = authorizationv1.SubjectAccessReviewStatus{Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny, Reason: reason}
	if err != nil {
		status.EvaluationError = fmt.Sprint(err)
	}
	return nil
}

func listRules(ctx context.Context, d Decider, review *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
	u, err := self(ctx)
	if err != nil {
		return nil, err
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resources, paths, incomplete, err := d.RulesFor(ctx, u, review.Spec.Namespace)
	if err != nil {
		return nil, err
	}
	review.Status = authorizationv1.SubjectRulesReviewStatus{Incomplete: incomplete, ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	for _, r := range resources {
		review.Status.ResourceRules = append(review.Status.ResourceRules, authorizationv1.ResourceRule{Verbs: r.GetVerbs(), APIGroups: r.GetAPIGroups(), Resources: r.GetResources(), ResourceNames: r.GetResourceNames()})
	}
	for _, p := range paths {
		review.Status.NonResourceRules = append(review.Status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: p.GetVerbs(), NonResourceURLs: p.GetNonResourceURLs()})
	}
	return review, nil
}
