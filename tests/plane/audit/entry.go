package audit

import (
	"context"
	"sync"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// Entry is one line of the log.
type Entry struct {
	Time time.Time `json:"time"` // of the request's arrival
	User string    `json:"user"`
	// Verb is the API verb: create, update, patch, delete, deletecollection; for reads get, list, watch.
	Verb        string `json:"verb"`
	Group       string `json:"apiGroup"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	// UID is empty where the server did not get as far as the object.
	UID string `json:"uid,omitempty"`
	// Code is the HTTP status code of the response.
	Code int `json:"code"`
	// Reason is the machine-readable reason of a refusal.
	Reason string `json:"reason,omitempty"`
	// ResourceVersionBefore is empty for creates and where the object was never read.
	ResourceVersionBefore string `json:"resourceVersionBefore"`
	// ResourceVersionAfter is empty for refusals and once the object is gone.
	ResourceVersionAfter string `json:"resourceVersionAfter"`
	DryRun               bool   `json:"dryRun,omitempty"`
	// ContentType is the media type of a patch.
	ContentType string `json:"contentType,omitempty"`
	UserAgent   string `json:"userAgent,omitempty"`
}

// Read is one line of the log of distinct reads.
type Read struct {
	User        string `json:"user"`
	Verb        string `json:"verb"`
	Group       string `json:"apiGroup"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Path        string `json:"path,omitempty"` // of a non-resource request
	HasName     bool   `json:"hasName"`
	Namespaced  bool   `json:"namespaced"`
	Allowed     bool   `json:"allowed"`
}

// request collects what the parts of the server learn about one request.
type request struct {
	mu         sync.Mutex
	write      bool // by its HTTP method
	entry      Entry
	isResource bool
	seen       bool // the authorizer has been asked
}

type contextKey struct{}

func fromContext(ctx context.Context) *request {
	r, _ := ctx.Value(contextKey{}).(*request)
	return r
}

// Before notes the object as it was before the write.
func Before(ctx context.Context, object runtime.Object) { note(ctx, object, true) }

// After notes the object as the write left it; for writes whose response does
// not carry the object (binding, eviction).
func After(ctx context.Context, object runtime.Object) { note(ctx, object, false) }

func note(ctx context.Context, object runtime.Object, before bool) {
	r := fromContext(ctx)
	if r == nil || object == nil {
		return
	}
	m, err := apimeta.Accessor(object)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entry.Verb == "deletecollection" {
		return // one line for many objects
	}
	if m.GetUID() != "" {
		r.entry.UID = string(m.GetUID())
	}
	if r.entry.Name == "" {
		r.entry.Name = m.GetName()
	}
	if before {
		r.entry.ResourceVersionBefore = m.GetResourceVersion()
	} else {
		r.entry.ResourceVersionAfter = m.GetResourceVersion()
	}
}

// noteDryRun notes what a delete says in its body rather than in its query.
func noteDryRun(ctx context.Context) {
	if r := fromContext(ctx); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.entry.DryRun = true
	}
}
