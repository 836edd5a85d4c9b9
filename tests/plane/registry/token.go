package registry

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/auth"
)

// TokenREST serves serviceaccounts/token.
type TokenREST struct{ accounts, pods, nodes *genericregistry.Store }

// New is an empty object for decoding.
func (r *TokenREST) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy does nothing: the main endpoints own the stores.
func (r *TokenREST) Destroy() {}

// GroupVersionKind says that this subresource of a core type takes an authentication type.
func (r *TokenREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

const (
	defaultTokenSeconds = 3600
	leastTokenSeconds   = 600
)

// Create issues a token of the service account; bound to a pod, it names the pod and its node.
func (r *TokenREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	request := obj.(*authenticationv1.TokenRequest)
	if validate != nil {
		if err := validate(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	account, err := r.accounts.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	sa := account.(*corev1.ServiceAccount)
	seconds := ptr.Deref(request.Spec.ExpirationSeconds, defaultTokenSeconds)
	if seconds < leastTokenSeconds {
		return nil, apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "expirationSeconds"), seconds, "may not specify a duration less than 10 minutes")})
	}
	claims := serviceaccount.ServiceAccountInfo{Namespace: sa.Namespace, Name: sa.Name}
	if ref := request.Spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
		if err := r.claim(ctx, ref, &claims); err != nil {
			return nil, err
		}
	}
	request.Spec.ExpirationSeconds = &seconds
	request.Name, request.Namespace, request.CreationTimestamp = sa.Name, sa.Namespace, metav1.Now()
	request.Status = authenticationv1.TokenRequestStatus{
		Token:               auth.ServiceAccountToken(&claims),
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second)),
	}
	return request, nil
}

// claim adds pod and node of a token that is bound to a pod.
func (r *TokenREST) claim(ctx context.Context, ref *authenticationv1.BoundObjectReference, claims *serviceaccount.ServiceAccountInfo) error {
	stored, err := r.pods.Get(ctx, ref.Name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod := stored.(*corev1.Pod)
	if ref.UID != "" && ref.UID != pod.UID {
		return conflict("pods", ref.Name, fmt.Sprintf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	if pod.Spec.ServiceAccountName != claims.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", claims.Name))
	}
	claims.PodName, claims.PodUID, claims.NodeName = pod.Name, string(pod.UID), pod.Spec.NodeName
	if claims.NodeName == "" {
		return nil
	}
	node, err := r.nodes.Get(genericrequest.WithNamespace(ctx, ""), claims.NodeName, &metav1.GetOptions{})
	switch {
	case err == nil:
		claims.NodeUID = string(node.(*corev1.Node).UID)
	// As the API server does: of a node that is gone only the name is claimed.
	case !apierrors.IsNotFound(err):
		return err
	}
	return nil
}
