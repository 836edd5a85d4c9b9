package audit

import (
	"context"
	"strings"

	"k8s.io/klog/v2"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorizer notes every request on its way to the real authorizer, which sees
// what is asked by whom after authentication and impersonation.
type Authorizer struct {
	authorizer.Authorizer
	Log *Log
}

// Authorize notes the request and decides as the wrapped authorizer does.
func (a Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, attrs)
	a.Log.note(ctx, attrs, decision == authorizer.DecisionAllow)
	return decision, reason, err
}

// ConditionsAwareAuthorize is Authorize for callers that could take conditions.
func (a Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// note keeps the first question of a request. Impersonation asks before it, by
// verbs like impersonate and impersonate-on:user-info:create; admission and
// access reviews ask after it, about other things.
func (l *Log) note(ctx context.Context, attrs authorizer.Attributes, allowed bool) {
	r := fromContext(ctx)
	if r == nil || strings.HasPrefix(attrs.GetVerb(), "impersonate") {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen {
		return
	}
	r.seen, r.isResource = true, attrs.IsResourceRequest()
	e := &r.entry
	if u := attrs.GetUser(); u != nil {
		e.User = u.GetName()
	}
	e.Verb, e.Group, e.Resource, e.Subresource = attrs.GetVerb(), attrs.GetAPIGroup(), attrs.GetResource(), attrs.GetSubresource()
	e.Namespace, e.Name = attrs.GetNamespace(), attrs.GetName()
	if r.write {
		return // logged with its outcome
	}
	read := Read{User: e.User, Verb: e.Verb, Group: e.Group, Resource: e.Resource, Subresource: e.Subresource,
		HasName: e.Name != "", Namespaced: e.Namespace != "", Allowed: allowed}
	if !r.isResource {
		read.Path = attrs.GetPath()
	}
	if err := l.read(read); err != nil {
		klog.ErrorS(err, "audit of reads")
	}
}
