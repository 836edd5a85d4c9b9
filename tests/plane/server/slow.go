package server

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// SlowName is the file in the plane's folder that makes it slow while it is there.
const SlowName = "slow.json"

// slowness is how an API server behaves that has too much to do: every request waits, and some are
// refused in the words of API Priority and Fairness. Of its own clients and the admin nothing is felt,
// and a Lease is delayed but never refused, as under the priority level of leader election.
type slowness struct {
	DelayMillis int64 `json:"delayMillis"`
	// RefuseEvery refuses one request in so many; 0: none.
	RefuseEvery int64 `json:"refuseEvery"`
	// RetryAfterSeconds is what a refusal asks to wait.
	RetryAfterSeconds int64 `json:"retryAfterSeconds"`
}

// slow follows the file.
type slow struct {
	file    string
	now     atomic.Pointer[slowness]
	counter atomic.Int64
}

func newSlow(dir string) *slow { return &slow{file: filepath.Join(dir, SlowName)} }

// follow reads the file again and again until the context ends.
func (s *slow) follow(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s.read()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *slow) read() {
	text, err := os.ReadFile(s.file)
	if err != nil {
		s.now.Store(nil)
		return
	}
	var says slowness
	if json.Unmarshal(text, &says) == nil {
		s.now.Store(&says)
	}
}

func (s *slow) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		says := s.now.Load()
		if says == nil || !spellsOutWho(r) {
			next.ServeHTTP(w, r)
			return
		}
		time.Sleep(time.Duration(says.DelayMillis) * time.Millisecond)
		lease := strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/")
		if says.RefuseEvery > 0 && !lease && s.counter.Add(1)%says.RefuseEvery == 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(says.RetryAfterSeconds, 10))
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// spellsOutWho tells the parts of a test from the plane itself and the admin.
func spellsOutWho(r *http.Request) bool {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, kind := range []string{"sa:", "node:", "user:"} {
		if strings.HasPrefix(token, kind) {
			return true
		}
	}
	return false
}
