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
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/auth"
)

// TokenREST serves serviceaccounts/token.
type TokenREST struct{ accounts, pods *genericregistry.Store }

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

// Create issues a token of the service account; bound to a pod, it names the pod's node.
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
	node := ""
	if ref := request.Spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
		if node, err = r.nodeOf(ctx, ref, name); err != nil {
			return nil, err
		}
	}
	request.Spec.ExpirationSeconds = &seconds
	request.Name, request.Namespace, request.CreationTimestamp = sa.Name, sa.Namespace, metav1.Now()
	request.Status = authenticationv1.TokenRequestStatus{
		Token:               auth.ServiceAccountToken(sa.Namespace, sa.Name, node),
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second)),
	}
	return request, nil
}

func (r *TokenREST) nodeOf(ctx context.Context, ref *authenticationv1.BoundObjectReference, account string) (string, error) {
	stored, err := r.pods.Get(ctx, ref.Name, &metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pod := stored.(*corev1.Pod)
	if ref.UID != "" && ref.UID != pod.UID {
		return "", conflict("pods", ref.Name, fmt.Sprintf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	if pod.Spec.ServiceAccountName != account {
		return "", apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", account))
	}
	return pod.Spec.NodeName, nil
}
