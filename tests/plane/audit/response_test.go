package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func podJSON(t *testing.T, pod *corev1.Pod) []byte {
	t.Helper()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	data, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func protobuf(t *testing.T, kind string, marshal func() ([]byte, error)) []byte {
	t.Helper()
	raw, err := marshal()
	if err != nil {
		t.Fatal(err)
	}
	data, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.Clone(protobufPrefix), data...)
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestTheResponseNamesTheObjectInEveryEncoding(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: "7"}}
	plain := podJSON(t, pod)
	for name, c := range map[string]struct {
		header http.Header
		body   []byte
	}{
		"json":     {http.Header{}, plain},
		"gzip":     {http.Header{"Content-Encoding": {"gzip"}}, zipped(t, plain)},
		"protobuf": {http.Header{}, protobuf(t, "Pod", pod.Marshal)},
	} {
		t.Run(name, func(t *testing.T) {
			e := Entry{Verb: "create"}
			describe(&e, c.header, c.body)
			if e.Name != "p" || e.UID != "u" || e.ResourceVersionAfter != "7" {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestARefusalHasItsReasonAndNoVersion(t *testing.T) {
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Reason: metav1.StatusReasonConflict, Details: &metav1.StatusDetails{UID: "u"}}
	data, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"json": data, "protobuf": protobuf(t, "Status", status.Marshal)} {
		t.Run(name, func(t *testing.T) {
			e := Entry{Verb: "update", ResourceVersionBefore: "3"}
			describe(&e, http.Header{}, body)
			if e.Reason != "Conflict" || e.UID != "u" || e.ResourceVersionAfter != "" || e.ResourceVersionBefore != "3" {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestADeletedObjectHasAVersionOnlyWhileItLingers(t *testing.T) {
	now, zero, grace := metav1.Now(), int64(0), int64(30)
	for name, c := range map[string]struct {
		meta metav1.ObjectMeta
		want string
	}{
		"removed at once":       {metav1.ObjectMeta{ResourceVersion: "7"}, ""},
		"let go by its kubelet": {metav1.ObjectMeta{ResourceVersion: "7", DeletionTimestamp: &now, DeletionGracePeriodSeconds: &zero}, ""},
		"in its grace period":   {metav1.ObjectMeta{ResourceVersion: "7", DeletionTimestamp: &now, DeletionGracePeriodSeconds: &grace}, "7"},
		"held by a finalizer":   {metav1.ObjectMeta{ResourceVersion: "7", DeletionTimestamp: &now, DeletionGracePeriodSeconds: &zero, Finalizers: []string{"f"}}, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Entry{Verb: "delete"}
			describe(&e, http.Header{}, podJSON(t, &corev1.Pod{ObjectMeta: c.meta}))
			if e.ResourceVersionAfter != c.want {
				t.Errorf("want %q, got %+v", c.want, e)
			}
		})
	}
}

func TestALineIsWrittenBeforeTheResponseIsReleased(t *testing.T) {
	path := t.TempDir() + "/writes"
	log, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	handler := log.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		log.note(req.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "a"}, Verb: "create", Resource: "pods", ResourceRequest: true}, true)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("{}"))
	}))
	var seen []byte
	handler.ServeHTTP(&spy{header: http.Header{}, onHeader: func() { seen, _ = os.ReadFile(path) }}, httptest.NewRequest(http.MethodPost, "/", nil))
	if !bytes.Contains(seen, []byte(`"user":"a","verb":"create"`)) || !bytes.Contains(seen, []byte(`"code":201`)) {
		t.Errorf("when the response went out, the log held %q", seen)
	}
}

func TestAnAbortedWriteIsLoggedAndNotAnswered(t *testing.T) {
	path := t.TempDir() + "/writes"
	log, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	handler := log.Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		log.note(req.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "a"}, Verb: "create", Resource: "pods", ResourceRequest: true}, true)
		panic(http.ErrAbortHandler)
	}))
	defer func() {
		if recover() == nil {
			t.Error("the panic is the server's to see")
		}
		if line, _ := os.ReadFile(path); !bytes.Contains(line, []byte(`"code":500`)) {
			t.Errorf("log: %q", line)
		}
	}()
	handler.ServeHTTP(&spy{header: http.Header{}, onHeader: func() { t.Error("answered") }}, httptest.NewRequest(http.MethodPost, "/", nil))
}

// spy calls back when the response starts.
type spy struct {
	header   http.Header
	onHeader func()
}

func (s *spy) Header() http.Header         { return s.header }
func (s *spy) WriteHeader(int)             { s.onHeader() }
func (s *spy) Write(b []byte) (int, error) { return len(b), nil }
