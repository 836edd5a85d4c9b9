package server

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
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
	// QuietBelow is the number of requests a second below which a priority level refuses none of them,
	// whatever is in the queues of others. 0: every level refuses.
	QuietBelow int64 `json:"quietBelow"`
}

// slow follows the file.
type slow struct {
	file    string
	now     atomic.Pointer[slowness]
	counter atomic.Int64
	levels  levels
}

func newSlow(dir string) *slow {
	return &slow{file: filepath.Join(dir, SlowName), levels: levels{of: map[string]seconds{}}}
}

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

type slownessKey struct{}

// delays goes before everything else: a request that waits holds no seat of its priority level.
func (s *slow) delays(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if says := s.now.Load(); says != nil && spellsOutWho(r) {
			time.Sleep(time.Duration(says.DelayMillis) * time.Millisecond)
			r = r.WithContext(context.WithValue(r.Context(), slownessKey{}, says))
		}
		next.ServeHTTP(w, r)
	})
}

// refuses goes behind priority and fairness, which put the level of a request into the answer's header.
// Authentication has taken away by then what spells out who asks: it follows delays.
func (s *slow) refuses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		says, _ := r.Context().Value(slownessKey{}).(*slowness)
		lease := strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/")
		if says == nil || says.RefuseEvery <= 0 || lease {
			next.ServeHTTP(w, r)
			return
		}
		level := w.Header().Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
		busy := s.levels.asked(level, time.Now()) >= says.QuietBelow
		if busy && s.counter.Add(1)%says.RefuseEvery == 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(says.RetryAfterSeconds, 10))
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// levels count the requests of each priority level, by its UID.
type levels struct {
	mu sync.Mutex
	of map[string]seconds
}

// seconds are the requests of the second that runs and of the one before it.
type seconds struct{ second, now, before int64 }

// asked counts a request and gives the larger of the two counts.
func (l *levels) asked(level string, at time.Time) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of[level]
	switch later := at.Unix() - c.second; {
	case later <= 0: // of two at once the later one may come first
	case later == 1:
		c.second, c.now, c.before = at.Unix(), 0, c.now
	default:
		c.second, c.now, c.before = at.Unix(), 0, 0
	}
	c.now++
	l.of[level] = c
	return max(c.now, c.before)
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
