// Package server assembles the control plane: etcd, the three API servers in
// one process (custom resources, built-in types, aggregator), admission,
// authentication, audit, and the stand-ins for the other components.
package server
