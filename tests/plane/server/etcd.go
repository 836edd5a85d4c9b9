package server

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

const (
	etcdAttempts = 5
	etcdDeadline = 30 * time.Second
	etcdQuota    = 8 << 30
)

// startEtcd starts an etcd in this process and returns its client address.
// Its ports are drawn, so another process may take one first: it tries again.
func startEtcd(dir string) (*embed.Etcd, string, error) {
	var errs []error
	for range etcdAttempts {
		e, address, err := tryEtcd(dir)
		if err == nil {
			return e, address, nil
		}
		errs = append(errs, err)
	}
	return nil, "", fmt.Errorf("etcd: %w", errors.Join(errs...))
}

func tryEtcd(dir string) (*embed.Etcd, string, error) {
	client, err := freeURL()
	if err != nil {
		return nil, "", err
	}
	peer, err := freeURL()
	if err != nil {
		return nil, "", err
	}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.LogLevel = "fatal"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.QuotaBackendBytes = etcdQuota
	cfg.TickMs, cfg.ElectionMs = 10, 100 // a single member elects itself at once
	cfg.WarningApplyDuration = time.Second
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = 2000, 500 // keep little raft log in memory
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, "", err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, client.String(), nil
	case <-time.After(etcdDeadline):
		e.Close()
		return nil, "", fmt.Errorf("not ready after %s", etcdDeadline)
	}
}

func freeURL() (*url.URL, error) {
	l, port, err := listen(0)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}, l.Close()
}
