package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

const (
	pods  = "/api/v1/pods"
	lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
)

// codes are the answers to so many requests in a priority level.
func codes(s *slow, level, path, token string, n int) map[int]int {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	chain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Authorization")
		w.Header().Set(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID, level)
		s.refuses(ok).ServeHTTP(w, r)
	})
	out := map[int]int{}
	for range n {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		s.delays(chain).ServeHTTP(w, r)
		out[w.Code]++
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "1" {
			out[-1]++
		}
	}
	return out
}

func slowIn(t *testing.T, says string) *slow {
	t.Helper()
	s := newSlow(t.TempDir())
	if err := os.WriteFile(filepath.Join(filepath.Dir(s.file), SlowName), []byte(says), 0o600); err != nil {
		t.Fatal(err)
	}
	s.read()
	return s
}

func TestAServerIsNotSlowWithoutTheFile(t *testing.T) {
	s := newSlow(t.TempDir())
	s.read()
	if got := codes(s, "l", pods, "sa:n:a", 10); got[200] != 10 {
		t.Error(got)
	}
}

func TestASlowServerRefusesOneInSoManyButNoLeaseAndNotItself(t *testing.T) {
	s := slowIn(t, `{"refuseEvery": 5, "retryAfterSeconds": 1}`)
	for _, c := range []struct {
		path, token string
		refused     int
	}{{pods, "sa:n:a", 2}, {pods, "node:n", 2}, {lease, "sa:n:a", 0}, {pods, "secret", 0}} {
		if got := codes(s, "l", c.path, c.token, 10); got[429] != c.refused || got[-1] != 0 {
			t.Errorf("%s by %s: %v", c.path, c.token, got)
		}
	}
}

func TestASlowServerRefusesNothingInALevelWithFewRequests(t *testing.T) {
	s := slowIn(t, `{"refuseEvery": 1, "retryAfterSeconds": 1, "quietBelow": 5}`)
	if got := codes(s, "quiet", pods, "sa:n:a", 4); got[429] != 0 {
		t.Errorf("in a quiet level: %v", got)
	}
	if got := codes(s, "busy", pods, "sa:n:a", 1000); got[429] == 0 {
		t.Errorf("in a busy level: %v", got)
	}
	if got := codes(s, "another", pods, "sa:n:a", 1); got[429] != 0 {
		t.Errorf("in a quiet level beside a busy one: %v", got)
	}
}

func TestALevelIsBusyForTheSecondAfterItsLastRequests(t *testing.T) {
	l := levels{of: map[string]seconds{}}
	for at, want := range []int64{1, 2, 3} {
		if got := l.asked("l", time.Unix(100, int64(at))); got != want {
			t.Errorf("request %d: %d", at, got)
		}
	}
	for _, c := range []struct{ at, want int64 }{{101, 3}, {100, 3}, {102, 2}, {104, 1}} {
		if got := l.asked("l", time.Unix(c.at, 0)); got != c.want {
			t.Errorf("at %d: %d", c.at, got)
		}
	}
}
