package smoke

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	startDeadline = 30 * time.Second
	patience      = 20 * time.Second
)

// shared is the plane that the tests of this package share; each test has a namespace of its own.
var shared *plane

// plane is a running control plane.
type plane struct {
	dir     string
	bin     string // folder with plane and kubectl
	process *exec.Cmd
	ready   string // the line that it prints when it is
	config  *rest.Config
	admin   kubernetes.Interface
}

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "plane-smoke")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	bin, err := binaries()
	if err != nil {
		return 0, err
	}
	shared, err = startPlane(bin, dir, "--native-scheduling", "--audit-log="+filepath.Join(dir, "writes"), "--audit-reads="+filepath.Join(dir, "reads"))
	if err != nil {
		return 0, err
	}
	defer shared.kill()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := startNodes(ctx, shared, 4); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// binaries is the folder that LOCKSTEP_PLANE names, or that build.sh fills.
func binaries() (string, error) {
	if dir := os.Getenv("LOCKSTEP_PLANE"); dir != "" {
		return dir, nil
	}
	if err := filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			_, err = os.Stat(path) // noted by go test, so that a changed plane is tested anew
		}
		return err
	}); err != nil {
		return "", err
	}
	build := exec.Command("../build.sh")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build.sh: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

var readyLine = regexp.MustCompile(`^plane: ready on (https://127\.0\.0\.1:\d+) `)

// startPlane starts a plane and waits until it says that it is ready.
func startPlane(bin, dir string, args ...string) (*plane, error) {
	p := &plane{dir: dir, bin: bin, process: exec.Command(filepath.Join(bin, "plane"), append([]string{"--dir", filepath.Join(dir, "data"), "--exit-with-parent"}, args...)...)}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.process.Stderr = log
	out, err := p.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.process.Start(); err != nil {
		return nil, err
	}
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n')
		line <- text
	}()
	select {
	case p.ready = <-line:
	case <-time.After(startDeadline):
	}
	if !readyLine.MatchString(p.ready) {
		p.kill()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("plane is not ready: %q\n%s", p.ready, text)
	}
	if p.config, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig()); err != nil {
		return nil, err
	}
	p.config.QPS = -1
	p.admin, err = kubernetes.NewForConfig(p.config)
	return p, err
}

func (p *plane) kubeconfig() string { return filepath.Join(p.dir, "data", "kubeconfig") }

func (p *plane) kill() {
	_ = p.process.Process.Signal(syscall.SIGKILL)
	_ = p.process.Wait()
}

// as is a client with another token.
func (p *plane) as(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(p.config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// kubectl runs kubectl in a namespace and returns what it prints, errors included.
type kubectl struct {
	t         *testing.T
	namespace string
}

// use makes a namespace for the test.
func use(t *testing.T) kubectl {
	t.Helper()
	t.Parallel()
	ns, err := shared.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "smoke-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return kubectl{t, ns.Name}
}

func (k kubectl) run(args ...string) string { return k.stdin("", args...) }

func (k kubectl) stdin(input string, args ...string) string {
	cmd := exec.Command(filepath.Join(shared.bin, "kubectl"), append([]string{"--kubeconfig", shared.kubeconfig(), "--cache-dir", filepath.Join(shared.dir, "cache"), "-n", k.namespace}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		return err.Error()
	}
	return strings.TrimSpace(warnings.ReplaceAllString(string(out), ""))
}

// warnings are lines that the server adds, such as that a version will go some day.
var warnings = regexp.MustCompile(`(?m)^Warning: .*\n`)

// apply applies a manifest and fails the test if that does.
func (k kubectl) apply(manifest string) {
	k.t.Helper()
	if out := k.stdin(manifest, "apply", "-f", "-"); strings.Contains(out, "rror") || strings.Contains(out, "nvalid") {
		k.t.Fatalf("apply: %s\n%s", out, manifest)
	}
}

// refuses applies a manifest that the server must refuse with all of the texts.
func (k kubectl) refuses(manifest string, texts ...string) {
	k.t.Helper()
	out := k.stdin(manifest, "create", "-f", "-")
	for _, text := range texts {
		if !strings.Contains(out, text) {
			k.t.Errorf("want %q in %q", text, out)
		}
	}
}

// is waits until kubectl prints exactly that.
func (k kubectl) is(want string, args ...string) {
	k.t.Helper()
	k.until(func(out string) bool { return out == want }, want, args...)
}

// shows waits until kubectl prints something that contains it.
func (k kubectl) shows(want string, args ...string) {
	k.t.Helper()
	k.until(func(out string) bool { return strings.Contains(out, want) }, want, args...)
}

func (k kubectl) until(ok func(string) bool, want string, args ...string) {
	k.t.Helper()
	var out string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if out = k.run(args...); ok(out) {
			return
		}
	}
	k.t.Errorf("kubectl %s: want %q, got %q", strings.Join(args, " "), want, out)
}

// get waits until a JSON path of an object has the value.
func (k kubectl) get(want, object, path string) {
	k.t.Helper()
	k.is(want, "get", object, "-o", "jsonpath="+path)
}

// pod is a pod's manifest with more JSON members for its metadata, spec and container.
func pod(name, metadata, spec, container string) string {
	comma := func(s string) string {
		if s == "" {
			return ""
		}
		return "," + s
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q%s},"spec":{"containers":[{"name":"c","image":"b:1"%s}]%s}}`,
		name, comma(metadata), comma(container), comma(spec))
}

// file writes a manifest to a file of the test's.
func (k kubectl) file(manifest string) string {
	k.t.Helper()
	path := filepath.Join(k.t.TempDir(), "manifest.json")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return path
}
