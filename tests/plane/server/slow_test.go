package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func codes(s *slow, path, token string, n int) map[int]int {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	out := map[int]int{}
	for range n {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		s.handler(ok).ServeHTTP(w, r)
		out[w.Code]++
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "1" {
			out[-1]++
		}
	}
	return out
}

func TestASlowServerRefusesOneInSoManyButNoLeaseAndNotItself(t *testing.T) {
	s := newSlow(t.TempDir())
	s.read()
	pods, lease := "/api/v1/pods", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
	if got := codes(s, pods, "sa:n:a", 10); got[200] != 10 {
		t.Errorf("without the file: %v", got)
	}
	says := []byte(`{"refuseEvery": 5, "retryAfterSeconds": 1}`)
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.file), SlowName), says, 0o600); err != nil {
		t.Fatal(err)
	}
	s.read()
	for _, c := range []struct {
		path, token string
		refused     int
	}{{pods, "sa:n:a", 2}, {pods, "node:n", 2}, {lease, "sa:n:a", 0}, {pods, "secret", 0}} {
		if got := codes(s, c.path, c.token, 10); got[429] != c.refused || got[-1] != 0 {
			t.Errorf("%s by %s: %v", c.path, c.token, got)
		}
	}
}
