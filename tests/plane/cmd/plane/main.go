// Command plane runs a test control plane: an embedded etcd, an API server made
// of the official API machinery libraries, and small stand-ins for the
// controllers and the scheduler. It runs no kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"lockstep/tests/plane/openapi"
	"lockstep/tests/plane/server"
)

const (
	parentCheck = 100 * time.Millisecond
	endDeadline = 1500 * time.Millisecond
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plane:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	started := time.Now()
	o := &server.Options{Definitions: openapi.Definitions}
	flags := flag.NewFlagSet("plane", flag.ExitOnError)
	klog.InitFlags(flags)
	flags.StringVar(&o.Dir, "dir", "plane-data", "folder for etcd's data, the certificate, the admin's token and kubeconfig")
	flags.IntVar(&o.Port, "port", 0, "port on 127.0.0.1; 0 picks a free one")
	flags.StringVar(&o.AuditLog, "audit-log", "", "file that gets one JSON line for every HTTP write")
	flags.StringVar(&o.AuditReads, "audit-reads", "", "file that gets one JSON line for every distinct kind of read")
	o.UpstreamAudit = genericoptions.NewAuditOptions()
	upstream := pflag.NewFlagSet("audit", pflag.ContinueOnError)
	o.UpstreamAudit.AddFlags(upstream)
	upstream.VisitAll(func(f *pflag.Flag) { flags.Var(f.Value, f.Name, f.Usage) })
	flags.BoolVar(&o.NativeScheduling, "native-scheduling", false, "serve scheduling.k8s.io/v1beta1 workloads and podgroups, and keep pod.spec.schedulingGroup")
	flags.StringVar(&o.FeatureGates, "feature-gates", "", "gates of the API server library: A=true,B=false")
	components := flags.String("components", strings.Join(server.ComponentNames(), ","), "stand-ins for controllers and scheduler to run; empty for a bare API server")
	withParent := flags.Bool("exit-with-parent", false, "end when the process that started this one has ended")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *components != "" {
		o.Components = strings.Split(*components, ",")
	}
	// Info says what every start says; -v brings it back. Standard error it is in
	// both cases: the library's own files would pile up in the temporary folder.
	if !isSet(flags, "v") {
		if err := errors.Join(flags.Set("stderrthreshold", "WARNING"), flags.Set("legacy_stderr_threshold_behavior", "false")); err != nil {
			return err
		}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300) // spend memory rather than CPU
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *withParent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go watchParent(cancel)
	}
	go endInTime(ctx)
	o.Ready = func(url, kubeconfig string) {
		fmt.Printf("plane: ready on %s after %.1fs, kubeconfig %s\n", url, time.Since(started).Seconds(), kubeconfig)
	}
	return server.Run(ctx, o)
}

func isSet(flags *flag.FlagSet, name string) bool {
	set := false
	flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// endInTime bounds the way out: the libraries wait for open watches, and what
// etcd has acknowledged survives an exit in any case.
func endInTime(ctx context.Context) {
	<-ctx.Done()
	time.Sleep(endDeadline)
	os.Exit(0)
}

// watchParent asks rather than being told by a signal: PR_SET_PDEATHSIG fires
// when the starting thread ends, which in a threaded parent is often long before
// the process does.
func watchParent(gone context.CancelFunc) {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(parentCheck)
	}
	gone()
}
