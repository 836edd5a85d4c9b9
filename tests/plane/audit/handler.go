package audit

import (
	"bytes"
	"context"
	"mime"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// Handler wraps the server's whole chain. Responses to writes are held back
// until their line is in the file; reads stream through.
func (l *Log) Handler(next http.Handler) http.Handler {
	if l.writes == nil && l.reads == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := &request{write: isWrite(req.Method), entry: Entry{Time: time.Now().UTC(), UserAgent: req.UserAgent()}}
		req = req.WithContext(context.WithValue(req.Context(), contextKey{}, r))
		if !r.write {
			next.ServeHTTP(w, req)
			return
		}
		held := &heldWriter{to: w, code: http.StatusOK}
		answered := false
		defer func() { // also when the handler panics to abort the connection
			if !answered {
				held.code = http.StatusInternalServerError // as far as the log goes; the client gets no answer
			}
			if l.finishWrite(r, req, held) && answered {
				held.release()
			}
		}()
		next.ServeHTTP(held, req)
		answered = true
	})
}

func isWrite(method string) bool {
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// finishWrite logs the write and says whether its response may go out.
func (l *Log) finishWrite(r *request, req *http.Request, held *heldWriter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.seen || !r.isResource {
		return true // never got as far as a known user and object
	}
	e := &r.entry
	e.Code = held.code
	e.DryRun = e.DryRun || req.URL.Query().Has("dryRun")
	if req.Method == http.MethodPatch {
		e.ContentType, _, _ = mime.ParseMediaType(req.Header.Get("Content-Type"))
	}
	describe(e, held.Header(), held.body.Bytes())
	if err := l.write(e); err != nil {
		klog.ErrorS(err, "audit of writes")
		return false
	}
	return true
}

// heldWriter keeps a response until release.
type heldWriter struct {
	to   http.ResponseWriter
	code int
	body bytes.Buffer
}

func (h *heldWriter) Header() http.Header { return h.to.Header() }

func (h *heldWriter) WriteHeader(code int) { h.code = code }

func (h *heldWriter) Write(b []byte) (int, error) { return h.body.Write(b) }

func (h *heldWriter) release() {
	h.to.WriteHeader(h.code)
	_, _ = h.to.Write(h.body.Bytes()) // a client that has gone away is no error of ours
}
